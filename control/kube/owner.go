package kube

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

// Owner is the clusterset on whose behalf objects are made. Nothing without its marks is changed or deleted.
type Owner struct{ HubID string }

// Mark puts the owner's marks on an object.
func (o Owner) Mark(obj client.Object) {
	labels := obj.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[v1alpha1.LabelManagedBy] = v1alpha1.ManagedBy
	obj.SetLabels(labels)
	annotations := obj.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.AnnotationHubID] = o.HubID
	obj.SetAnnotations(annotations)
}

// Owns says whether the object carries the owner's marks.
func (o Owner) Owns(obj client.Object) bool {
	return obj.GetLabels()[v1alpha1.LabelManagedBy] == v1alpha1.ManagedBy && obj.GetAnnotations()[v1alpha1.AnnotationHubID] == o.HubID
}
