package placement

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/scheduler"
)

// attempts bounds how often a decision is computed concurrently with others before it is computed
// with the lock held.
const attempts = 4

// Reservation is a decision whose write has not ended. Its replicas are assumed.
//
// After the write exactly one of Commit and Release is called. If its outcome is unknown (a
// timeout), the replicas continue to count until it is known: the binding is read live and passed
// to Observe (or Forget, if it does not exist), and then Release is called.
type Reservation struct {
	capacity *Cache
	key      string
	size     scheduler.Load               // of one replica
	total    scheduler.Load               // of all replicas
	member   *Membership                  // nil: of no group
	clusters []workv1alpha2.TargetCluster // by name
}

// Decide decides as scheduler.Schedule does, from all that is assumed. If another decision has
// reserved the capacity meanwhile it decides again. Errors are those of Schedule, ErrNotReady and
// QuotaError.
//
// The request's Current must be the clusters of the binding. Calls for one key must not run at the
// same time.
func (r *Cache) Decide(key string, req *scheduler.Request) (scheduler.Decision, *Reservation, error) {
	s, req, err := r.begin(key, req)
	if err != nil {
		return scheduler.Decision{}, nil, err
	}
	for range attempts {
		d, err := scheduler.Schedule(req, s)
		if err != nil {
			return d, nil, err
		}
		p, latest, again, err := r.tryReserve(key, req, d, s)
		if p != nil || err != nil {
			return d, p, err
		}
		s, req = latest, again
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	req = r.grouped(key, req)
	d, err := scheduler.Schedule(req, r.latest())
	if err != nil {
		return d, nil, err
	}
	p, err := r.reserve(key, req, d)
	return d, p, err
}

// begin returns the snapshot and the request to decide from. A reservation for the key that was
// forgotten is dropped.
func (r *Cache) begin(key string, req *scheduler.Request) (*scheduler.Snapshot, *scheduler.Request, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.known {
		return nil, nil, ErrNotReady
	}
	if b := r.bindings[key]; b != nil && b.reserved != nil {
		r.change(b, func() { b.reserved = nil })
	}
	return r.latest(), r.grouped(key, req), nil
}

// tryReserve reserves what a decision takes. If one of the chosen clusters no longer has the
// capacity, or its groups run elsewhere, the reservation is nil, and snapshot and request are those
// to decide from again.
func (r *Cache) tryReserve(
	key string, req *scheduler.Request, d scheduler.Decision, from *scheduler.Snapshot,
) (*Reservation, *scheduler.Snapshot, *scheduler.Request, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, now := r.latest(), r.grouped(key, req)
	if s != from && req.TakesRoom() && !s.Fits(req, d.Clusters) || !sameGroups(req, now) {
		return nil, s, now, nil
	}
	p, err := r.reserve(key, req, d)
	return p, nil, nil, err
}

// reserve counts a decision as assumed, unless it exceeds a quota. r.mu is held.
func (r *Cache) reserve(key string, req *scheduler.Request, d scheduler.Decision) (*Reservation, error) {
	p := &Reservation{capacity: r, key: key, size: sizeOf(req.Requirements), clusters: slices.Clone(d.Clusters),
		total:  total(req.Requirements, req.Components, req.ComponentsLoad, d.Clusters),
		member: MembershipOf(req.Groups, d.Clusters)}
	if req.Components > 0 {
		p.size = req.ComponentsLoad
		for i := range p.clusters {
			p.clusters[i].Replicas = 1 // set of components
		}
	}
	if err := r.exceeds(key, p.total); err != nil {
		return nil, err
	}
	b := r.binding(key)
	r.change(b, func() { b.reserved = p })
	return p, nil
}

// Commit records that the write was made, and with which resourceVersion the binding is now. Until
// the watch shows that version or a newer one, the binding is taken to be as it was written.
func (p *Reservation) Commit(resourceVersion string) {
	r := p.capacity
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.bindings[p.key]
	if b == nil || b.reserved != p {
		return
	}
	v := versionOf(resourceVersion)
	if v <= b.version {
		r.change(b, func() { b.reserved = nil })
		return
	}
	// Where it is no more, what the watch shows decides how long that counts.
	parts := slices.DeleteFunc(slices.Clone(b.parts), func(o part) bool {
		_, still := slices.BinarySearchFunc(p.clusters, o.cluster, func(c workv1alpha2.TargetCluster, name string) int {
			return strings.Compare(c.Name, name)
		})
		return still
	})
	for i := range parts {
		parts[i].settled = time.Time{}
	}
	for _, c := range p.clusters {
		parts = append(parts, part{cluster: c.Name, replicas: int64(c.Replicas)})
	}
	b.version, b.total, b.member = v, p.total, p.member
	r.set(p.key, b, p.size, parts, nil)
}

// Release records that the write was not made; what was reserved is free again.
func (p *Reservation) Release() {
	r := p.capacity
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.bindings[p.key]; b != nil && b.reserved == p {
		r.change(b, func() { b.reserved = nil })
		if b.version == 0 {
			r.remove(p.key)
		}
	}
}

// sizeOf is the load of one replica.
func sizeOf(of *workv1alpha2.ReplicaRequirements) scheduler.Load {
	if of == nil {
		return scheduler.Load{Pods: 1}
	}
	return scheduler.LoadOf(of.ResourceRequest, 1)
}

func sameSize(a, b scheduler.Load) bool { return slices.Equal(a.Amounts, b.Amounts) }

// within is how many replicas of a size take no more than so many of another one.
func within(size, other scheduler.Load, replicas int64) int64 {
	if sameSize(size, other) {
		return replicas
	}
	n := replicas
	for _, a := range size.Amounts {
		n = min(n, clusterv1alpha1.Plus(0, other.Amount(a.Of), replicas)/a.N)
	}
	return n
}

// sum is what is assumed of a cluster. It has no bounds, unlike a load: what is added is subtracted
// later.
type sum struct {
	pods    clusterv1alpha1.Sum
	amounts []summed
	stale   bool // it changed since the snapshot was made
}

type summed struct {
	of corev1.ResourceName
	n  clusterv1alpha1.Sum
}

func (s *sum) add(size scheduler.Load, replicas int64) {
	s.pods = s.pods.Add(size.Pods, replicas)
	for _, a := range size.Amounts {
		at := slices.IndexFunc(s.amounts, func(have summed) bool { return have.of == a.Of })
		if at < 0 {
			at, s.amounts = len(s.amounts), append(s.amounts, summed{of: a.Of})
		}
		s.amounts[at].n = s.amounts[at].n.Add(a.N, replicas)
	}
}

func (s *sum) load() scheduler.Load {
	l := scheduler.Load{Pods: s.pods.Int64(), Amounts: make([]scheduler.Amount, 0, len(s.amounts))}
	for _, a := range s.amounts {
		l.Amounts = append(l.Amounts, scheduler.Amount{Of: a.of, N: a.n.Int64()})
	}
	return l
}

// add counts so many more replicas as assumed; fewer if negative. r.mu is held.
func (r *Cache) add(cluster string, size scheduler.Load, replicas int64) {
	if replicas == 0 {
		return
	}
	s := r.sums[cluster]
	if s == nil {
		s = &sum{}
		r.sums[cluster] = s
	}
	s.add(size, replicas)
	if !s.stale {
		s.stale = true
		r.stale = append(r.stale, cluster)
	}
}

// claim is what a binding claims of a cluster beyond what is reported.
type claim struct {
	cluster  string
	size     scheduler.Load
	replicas int64
}

// claims returns all claims of a binding, by cluster. While a write is pending, the larger number
// of replicas counts; if their sizes differ, both numbers count; reported replicas are subtracted.
// The result is valid until the next call with the same buffer.
func (b *bindingUsage) claims(buffer []claim) []claim {
	out := buffer[:0]
	if b.reserved == nil {
		for i := range b.parts {
			out = append(out, claim{b.parts[i].cluster, b.size, b.parts[i].replicas - b.parts[i].reported})
		}
		return out
	}
	next, size := b.reserved.clusters, b.reserved.size
	same := sameSize(b.size, size)
	for i, k := 0, 0; i < len(b.parts) || k < len(next); {
		switch order := compareAt(b.parts, i, next, k); {
		case order < 0:
			out = append(out, claim{b.parts[i].cluster, b.size, b.parts[i].replicas - b.parts[i].reported})
			i++
		case order > 0:
			out = append(out, claim{next[k].Name, size, int64(next[k].Replicas)})
			k++
		case same:
			out = append(out, claim{next[k].Name, size, max(b.parts[i].replicas, int64(next[k].Replicas)) - b.parts[i].reported})
			i, k = i+1, k+1
		default:
			reported := within(size, b.size, b.parts[i].reported)
			out = append(out, claim{b.parts[i].cluster, b.size, b.parts[i].replicas - b.parts[i].reported},
				claim{next[k].Name, size, max(0, int64(next[k].Replicas)-reported)})
			i, k = i+1, k+1
		}
	}
	return out
}

// compareAt compares places of two sorted lists by cluster; the end of one comes after all of the
// other.
func compareAt(parts []part, i int, next []workv1alpha2.TargetCluster, k int) int {
	switch {
	case i == len(parts):
		return 1
	case k == len(next):
		return -1
	}
	return strings.Compare(parts[i].cluster, next[k].Name)
}

// change changes a binding, and the sums by what it claims more or less then. r.mu is held.
func (r *Cache) change(b *bindingUsage, to func()) {
	r.before = b.claims(r.before)
	to()
	r.after = b.claims(r.after)
	before, after := r.before, r.after
	for len(before) > 0 && len(after) > 0 {
		x, y := before[0], after[0]
		switch order := strings.Compare(x.cluster, y.cluster); {
		case order < 0:
			r.add(x.cluster, x.size, -x.replicas)
			before = before[1:]
		case order > 0:
			r.add(y.cluster, y.size, y.replicas)
			after = after[1:]
		default:
			if sameSize(x.size, y.size) {
				r.add(y.cluster, y.size, y.replicas-x.replicas)
			} else {
				r.add(x.cluster, x.size, -x.replicas)
				r.add(y.cluster, y.size, y.replicas)
			}
			before, after = before[1:], after[1:]
		}
	}
	for _, x := range before {
		r.add(x.cluster, x.size, -x.replicas)
	}
	for _, y := range after {
		r.add(y.cluster, y.size, y.replicas)
	}
}
