package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// DefaultRTTHold is RTTTracker.Hold where it is not set.
const DefaultRTTHold = time.Minute

// clusterPair are two clusters, sorted by name.
type clusterPair [2]string

func pairOf(a, b string) clusterPair {
	if a > b {
		a, b = b, a
	}
	return clusterPair{a, b}
}

// RTTs are the round-trip times between clusters that decisions use. They are immutable.
type RTTs map[clusterPair]time.Duration

// RTTTracker derives RTTs from the reports of clusters.
type RTTTracker struct {
	// Hold is how long a round-trip time must have differed from the one in use before decisions
	// use it, so that a path which changes back and forth moves nothing; 0: DefaultRTTHold.
	Hold time.Duration

	used    RTTs
	differs map[clusterPair]rttDifference
}

// rttDifference is a report that is not in use yet.
type rttDifference struct {
	since time.Time
	// rtt is the report that is nearest to the one in use, of all since then.
	rtt time.Duration
}

// lostRTT stands for a path that is not reported any more.
const lostRTT = time.Duration(-1)

// Update reads the reports. The first one of a path is used at once. next is when an unchanged
// report will be used; 0: never.
func (t *RTTTracker) Update(clusters []clusterv1alpha1.Cluster, now time.Time) (rtts RTTs, changed bool, next time.Duration) {
	reported := ReportedRTTs(clusters)
	used, differs := maps.Clone(t.used), map[clusterPair]rttDifference{}
	if used == nil {
		used = RTTs{}
	}
	for p := range t.used {
		if _, ok := reported[p]; !ok {
			reported[p] = lostRTT
		}
	}
	for p, rtt := range reported {
		before, known := t.used[p]
		switch {
		case !known:
			used[p], changed = rtt, true
			continue
		case rtt != lostRTT && !Nearer(rtt, before) && !Nearer(before, rtt):
			continue
		}
		d, ok := t.differs[p]
		switch {
		case !ok || d.since.After(now) || (d.rtt == lostRTT) != (rtt == lostRTT) || (d.rtt < before) != (rtt < before):
			d = rttDifference{now, rtt}
		case (rtt - before).Abs() < (d.rtt - before).Abs():
			d.rtt = rtt
		}
		if left := d.since.Add(cmp.Or(t.Hold, DefaultRTTHold)).Sub(now); left > 0 {
			differs[p] = d
			if next == 0 || left < next {
				next = left
			}
			continue
		}
		changed = true
		if used[p] = d.rtt; d.rtt == lostRTT {
			delete(used, p)
		}
	}
	t.used, t.differs = used, differs
	return used, changed, next
}

// ReportedRTTs are the round-trip times that clusters report. Of two reports of one path the
// shorter one counts.
func ReportedRTTs(clusters []clusterv1alpha1.Cluster) RTTs {
	out := RTTs{}
	for i := range clusters {
		c := &clusters[i]
		for _, path := range c.Status.Network {
			if !path.Reachable || path.RTT == nil || path.Cluster == c.Name {
				continue
			}
			p := pairOf(c.Name, path.Cluster)
			if have, ok := out[p]; !ok || path.RTT.Duration < have {
				out[p] = path.RTT.Duration
			}
		}
	}
	return out
}

// To is the input of a decision: the round-trip time of each cluster to the nearest of those that a
// policy wants to be near to.
func (r RTTs) To(n *policyv1alpha1.Near, targets []string) *Near {
	out := &Near{To: n.String(), RTT: map[string]time.Duration{}, Prefer: n.Prefers()}
	if n.MaxRTT != nil {
		out.Max = n.MaxRTT.Duration
	}
	shorter := func(cluster string, rtt time.Duration) {
		if have, ok := out.RTT[cluster]; !ok || rtt < have {
			out.RTT[cluster] = rtt
		}
	}
	for _, target := range targets {
		shorter(target, 0)
	}
	for p, rtt := range r {
		if slices.Contains(targets, p[0]) {
			shorter(p[1], rtt)
		}
		if slices.Contains(targets, p[1]) {
			shorter(p[0], rtt)
		}
	}
	return out
}

// TooFar reports whether a cluster where the template runs is farther away than its policy accepts,
// by more than a fluctuation.
func (n *Near) TooFar(cluster string) bool {
	rtt, measured := n.RTT[cluster]
	return measured && n.Max > 0 && Nearer(n.Max, rtt)
}

// Leaves are the clusters that a template leaves for a nearer one, with the reason. fresh is where
// a new decision would place it.
func (n *Near) Leaves(current, fresh []workv1alpha2.TargetCluster) map[string]string {
	in := func(all []workv1alpha2.TargetCluster, name string) bool {
		return slices.ContainsFunc(all, func(t workv1alpha2.TargetCluster) bool { return t.Name == name })
	}
	out := map[string]string{}
	for _, t := range current {
		rtt, measured := n.RTT[t.Name]
		switch {
		case !measured: // a missing measurement moves nothing
		case n.TooFar(t.Name):
			out[t.Name] = fmt.Sprintf("cluster %s is %s away from %s, and at most %s are accepted", t.Name, rtt, n.To, n.Max)
		case n.Prefer && !in(fresh, t.Name):
			for _, other := range fresh {
				if !in(current, other.Name) && Nearer(n.Of(other.Name), rtt) {
					out[t.Name] = fmt.Sprintf("cluster %s is %s away from %s, cluster %s only %s", t.Name, rtt, n.To, other.Name, n.Of(other.Name))
				}
			}
		}
	}
	return out
}
