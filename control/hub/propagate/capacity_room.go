package propagate

import (
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/scheduler"
)

// ErrNotReady says that SetClusters was not called yet. Without clusters nothing fits, and who acts on that takes away what runs.
var ErrNotReady = errors.New("decide: the clusters have not been read yet: try again")

// DefaultLag is three times the time between two reports of a cluster.
const DefaultLag = 30 * time.Second

// Options of a Room; the zero value is that of a process that runs.
type CapacityOptions struct {
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	// Lag is how long after replicas were seen to be healthy a cluster that reports has them in its resourceSummary, at the latest;
	// 0: DefaultLag.
	Lag time.Duration
}

// Room knows the clusters and what is assumed of them. All methods may be called at the same time.
//
// Before the first Decide it must have been told of all clusters (SetClusters) and all bindings (Observe): what is not known to it
// is given away again.
type Capacity struct {
	now func() time.Time
	lag time.Duration

	mu       sync.Mutex
	snapshot *scheduler.Snapshot
	stale    []string        // clusters whose sums changed since snapshot was made
	known    bool            // SetClusters was called
	reports  map[string]bool // all clusters, and whether they report
	bindings map[string]*bindingUsage
	sums     map[string]*sum   // by cluster: what is assumed
	settling []capacitySettled // the oldest first

	before, after []capacityClaim // buffers of change
}

// New makes a Room that knows nothing.
func NewCapacity(o CapacityOptions) *Capacity {
	r := &Capacity{
		now: o.Now, lag: o.Lag, snapshot: scheduler.NewSnapshot(nil, nil),
		reports: map[string]bool{}, bindings: map[string]*bindingUsage{}, sums: map[string]*sum{},
	}
	if r.now == nil {
		r.now = time.Now
	}
	if r.lag == 0 {
		r.lag = DefaultLag
	}
	return r
}

// SetClusters says which clusters there are, all of them. They must not be changed afterwards.
func (r *Capacity) SetClusters(clusters []*clusterv1alpha1.Cluster) {
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

// Need says why a decision is due; "": none is (scheduler.Need). It depends on the request and the clusters alone, whatever is
// known of the binding of that key.
func (r *Capacity) Need(_ string, req *scheduler.Request, o scheduler.Observed) string {
	r.mu.Lock()
	s := r.latest()
	r.mu.Unlock()
	return scheduler.Need(req, o, s)
}

// latest is a snapshot with all that is assumed now. r.mu is held.
func (r *Capacity) latest() *scheduler.Snapshot {
	r.release()
	if len(r.stale) > 0 {
		r.snapshot = r.snapshot.Assume(func(yield func(string, scheduler.Load) bool) {
			for _, cluster := range r.stale {
				s := r.sums[cluster]
				s.stale = false
				if !yield(cluster, s.Clone()) { // a snapshot does not change
					return
				}
			}
		})
		r.stale = r.stale[:0]
	}
	return r.snapshot
}
