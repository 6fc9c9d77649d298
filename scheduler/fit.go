package scheduler

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// pools are the nodes of a cluster by what pods select and tolerate.
type pools struct {
	of       []pool
	unpooled []string // labels that are not known
	fitting  cache[string]
}

// pool is a NodePool. Its capacity is that of a cluster of its nodes.
type pool struct {
	node corev1.Node // labels and taints
	capacity
}

// quota is what a ResourceQuota of a cluster leaves.
type quota struct {
	scopes []corev1.ScopedResourceSelectorRequirement
	left   corev1.ResourceList
}

// poolsOf are those that a cluster reports; nil: none.
func poolsOf(c *clusterv1alpha1.Cluster) *pools {
	s := c.Status.ResourceSummary
	if len(s.NodePools) == 0 {
		return nil
	}
	out := &pools{unpooled: s.UnpooledLabels}
	for i := range s.NodePools {
		p := &s.NodePools[i]
		next := pool{capacity: capacity{report: &report{}}}
		next.node.Labels = make(map[string]string, len(s.NodeLabels)+len(p.Labels))
		maps.Copy(next.node.Labels, s.NodeLabels)
		maps.Copy(next.node.Labels, p.Labels)
		next.node.Spec.Taints = p.Taints
		for name, q := range p.Free {
			next.free = append(next.free, Amount{name, clusterv1alpha1.AmountOf(name, q)})
		}
		if p.Nodes > 1 { // of a single node Free is exact
			next.grades = gradesOf(c, p.Modelings)
		}
		out.of = append(out.of, next)
	}
	return out
}

// quotasOf are those that a cluster reports, by namespace; nil: none.
func quotasOf(s *clusterv1alpha1.ResourceSummary) map[string][]quota {
	if len(s.Quotas) == 0 {
		return nil
	}
	out := map[string][]quota{}
	for _, q := range s.Quotas {
		out[q.Namespace] = append(out[q.Namespace], quota{q.Scopes, q.Left})
	}
	return out
}

// demand is what pods of a template ask of nodes and quotas.
type demand struct {
	*workv1alpha2.ReplicaRequirements // never nil
	key                               string
}

func demandOf(r *workv1alpha2.ReplicaRequirements) (demand, error) {
	if r == nil {
		r = &workv1alpha2.ReplicaRequirements{}
	}
	if r.NodeClaim == nil {
		return demand{ReplicaRequirements: r}, nil
	}
	if a := r.NodeClaim.HardNodeAffinity; a != nil {
		if _, err := nodeaffinity.NewNodeSelector(a); err != nil {
			return demand{}, fmt.Errorf("read the node affinity of the pods: %w", err)
		}
	}
	key, err := json.Marshal(r.NodeClaim)
	if err != nil {
		return demand{}, fmt.Errorf("read what the pods request of nodes: %w", err)
	}
	return demand{r, string(key)}, nil
}

// on returns the pools on whose nodes the pods may run, by index.
func (p *pools) on(d demand) set {
	if found, ok := p.fitting.get(d.key); ok {
		return found
	}
	out := newSet(len(p.of))
	claim := &workv1alpha2.NodeClaim{}
	if d.NodeClaim != nil {
		claim = d.NodeClaim
	}
	selected := nodeaffinity.NewRequiredNodeAffinity(p.known(claim))
	for i := range p.of {
		node := &p.of[i].node
		ok, err := selected.Match(node) // demandOf has parsed the affinity: there is no error
		if ok && err == nil && !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
			return !slices.ContainsFunc(claim.Tolerations, func(by corev1.Toleration) bool { return policyv1alpha1.Toleration(by).Tolerates(t) })
		}) {
			out.add(i)
		}
	}
	p.fitting.put(d.key, out)
	return out
}

