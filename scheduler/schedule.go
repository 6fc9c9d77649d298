// Package scheduler selects the clusters in which a template runs, and their numbers of replicas.
// It is pure: a decision depends on the request and the snapshot of the clusters alone, not on a
// clock, an order of inputs or an API. The rules are Karmada's (release 1.18) except where the
// README states otherwise.
package scheduler

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// Schedule returns the decision of the first affinity group that succeeds; else the error of the
// first one, which is a *FitError, an *UnschedulableError, a *SpreadError, or that of an invalid
// request, with the reasons in its decision.
func Schedule(r *Request, s *Snapshot) (Decision, error) {
	j := newTask(r, s)
	defer j.done()
	var first Decision
	var failed error
	for _, t := range r.terms() {
		d, err := j.schedule(t)
		if err == nil {
			return d, nil
		}
		if failed == nil {
			first, failed = d, err
		}
	}
	var fit *FitError
	if errors.As(failed, &fit) {
		fit.Unmatched = j.unmatched()
	}
	return first, failed
}

// task is a request, prepared for the clusters of a snapshot, which are referred to by their index.
type task struct {
	*Request
	*Snapshot
	*scratch
	strategy strategy
	needs    []Amount
	demand   demand
	invalid  error // of the demand
	// stopped are the replicas of Request.Stopped by index, if they count; nil: none do.
	stopped    map[int]int64
	properties []property
	// together, apart and returning are Request.Together, Apart and Returning; nil: empty.
	together, apart, returning set
	byTaints                   map[int]cause // cache of tainted, by index in shape.taints
	// of clusters that are too far; none: none exist yet
	far  cause
	note string // Decision.Note
	// descriptions of the causes from described on.
	descriptions []string
}

// scratch is the memory of a task that has an element for each cluster. It is reused by later
// tasks: allocating and collecting it each time would cost more than a third of a decision over
// 1,000 clusters.
type scratch struct {
	current     []int64 // replicas of each cluster; -1: it does not run there
	fit, sorted []candidate
	keys        []uint64
}

var scratches = sync.Pool{New: func() any { return &scratch{} }}

// newTask prepares a request; the caller calls done, and keeps no candidate afterwards.
func newTask(r *Request, s *Snapshot) *task {
	j := &task{Request: r, Snapshot: s, scratch: scratches.Get().(*scratch), strategy: strategyOf(r.Placement)}
	j.current = resized(j.current, len(s.of))
	for i := range j.current {
		j.current[i] = -1
	}
	for i := range r.Current {
		if at, ok := s.index[r.Current[i].Name]; ok {
			j.current[at] = int64(r.Current[i].Replicas)
		}
	}
	if len(r.Stopped) > 0 && r.Replicas > 0 && !slices.ContainsFunc(r.Current, func(c workv1alpha2.TargetCluster) bool { return c.Replicas > 0 }) {
		j.stopped = map[int]int64{}
		for _, c := range r.Stopped {
			if at, ok := s.index[c.Name]; ok && j.current[at] >= 0 {
				j.stopped[at] = int64(c.Replicas)
			}
		}
	}
	j.properties = j.spreadProperties()
	j.together, j.apart, j.returning = j.named(r.Together), j.named(r.Apart), j.named(r.Returning)
	if r.Requirements != nil {
		j.needs = LoadOf(r.Requirements.ResourceRequest, 1).Amounts
	}
	j.demand, j.invalid = demandOf(r.Requirements)
	return j
}

func (j *task) done() {
	scratches.Put(j.scratch)
	j.scratch = nil
}

// resized is memory of n elements, with whatever they had.
func resized[T any](s []T, n int) []T { return slices.Grow(s[:0], n)[:n] }

// named are the clusters of these names; nil if there are no names.
func (j *task) named(names []string) set {
	if len(names) == 0 {
		return nil
	}
	out := newSet(len(j.of))
	for _, name := range names {
		if at, ok := j.index[name]; ok {
			out.add(at)
		}
	}
	return out
}

func (j *task) returns(at int) bool { return j.returning != nil && j.returning.has(at) }
func (j *task) runs(at int) bool    { return j.current[at] >= 0 && !j.returns(at) }

// held are the replicas of a cluster for which capacity is taken already.
func (j *task) held(at int) int64 {
	if !j.runs(at) {
		return 0
	}
	return j.current[at]
}

// term is an affinity group: tiers of clusters, each used for what exceeds the capacity of those
// before.
type term struct {
	name  string
	tiers []*policyv1alpha1.ClusterAffinity
}

// terms are the affinity groups to be tried, from the last used one on: the index only moves
// forward. What has no replicas exceeds no capacity, so it stays in the first tier.
func (r *Request) terms() []term {
	if r.Placement == nil || len(r.Placement.ClusterAffinities) == 0 {
		t := term{tiers: []*policyv1alpha1.ClusterAffinity{nil}}
		if r.Placement != nil {
			t.tiers[0] = r.Placement.ClusterAffinity
		}
		return []term{t}
	}
	all := r.Placement.ClusterAffinities
	from := 0
	if !r.Fresh {
		from = max(0, slices.IndexFunc(all, func(t policyv1alpha1.ClusterAffinityTerm) bool { return t.AffinityName == r.Term }))
	}
	var out []term
	for i := range all[from:] {
		a := &all[from+i]
		t := term{name: a.AffinityName, tiers: []*policyv1alpha1.ClusterAffinity{&a.ClusterAffinity}}
		if r.workload() || r.Components > 0 {
			for j := range a.OverflowAffinities {
				t.tiers = append(t.tiers, &a.OverflowAffinities[j].ClusterAffinity)
			}
		}
		out = append(out, t)
	}
	return out
}

