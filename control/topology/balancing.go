package topology

import (
	"cmp"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// maxWeight bounds the weight of a cluster, which is a share of the slots of a ClusterSetIP, and
// the number of backends that an annotation requires.
const maxWeight = 1 << 16

// Balancing is how annotations of a ServiceImport divide the connections to the service among
// clusters. The zero value: own cluster first, the others by ready backends.
type Balancing struct {
	// Weights are those of clusters, by id, that users of the own cluster set. They override the
	// rest.
	Weights map[string]int `json:"weights,omitempty"`
	// MinLocal is the number of ready backends below which the own cluster gets a part of the
	// connections only; 0: as 1.
	MinLocal int `json:"minLocal,omitempty"`
	// Nearest are the other clusters by round-trip time, the nearest first: one of them gets all
	// that the own cluster does not. None: all do, by ready backends.
	Nearest []string `json:"nearest,omitempty"`
}

// ReadBalancing reads the annotations of a ServiceImport. problems are those without effect, as
// messages for an operator, sorted.
func ReadBalancing(annotations map[string]string) (b Balancing, problems []string) {
	for key, value := range annotations {
		cluster, ok := strings.CutPrefix(key, submarinerv1.AnnotationWeightPrefix)
		if !ok {
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 || n > maxWeight {
			problems = append(problems, fmt.Sprintf("annotation %s is %q, not a number from 0 to %d: the cluster has weight 1", key, value, maxWeight))
			continue
		}
		if b.Weights == nil {
			b.Weights = map[string]int{}
		}
		b.Weights[cluster] = n
	}
	exported, invalid := ExportedBalancing(annotations)
	b.MinLocal, _ = strconv.Atoi(exported[pelagov1alpha1.AnnotationMinLocalBackends]) // checked
	if order := annotations[pelagov1alpha1.AnnotationNearest]; PrefersNearest(annotations) && order != "" {
		b.Nearest = strings.Split(order, ",")
	}
	problems = append(problems, invalid...)
	slices.Sort(problems)
	return b, problems
}

// PrefersNearest reports whether annotations of a ServiceExport or ServiceImport prefer the nearest
// remote cluster.
func PrefersNearest(annotations map[string]string) bool {
	return annotations[pelagov1alpha1.AnnotationPrefer] == pelagov1alpha1.PreferNearest
}

// ExportedBalancing are the valid annotations of a ServiceExport that travel to all imports of the
// service; nil: none. problems name the others, sorted.
func ExportedBalancing(annotations map[string]string) (exported map[string]string, problems []string) {
	keep := func(key, value string) {
		if exported == nil {
			exported = map[string]string{}
		}
		exported[key] = value
	}
	if value, ok := annotations[pelagov1alpha1.AnnotationMinLocalBackends]; ok {
		if n, err := strconv.Atoi(value); err == nil && n >= 1 && n <= maxWeight {
			keep(pelagov1alpha1.AnnotationMinLocalBackends, value)
		} else {
			problems = append(problems, fmt.Sprintf("annotation %s is %q, not a number from 1 to %d: it has no effect",
				pelagov1alpha1.AnnotationMinLocalBackends, value, maxWeight))
		}
	}
	if value, ok := annotations[pelagov1alpha1.AnnotationPrefer]; ok {
		if value == pelagov1alpha1.PreferNearest || value == pelagov1alpha1.PreferWeighted {
			keep(pelagov1alpha1.AnnotationPrefer, value)
		} else {
			problems = append(problems, fmt.Sprintf("annotation %s is %q, neither %s nor %s: it has no effect",
				pelagov1alpha1.AnnotationPrefer, value, pelagov1alpha1.PreferNearest, pelagov1alpha1.PreferWeighted))
		}
	}
	return exported, problems
}

// Candidate is a cluster that has a port of a service with ready backends.
type Candidate struct {
	ID    string
	Ready int  // backends
	Own   bool // it is this cluster
}

// Rule is what the weights of candidates follow.
type Rule string

// Rules.
const (
	ByWeights       Rule = "by weights"        // of the user
	OwnClusterFirst Rule = "own cluster first" // which has enough ready backends
	Spilling        Rule = "own cluster first, which has too few ready backends"
	Nearest         Rule = "nearest cluster"
	ByReadyBackends Rule = "by ready backends"
)

// allShares is the sum of the weights of a division that spills, but for rounding.
const allShares = 1 << 20

// Weigh returns the weights by which new connections are divided among candidates: those that the
// user has set, by cluster; else all connections go to the own cluster while it has enough ready
// backends. Of n required ones that it lacks, n parts of the connections go to the others: to the
// nearest one, or divided by ready backends. So a backend more or less moves its own share only.
func (b Balancing) Weigh(candidates []Candidate) (weights []int, by Rule) {
	weights = make([]int, len(candidates))
	if len(b.Weights) > 0 {
		for i, c := range candidates {
			weights[i] = 1
			if w, ok := b.Weights[c.ID]; ok {
				weights[i] = w
			}
		}
		return weights, ByWeights
	}
	by = ByReadyBackends
	used, nearest := func(c Candidate) bool { return !c.Own }, b.nearest(candidates)
	if nearest != "" {
		by = Nearest
		used = func(c Candidate) bool { return c.ID == nearest }
	}
	own := slices.IndexFunc(candidates, func(c Candidate) bool { return c.Own })
	total := 0
	for _, c := range candidates {
		if used(c) {
			total += c.Ready
		}
	}
	local, enough := 0, max(1, b.MinLocal)
	if own >= 0 {
		local = candidates[own].Ready
	}
	if own >= 0 && (local >= enough || total == 0) {
		weights[own] = max(1, local)
		return weights, OwnClusterFirst
	}
	for i, c := range candidates {
		switch {
		case used(c) && own < 0:
			weights[i] = c.Ready
		case used(c):
			weights[i] = max(1, allShares*(enough-local)/enough*c.Ready/total)
		}
	}
	if own >= 0 {
		weights[own], by = allShares*local/enough, Spilling
	}
	return weights, by
}

// nearest is the nearest remote candidate; empty: none is preferred or measured.
func (b Balancing) nearest(candidates []Candidate) string {
	for _, id := range b.Nearest {
		if slices.ContainsFunc(candidates, func(c Candidate) bool { return c.ID == id && !c.Own && c.Ready > 0 }) {
			return id
		}
	}
	return ""
}

// Significant rounds a number of backends above 8 down to three significant bits. Each change is a
// write at the hub and in every cluster: a rollout of 100 pods makes a few of them, and the weights
// of clusters are off by less than a quarter.
func Significant(n int) int {
	drop := max(0, bits.Len(uint(n))-3)
	if n <= 8 {
		return n
	}
	return n >> drop << drop
}

// Rounded is b for candidates whose numbers of backends are Significant, that of the own cluster
// too.
func (b Balancing) Rounded() Balancing {
	b.MinLocal = Significant(b.MinLocal)
	return b
}

const (
	// A cluster overtakes another one only if its round-trip time is shorter by a fifth of the
	// other's and by nearerBy.
	nearerBy   = 2 * time.Millisecond
	nearerPart = 5
)

// NearestFirst orders clusters by round-trip time, the nearest first. Those that are about as near
// keep their order in former, so that traffic does not move to and fro.
func NearestFirst(rtt map[string]time.Duration, former []string) []string {
	left := slices.DeleteFunc(slices.Clone(former), func(id string) bool { _, measured := rtt[id]; return !measured })
	others := slices.DeleteFunc(slices.Collect(maps.Keys(rtt)), func(id string) bool { return slices.Contains(left, id) })
	byTime := func(a, b string) int { return cmp.Or(cmp.Compare(rtt[a], rtt[b]), strings.Compare(a, b)) }
	left = append(left, slices.SortedFunc(slices.Values(others), byTime)...)
	var order []string
	for len(left) > 0 {
		next, best := left[0], slices.MinFunc(left, byTime)
		if gain := rtt[next] - rtt[best]; gain > rtt[next]/nearerPart && gain > nearerBy {
			next = best
		}
		order = append(order, next)
		left = slices.DeleteFunc(left, func(id string) bool { return id == next })
	}
	return order
}

// RoundTrips are the round-trip times to other clusters that gateways measure, each that of the
// nearest gateway which is connected.
func RoundTrips(gateways []submarinerv1.Gateway) map[string]time.Duration {
	out := map[string]time.Duration{}
	for i := range gateways {
		for _, c := range gateways[i].Status.Connections {
			if c.Status != submarinerv1.Connected || c.LatencyRTT == nil || c.Endpoint.ClusterID == "" {
				continue
			}
			rtt, err := time.ParseDuration(c.LatencyRTT.Average)
			if err != nil {
				continue // of a daemon that has not measured it
			}
			if former, known := out[c.Endpoint.ClusterID]; !known || rtt < former {
				out[c.Endpoint.ClusterID] = rtt
			}
		}
	}
	return out
}