// known is what a claim selects by labels that the pools have. What it requires of other labels, or
// of the names of nodes, is unknown here and no reason against a cluster.
func (p *pools) known(c *workv1alpha2.NodeClaim) (map[string]string, *corev1.Affinity) {
	selector := maps.Clone(c.NodeSelector)
	maps.DeleteFunc(selector, func(key, _ string) bool { return slices.Contains(p.unpooled, key) })
	if c.HardNodeAffinity == nil {
		return selector, nil
	}
	required := &corev1.NodeSelector{}
	for _, t := range c.HardNodeAffinity.NodeSelectorTerms {
		empty := len(t.MatchExpressions)+len(t.MatchFields) == 0 // matches no node
		t.MatchExpressions = slices.DeleteFunc(slices.Clone(t.MatchExpressions), func(r corev1.NodeSelectorRequirement) bool {
			return slices.Contains(p.unpooled, r.Key)
		})
		t.MatchFields = nil
		if !empty && len(t.MatchExpressions)+len(t.MatchFields) == 0 {
			return selector, nil // the terms are alternatives
		}
		required.NodeSelectorTerms = append(required.NodeSelectorTerms, t)
	}
	return selector, &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}
}

// onPools is the number of replicas that fit on the nodes that the pods select and tolerate.
// Assumed pods, whose nodes are unknown, take places on these nodes.
func (r *capacity) onPools(d demand, needs []Amount) (replicas int64) {
	for i, on := 0, r.pools.on(d); i < len(r.pools.of); i++ {
		if on.has(i) {
			replicas = clusterv1alpha1.Plus(replicas, r.pools.of[i].replicas(needs), 1)
		}
	}
	return max(0, replicas-r.taken(needs))
}

// inQuotas is the number of replicas that the ResourceQuotas of the namespace in the cluster leave,
// besides those assumed in it.
func (r *capacity) inQuotas(namespace string, d demand, assumed Load) int64 {
	fit := int64(unlimited)
	if r.report == nil {
		return fit
	}
	for _, q := range r.quotas[namespace] {
		if !d.inScopes(q.scopes) {
			continue
		}
		for name, left := range q.left {
			of, each := d.counted(name)
			if each <= 0 {
				continue
			}
			n := clusterv1alpha1.AmountOf(of, left)
			if !strings.HasPrefix(string(name), limitsPrefix) { // those of assumed pods are unknown
				n = clusterv1alpha1.Plus(n, assumed.Amount(of), -1)
			}
			fit = min(fit, max(0, n)/each)
		}
	}
	return fit
}

const limitsPrefix, requestsPrefix = "limits.", "requests."

// counted is how a quota counts a pod under one of its names: the resource, and its amount; 0: it
// does not. A pod without a request that the quota bounds is refused in the member unless a
// LimitRange gives it one, which is unknown here.
func (d demand) counted(name corev1.ResourceName) (of corev1.ResourceName, each int64) {
	if name == corev1.ResourcePods || name == "count/pods" {
		return corev1.ResourcePods, 1
	}
	list := d.ResourceRequest
	short, ok := strings.CutPrefix(string(name), requestsPrefix)
	if !ok {
		if short, ok = strings.CutPrefix(string(name), limitsPrefix); ok {
			list = d.ResourceLimits
		}
	}
	of = corev1.ResourceName(short)
	return of, clusterv1alpha1.AmountOf(of, list[of])
}

// inScopes reports whether a quota with these scopes applies to the pods. CrossNamespacePodAffinity
// is unknown here, and does not.
func (d demand) inScopes(scopes []corev1.ScopedResourceSelectorRequirement) bool {
	bestEffort := true // by the classes of quality of service
	for _, list := range []corev1.ResourceList{d.ResourceRequest, d.ResourceLimits} {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			q := list[name]
			bestEffort = bestEffort && q.Sign() <= 0
		}
	}
	return !slices.ContainsFunc(scopes, func(s corev1.ScopedResourceSelectorRequirement) bool {
		switch s.ScopeName {
		case corev1.ResourceQuotaScopeTerminating:
			return !d.Terminating
		case corev1.ResourceQuotaScopeNotTerminating:
			return d.Terminating
		case corev1.ResourceQuotaScopeBestEffort:
			return !bestEffort
		case corev1.ResourceQuotaScopeNotBestEffort:
			return bestEffort
		case corev1.ResourceQuotaScopePriorityClass:
			class := d.PriorityClassName
			switch s.Operator {
			case corev1.ScopeSelectorOpExists:
				return class == ""
			case corev1.ScopeSelectorOpDoesNotExist:
				return class != ""
			case corev1.ScopeSelectorOpIn:
				return !slices.Contains(s.Values, class)
			case corev1.ScopeSelectorOpNotIn:
				return slices.Contains(s.Values, class)
			}
		}
		return true
	})
}
