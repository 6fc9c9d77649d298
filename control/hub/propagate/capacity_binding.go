package propagate

import (
	"slices"
	"strconv"
	"strings"
	"time"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/scheduler"
)

// Observation is what a watch shows of a binding.
type Observation struct {
	ResourceVersion string
	// Requirements of each replica; nil: none but its pod.
	Requirements *workv1alpha2.ReplicaRequirements
	// Parts are the clusters in which it has replicas: those of spec.clusters, and those that it is being evicted from, each once.
	Parts []ReservedPart
}

// Part is what a binding has in one cluster.
type ReservedPart struct {
	Cluster  string
	Replicas int32
	// Settled: the cluster's object is applied, and healthy, with this number of replicas: all of its pods are there.
	Settled bool
}

// binding is what is known of one.
type bindingUsage struct {
	version uint64         // the newest that was seen, or written by us
	size    scheduler.Load // of one replica
	parts   []part         // by cluster
	promise *Reservation   // the write of a newer decision has not ended; nil: there is none
}

// part is what a binding has in one cluster.
type part struct {
	cluster  string
	replicas int64
	// reported are those replicas that the cluster's report contains; the others are assumed.
	reported int64
	settled  time.Time // since when it is known to be settled; zero: it is not
}

// version of an object. They are numbers in which a newer one is larger; one that is none counts as older than all.
func capacityVersion(resourceVersion string) uint64 {
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func (b *bindingUsage) part(cluster string) *part {
	i, ok := slices.BinarySearchFunc(b.parts, cluster, func(p part, name string) int { return strings.Compare(p.cluster, name) })
	if !ok {
		return nil
	}
	return &b.parts[i]
}

// Observe takes in what a watch shows of a binding. What is older than the last write that was kept changes nothing.
//
// Replicas are assumed until they have settled and the cluster has reported since (Options.Lag). As long as both could count they
// do, which leaves too little room for a while, never too much.
func (r *Capacity) Observe(key string, o Observation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.binding(key)
	v := capacityVersion(o.ResourceVersion)
	if v < b.version {
		return
	}
	parts := make([]part, 0, len(o.Parts))
	now := r.now()
	for _, p := range o.Parts {
		next := part{cluster: p.Cluster, replicas: int64(p.Replicas)}
		if p.Settled {
			next.settled = now
		}
		parts = append(parts, next)
	}
	b.version = v
	r.set(key, b, sizeOf(o.Requirements), parts, b.promise)
}

// Forget takes in that a binding is gone: resourceVersion is the one with which the watch showed its deletion, so that a late one
// does not take away what was written since for a new binding of the same name; "": it was looked for by a live read.
func (r *Capacity) Forget(key, resourceVersion string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.bindings[key]
	if b == nil || resourceVersion != "" && capacityVersion(resourceVersion) < b.version {
		return
	}
	r.set(key, b, scheduler.Load{}, nil, b.promise)
	if b.promise == nil {
		delete(r.bindings, key)
	}
}

// binding returns that of a key, which is made if it is not known. r.mu is held.
func (r *Capacity) binding(key string) *bindingUsage {
	b := r.bindings[key]
	if b == nil {
		b = &bindingUsage{}
		r.bindings[key] = b
	}
	return b
}

// set replaces what is known of a binding; parts are in any order. What the clusters report of it already goes on counting as
// reported, as far as it is not more than there is now. r.mu is held.
func (r *Capacity) set(key string, b *bindingUsage, size scheduler.Load, parts []part, promise *Reservation) {
	slices.SortFunc(parts, func(a, b part) int { return strings.Compare(a.cluster, b.cluster) })
	for i := range parts {
		next := &parts[i]
		old := b.part(next.cluster)
		if old == nil {
			r.settle(key, next)
			continue
		}
		next.reported = min(next.replicas, within(size, b.size, old.reported))
		if same := sameSize(size, b.size) && old.replicas == next.replicas; same && !next.settled.IsZero() && !old.settled.IsZero() {
			next.settled = old.settled
		} else {
			r.settle(key, next)
		}
	}
	r.change(b, func() { b.size, b.parts, b.promise = size, parts, promise })
}
