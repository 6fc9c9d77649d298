package work

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	networkingv1alpha1 "github.com/pelago-net/pelago/api/networking/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/scheduler"
)

// What the Works of a MultiClusterService hold. Members serve the kind: the network agent installs
// it.
var (
	serviceKind = corev1.SchemeGroupVersion.WithKind("Service")
	exportKind  = schema.GroupVersionKind{Group: "multicluster.x-k8s.io", Version: "v1beta1", Kind: "ServiceExport"}
)

// MultiClusterInput is all that the Works of one MultiClusterService are computed from.
type MultiClusterInput struct {
	Interpreter *kinds.Interpreter
	HubID       string
	Name        types.NamespacedName
	// Exposure is nil if it does not exist or is being deleted, Service if the hub has none of that
	// name.
	Exposure *networkingv1alpha1.MultiClusterService
	Service  *unstructured.Unstructured
	// Clusters are those that exist and are not being deleted, by name.
	Clusters map[string]*clusterv1alpha1.Cluster
	// Overrides are the policies that select the Service.
	Overrides policy.OverridePolicies
	// Works that hold the Service or its ServiceExport, those of bindings included.
	Works []*workv1alpha1.Work
	// Names of Works of either kind, by kind.
	Names map[string]Names
	// Within is which clusters the namespace may use (policyv1alpha1.AnnotationClusters).
	Within string
	// NewID makes a permanent id.
	NewID func() string
}

// MultiClusterPlan is what is to be written, in the order of the clusters' names, and what is
// reported.
type MultiClusterPlan struct {
	Writes
	Delete []*workv1alpha1.Work
	// Providers and Consumers are the clusters of the service that exist, Waiting those of them that
	// take no Works, Unknown those that are named and do not exist, Barred those that are named and
	// that the namespace must not use.
	Providers, Consumers, Waiting, Unknown, Barred []string
	// Invalid is the error of Within; then nothing is written.
	Invalid error
	// NotApplied lists what does not exist in its cluster yet, with the reason.
	NotApplied []string
}

// DesiredMultiClusterWorks gives each provider the Service and a ServiceExport, and each other
// consumer a Service of type ExternalName that leads to the name in the clusterset. Works of
// bindings stay as they are: a policy has placed the object there. After the MultiClusterService is
// gone providers keep the Service while the hub has it, as after the deletion of a policy.
func DesiredMultiClusterWorks(in *MultiClusterInput) MultiClusterPlan {
	var plan MultiClusterPlan
	if crossCluster(in.Exposure) && in.Service != nil {
		refuses, err := scheduler.Open(in.Name.Namespace, in.Within)
		if err != nil {
			return MultiClusterPlan{Invalid: err}
		}
		open := maps.Clone(in.Clusters)
		maps.DeleteFunc(open, func(_ string, c *clusterv1alpha1.Cluster) bool { return refuses(c) != nil })
		plan.Providers, plan.Consumers, plan.Unknown = clustersOfExposure(in.Exposure, open)
		plan.Unknown = slices.DeleteFunc(plan.Unknown, func(name string) bool {
			if in.Clusters[name] != nil {
				plan.Barred = append(plan.Barred, name)
			}
			return in.Clusters[name] != nil
		})
		plan.Waiting = in.waiting(slices.Concat(plan.Providers, plan.Consumers))
	}
	works := assigner{interpreter: in.Interpreter, hubID: in.HubID, newID: in.NewID}
	ours, placed := in.worksByCluster()
	for _, cluster := range slices.Sorted(maps.Keys(in.Clusters)) {
		provides := slices.Contains(plan.Providers, cluster)
		for _, kind := range []schema.GroupVersionKind{serviceKind, exportKind} {
			key, name := heldIn{cluster, kind.Kind}, fmt.Sprintf("%s %s", kind.Kind, in.Name)
			have := ours[key]
			if have != nil && have.DeletionTimestamp != nil {
				continue // a new one can be made when it has gone
			}
			obj := in.object(kind, provides, plan)
			if !provides && !slices.Contains(plan.Consumers, cluster) {
				obj = nil
			}
			switch {
			case placed[key]:
				if kind == exportKind && obj != nil {
					works.fail(name, cluster, errors.New("a policy has placed one there: remove it from the policy"))
				}
				if have != nil {
					plan.Delete = append(plan.Delete, have)
				}
			case obj != nil && !in.Clusters[cluster].Takes():
				// what it has stays
			case obj == nil:
				if have != nil && !in.keeps(kind, have) {
					plan.Delete = append(plan.Delete, have)
				}
			default:
				works.assign(name, cluster, have, in.Names[kind.Kind], func() (RenderInput, error) { return in.input(kind, cluster, obj), nil })
				plan.observe(kind, cluster, have)
			}
		}
	}
	plan.Writes = works.Writes
	return plan
}

// heldIn names an object of a cluster by its kind.
type heldIn struct{ cluster, kind string }

