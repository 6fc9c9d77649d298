package policy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// refsInterval is how soon it is noticed that what was not found has been created.
const refsInterval = 30 * time.Second

// ownGroups are groups none of whose objects are templates: what propagation itself consists of,
// and the network's.
var ownGroups = []string{"cluster.karmada.io", "policy.karmada.io", "work.karmada.io", "config.karmada.io", "pelago.io",
	"submariner.io", "events.k8s.io", "coordination.k8s.io", "discovery.k8s.io"}

// OwnKind reports whether objects of a kind are never templates. Of discovery.k8s.io and
// coordination.k8s.io nothing is left without EndpointSlices and Leases.
func OwnKind(gk schema.GroupKind) bool {
	return slices.Contains(ownGroups, gk.Group) || gk == schema.GroupKind{Kind: "Event"}
}

// refs are what a policy names.
type refs struct {
	selectors []policyv1alpha1.ResourceSelector
	clusters  []clusterRef
}

// clusterRef is an affinity with its path.
type clusterRef struct {
	at *field.Path
	to *policyv1alpha1.ClusterAffinity
}

func (r *refs) add(at *field.Path, a *policyv1alpha1.ClusterAffinity) {
	if a != nil {
		r.clusters = append(r.clusters, clusterRef{at, a})
	}
}

var specPath = field.NewPath("spec")

func refsOfPropagation(s *policyv1alpha1.PropagationSpec) refs {
	r := refs{selectors: s.ResourceSelectors}
	at := specPath.Child("placement")
	r.add(at.Child("clusterAffinity"), s.Placement.ClusterAffinity)
	for i := range s.Placement.ClusterAffinities {
		term, at := &s.Placement.ClusterAffinities[i], at.Child("clusterAffinities").Index(i)
		r.add(at, &term.ClusterAffinity)
		for k := range term.OverflowAffinities {
			r.add(at.Child("overflowAffinities").Index(k), &term.OverflowAffinities[k].ClusterAffinity)
		}
	}
	if d := s.Placement.ReplicaScheduling; d != nil && d.WeightPreference != nil {
		for i := range d.WeightPreference.StaticWeightList {
			r.add(at.Child("replicaScheduling", "weightPreference", "staticWeightList").Index(i).Child("targetCluster"),
				&d.WeightPreference.StaticWeightList[i].TargetCluster)
		}
	}
	return r
}

func refsOfOverride(s *policyv1alpha1.OverrideSpec) refs {
	r := refs{selectors: s.ResourceSelectors}
	r.add(specPath.Child("targetCluster"), s.TargetCluster)
	for i := range s.OverrideRules {
		r.add(specPath.Child("overrideRules").Index(i).Child("targetCluster"), s.OverrideRules[i].TargetCluster)
	}
	return r
}

func refsOfTaint(s *policyv1alpha1.ClusterTaintPolicySpec) (r refs) {
	r.add(specPath.Child("targetClusters"), s.TargetClusters)
	return r
}

// unresolved lists the fields of a policy that name what the hub does not have; namespace is the
// policy's own.
func (r refs) unresolved(namespace string, kinds meta.RESTMapper, joined func(cluster string) (bool, error)) (out []string, err error) {
	if len(r.selectors) > 0 && workv1alpha2.ReservedNamespace(namespace) {
		out = append(out, fmt.Sprintf("metadata.namespace: nothing in the system's namespace %s is propagated: put the objects into another one", namespace))
	}
	for i := range r.selectors {
		s, at := &r.selectors[i], specPath.Child("resourceSelectors").Index(i)
		if namespace == "" && workv1alpha2.ReservedNamespace(s.Namespace) {
			out = append(out, fmt.Sprintf("%s: nothing in the system's namespace %s is propagated: put the objects into another one", at.Child("namespace"), s.Namespace))
		}
		why, err := kindProblem(schema.FromAPIVersionAndKind(s.APIVersion, s.Kind), kinds)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		if why != "" {
			out = append(out, fmt.Sprintf("%s: %s", at, why))
		}
	}
	for _, c := range r.clusters {
		for _, list := range []struct {
			field string
			names []string
		}{{"clusterNames", c.to.ClusterNames}, {"exclude", c.to.ExcludeClusters}} {
			for i, name := range list.names {
				ok, err := joined(name)
				if err != nil {
					return nil, err
				}
				if !ok {
					out = append(out, fmt.Sprintf("%s: no cluster %q has joined", c.at.Child(list.field).Index(i), name))
				}
			}
		}
	}
	return out, nil
}

// kindProblem is why no object of a kind is selected; empty: some may be.
func kindProblem(gvk schema.GroupVersionKind, kinds meta.RESTMapper) (string, error) {
	if gvk.Kind == "" || OwnKind(gvk.GroupKind()) {
		return fmt.Sprintf("objects of kind %s in %s are never propagated", gvk.Kind, gvk.GroupVersion()), nil
	}
	_, err := kinds.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err == nil {
		return "", nil
	}
	if !meta.IsNoMatchError(err) {
		return "", fmt.Errorf("ask whether kind %s is served: %w", gvk.Kind, err)
	}
	why := fmt.Sprintf("the hub serves no kind %s in %s", gvk.Kind, gvk.GroupVersion())
	// the same name in other letters, another version or another group
	plural, _ := meta.UnsafeGuessKindToResource(gvk) // the singular
	found, err := kinds.KindFor(schema.GroupVersionResource{Resource: plural.Resource})
	switch {
	case err == nil:
		why += fmt.Sprintf("; it serves %s in %s", found.Kind, found.GroupVersion())
	case !meta.IsNoMatchError(err) && !isAmbiguous(err):
		return "", fmt.Errorf("ask which kinds are served: %w", err)
	default:
		why += ": create its CustomResourceDefinition at the hub, or correct the name"
	}
	return why, nil
}

func isAmbiguous(err error) bool {
	_, ok := err.(*meta.AmbiguousResourceError)
	return ok
}

// resolve sets ConditionResolvedRefs in the status, or removes it. It reports whether that changed
// anything.
func resolve(status *policyv1alpha1.PolicyStatus, generation int64, unresolved []string) (changed bool) {
	if len(unresolved) == 0 {
		return meta.RemoveStatusCondition(&status.Conditions, policyv1alpha1.ConditionResolvedRefs)
	}
	return meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: policyv1alpha1.ConditionResolvedRefs,
		Status: metav1.ConditionFalse, Reason: policyv1alpha1.ReasonNotFound, ObservedGeneration: generation,
		Message: clip(strings.Join(unresolved, "; "))})
}

// joined reports whether a Cluster exists.
func (r *reconciler) joined(ctx context.Context) func(string) (bool, error) {
	return func(name string) (bool, error) {
		var c clusterv1alpha1.Cluster
		err := r.client.Get(ctx, client.ObjectKey{Name: name}, &c, client.UnsafeDisableDeepCopy)
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("read Cluster %s: %w", name, err)
		}
		return true, nil
	}
}
