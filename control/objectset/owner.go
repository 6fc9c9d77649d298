package objectset

import "sigs.k8s.io/controller-runtime/pkg/client"

// Marks of the objects that the agent makes in a member.
const (
	ManagedByLabel = "app.kubernetes.io/managed-by"
	ManagedBy      = "pelago"
	// HubIDAnnotation holds the id of the clusterset's hub (the UID of its namespace kube-system).
	HubIDAnnotation = "pelago.io/hub-id"
)

// Owner is the clusterset on whose behalf objects are made. Nothing without its marks is changed or deleted.
type Owner struct{ HubID string }

// Mark puts the owner's marks on an object.
func (o Owner) Mark(obj client.Object) {
	labels := obj.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[ManagedByLabel] = ManagedBy
	obj.SetLabels(labels)
	annotations := obj.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[HubIDAnnotation] = o.HubID
	obj.SetAnnotations(annotations)
}

// Owns says whether the object carries the owner's marks.
func (o Owner) Owns(obj client.Object) bool {
	return obj.GetLabels()[ManagedByLabel] == ManagedBy && obj.GetAnnotations()[HubIDAnnotation] == o.HubID
}
