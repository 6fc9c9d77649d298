package placement

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/scheduler"
)

func grouped(affinity, anti string, current ...string) *scheduler.Request {
	r := request(2, "")
	r.Placement = nil // duplicated: in all clusters that are allowed
	r.Groups = &workv1alpha2.WorkloadAffinityGroups{AffinityGroup: affinity, AntiAffinityGroup: anti}
	for _, c := range current {
		r.Current = append(r.Current, workv1alpha2.TargetCluster{Name: c, Replicas: 2})
	}
	return r
}

func names(d scheduler.Decision) string {
	var out []string
	for _, c := range d.Clusters {
		out = append(out, c.Name)
	}
	return strings.Join(out, " ")
}

// Karmada: among m1, m2 and m3, while web of namespace ns runs in m1, with both its groups.
func TestGroups(t *testing.T) {
	evicted := grouped("app=a", "")
	evicted.Evicted = []string{"m1"}
	for name, c := range map[string]struct {
		key  string
		req  *scheduler.Request
		want string // clusters, or the error
	}{
		"together":                               {"ns/b", grouped("app=a", ""), "m1"},
		"apart":                                  {"ns/b", grouped("", "app=z"), "m2 m3"},
		"both":                                   {"ns/b", grouped("app=a", "app=z"), "no cluster fits: 0/3: 2 cluster(s) did not run the workloads of the affinity group, 1 cluster(s) ran workloads of the anti-affinity group"},
		"another value":                          {"ns/b", grouped("app=b", "app=y"), "m1 m2 m3"},
		"the other kind of group is another one": {"ns/b", grouped("app=z", "app=a"), "m1 m2 m3"},
		"another namespace":                      {"other/b", grouped("app=a", "app=z"), "m1 m2 m3"},
		"itself does not count":                  {"ns/web", grouped("app=a", "app=z"), "m1 m2 m3"},
		"no group":                               {"ns/b", grouped("", ""), "m1 m2 m3"},
		"where it runs it stays, together":       {"ns/b", grouped("app=a", "", "m2"), "m1 m2"},
		"where it runs it stays, apart":          {"ns/b", grouped("", "app=z", "m1"), "m1 m2 m3"},
		"evicted from the cluster of its group":  {"ns/b", evicted, "m2 m3"},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewCache(CacheOptions{})
			r.SetClusters([]*clusterv1alpha1.Cluster{member("m1", 9, 0), member("m2", 9, 0), member("m3", 9, 0)})
			r.Observe("ns/web", Observation{ResourceVersion: "1", Member: MembershipOf(&workv1alpha2.WorkloadAffinityGroups{AffinityGroup: "app=a", AntiAffinityGroup: "app=z"},
				[]workv1alpha2.TargetCluster{{Name: "m1"}})})
			d, _, err := r.Decide(c.key, c.req)
			got := names(d)
			if err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// A group that loses its cluster moves as a whole, and a deleted binding has no effect on others.
func TestGroupMoves(t *testing.T) {
	r := NewCache(CacheOptions{})
	r.SetClusters([]*clusterv1alpha1.Cluster{member("m1", 9, 0), member("m2", 9, 0), member("m3", 9, 0)})
	leave := func(key, version, want string) {
		t.Helper()
		req := request(2, aggregated)
		req.Groups, req.Evicted = &workv1alpha2.WorkloadAffinityGroups{AffinityGroup: "app=a"}, []string{"m1"}
		d, p, err := r.Decide(key, req)
		if err != nil || names(d) != want {
			t.Fatalf("%s goes to %s, want %s; %v", key, names(d), want, err)
		}
		p.Commit(version)
	}
	group := &workv1alpha2.WorkloadAffinityGroups{AffinityGroup: "app=a", AntiAffinityGroup: "app=z"}
	for _, key := range []string{"ns/a", "ns/b", "ns/c"} {
		r.Observe(key, Observation{ResourceVersion: "1", Member: MembershipOf(group, []workv1alpha2.TargetCluster{{Name: "m1"}})})
	}
	leave("ns/a", "2", "m2")
	leave("ns/b", "3", "m2")
	leave("ns/c", "4", "m2")
	d, p, err := r.Decide("ns/d", grouped("", "app=z"))
	if err != nil || names(d) != "m1 m2 m3" { // the three moved without an anti-affinity group
		t.Fatal(names(d), err)
	}
	p.Release()
	r.Observe("ns/c", Observation{ResourceVersion: "5", Member: MembershipOf(group, []workv1alpha2.TargetCluster{{Name: "m3"}})})
	if d, p, _ = r.Decide("ns/d", grouped("", "app=z")); names(d) != "m1 m2" {
		t.Fatal(names(d))
	}
	p.Release()
	r.Forget("ns/c", "6")
	if d, _, _ = r.Decide("ns/d", grouped("", "app=z")); names(d) != "m1 m2 m3" {
		t.Fatal(names(d))
	}
}

// However many decide at once and whatever becomes of their writes: no two of an anti-affinity
// group share a cluster, and all of an affinity group run in those of the first.
func TestGroupsHoldConcurrently(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := NewCache(CacheOptions{})
		var clusters []*clusterv1alpha1.Cluster
		for i := range rapid.IntRange(1, 6).Draw(t, "clusters") {
			clusters = append(clusters, member(fmt.Sprint("m", i), 100, 0))
		}
		r.SetClusters(clusters)
		failing := rapid.IntRange(1, 4).Draw(t, "failing")
		var version atomic.Int64
		var mu sync.Mutex
		var apart, together [][]string
		var workers sync.WaitGroup
		for i := range 12 {
			workers.Go(func() {
				req := request(1, aggregated)
				if req.Groups = (&workv1alpha2.WorkloadAffinityGroups{AntiAffinityGroup: "app=z"}); i%2 == 1 {
					req.Groups = &workv1alpha2.WorkloadAffinityGroups{AffinityGroup: "app=a"}
				}
				d, p, err := r.Decide(fmt.Sprint("ns/", i), req)
				var fit *scheduler.FitError
				if errors.As(err, &fit) {
					return
				} else if err != nil {
					t.Error(err)
					return
				}
				if failing > 1 && i%failing == 0 {
					p.Release()
					return
				}
				mu.Lock()
				if i%2 == 1 {
					together = append(together, strings.Fields(names(d)))
				} else {
					apart = append(apart, strings.Fields(names(d)))
				}
				mu.Unlock()
				p.Commit(fmt.Sprint(version.Add(1)))
			})
		}
		workers.Wait()
		seen := map[string]bool{}
		for _, c := range slices.Concat(apart...) {
			if seen[c] {
				t.Errorf("two of the anti-affinity group in %s: %v", c, apart)
			}
			seen[c] = true
		}
		if failing == 1 && len(slices.Compact(slices.Sorted(slices.Values(slices.Concat(together...))))) > 1 {
			t.Errorf("the affinity group is in %v", together)
		}
	})
}