// candidate is a cluster that passes the filters.
type candidate struct {
	at      int // index
	tier    int
	runs    bool  // the template runs there
	current int64 // replicas of the last decision
	free    int64 // capacity for more replicas, if the decision depends on it
	bound   cause // why free is 0, unless the sums of the cluster are the reason
}

// available is the capacity of the cluster for replicas, including current ones.
func (c candidate) available() int64 { return c.free + c.current }

func (j *task) schedule(t term) (Decision, error) {
	why := make([]cause, len(j.of)) // of each cluster
	j.note = ""
	clusters, err := j.choose(t, why)
	d := Decision{Term: t.name, Clusters: clusters, Note: j.note, Reasons: Reasons{j.of, why, j.descriptions}}
	var fit *FitError
	if errors.As(err, &fit) {
		fit.Reasons = d.Reasons
	}
	return d, err
}

// choose returns the clusters by name, and the causes of the others in why.
func (j *task) choose(t term, why []cause) ([]workv1alpha2.TargetCluster, error) {
	if j.invalid != nil && (j.spreads() || j.TakesRoom()) {
		return nil, j.invalid
	}
	fit, err := j.candidates(t, why)
	if err != nil {
		return nil, err
	}
	chosen, err := j.spread(fit)
	if err != nil {
		return nil, err
	}
	if len(chosen) < len(fit) {
		among := j.setOf(chosen)
		for _, c := range fit {
			if !among.has(c.at) {
				why[c.at] = notBest
			}
		}
	}
	unscored := j.unscored(fit)
	shares, err := j.divide(chosen)
	if err != nil {
		return nil, err
	}
	if unscored != "" {
		j.note = strings.TrimPrefix(j.note+"; "+unscored, "; ")
	}
	if len(shares) < len(chosen) {
		for _, c := range chosen {
			why[c.at] = max(noReplica, c.bound)
		}
		for _, s := range shares {
			why[s.at] = none
		}
	}
	slices.SortFunc(shares, func(a, b share) int { return cmp.Compare(a.at, b.at) })
	var out []workv1alpha2.TargetCluster
	if len(shares) > 0 || !j.workload() || j.strategy == duplicated {
		out = make([]workv1alpha2.TargetCluster, 0, len(shares))
	}
	for _, s := range shares {
		out = append(out, workv1alpha2.TargetCluster{Name: j.of[s.at].Name, Replicas: int32(s.seats)})
	}
	return out, nil
}

// candidates are the clusters that pass the filters, by tier. With spread constraints, the best of
// each tier are first: where the template runs, then by capacity, then by name.
func (j *task) candidates(t term, why []cause) (out []candidate, err error) {
	out = j.fit[:0]
	defer func() { j.fit = out }()
	for tier, a := range t.tiers {
		from := len(out)
		if out, err = j.filter(a, tier, out, why); err != nil {
			return nil, err
		}
		if j.spreads() {
			j.sort(out[from:], func(c candidate) (first bool, then int64) { return c.runs, c.available() })
		}
		j.band(out[from:])
	}
	if len(out) == 0 {
		return nil, &FitError{}
	}
	return out, nil
}

// sort sorts by first, then by more, which is 0 to 2³², descending. It is stable.
func (j *task) sort(all []candidate, by func(candidate) (first bool, more int64)) {
	keys := resized(j.keys, len(all))
	for i, c := range all {
		first, more := by(c)
		keys[i] = uint64(1<<33-more)<<29 | uint64(i)
		if !first {
			keys[i] |= 1 << 63
		}
	}
	slices.Sort(keys)
	sorted := resized(j.sorted, len(all))
	for i, k := range keys {
		sorted[i] = all[k&(1<<29-1)]
	}
	copy(all, sorted)
	j.keys, j.sorted = keys, sorted
}

func (j *task) candidate(at, tier int) candidate {
	c := candidate{at: at, tier: tier, runs: j.runs(at), current: j.held(at)}
	if j.spreads() || j.TakesRoom() {
		c.free, c.bound = j.free(at)
	}
	if j.returns(at) { // as if it ran there, but within what is free
		c.runs, c.current = true, min(max(0, j.current[at]), c.free)
		c.free -= c.current
	}
	if n := min(j.stopped[at], c.free); n > 0 {
		c.current = n
		c.free -= n
	}
	return c
}

// free is the capacity of the cluster for more replicas; bound is the cause why it has none if its
// sums are not.
func (j *task) free(at int) (n int64, bound cause) {
	c := j.capacities[at]
	switch {
	case j.Components > 0:
		return c.sets(j.ComponentsLoad), none
	case !j.workload():
		return 0, none
	}
	if len(j.Full) > 0 && slices.Contains(j.Full, j.of[at].Name) {
		return 0, full
	}
	n = c.replicas(j.needs)
	if n > 0 && c.pools != nil {
		if n = min(n, c.onPools(j.demand, j.needs)); n == 0 {
			return 0, noNode
		}
	}
	if n > 0 && len(c.quotas) > 0 {
		if n = min(n, c.inQuotas(j.Namespace, j.demand, j.Assumed[j.of[at].Name])); n == 0 {
			return 0, noQuota
		}
	}
	return n, none
}

// setOf is the set of clusters of candidates.
func (j *task) setOf(all []candidate) set {
	out := newSet(len(j.of))
	for _, c := range all {
		out.add(c.at)
	}
	return out
}

// Invalid reports whether an error of Schedule means that the request is invalid.
func Invalid(err error) bool {
	var fit *FitError
	var room *UnschedulableError
	var spread *SpreadError
	return err != nil && !errors.As(err, &fit) && !errors.As(err, &room) && !errors.As(err, &spread)
}
