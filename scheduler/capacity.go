package scheduler

import (
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// Load is what workloads request: pods, and amounts of other resources, each once.
type Load struct {
	Pods    int64
	Amounts []Amount
}

// Amount of a resource: CPU in thousandths of a core, all else in units.
type Amount struct {
	Of corev1.ResourceName
	N  int64
}

// LoadOf is the load of replicas with that request each. Its amounts are sorted by name and greater
// than 0.
func LoadOf(request corev1.ResourceList, replicas int64) Load {
	l := Load{Pods: replicas}
	for name, q := range request {
		if n := clusterv1alpha1.Plus(0, clusterv1alpha1.AmountOf(name, q), replicas); n > 0 {
			l.Amounts = append(l.Amounts, Amount{name, n})
		}
	}
	slices.SortFunc(l.Amounts, func(a, b Amount) int { return strings.Compare(string(a.Of), string(b.Of)) })
	return l
}

// Add adds another load, multiplied by times. A sum ends at what an int64 holds.
func (l *Load) Add(other Load, times int64) {
	l.Pods = clusterv1alpha1.Plus(l.Pods, other.Pods, times)
	for _, a := range other.Amounts {
		if at := indexOf(l.Amounts, a.Of); at >= 0 {
			l.Amounts[at].N = clusterv1alpha1.Plus(l.Amounts[at].N, a.N, times)
		} else {
			l.Amounts = append(l.Amounts, Amount{a.Of, clusterv1alpha1.Plus(0, a.N, times)})
		}
	}
}

// Clone returns a deep copy.
func (l Load) Clone() Load { return Load{l.Pods, slices.Clone(l.Amounts)} }

// Amount returns that of a resource in the load.
func (l Load) Amount(of corev1.ResourceName) int64 {
	if of == corev1.ResourcePods {
		return l.Pods
	}
	if at := indexOf(l.Amounts, of); at >= 0 {
		return l.Amounts[at].N
	}
	return 0
}

func indexOf(all []Amount, of corev1.ResourceName) int {
	for i := range all {
		if all[i].Of == of {
			return i
		}
	}
	return -1
}

// report is the ResourceSummary of a cluster.
type report struct {
	free []Amount
	// grades are the nodes by their free resources, if the cluster models them.
	grades []grade
	pools  *pools // nil: none are reported
	quotas map[string][]quota
}

// grade is a number of nodes, each with at least these resources free.
type grade struct {
	nodes int64
	least []Amount
}

// capacity of a cluster is what is free by its report, less what is assumed.
type capacity struct {
	*report // nil: it reports no resources
	assumed Load
}

func capacityOf(c *clusterv1alpha1.Cluster, assumed Load) *capacity {
	s := c.Status.ResourceSummary
	if s == nil {
		return &capacity{assumed: assumed}
	}
	r := &report{free: make([]Amount, 0, len(s.Allocatable))}
	for name, q := range s.Allocatable {
		n := clusterv1alpha1.AmountOf(name, q)
		for _, taken := range []corev1.ResourceList{s.Allocated, s.Allocating} {
			n = clusterv1alpha1.Plus(n, clusterv1alpha1.AmountOf(name, taken[name]), -1)
		}
		r.free = append(r.free, Amount{name, n})
	}
	r.grades, r.pools, r.quotas = gradesOf(c, s.AllocatableModelings), poolsOf(c), quotasOf(s)
	return &capacity{report: r, assumed: assumed}
}

// gradesOf are counts of nodes with the resources of the cluster's models.
func gradesOf(c *clusterv1alpha1.Cluster, counts []clusterv1alpha1.AllocatableModeling) (out []grade) {
	models := c.Spec.Models()
	for _, m := range counts {
		i := slices.IndexFunc(models, func(g clusterv1alpha1.ResourceModel) bool { return g.Grade == m.Grade })
		if m.Count <= 0 || i < 0 {
			continue
		}
		g := grade{nodes: int64(m.Count)}
		for _, rng := range models[i].Ranges {
			g.least = append(g.least, Amount{rng.Name, clusterv1alpha1.AmountOf(rng.Name, rng.Min)})
		}
		out = append(out, g)
	}
	return out
}

// assuming is the capacity with another load assumed.
func (r *capacity) assuming(load Load) *capacity { return &capacity{report: r.report, assumed: load} }

// left is the free amount of a resource; 0 of one that the cluster does not have.
func (r *capacity) left(of corev1.ResourceName) int64 {
	at := indexOf(r.free, of)
	if at < 0 {
		return 0
	}
	return max(0, clusterv1alpha1.Plus(r.free[at].N, r.assumed.Amount(of), -1))
}

// pods is the number of pods that fit.
func (r *capacity) pods() int64 {
	if r.report == nil {
		return 0
	}
	return min(r.left(corev1.ResourcePods), unlimited)
}

// unlimited bounds the capacity for pods.
const unlimited = math.MaxInt32

// replicas is the number of replicas with these requests that fit. A cluster that does not report
// its resources has no capacity, nor has one that lacks a requested resource.
func (r *capacity) replicas(needs []Amount) int64 {
	if r.report == nil {
		return 0
	}
	fit := r.pods()
	for _, need := range needs {
		fit = min(fit, r.left(need.Of)/need.N)
	}
	if len(r.grades) > 0 && len(needs) > 0 {
		if n, ok := r.onNodes(needs); ok {
			fit = min(fit, n)
		}
	}
	return fit
}

// sets is the number of such loads that fit by the sums of the cluster, without reading its
// nodes.
func (r *capacity) sets(of Load) int64 {
	fit := r.pods() / max(1, of.Pods)
	for _, a := range of.Amounts {
		if fit > 0 && a.N > 0 { // without a report there is no capacity
			fit = min(fit, r.left(a.Of)/a.N)
		}
	}
	return fit
}

// onNodes is the number of replicas that fit on the nodes, each with the minimum of its grade free;
// not ok if a resource is not modelled. An assumed pod, whose node is unknown, takes the place of
// one replica, or of several smaller ones.
func (r *capacity) onNodes(needs []Amount) (replicas int64, ok bool) {
	for _, g := range r.grades {
		each := int64(math.MaxInt64)
		for _, need := range needs {
			at := indexOf(g.least, need.Of)
			if at < 0 {
				return 0, false
			}
			each = min(each, g.least[at].N/need.N)
		}
		replicas = clusterv1alpha1.Plus(replicas, each, g.nodes)
	}
	return max(0, replicas-r.taken(needs)), true
}

// taken are the places for replicas that assumed pods take.
func (r *capacity) taken(needs []Amount) int64 {
	taken := r.assumed.Pods
	for _, need := range needs {
		taken = max(taken, clusterv1alpha1.Plus(need.N-1, r.assumed.Amount(need.Of), 1)/need.N)
	}
	return taken
}
