package placement

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/scheduler"
)

// clock is a time that the test sets.
type clock struct{ time.Time }

func (c *clock) now() time.Time          { return c.Time }
func (c *clock) advance(d time.Duration) { c.Time = c.Add(d) }

func newClock() *clock { return &clock{time.Unix(1_700_000_000, 0)} }

// member is a cluster that reports so many cores, and how many of them are in use.
func member(name string, cores, used int64) *clusterv1alpha1.Cluster {
	c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Status.Conditions = []metav1.Condition{{Type: clusterv1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
	c.Status.APIEnablements = []clusterv1alpha1.APIEnablement{
		{GroupVersion: "apps/v1", Resources: []clusterv1alpha1.APIResource{{Kind: "Deployment"}}},
	}
	c.Status.ResourceSummary = &clusterv1alpha1.ResourceSummary{
		Allocatable: amounts(cores, 1000),
		Allocated:   amounts(used, 0),
	}
	return c
}

func amounts(cores, pods int64) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:  *resource.NewQuantity(cores, resource.DecimalSI),
		corev1.ResourcePods: *resource.NewQuantity(pods, resource.DecimalSI),
	}
}

func unready(c *clusterv1alpha1.Cluster) *clusterv1alpha1.Cluster {
	c.Status.Conditions[0].Status = metav1.ConditionUnknown
	return c
}

// needs are requirements of so many cores.
func needs(cores int64) *workv1alpha2.ReplicaRequirements {
	return &workv1alpha2.ReplicaRequirements{
		ResourceRequest: corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(cores, resource.DecimalSI)},
	}
}

// request requests replicas of one core each, divided by room.
func request(replicas int32, division policyv1alpha1.ReplicaDivisionPreference, current ...workv1alpha2.TargetCluster) *scheduler.Request {
	s := &policyv1alpha1.ReplicaSchedulingStrategy{
		ReplicaSchedulingType: policyv1alpha1.ReplicaSchedulingTypeDivided, ReplicaDivisionPreference: division,
	}
	if division == policyv1alpha1.ReplicaDivisionPreferenceWeighted {
		s.WeightPreference = &policyv1alpha1.ClusterPreferences{DynamicWeight: policyv1alpha1.DynamicWeightByAvailableReplicas}
	}
	return &scheduler.Request{
		Kind: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, Replicas: replicas, Requirements: needs(1),
		Placement: &policyv1alpha1.Placement{ReplicaScheduling: s}, Current: current,
	}
}

const (
	weighted   = policyv1alpha1.ReplicaDivisionPreferenceWeighted
	aggregated = policyv1alpha1.ReplicaDivisionPreferenceAggregated
)

func show(clusters []workv1alpha2.TargetCluster) string {
	var out []string
	for _, c := range clusters {
		out = append(out, fmt.Sprintf("%s=%d", c.Name, c.Replicas))
	}
	return strings.Join(out, " ")
}

// What requests more than a number holds takes all of a cluster while it is there, and nothing of
// what others take.
func TestLoadBeyondNumbers(t *testing.T) {
	r := NewCache(CacheOptions{})
	r.SetClusters([]*clusterv1alpha1.Cluster{member("m", 10, 0)})
	fits := func(replicas int32) bool {
		t.Helper()
		_, p, err := r.Decide("ns/b", request(replicas, aggregated))
		if err != nil {
			return false
		}
		p.Release()
		return true
	}
	r.Observe("ns/a", seen("1", 4))
	huge := &workv1alpha2.ReplicaRequirements{ResourceRequest: hard("cpu=1P")}
	for _, key := range []string{"ns/huge", "ns/huge2"} {
		r.Observe(key, Observation{ResourceVersion: "2", Size: sizeOf(huge), Parts: []ReservedPart{{Cluster: "m", Replicas: 10}}})
		if fits(1) {
			t.Errorf("with %s there is capacity", key)
		}
	}
	r.Forget("ns/huge", "3")
	if fits(1) {
		t.Error("what is left takes nothing")
	}
	r.Forget("ns/huge2", "3")
	if !fits(6) || fits(7) {
		t.Error("6 cores are free")
	}
}