// worksByCluster are the Works that this controller has made, and the objects that Works of
// bindings hold.
func (in *MultiClusterInput) worksByCluster() (ours map[heldIn]*workv1alpha1.Work, placed map[heldIn]bool) {
	ours, placed = map[heldIn]*workv1alpha1.Work{}, map[heldIn]bool{}
	for _, w := range in.Works {
		cluster, ok := workv1alpha2.ClusterOfNamespace(w.Namespace)
		id, ok2 := OfWork(w)
		if !ok || !ok2 {
			continue
		}
		if key := (heldIn{cluster, id.Kind}); OfBinding(w) {
			placed[key] = true
		} else {
			ours[key] = w
		}
	}
	return ours, placed
}

// object is what a cluster of the service is to have of a kind; nil: nothing.
func (in *MultiClusterInput) object(kind schema.GroupVersionKind, provides bool, plan MultiClusterPlan) *unstructured.Unstructured {
	if kind == serviceKind && provides {
		if labels, _ := PolicyMarks(in.Service.GetLabels(), nil); len(labels) > 0 {
			return nil // the policy that claims it places it
		}
		obj := in.Service.DeepCopy()
		labels := obj.GetLabels()
		delete(labels, workv1alpha2.LabelClaimedBy)
		obj.SetLabels(labels)
		return obj
	}
	if kind == exportKind != provides || in.Exposure == nil {
		return nil
	}
	obj := &unstructured.Unstructured{}
	obj.SetGroupVersionKind(kind)
	obj.SetNamespace(in.Name.Namespace)
	obj.SetName(in.Name.Name)
	obj.SetUID(in.Exposure.UID)
	if kind == serviceKind {
		obj.Object["spec"] = map[string]any{"type": string(corev1.ServiceTypeExternalName), "externalName": clustersetName(in.Name)}
	} else if len(consumersOf(in.Exposure)) > 0 {
		obj.SetAnnotations(map[string]string{pelagov1alpha1.AnnotationExportTo: strings.Join(slices.Sorted(slices.Values(consumersOf(in.Exposure))), ",")})
	}
	return obj
}

func clustersetName(name types.NamespacedName) string {
	return name.Name + "." + name.Namespace + ".svc.clusterset.local"
}

// keeps reports whether a Work stays that is not wanted: a provider's Service after the
// MultiClusterService is gone.
func (in *MultiClusterInput) keeps(kind schema.GroupVersionKind, have *workv1alpha1.Work) bool {
	var obj corev1.Service
	return kind == serviceKind && in.Exposure == nil && in.Service != nil &&
		json.Unmarshal(have.Spec.Workload.Manifests[0].Raw, &obj) == nil && obj.Spec.ExternalName != clustersetName(in.Name)
}

// input is what a Work is made of. Overrides are for the hub's Service alone.
func (in *MultiClusterInput) input(kind schema.GroupVersionKind, cluster string, obj *unstructured.Unstructured) RenderInput {
	out := RenderInput{Object: obj, Cluster: in.Clusters[cluster]}
	if kind == serviceKind && obj.GetUID() == in.Service.GetUID() {
		out.Overrides = in.Overrides
	}
	return out
}

// observe notes whether an object exists in its cluster.
func (plan *MultiClusterPlan) observe(kind schema.GroupVersionKind, cluster string, have *workv1alpha1.Work) {
	reason := "not applied yet"
	if have != nil {
		c := meta.FindStatusCondition(have.Status.Conditions, workv1alpha1.ConditionApplied)
		if c != nil && c.Status == "True" {
			return
		} else if c != nil {
			reason = c.Message
		}
	}
	plan.NotApplied = append(plan.NotApplied, fmt.Sprintf("%s of %s: %s", kind.Kind, cluster, reason))
}

func crossCluster(m *networkingv1alpha1.MultiClusterService) bool {
	return m != nil && slices.Contains(m.Spec.Types, networkingv1alpha1.ExposureTypeCrossCluster)
}

// clustersOfExposure are the providers and consumers that exist, and those that are named and do
// not. Unset: all.
func clustersOfExposure(m *networkingv1alpha1.MultiClusterService, all map[string]*clusterv1alpha1.Cluster) (providers, consumers, unknown []string) {
	chosen := func(names []string) (out []string) {
		if len(names) == 0 {
			return slices.Sorted(maps.Keys(all))
		}
		for _, name := range names {
			if all[name] != nil {
				out = append(out, name)
			} else {
				unknown = append(unknown, name)
			}
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	providers, consumers = chosen(providersOf(m)), chosen(consumersOf(m))
	slices.Sort(unknown)
	return providers, consumers, slices.Compact(unknown)
}

// waiting are the clusters that take no Works, sorted.
func (in *MultiClusterInput) waiting(clusters []string) []string {
	out := slices.DeleteFunc(slices.Clone(clusters), func(c string) bool { return in.Clusters[c].Takes() })
	slices.Sort(out)
	return slices.Compact(out)
}

func providersOf(m *networkingv1alpha1.MultiClusterService) []string {
	return named(m.Spec.ProviderClusters, m.Spec.ServiceProvisionClusters)
}

func consumersOf(m *networkingv1alpha1.MultiClusterService) []string {
	return named(m.Spec.ConsumerClusters, m.Spec.ServiceConsumptionClusters)
}

// named are the clusters of a field, or of the one that had its meaning before.
func named(clusters []networkingv1alpha1.ClusterSelector, former []string) []string {
	if len(clusters) == 0 {
		return former
	}
	var out []string
	for _, c := range clusters {
		out = append(out, c.Name)
	}
	return out
}
