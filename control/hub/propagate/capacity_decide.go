package propagate

import (
	"slices"
	"strings"
	"time"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/scheduler"
)

// attempts are how often a decision is computed beside others before it is computed alone.
const attempts = 4

// Promise is a decision whose write has not ended. Its replicas are assumed.
//
// After the write exactly one of Keep and Drop is called. If it is open whether it was made (a timeout), the replicas go on
// counting until somebody knows: the binding is read live, told to Observe (or Forget, if it is not there), and then Drop is
// called.
type Reservation struct {
	room     *Capacity
	key      string
	size     scheduler.Load               // of one replica
	clusters []workv1alpha2.TargetCluster // by name
}

// Decide decides as scheduler.Schedule does, from all that is assumed. If another decision has taken the room meanwhile it decides
// again. Errors are those of Schedule, and ErrNotReady.
//
// The request's Current must be what the binding says now. There must not be two at the same time for one key.
func (r *Capacity) Decide(key string, req *scheduler.Request) (scheduler.Decision, *Reservation, error) {
	s, err := r.begin(key)
	if err != nil {
		return scheduler.Decision{}, nil, err
	}
	for range attempts {
		d, err := scheduler.Schedule(req, s)
		if err != nil {
			return d, nil, err
		}
		p, latest := r.commit(key, req, d, s)
		if p != nil {
			return d, p, nil
		}
		s = latest
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	d, err := scheduler.Schedule(req, r.latest())
	if err != nil {
		return d, nil, err
	}
	return d, r.promise(key, req, d), nil
}

// begin returns the snapshot to decide from. A promise for the key that was forgotten is dropped.
func (r *Capacity) begin(key string) (*scheduler.Snapshot, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.known {
		return nil, ErrNotReady
	}
	if b := r.bindings[key]; b != nil && b.promise != nil {
		r.change(b, func() { b.promise = nil })
	}
	return r.latest(), nil
}

// commit makes a promise of a decision, unless one of the chosen clusters has no more room for what it is to get: then the promise
// is nil, and the snapshot is one to decide from again.
func (r *Capacity) commit(
	key string, req *scheduler.Request, d scheduler.Decision, from *scheduler.Snapshot,
) (*Reservation, *scheduler.Snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.latest(); s != from && req.TakesRoom() && !s.Fits(req, d.Clusters) {
		return nil, s
	}
	return r.promise(key, req, d), nil
}

// promise counts a decision as assumed. r.mu is held.
func (r *Capacity) promise(key string, req *scheduler.Request, d scheduler.Decision) *Reservation {
	p := &Reservation{room: r, key: key, size: sizeOf(req.Requirements), clusters: slices.Clone(d.Clusters)}
	b := r.binding(key)
	r.change(b, func() { b.promise = p })
	return p
}

// Keep says that the write was made, and with which resourceVersion the binding is now. Until the watch shows that version or a
// newer one, the binding is taken to be as it was written.
func (p *Reservation) Keep(resourceVersion string) {
	r := p.room
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.bindings[p.key]
	if b == nil || b.promise != p {
		return
	}
	v := capacityVersion(resourceVersion)
	if v <= b.version {
		r.change(b, func() { b.promise = nil })
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
	b.version = v
	r.set(p.key, b, p.size, parts, nil)
}

// Drop says that the write was not made; the room is free again.
func (p *Reservation) Drop() {
	r := p.room
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.bindings[p.key]; b != nil && b.promise == p {
		r.change(b, func() { b.promise = nil })
		if b.version == 0 {
			delete(r.bindings, p.key)
		}
	}
}
