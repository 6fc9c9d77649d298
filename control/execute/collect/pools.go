package collect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// taintsOf are the taints of a node that keep pods away, sorted. A cordoned node has its taint even
// before the node controller sets it.
func taintsOf(n *corev1.Node) (out []corev1.Taint) {
	for _, t := range n.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute {
			out = append(out, corev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
		}
	}
	cordoned := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	if n.Spec.Unschedulable && !slices.Contains(out, cordoned) {
		out = append(out, cordoned)
	}
	slices.SortFunc(out, func(a, b corev1.Taint) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Value, b.Value), strings.Compare(string(a.Effect), string(b.Effect)))
	})
	return out
}

// nodePools groups nodes by their labels and taints. Labels with too many values for MaxNodePools
// pools are not considered, those with the most values first; all nil if the taints alone make
// more pools. The pools are in a fixed order.
func nodePools(nodes []node, free map[string]sum, models []clusterv1alpha1.ResourceModel) (common map[string]string, pools []clusterv1alpha1.NodePool, unpooled []string) {
	common, keys := labelsOf(nodes)
	for {
		grouped := map[string][]node{}
		for _, n := range nodes {
			id := fmt.Sprint(n.taints)
			for _, key := range keys {
				if v, ok := n.labels[key]; ok {
					id += fmt.Sprintf("%q=%q,", key, v)
				}
			}
			grouped[id] = append(grouped[id], n)
			if len(grouped) > clusterv1alpha1.MaxNodePools {
				break
			}
		}
		if len(grouped) <= clusterv1alpha1.MaxNodePools {
			for _, id := range slices.Sorted(maps.Keys(grouped)) {
				pools = append(pools, poolOf(grouped[id], keys, free, models))
			}
			slices.Sort(unpooled)
			return common, pools, unpooled
		}
		if len(keys) == 0 {
			return nil, nil, nil
		}
		unpooled, keys = append(unpooled, keys[0]), keys[1:]
	}
}

// labelsOf are the labels that all nodes have with the same value, and the keys of the others,
// those with the most values first.
func labelsOf(nodes []node) (common map[string]string, keys []string) {
	values := map[string]map[string]int{} // number of nodes by key and value
	for _, n := range nodes {
		for key, v := range n.labels {
			if values[key] == nil {
				values[key] = map[string]int{}
			}
			values[key][v]++
		}
	}
	common = map[string]string{}
	for key, of := range values {
		if v := slices.Collect(maps.Keys(of)); len(v) == 1 && of[v[0]] == len(nodes) {
			common[key] = v[0]
			continue
		}
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Or(len(values[b])-len(values[a]), strings.Compare(a, b)) })
	return common, keys
}

// poolOf is a pool of nodes, which have the same values of these labels.
func poolOf(nodes []node, keys []string, free map[string]sum, models []clusterv1alpha1.ResourceModel) clusterv1alpha1.NodePool {
	p := clusterv1alpha1.NodePool{Nodes: int32(len(nodes)), Labels: map[string]string{}, Taints: nodes[0].taints}
	for _, key := range keys {
		if v, ok := nodes[0].labels[key]; ok {
			p.Labels[key] = v
		}
	}
	total := sum{}
	for _, n := range nodes {
		for name, amount := range free[n.name] {
			total[name] = clusterv1alpha1.Plus(total[name], max(0, amount), 1) // more than 0 of an overcommitted one
		}
	}
	p.Free = total.list()
	if len(nodes) > 1 {
		p.Modelings = modelings(nodes, free, models)
	}
	return p
}

// quota is the summary of a ResourceQuota.
type quota struct {
	name string
	clusterv1alpha1.QuotaSummary
}

func stripQuota(o runtime.Object) {
	q := o.(*corev1.ResourceQuota)
	q.ObjectMeta = metav1.ObjectMeta{Namespace: q.Namespace, Name: q.Name, ResourceVersion: q.ResourceVersion}
}

// quotaOf is what a quota leaves of each resource of pods that it bounds.
func quotaOf(q *corev1.ResourceQuota) quota {
	out := quota{q.Name, clusterv1alpha1.QuotaSummary{Namespace: q.Namespace, Left: corev1.ResourceList{}}}
	for name, hard := range q.Status.Hard {
		if !ofPods(name) {
			continue
		}
		left := hard.DeepCopy()
		left.Sub(q.Status.Used[name])
		if left.Sign() < 0 {
			left.Set(0)
		}
		out.Left[name] = left
	}
	for _, s := range q.Spec.Scopes {
		out.Scopes = append(out.Scopes, corev1.ScopedResourceSelectorRequirement{ScopeName: s, Operator: corev1.ScopeSelectorOpExists})
	}
	if s := q.Spec.ScopeSelector; s != nil {
		out.Scopes = append(out.Scopes, s.MatchExpressions...)
	}
	return out
}

// ofPods reports whether a name of a quota bounds pods. requests.storage bounds claims.
func ofPods(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods, "count/pods":
		return true
	case corev1.ResourceRequestsStorage:
		return false
	}
	return strings.HasPrefix(string(name), "requests.") || strings.HasPrefix(string(name), "limits.") ||
		strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// quotaSummaries are the quotas that bound pods, by namespace and name, and the number of those
// beyond MaxQuotas.
func quotaSummaries(quotas []quota) (out []clusterv1alpha1.QuotaSummary, more int) {
	quotas = slices.DeleteFunc(slices.Clone(quotas), func(q quota) bool { return len(q.Left) == 0 })
	slices.SortFunc(quotas, func(a, b quota) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.name, b.name))
	})
	for _, q := range quotas {
		out = append(out, q.QuotaSummary)
	}
	n := min(len(out), clusterv1alpha1.MaxQuotas)
	return out[:n], len(out) - n
}
