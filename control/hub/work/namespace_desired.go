package work

import (
	"fmt"
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

// Propagated reports whether a namespace is propagated to all clusters without a policy; with optIn only if a label asks for it.
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
	// Works are those of the namespace that exist, by cluster. Those that a binding made are taken over.
	Works map[string]*workv1alpha1.Work
	Names Names
	// NewID makes a permanent id.
	NewID func() string
}

// NamespacePlan is what is to be written, in the order of the clusters' names.
type NamespacePlan struct {
	Create, Update []*workv1alpha1.Work
	// Failed are errors that name the cluster; its Work stays as it was.
	Failed []error
	// Skipped are the override rules that were not applied, of all clusters.
	Skipped []policy.SkippedRule
}

// DesiredNamespaceWorks gives each cluster a Work of the namespace. It takes none away: Works of a cluster that is leaving go with their
// namespace.
func DesiredNamespaceWorks(in *NamespaceInput) NamespacePlan {
	var plan NamespacePlan
	for _, cluster := range slices.Sorted(maps.Keys(in.Clusters)) {
		have := in.Works[cluster]
		if have != nil && have.DeletionTimestamp != nil {
			continue // a new one can be made when it has gone
		}
		want, skipped, err := in.work(cluster, have)
		plan.Skipped = append(plan.Skipped, skipped...)
		switch {
		case err != nil:
			err = fmt.Errorf("make the Work of Namespace %s for cluster %s: %w", in.Namespace.Name, cluster, err)
			plan.Failed = append(plan.Failed, err)
		case have == nil:
			plan.Create = append(plan.Create, want)
		default:
			if next := Updated(have, want); next != nil {
				plan.Update = append(plan.Update, next)
			}
		}
	}
	return plan
}

func (in *NamespaceInput) work(cluster string, have *workv1alpha1.Work) (*workv1alpha1.Work, []policy.SkippedRule, error) {
	var name, id string
	var err error
	if have != nil {
		name, id = have.Name, have.Labels[workv1alpha1.LabelWorkID]
	} else if name, err = in.Names.Free(cluster); err != nil {
		return nil, nil, err
	}
	if id == "" {
		id = in.NewID()
	}
	return Render(in.Interpreter, RenderInput{
		Object: plain(in.Namespace), Cluster: in.Clusters[cluster], Overrides: in.Overrides, Name: name, ID: id, HubID: in.HubID,
	})
}

// plain is a namespace without what each API server fills in itself: its finalizer, its status and the label with its name.
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