// TestManyForFewPlaces: whatever happens at the same time, each place is given away once.
func TestManyForFewPlaces(t *testing.T) {
	for name, failing := range map[string]int64{"all writes succeed": 0, "every third write fails": 3} {
		t.Run(name, func(t *testing.T) {
			r := NewCache(CacheOptions{})
			var clusters []*clusterv1alpha1.Cluster
			want := map[string]int32{}
			for i := range 100 {
				clusters = append(clusters, member(fmt.Sprint("m", i), 1, 0))
				want[clusters[i].Name] = 1
			}
			r.SetClusters(clusters)
			var version, writes, placed, refused atomic.Int64
			var mu sync.Mutex
			got := map[string]int32{}
			try := func(i int) (again bool) {
				key, division := fmt.Sprint("ns/binding-", i), weighted
				if i%2 == 1 {
					division = aggregated
				}
				d, p, err := r.Decide(key, request(1, division))
				var room *scheduler.UnschedulableError
				switch {
				case errors.As(err, &room):
					refused.Add(1)
					return failing > 0 // what fails to be written gives its room back
				case err != nil:
					t.Error(err)
					return false
				case failing > 0 && writes.Add(1)%failing == 0:
					p.Release()
					return true
				}
				p.Commit(fmt.Sprint(version.Add(1)))
				placed.Add(1)
				mu.Lock()
				defer mu.Unlock()
				for _, c := range d.Clusters {
					got[c.Name] += c.Replicas
				}
				return false
			}
			queue := make(chan int)
			var workers sync.WaitGroup
			for range 16 {
				workers.Go(func() {
					for i := range queue {
						for try(i) && placed.Load() < 100 {
						}
					}
				})
			}
			for i := range 1000 {
				queue <- i
			}
			close(queue)
			workers.Wait()
			if placed.Load() != 100 || failing == 0 && refused.Load() != 900 {
				t.Errorf("%d placed, want 100; %d refused", placed.Load(), refused.Load())
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// step does something to a Room whose only cluster m has 10 cores, of which used are used; free is
// how many replicas of one core fit afterwards.
type step struct {
	do   string
	free int64
}

func TestAssumed(t *testing.T) {
	for name, steps := range map[string][]step{
		"a write that is kept":                          {{"decide a 4", 6}, {"keep a 2", 6}},
		"a write that fails":                            {{"decide a 4", 6}, {"drop a", 10}},
		"a reservation that was forgotten":              {{"decide a 4", 6}, {"decide a 3", 7}, {"drop a", 10}},
		"a write that turns out to have been made":      {{"decide a 4", 6}, {"see a 2 4", 6}, {"drop a", 6}},
		"an echo that is older than the write":          {{"see a 1 0", 10}, {"decide a 4", 6}, {"keep a 3", 6}, {"see a 2 0", 6}},
		"an echo that is older than the write, settled": {{"see a 1 2 ok", 8}, {"wait", 10}, {"scale a 2 6", 6}, {"keep a 3", 6}, {"see a 2 2 ok", 6}, {"wait", 6}},
		"the echo before the write is kept":             {{"decide a 4", 6}, {"see a 2 4", 6}, {"keep a 2", 6}},
		"a newer one before the write is kept":          {{"decide a 4", 6}, {"see a 3 1", 6}, {"keep a 2", 9}},
		"time alone does nothing":                       {{"decide a 4", 6}, {"keep a 2", 6}, {"see a 2 4", 6}, {"wait", 6}, {"wait", 6}},
		"settled, not reported yet":                     {{"see a 2 4 ok", 6}, {"report 4", 2}},
		"settled and reported":                          {{"see a 2 4 ok", 6}, {"report 4", 2}, {"wait", 6}},
		"settled, then not, then again":                 {{"see a 2 4 ok", 6}, {"half", 6}, {"see a 3 4", 6}, {"half", 6}, {"see a 4 4 ok", 6}, {"half", 6}, {"half", 10}},
		"settled, seen twice":                           {{"see a 2 4 ok", 6}, {"half", 6}, {"see a 3 4 ok", 6}, {"half", 10}},
		"settled where the cluster reports no more":     {{"see a 2 4 ok", 6}, {"silent", 6}, {"wait", 6}, {"report 4", 2}, {"wait", 6}},
		"what is reported stays so when it is unwell":   {{"see a 2 4 ok", 6}, {"wait", 10}, {"see a 3 4", 10}},
		"more replicas than are reported":               {{"see a 2 4 ok", 6}, {"wait", 10}, {"scale a 4 6", 8}, {"keep a 3", 8}, {"see a 3 6", 8}},
		"fewer, and as many again":                      {{"see a 2 4 ok", 6}, {"wait", 10}, {"see a 3 1", 10}, {"see a 4 4", 7}},
		"larger replicas than are reported":             {{"see a 2 2 ok", 8}, {"wait", 10}, {"resize a 3 2", 8}},
		"smaller replicas than are reported":            {{"resize a 2 2 ok", 6}, {"wait", 10}, {"see a 3 4", 8}},
		"a binding that is gone":                        {{"see a 2 4", 6}, {"forget a 3", 10}},
		"a binding that is gone before its reservation": {{"see a 2 4", 6}, {"scale a 4 5", 5}, {"forget a 3", 5}, {"drop a", 10}},
		"one that was gone and is there again":          {{"see a 2 4", 6}, {"forget a 3", 10}, {"decide a 4", 6}, {"keep a 4", 6}, {"forget a 3", 6}},
		"one that is gone for sure":                     {{"decide a 4", 6}, {"keep a 4", 6}, {"forget a", 10}},
		"two bindings":                                  {{"decide a 4", 6}, {"decide b 4", 2}, {"drop a", 6}, {"keep b 2", 6}},
		"the cluster is gone, and back":                 {{"decide a 4", 6}, {"keep a 2", 6}, {"gone", 0}, {"report 0", 6}},
	} {
		t.Run(name, func(t *testing.T) {
			clock := newClock()
			r := NewCache(CacheOptions{Now: clock.now})
			r.SetClusters([]*clusterv1alpha1.Cluster{member("m", 10, 0)})
			reservations := map[string]*Reservation{}
			for i, s := range steps {
				act(t, r, clock, reservations, s.do)
				if free := freeIn(r, "m"); free != s.free {
					t.Fatalf("step %d, %s: room for %d, want %d", i, s.do, free, s.free)
				}
			}
		})
	}
}

func act(t *testing.T, r *Cache, clock *clock, reservations map[string]*Reservation, do string) {
	t.Helper()
	verb, rest, _ := strings.Cut(do, " ")
	key, rest, _ := strings.Cut(rest, " ")
	var a, b int32
	var ok string
	n, err := fmt.Sscan(rest, &a, &b, &ok)
	if err != nil && rest != "" && n == 0 {
		t.Fatalf("%q: %v", do, err)
	}
	decide := func(replicas int32, current ...workv1alpha2.TargetCluster) {
		_, p, err := r.Decide(key, request(replicas, aggregated, current...))
		if err != nil {
			t.Fatalf("%q: %v", do, err)
		}
		reservations[key] = p
	}
	see := func(cores int64) {
		r.Observe(key, Observation{ResourceVersion: fmt.Sprint(a), Size: sizeOf(needs(cores)), Parts: []ReservedPart{{"m", b, ok == "ok"}}})
	}
	switch verb {
	case "decide":
		decide(a)
	case "scale":
		decide(b, workv1alpha2.TargetCluster{Name: "m", Replicas: a})
	case "keep":
		reservations[key].Commit(fmt.Sprint(a))
	case "drop":
		reservations[key].Release()
	case "see":
		see(1)
	case "resize":
		see(2)
	case "forget":
		r.Forget(key, rest)
	case "wait":
		clock.advance(DefaultLag)
	case "half":
		clock.advance(DefaultLag / 2)
	case "silent":
		r.SetClusters([]*clusterv1alpha1.Cluster{unready(member("m", 10, 0))})
	case "gone":
		r.SetClusters(nil)
	case "report":
		var used int64
		if _, err := fmt.Sscan(key, &used); err != nil {
			t.Fatal(err)
		}
		r.SetClusters([]*clusterv1alpha1.Cluster{member("m", 10, used)})
	default:
		t.Fatalf("no step %q", do)
	}
}

// freeIn is how many replicas of one core fit into a cluster.
func freeIn(r *Cache, cluster string) (n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.latest().Fits(request(1, aggregated), []workv1alpha2.TargetCluster{{Name: cluster, Replicas: int32(n + 1)}}) {
		n++
	}
	return n
}

func TestRestart(t *testing.T) {
	r := NewCache(CacheOptions{})
	r.SetClusters([]*clusterv1alpha1.Cluster{member("m", 10, 0), member("n", 10, 0)})
	d, p, err := r.Decide("ns/a", request(8, weighted))
	if err != nil {
		t.Fatal(err)
	}
	p.Commit("7")
	again := NewCache(CacheOptions{})
	again.SetClusters([]*clusterv1alpha1.Cluster{member("m", 10, 0), member("n", 10, 0)})
	seen := Observation{ResourceVersion: "7", Size: sizeOf(needs(1))}
	for _, c := range d.Clusters {
		seen.Parts = append(seen.Parts, ReservedPart{Cluster: c.Name, Replicas: c.Replicas})
	}
	again.Observe("ns/a", seen)
	for _, c := range []string{"m", "n"} {
		if before, after := freeIn(r, c), freeIn(again, c); before != 6 || after != before {
			t.Errorf("room in %s for %d, after a restart for %d, want 6", c, before, after)
		}
	}
}

func TestDecide(t *testing.T) {
	static := request(30, weighted)
	static.Placement.ReplicaScheduling.WeightPreference = nil
	duplicated := request(30, "")
	duplicated.Placement = nil
	for name, c := range map[string]struct {
		r    *scheduler.Request
		want string
		free int64 // in m, afterwards
	}{
		"divided by room":                {request(6, weighted), "m=4 n=2", 4},
		"more where it runs":             {request(6, weighted, workv1alpha2.TargetCluster{Name: "n", Replicas: 2}), "m=3 n=3", 5},
		"static weights ask for no room": {static, "m=15 n=15", 0},
		"neither do as many in each":     {duplicated, "m=30 n=30", 0},
		"what is no workload takes none": {&scheduler.Request{Kind: static.Kind}, "m=0 n=0", 8},
		"components are not divided":     {&scheduler.Request{Kind: static.Kind, Components: 2, ComponentsLoad: scheduler.LoadOf(corev1.ResourceList{"cpu": resource.MustParse("3")}, 1)}, "m=0 n=0", 5},
	} {
		r := NewCache(CacheOptions{})
		r.SetClusters([]*clusterv1alpha1.Cluster{member("m", 10, 2), member("n", 10, 6)})
		d, _, err := r.Decide("ns/a", c.r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := show(d.Clusters); got != c.want || freeIn(r, "m") != c.free {
			t.Errorf("%s: %s, and room for %d, want %s and %d", name, got, freeIn(r, "m"), c.want, c.free)
		}
	}
}

func TestNotReady(t *testing.T) {
	r := NewCache(CacheOptions{})
	if _, _, err := r.Decide("ns/a", request(1, weighted)); !errors.Is(err, ErrNotReady) {
		t.Errorf("before the clusters are known: %v", err)
	}
	r.SetClusters(nil)
	var fit *scheduler.FitError
	if _, _, err := r.Decide("ns/a", request(1, weighted)); !errors.As(err, &fit) {
		t.Errorf("without clusters: %v", err)
	}
}

func TestNeed(t *testing.T) {
	r := NewCache(CacheOptions{})
	removed := member("m", 1, 0)
	now := metav1.Now()
	removed.DeletionTimestamp = &now
	r.SetClusters([]*clusterv1alpha1.Cluster{removed})
	req := request(1, weighted, workv1alpha2.TargetCluster{Name: "m", Replicas: 1})
	applied, err := scheduler.Applied(req.Placement)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Need(req, scheduler.Observed{Placement: applied}); got != "cluster m is being removed" {
		t.Errorf("a decision is due because %q", got)
	}
}

// TestCommit: a decision that was computed before another one took the room is computed again.
func TestCommit(t *testing.T) {
	r := NewCache(CacheOptions{})
	r.SetClusters([]*clusterv1alpha1.Cluster{member("m", 10, 0), member("n", 10, 4)})
	req := request(8, aggregated)
	s, _, err := r.begin("ns/a", req)
	if err != nil {
		t.Fatal(err)
	}
	d, err := scheduler.Schedule(req, s)
	if err != nil || show(d.Clusters) != "m=8" {
		t.Fatal(show(d.Clusters), err)
	}
	if _, _, err := r.Decide("ns/b", request(6, aggregated)); err != nil {
		t.Fatal(err)
	}
	p, latest, _, err := r.tryReserve("ns/a", req, d, s)
	if p != nil || err != nil {
		t.Fatal("places were given away twice")
	}
	if d, err = scheduler.Schedule(req, latest); err != nil || show(d.Clusters) != "m=3 n=5" {
		t.Fatal(show(d.Clusters), err)
	}
	// the newer snapshot is requested only where there is no place
	if p, _, _, _ = r.tryReserve("ns/a", req, d, latest); p == nil {
		t.Error("what fits is not committed")
	}
}
