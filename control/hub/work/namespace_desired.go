package work

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/kinds"
)

// Propagated reports whether a namespace is propagated to all clusters without a policy; with optIn
// only if a label requests it.
func Propagated(ns metav1.Object, optIn bool) bool {
	labels := ns.GetLabels()
	switch {
	case ns.GetDeletionTimestamp() != nil, ns.GetName() == metav1.NamespaceDefault, workv1alpha2.ReservedNamespace(ns.GetName()),
		labels[policyv1alpha1.LabelNamespaceSkipAutoPropagation] == "true":
		return false
	}
	return !optIn || labels[policyv1alpha1.LabelPropagateNamespace] == "true"
}

// reference names a namespace as a binding would.
func reference(name string) workv1alpha2.ObjectReference {
	apiVersion, kind := corev1.SchemeGroupVersion.WithKind("Namespace").ToAPIVersionAndKind()
	return workv1alpha2.ObjectReference{APIVersion: apiVersion, Kind: kind, Name: name}
}

// NamespaceInput is all that the Works of one namespace are computed from.
type NamespaceInput struct {
	Interpreter *kinds.Interpreter
	HubID       string
	Namespace   *metav1.PartialObjectMetadata
	// Clusters are those that exist and are not being deleted, by name.
	Clusters  map[string]*clusterv1alpha1.Cluster
	Overrides policy.OverridePolicies
	// Works are those of the namespace that exist, by cluster. Those that a binding made are taken
	// over.
	Works map[string]*workv1alpha1.Work
	Names Names
	// NewID makes a permanent id.
	NewID func() string
}

// DesiredNamespaceWorks gives each cluster that takes some a Work of the namespace, in the order of
// the clusters' names. It deletes none: Works of a cluster that is leaving are deleted with their
// namespace, those of a cluster that was rejected stay.
func DesiredNamespaceWorks(in *NamespaceInput) Writes {
	works := assigner{interpreter: in.Interpreter, hubID: in.HubID, newID: in.NewID}
	for _, cluster := range slices.Sorted(maps.Keys(in.Clusters)) {
		if !in.Clusters[cluster].Takes() {
			continue
		}
		works.assign("Namespace "+in.Namespace.Name, cluster, in.Works[cluster], in.Names, func() (RenderInput, error) {
			return RenderInput{Object: plain(in.Namespace), Cluster: in.Clusters[cluster], Overrides: in.Overrides}, nil
		})
	}
	return works.Writes
}

// plain is a namespace without what each API server fills in itself: its finalizer, its status and
// the label with its name.
func plain(ns *metav1.PartialObjectMetadata) *unstructured.Unstructured {
	out := &unstructured.Unstructured{}
	out.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	out.SetName(ns.Name)
	out.SetUID(ns.UID)
	labels := maps.Clone(ns.Labels)
	delete(labels, corev1.LabelMetadataName)
	out.SetLabels(labels)
	out.SetAnnotations(ns.Annotations)
	return out
}
