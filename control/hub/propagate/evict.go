package propagate

import (
	"time"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/placement"
)

// evict begins and ends evictions of a binding that this scheduler decides for.
func (r *reconciler) evict(b binding.Binding, nearer map[string]string, stays error) placement.Eviction {
	before, f := recorded(b), r.leaving.Load()
	s := b.Spec
	barred := r.Capacity.Barred(b)
	watched := s.Failover != nil && s.Failover.Application != nil || len(nearer) > 0 || len(barred) > 0 || before.Failback != nil ||
		placement.HasUnschedulable(b.Status)
	if f == nil || !scheduled(b, before) || len(s.GracefulEvictionTasks) == 0 && !watched && !f.Concerns(s) {
		return placement.Eviction{}
	}
	// a policy with another value is not valid
	after, _ := policyv1alpha1.FailbackOf(b.GetAnnotations())
	now := time.Now()
	v := placement.Evictor{EvictionOptions: r.Eviction, Clusters: *f, Now: now, FailbackAfter: after, Nearer: nearer, Barred: barred, Stays: stays,
		Take: func(cluster string) time.Duration { return r.evictions.Take(cluster, capacityKey(b), now) }}
	return v.Evict(b, before)
}

// keepPlaces gives the binding back its places in the eviction rates if a step is not carried out,
// so that it need not queue again.
func (r *reconciler) keepPlaces(p placed) {
	b, e := p.binding, p.eviction
	for _, task := range e.Began {
		if task.Reason != workv1alpha2.EvictionReasonFailback {
			r.evictions.Keep(task.FromCluster, capacityKey(b), time.Now())
		}
	}
	if len(e.Return.Clusters) > 0 { // one place, of the first
		r.evictions.Keep(e.Return.Clusters[0], capacityKey(b), time.Now())
	}
}
