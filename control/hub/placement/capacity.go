// Package placement is what package propagate needs next to the scheduler. Cache is the memory of
// decisions: the clusters, and the replicas that were placed but are not in the clusters' reports
// yet. Decisions are computed in parallel from immutable snapshots and committed serially against
// the assumed sums, and against quotas. Evictor decides which clusters a template leaves, and when
// that ends; propagate calls it before each decision and writes both at once. The package reads and
// writes no objects.
package placement

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/scheduler"
)

// ErrNotReady reports that SetClusters was not called yet. Without clusters nothing fits, and
// acting on that would remove what runs.
var ErrNotReady = errors.New("decide: the clusters have not been read yet: try again")

// DefaultLag is several times the time between two probes of a cluster.
const DefaultLag = 30 * time.Second

// CacheOptions of a Cache; the zero value is for production.
type CacheOptions struct {
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	// Lag is the time after which the resourceSummary of a reporting cluster is taken to include
	// replicas that were seen healthy; 0: DefaultLag.
	Lag time.Duration
}

// Cache knows the clusters and what is assumed of them. All methods are safe for concurrent use.
//
// Before the first Decide it needs all clusters (SetClusters) and all bindings (Observe): capacity
// that an unknown binding uses would be reserved again.
type Cache struct {
	now func() time.Time
	lag time.Duration

	mu       sync.Mutex
	snapshot *scheduler.Snapshot
	stale    []string        // clusters whose sums changed since snapshot was made
	known    bool            // SetClusters was called
	reports  map[string]bool // all clusters, and whether they report
	bindings map[string]*bindingUsage
	// spaces are the bindings by namespace: quotas and affinity groups ask for those of one.
	spaces   map[string]map[string]*bindingUsage
	sums     map[string]*sum    // by cluster: what is assumed
	quotas   map[string][]Quota // by namespace
	settling []settled          // the oldest first

	before, after []claim // buffers of change
}

// NewCache makes a Cache without clusters and bindings.
func NewCache(o CacheOptions) *Cache {
	r := &Cache{
		now: o.Now, lag: cmp.Or(o.Lag, DefaultLag), snapshot: scheduler.NewSnapshot(nil, nil),
		reports: map[string]bool{}, sums: map[string]*sum{}, quotas: map[string][]Quota{},
		bindings: map[string]*bindingUsage{}, spaces: map[string]map[string]*bindingUsage{},
	}
	if r.now == nil {
		r.now = time.Now
	}
	return r
}

// SetClusters replaces all clusters. They must not be changed afterwards.
func (r *Cache) SetClusters(clusters []*clusterv1alpha1.Cluster) {
	r.mu.Lock()
	defer r.mu.Unlock()
	reports, again := make(map[string]bool, len(clusters)), map[string]bool{}
	for _, c := range clusters {
		now := meta.IsStatusConditionTrue(c.Status.Conditions, clusterv1alpha1.ConditionReady)
		before, was := r.reports[c.Name]
		reports[c.Name] = now
		if now && !before {
			again[c.Name] = true
		}
		if s := r.sums[c.Name]; !was && s != nil && !s.stale {
			s.stale = true
			r.stale = append(r.stale, c.Name)
		}
	}
	if len(again) > 0 {
		r.settleAgain(again)
	}
	r.snapshot, r.known, r.reports = r.snapshot.Renew(clusters), true, reports
}

// Need is the reason why a decision is due; "": none is (scheduler.Need). It depends on the request
// and the clusters alone.
func (r *Cache) Need(req *scheduler.Request, o scheduler.Observed) string {
	r.mu.Lock()
	s := r.latest()
	r.mu.Unlock()
	return scheduler.Need(req, o, s)
}

// Barred are the clusters of a binding that its namespace must not use (scheduler.Snapshot.Barred).
func (r *Cache) Barred(b binding.Binding) []string {
	within := b.GetAnnotations()[policyv1alpha1.AnnotationClusters]
	if within == "" {
		return nil
	}
	r.mu.Lock()
	s := r.latest()
	r.mu.Unlock()
	return s.Barred(within, b.Spec.Clusters)
}

// Try returns the decision that would be made now, and reserves nothing.
func (r *Cache) Try(key string, req *scheduler.Request) (scheduler.Decision, error) {
	r.mu.Lock()
	s := r.latest()
	req = r.grouped(key, req)
	r.mu.Unlock()
	return scheduler.Schedule(req, s)
}

// latest is a snapshot with all that is assumed now. r.mu is held.
func (r *Cache) latest() *scheduler.Snapshot {
	r.release()
	if len(r.stale) > 0 {
		r.snapshot = r.snapshot.Assume(func(yield func(string, scheduler.Load) bool) {
			for _, cluster := range r.stale {
				s := r.sums[cluster]
				s.stale = false
				if !yield(cluster, s.load()) {
					return
				}
			}
		})
		r.stale = r.stale[:0]
	}
	return r.snapshot
}

// Observation is what a watch shows of a binding.
type Observation struct {
	ResourceVersion string
	// Size is the load of each replica, or of all components together, of which each part has one
	// set.
	Size scheduler.Load
	// Total is what it requests in spec.clusters, for quotas.
	Total scheduler.Load
	// Member is set if it belongs to a workload affinity group.
	Member *Membership
	// Parts are the clusters in which it has replicas: those of spec.clusters, and those that it is
	// being evicted from, each once.
	Parts []ReservedPart
}

// ReservedPart is what a binding has in one cluster.
type ReservedPart struct {
	Cluster  string
	Replicas int32
	// Settled: the cluster's object is applied, and healthy, with this number of replicas: all of
	// its pods are there.
	Settled bool
}

