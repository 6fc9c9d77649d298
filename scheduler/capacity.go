package scheduler

import (
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// Load is what workloads ask for: pods, and amounts of other resources, each once.
type Load struct {
	Pods    int64
	Amounts []Amount
}

// Amount of a resource: CPU in thousandths of a core, all else in units.
type Amount struct {
	Of corev1.ResourceName
	N  int64
}

// LoadOf is the load of so many replicas that each request so much. Its amounts are sorted by name and more than 0.
func LoadOf(request corev1.ResourceList, replicas int64) Load {
	l := Load{Pods: replicas}
	for name, q := range request {
		if n := amount(name, q) * replicas; n > 0 {
			l.Amounts = append(l.Amounts, Amount{name, n})
		}
	}
	slices.SortFunc(l.Amounts, func(a, b Amount) int { return strings.Compare(string(a.Of), string(b.Of)) })
	return l
}

// Add adds another load so many times.
func (l *Load) Add(other Load, times int64) {
	l.Pods += other.Pods * times
	for _, a := range other.Amounts {
		if at := place(l.Amounts, a.Of); at >= 0 {
			l.Amounts[at].N += a.N * times
		} else {
			l.Amounts = append(l.Amounts, Amount{a.Of, a.N * times})
		}
	}
}

// Clone is a load that does not change with this one.
func (l Load) Clone() Load { return Load{l.Pods, slices.Clone(l.Amounts)} }

// Amount is how much of a resource is in the load.
func (l Load) Amount(of corev1.ResourceName) int64 {
	if of == corev1.ResourcePods {
		return l.Pods
	}
	if at := place(l.Amounts, of); at >= 0 {
		return l.Amounts[at].N
	}
	return 0
}

func place(all []Amount, of corev1.ResourceName) int {
	for i := range all {
		if all[i].Of == of {
			return i
		}
	}
	return -1
}

func amount(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// report is what a cluster says of its resources.
type report struct {
	free []Amount
	// grades are the nodes by their free resources, if the cluster models them; least first.
	grades []grade
}

// grade is a number of nodes of which each has at least so much free.
type grade struct {
	nodes int64
	least []Amount
}

// room is what is free in a cluster by its report, less what is assumed.
type room struct {
	*report // nil: it does not report
	assumed Load
}

func roomOf(c *clusterv1alpha1.Cluster, assumed Load) *room {
	s := c.Status.ResourceSummary
	if s == nil {
		return &room{assumed: assumed}
	}
	r := &report{free: make([]Amount, 0, len(s.Allocatable))}
	for name, q := range s.Allocatable {
		r.free = append(r.free, Amount{name, amount(name, q) - amount(name, s.Allocated[name]) - amount(name, s.Allocating[name])})
	}
	for _, m := range s.AllocatableModelings {
		i := slices.IndexFunc(c.Spec.Models(), func(g clusterv1alpha1.ResourceModel) bool { return g.Grade == m.Grade })
		if m.Count <= 0 || i < 0 {
			continue
		}
		g := grade{nodes: int64(m.Count)}
		for _, rng := range c.Spec.Models()[i].Ranges {
			g.least = append(g.least, Amount{rng.Name, amount(rng.Name, rng.Min)})
		}
		r.grades = append(r.grades, g)
	}
	return &room{report: r, assumed: assumed}
}

// assuming is the room with another sum assumed.
func (r *room) assuming(load Load) *room { return &room{report: r.report, assumed: load} }

// left is how much of a resource is free; 0 of one that the cluster does not have.
func (r *room) left(of corev1.ResourceName) int64 {
	at := place(r.free, of)
	if at < 0 {
		return 0
	}
	return max(0, r.free[at].N-r.assumed.Amount(of))
}

// pods is how many more pods there may be.
func (r *room) pods() int64 {
	if r.report == nil {
		return 0
	}
	return min(r.left(corev1.ResourcePods), unlimited)
}

// unlimited stands for room that nobody has measured.
const unlimited = math.MaxInt32

// replicas is how many replicas with such needs fit. A cluster that does not report its resources has no room; neither has one
// for a resource that it does not have.
func (r *room) replicas(needs []Amount) int64 {
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

// onNodes places replicas on the nodes, each taken to have no more free than its grade says. It cannot say if a resource is not
// modelled. Of what is assumed, on whatever node it is, each pod takes the place of a replica, and a larger one that of several.
func (r *room) onNodes(needs []Amount) (replicas int64, ok bool) {
	for _, g := range r.grades {
		each := int64(math.MaxInt64)
		for _, need := range needs {
			at := place(g.least, need.Of)
			if at < 0 {
				return 0, false
			}
			each = min(each, g.least[at].N/need.N)
		}
		replicas += each * g.nodes
	}
	taken := r.assumed.Pods
	for _, need := range needs {
		taken = max(taken, (r.assumed.Amount(need.Of)+need.N-1)/need.N)
	}
	return max(0, replicas-taken), true
}
