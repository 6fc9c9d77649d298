package scheduler

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// Load is what workloads ask for: amounts of resources (CPU in thousandths of a core, all else in units) and pods.
type Load struct {
	Pods      int64
	Resources map[corev1.ResourceName]int64
}

// LoadOf is the load of so many replicas that each request so much.
func LoadOf(request corev1.ResourceList, replicas int64) Load {
	l := Load{Pods: replicas, Resources: make(map[corev1.ResourceName]int64, len(request))}
	for name, q := range request {
		l.Resources[name] = amount(name, q) * replicas
	}
	return l
}

// Add returns the sum of both.
func (l Load) Add(other Load) Load {
	sum := Load{Pods: l.Pods + other.Pods, Resources: make(map[corev1.ResourceName]int64, len(l.Resources)+len(other.Resources))}
	for name, n := range l.Resources {
		sum.Resources[name] += n
	}
	for name, n := range other.Resources {
		sum.Resources[name] += n
	}
	return sum
}

func amount(name corev1.ResourceName, q resource.Quantity) int64 {
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// room is what is free in a cluster.
type room struct {
	known bool
	pods  int64
	free  map[corev1.ResourceName]int64
	// grades are the nodes by their free resources, if the cluster models them; least first.
	grades []grade
}

// grade is a number of nodes of which each has at least so much free.
type grade struct {
	nodes int64
	least map[corev1.ResourceName]int64
}

func roomOf(c *clusterv1alpha1.Cluster, assumed Load) room {
	s := c.Status.ResourceSummary
	if s == nil {
		return room{}
	}
	r := room{known: true, free: make(map[corev1.ResourceName]int64, len(s.Allocatable))}
	for name, q := range s.Allocatable {
		used := assumed.Resources[name]
		if name == corev1.ResourcePods {
			used = assumed.Pods
		}
		r.free[name] = amount(name, q) - amount(name, s.Allocated[name]) - amount(name, s.Allocating[name]) - used
	}
	r.pods = max(0, r.free[corev1.ResourcePods])
	for _, m := range s.AllocatableModelings {
		i := slices.IndexFunc(c.Spec.ResourceModels, func(g clusterv1alpha1.ResourceModel) bool { return g.Grade == m.Grade })
		if m.Count <= 0 || i < 0 {
			continue
		}
		g := grade{nodes: int64(m.Count), least: map[corev1.ResourceName]int64{}}
		for _, rng := range c.Spec.ResourceModels[i].Ranges {
			g.least[rng.Name] = amount(rng.Name, rng.Min)
		}
		r.grades = append(r.grades, g)
	}
	return r
}

// unlimited stands for room that nobody has measured.
const unlimited = math.MaxInt32

// need is how much of a resource a replica asks for, more than 0.
type need struct {
	name   corev1.ResourceName
	amount int64
}

func needsOf(request corev1.ResourceList) (out []need) {
	for name, q := range request {
		if n := amount(name, q); n > 0 {
			out = append(out, need{name, n})
		}
	}
	return out
}

// replicas is how many replicas with such needs fit. A cluster that does not report its resources has no room; neither has one
// for a resource that it does not have.
func (r room) replicas(needs []need) int64 {
	if !r.known {
		return 0
	}
	fit := min(r.pods, unlimited)
	for _, n := range needs {
		fit = min(fit, max(0, r.free[n.name])/n.amount)
	}
	if len(r.grades) > 0 && len(needs) > 0 {
		if n, ok := r.onNodes(needs); ok {
			fit = min(fit, n)
		}
	}
	return fit
}

// onNodes places replicas on the nodes, each taken to have no more free than its grade says. It cannot say if a resource is not
// modelled.
func (r room) onNodes(needs []need) (replicas int64, ok bool) {
	for _, g := range r.grades {
		each := int64(math.MaxInt64)
		for _, n := range needs {
			least, modelled := g.least[n.name]
			if !modelled {
				return 0, false
			}
			each = min(each, least/n.amount)
		}
		replicas += each * g.nodes
	}
	return replicas, true
}