// ObservationOf is what is kept of a binding.
func ObservationOf(b binding.Binding) Observation {
	o := Observation{ResourceVersion: b.GetResourceVersion(), Size: SizeOf(b.Spec), Total: Total(b.Spec),
		Member: MembershipOf(b.Spec.WorkloadAffinityGroups, b.Spec.Clusters)}
	add := func(cluster string, replicas int32) {
		if !slices.ContainsFunc(o.Parts, func(p ReservedPart) bool { return p.Cluster == cluster }) {
			o.Parts = append(o.Parts, ReservedPart{Cluster: cluster, Replicas: replicas, Settled: Settled(b.Status, cluster, replicas)})
		}
	}
	for _, c := range b.Spec.Clusters {
		replicas := b.Spec.ReplicasIn(c)
		if len(b.Spec.Components) > 0 {
			replicas = 1 // set of components
		}
		add(c.Name, replicas)
	}
	for i := range b.Spec.GracefulEvictionTasks {
		t := &b.Spec.GracefulEvictionTasks[i]
		add(t.FromCluster, ptr.Deref(t.Replicas, 0))
	}
	return o
}

// bindingUsage is what is known of one binding.
type bindingUsage struct {
	version uint64         // the newest that was seen, or written by us
	size    scheduler.Load // of one replica
	// of all replicas, without those in clusters that it is being evicted from
	total    scheduler.Load
	member   *Membership  // nil: of no group
	parts    []part       // by cluster
	reserved *Reservation // a newer decision that is being written; nil: none
}

// part is what a binding has in one cluster.
type part struct {
	cluster  string
	replicas int64
	// reported are those replicas that the cluster's report contains; the others are assumed.
	reported int64
	settled  time.Time // since when it is known to be settled; zero: it is not
}

// versionOf parses a resourceVersion. A newer one is a larger number; one that is no number counts
// as older than all.
func versionOf(resourceVersion string) uint64 {
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

// Observe records what a watch shows of a binding. What is older than the last committed write
// changes nothing.
//
// Replicas are assumed until they have settled and the cluster has reported since
// (CacheOptions.Lag). While both could count, both do: the capacity is underestimated for a while,
// never overestimated.
func (r *Cache) Observe(key string, o Observation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.binding(key)
	v := versionOf(o.ResourceVersion)
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
	b.version, b.total, b.member = v, o.Total, o.Member
	r.set(key, b, o.Size, parts, b.reserved)
}

// Forget records that a binding is gone: resourceVersion is the one with which the watch showed its
// deletion, so that a late event does not remove what was written since for a new binding of the
// same name; "": a live read did not find it, or the watch missed the deletion. In the latter case
// a new binding of the same name is not counted until the watch shows it.
func (r *Cache) Forget(key, resourceVersion string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.bindings[key]
	if b == nil || resourceVersion != "" && versionOf(resourceVersion) < b.version {
		return
	}
	b.total, b.member = scheduler.Load{}, nil
	r.set(key, b, scheduler.Load{}, nil, b.reserved)
	if b.reserved == nil {
		r.remove(key)
	}
}

// namespaceOf is that of the binding of a key; empty for one of a cluster-scoped template.
func namespaceOf(key string) string {
	namespace, _, _ := strings.Cut(key, "/") // the name is not needed
	return namespace
}

// remove drops the binding of a key. r.mu is held.
func (r *Cache) remove(key string) {
	delete(r.bindings, key)
	space := r.spaces[namespaceOf(key)]
	if delete(space, key); len(space) == 0 {
		delete(r.spaces, namespaceOf(key))
	}
}

// binding returns that of a key, which is made if it is not known. r.mu is held.
func (r *Cache) binding(key string) *bindingUsage {
	b := r.bindings[key]
	if b == nil {
		b = &bindingUsage{}
		r.bindings[key] = b
		space := r.spaces[namespaceOf(key)]
		if space == nil {
			space = map[string]*bindingUsage{}
			r.spaces[namespaceOf(key)] = space
		}
		space[key] = b
	}
	return b
}

// set replaces what is known of a binding; parts are in any order. What the clusters report of it
// already continues counting as reported, as far as it is not more than there is now. r.mu is held.
func (r *Cache) set(key string, b *bindingUsage, size scheduler.Load, parts []part, reservation *Reservation) {
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
	r.change(b, func() { b.size, b.parts, b.reserved = size, parts, reservation })
}

// settled is a part that has settled at a time; the cluster's report contains it some time after
// that.
type settled struct {
	key, cluster string
	at           time.Time
}

// settle lets a part that has settled wait for the cluster's report. r.mu is held.
func (r *Cache) settle(key string, p *part) {
	if !p.settled.IsZero() && p.reported < p.replicas {
		r.settling = append(r.settling, settled{key, p.cluster, p.settled})
	}
}

// settleAgain restarts settling for the clusters that have not reported for a while: their last
// reports may be older than what has settled since. r.mu is held.
func (r *Cache) settleAgain(clusters map[string]bool) {
	now := r.now()
	for key, b := range r.bindings {
		for i := range b.parts {
			if p := &b.parts[i]; clusters[p.cluster] && !p.settled.IsZero() {
				p.settled = now
				r.settle(key, p)
			}
		}
	}
}

// release stops assuming what the clusters have reported by now. What waits for a cluster that does
// not report is left to settleAgain. r.mu is held.
func (r *Cache) release() {
	now := r.now()
	for len(r.settling) > 0 && now.Sub(r.settling[0].at) >= r.lag {
		s := r.settling[0]
		r.settling = r.settling[1:]
		b := r.bindings[s.key]
		if b == nil || !r.reports[s.cluster] {
			continue
		}
		if p := b.part(s.cluster); p != nil && p.settled.Equal(s.at) {
			r.change(b, func() { p.reported = p.replicas })
		}
	}
}
