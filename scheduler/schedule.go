// Package scheduler decides in which clusters a template runs, and with how many replicas. It is pure: a decision depends on the
// request and the snapshot of the clusters alone, not on a clock, the order of anything, or an API. The rules are Karmada's
// (release 1.18) but where the README says otherwise.
package scheduler

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/scheduler/affinity"
)

// Schedule decides. The error is a *FitError, an *UnschedulableError, a *SpreadError, or says that the request is invalid; it is that
// of the first affinity group tried if none fits. The decision then still says why each cluster was not chosen.
func Schedule(r *Request, s *Snapshot) (Decision, error) {
	j := newTask(r)
	var first Decision
	var failed error
	for _, t := range r.terms() {
		d, err := j.schedule(s, t)
		if err == nil {
			return d, nil
		}
		if failed == nil {
			first, failed = d, err
		}
	}
	return first, failed
}

// task is a request, prepared to be held against many clusters.
type task struct {
	*Request
	strategy strategy
	current  map[string]int64 // replicas by cluster
	needs    []need           // of a replica
}

func newTask(r *Request) *task {
	j := &task{Request: r, strategy: strategyOf(r.Placement), current: make(map[string]int64, len(r.Current))}
	for i := range r.Current {
		j.current[r.Current[i].Name] = int64(r.Current[i].Replicas)
	}
	if r.Requirements != nil {
		j.needs = needsOf(r.Requirements.ResourceRequest)
	}
	return j
}

// term is an affinity group: its own clusters, and those into which what has no room there flows over, in this order.
type term struct {
	name  string
	tiers []*policyv1alpha1.ClusterAffinity
}

// terms are the affinity groups to be tried, from the one that was used last; the index only moves forward.
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
		for j := range a.OverflowAffinities {
			t.tiers = append(t.tiers, &a.OverflowAffinities[j].ClusterAffinity)
		}
		out = append(out, t)
	}
	return out
}

// candidate is a cluster that fits.
type candidate struct {
	*cluster
	tier    int
	runs    bool  // the template has run there
	current int64 // replicas of the last decision
	free    int64 // how many more have room
}

// available is how many replicas of the template the cluster can have.
func (c candidate) available() int64 { return c.free + c.current }

func (j *task) schedule(s *Snapshot, t term) (Decision, error) {
	d := Decision{Term: t.name}
	fit, err := j.candidates(s, t, &d)
	if err != nil {
		return d, err
	}
	chosen, err := j.spread(fit)
	if err != nil {
		return d, err
	}
	if len(chosen) < len(fit) {
		among := setOf(chosen)
		for _, c := range fit {
			if !among[c.cluster] {
				d.Reasons = append(d.Reasons, Reason{c.name, "cluster(s) were not among the best that the spread constraints allow"})
			}
		}
	}
	d.Clusters, err = j.divide(chosen)
	if err != nil {
		return d, err
	}
	slices.SortFunc(d.Clusters, func(a, b workv1alpha2.TargetCluster) int { return strings.Compare(a.Name, b.Name) })
	if len(d.Clusters) < len(chosen) {
		for _, c := range chosen {
			if _, got := slices.BinarySearchFunc(d.Clusters, c.name, func(o workv1alpha2.TargetCluster, name string) int { return strings.Compare(o.Name, name) }); !got {
				d.Reasons = append(d.Reasons, Reason{c.name, "cluster(s) got no replica of the division"})
			}
		}
	}
	return d, nil
}

// candidates are the clusters that fit, by tier. Where some are to be chosen the best of each tier are first: where the template
// runs, then with the most room, then by name.
func (j *task) candidates(s *Snapshot, t term, d *Decision) ([]candidate, error) {
	var out []candidate
	for tier, a := range t.tiers {
		m, err := affinity.Parse(a)
		if err != nil {
			return nil, err
		}
		fit, reasons := j.filter(s, m)
		if tier == 0 {
			d.Reasons = reasons
			out = make([]candidate, 0, len(fit))
		}
		earlier := setOf(out)
		for _, c := range fit {
			if !earlier[c] {
				out = append(out, j.candidate(c, tier))
			}
		}
		if tier > 0 {
			now := setOf(out)
			d.Reasons = slices.DeleteFunc(d.Reasons, func(r Reason) bool { return now[s.byName[r.Cluster]] })
		}
	}
	if len(out) == 0 {
		return nil, &FitError{Reasons: d.Reasons}
	}
	if !j.spreads() {
		return out, nil
	}
	slices.SortFunc(out, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.tier, b.tier), compareTrue(a.runs, b.runs), cmp.Compare(b.available(), a.available()), strings.Compare(a.name, b.name))
	})
	return out, nil
}

func (j *task) candidate(c *cluster, tier int) candidate {
	out := candidate{cluster: c, tier: tier}
	out.current, out.runs = j.current[c.name]
	switch {
	case !j.workload():
	case j.Requirements == nil:
		out.free = min(c.room.pods, unlimited)
	default:
		out.free = c.room.replicas(j.needs)
	}
	return out
}

// setOf is for looking up many.
func setOf(all []candidate) map[*cluster]bool {
	out := make(map[*cluster]bool, len(all))
	for _, c := range all {
		out[c.cluster] = true
	}
	return out
}

// compareTrue puts true first.
func compareTrue(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// Invalid says whether an error of Schedule is the request's fault.
func Invalid(err error) bool {
	var fit *FitError
	var room *UnschedulableError
	var spread *SpreadError
	return err != nil && !errors.As(err, &fit) && !errors.As(err, &room) && !errors.As(err, &spread)
}
