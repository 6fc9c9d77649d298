package execute

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// amounts of resources by name, in ascending order: CPU in thousandths of a core, all else in units. A slice takes a tenth of the
// memory of a ResourceList, and there is one for each pod.
type amounts []amount

type amount struct {
	name corev1.ResourceName
	n    int64
}

// node is what is counted of a Node.
type node struct {
	name  string
	ready bool
	has   amounts // status.allocatable
}

// pod is what is counted of a Pod that has not ended.
type pod struct {
	node string // empty: not bound yet
	asks amounts
}

func amountsOf(list corev1.ResourceList) amounts {
	var a amounts
	for _, name := range slices.Sorted(maps.Keys(list)) {
		q := list[name]
		n := q.Value()
		if name == corev1.ResourceCPU {
			n = q.MilliValue()
		}
		a = append(a, amount{name, n})
	}
	return a
}

func nodeOf(n *corev1.Node) node {
	ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	return node{name: n.Name, ready: ready, has: amountsOf(n.Status.Allocatable)}
}

// podOf counts requests as the scheduler of Kubernetes does: init containers, sidecars, overhead.
func podOf(p *corev1.Pod) pod {
	return pod{node: p.Spec.NodeName, asks: amountsOf(resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{}))}
}

// sum adds up amounts and counts.
type sum map[corev1.ResourceName]int64

func (s sum) add(a amounts) {
	for _, r := range a {
		s[r.name] += r.n
	}
}

// list is the sum as the API has it, in the units in which people write the resource.
func (s sum) list() corev1.ResourceList {
	l := make(corev1.ResourceList, len(s))
	for name, n := range s {
		switch {
		case name == corev1.ResourceCPU:
			l[name] = *resource.NewMilliQuantity(n, resource.DecimalSI)
		case name == corev1.ResourceMemory, name == corev1.ResourceStorage, name == corev1.ResourceEphemeralStorage,
			strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
			l[name] = *resource.NewQuantity(n, resource.BinarySI)
		default:
			l[name] = *resource.NewQuantity(n, resource.DecimalSI)
		}
	}
	return l
}

// nodeSummary counts all nodes and those that are ready.
func nodeSummary(nodes []node) *clusterv1alpha1.NodeSummary {
	s := &clusterv1alpha1.NodeSummary{TotalNum: int32(len(nodes))}
	for _, n := range nodes {
		if n.ready {
			s.ReadyNum++
		}
	}
	return s
}

// resourceSummary sums up: allocatable of all nodes, also of those that are cordoned or not ready; allocated to pods with a node,
// allocating to those without. Pods are a resource of their own, one each.
func resourceSummary(nodes []node, pods []pod, models []clusterv1alpha1.ResourceModel) *clusterv1alpha1.ResourceSummary {
	allocatable, allocated, allocating := sum{}, sum{}, sum{}
	for _, n := range nodes {
		allocatable.add(n.has)
	}
	for _, p := range pods {
		to := allocated
		if p.node == "" {
			to = allocating
		}
		to.add(p.asks)
		to[corev1.ResourcePods]++
	}
	return &clusterv1alpha1.ResourceSummary{
		Allocatable: allocatable.list(), Allocated: allocated.list(), Allocating: allocating.list(),
		AllocatableModelings: modelings(nodes, pods, models),
	}
}

// modelings counts each node in the highest grade of which it has all lower bounds free. Without models nothing is counted.
func modelings(nodes []node, pods []pod, models []clusterv1alpha1.ResourceModel) []clusterv1alpha1.AllocatableModeling {
	if len(models) == 0 {
		return nil
	}
	free := make(map[string]sum, len(nodes))
	for _, n := range nodes {
		free[n.name] = sum{}
		free[n.name].add(n.has)
	}
	for _, p := range pods {
		of, known := free[p.node]
		if !known {
			continue
		}
		for _, r := range p.asks {
			of[r.name] -= r.n
		}
	}
	counts := make([]clusterv1alpha1.AllocatableModeling, len(models))
	least := make([]amounts, len(models))
	for i, m := range models {
		counts[i].Grade = m.Grade
		list := corev1.ResourceList{}
		for _, r := range m.Ranges {
			list[r.Name] = r.Min
		}
		least[i] = amountsOf(list)
	}
	for _, f := range free {
		counts[grade(f, least)].Count++
	}
	return counts
}

// grade is the place of the highest grade that fits. A node that is over-committed is in the lowest.
func grade(free sum, least []amounts) int {
	for i := len(least) - 1; i > 0; i-- {
		if !slices.ContainsFunc(least[i], func(r amount) bool { return free[r.name] < r.n }) {
			return i
		}
	}
	return 0
}
