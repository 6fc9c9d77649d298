package placement

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/scheduler"
)

func hard(amounts ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, a := range amounts {
		name, n, _ := strings.Cut(a, "=")
		out[corev1.ResourceName(name)] = resource.MustParse(n)
	}
	return out
}

// seen is what a watch shows of a binding with so many replicas of a core each, in cluster m.
func seen(version string, replicas int32) Observation {
	t := []workv1alpha2.TargetCluster{{Name: "m", Replicas: replicas}}
	return Observation{ResourceVersion: version, Size: sizeOf(needs(1)), Parts: []ReservedPart{{Cluster: "m", Replicas: replicas}},
		Total: Total(&workv1alpha2.ResourceBindingSpec{ReplicaRequirements: needs(1), Clusters: t})}
}

func TestQuota(t *testing.T) {
	running := func(n int32) []workv1alpha2.TargetCluster {
		return []workv1alpha2.TargetCluster{{Name: "m", Replicas: n}}
	}
	flink := request(1, "")
	flink.Components, flink.ComponentsLoad = 2, ComponentsLoad([]workv1alpha2.Component{{Replicas: 1, ReplicaRequirements: needs(1)}, {Replicas: 3, ReplicaRequirements: needs(2)}})
	lone := request(0, "")
	lone.Components, lone.ComponentsLoad = 1, ComponentsLoad([]workv1alpha2.Component{{Replicas: 3, ReplicaRequirements: needs(1)}, {Replicas: 0, ReplicaRequirements: needs(9)}})
	other, copies := request(9, weighted), request(4, "", running(3)...)
	copies.Placement = nil
	huge := request(10, "")
	huge.Placement, huge.Requirements = nil, &workv1alpha2.ReplicaRequirements{ResourceRequest: hard("cpu=1P")}
	parts := request(0, "")
	parts.Components, parts.ComponentsLoad = 1, ComponentsLoad([]workv1alpha2.Component{{Replicas: 10, ReplicaRequirements: huge.Requirements}})
	for name, c := range map[string]struct {
		key  string
		hard corev1.ResourceList
		// while the binding has 3 replicas, and another one of the namespace has 4
		req  *scheduler.Request
		want string // "": it is decided
	}{
		"it fits":                             {"ns/a", hard("cpu=10"), request(6, weighted, running(3)...), ""},
		"one too many":                        {"ns/a", hard("cpu=10"), request(7, weighted, running(3)...), "quota q: exceeded by 4 more cpu, of at most 10"},
		"requests are meant":                  {"ns/a", hard("requests.cpu=10"), request(7, weighted, running(3)...), "quota q: exceeded by 4 more requests.cpu, of at most 10"},
		"as many: a quota below the use":      {"ns/a", hard("cpu=1"), request(3, weighted, running(3)...), ""},
		"fewer: a quota below the use":        {"ns/a", hard("cpu=1"), request(2, weighted, running(3)...), ""},
		"pods":                                {"ns/a", hard("pods=8"), request(5, weighted, running(3)...), "quota q: exceeded by 2 more pods, of at most 8"},
		"what is not requested":               {"ns/a", hard("memory=1Gi"), request(50, weighted, running(3)...), ""},
		"limits are not counted":              {"ns/a", hard("limits.cpu=1"), request(7, weighted, running(3)...), ""},
		"duplicated in two clusters":          {"ns/a", hard("cpu=10"), copies, "quota q: exceeded by 5 more cpu, of at most 10"},
		"components in two clusters":          {"ns/a", hard("cpu=17"), flink, "quota q: exceeded by 11 more cpu, of at most 17"},
		"one component in two clusters":       {"ns/a", hard("cpu=9"), lone, "quota q: exceeded by 3 more cpu, of at most 9"},
		"components that fit":                 {"ns/a", hard("cpu=18"), flink, ""},
		"another namespace":                   {"other/a", hard("cpu=10"), other, ""},
		"a namespace that begins like this":   {"ns2/a", hard("cpu=10"), other, ""},
		"a new one beside those that run":     {"ns/c", hard("cpu=10"), request(4, weighted), "quota q: exceeded by 4 more cpu, of at most 10"},
		"more than a number holds":            {"ns/c", hard("cpu=10"), huge, "quota q: exceeded by 9223372036854775807m more cpu, of at most 10"},
		"components of more":                  {"ns/c", hard("cpu=10"), parts, "quota q: exceeded by 9223372036854775807m more cpu, of at most 10"},
		"a quota of more":                     {"ns/a", hard("cpu=10P"), request(7, weighted, running(3)...), ""},
		"a binding without namespace is free": {"/a", hard("cpu=1"), other, ""},
	} {
		r := NewCache(CacheOptions{})
		r.SetClusters([]*clusterv1alpha1.Cluster{member("m", 100, 0), member("n", 100, 0)})
		r.SetQuotas("ns", []Quota{{Name: "q", Hard: c.hard}})
		r.Observe("ns/a", seen("1", 3))
		r.Observe("ns/b", seen("1", 4))
		_, p, err := r.Decide(c.key, c.req)
		var quota *QuotaError
		switch {
		case c.want == "" && (err != nil || p == nil), c.want != "" && (!errors.As(err, &quota) || !strings.HasPrefix(err.Error(), c.want)):
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		case err != nil && p != nil:
			t.Errorf("%s: something is reserved", name)
		}
	}
}

// What is reserved counts until the write has ended, in both directions; a deleted binding and a
// removed quota free the rest.
func TestQuotaFollowsWrites(t *testing.T) {
	r := NewCache(CacheOptions{})
	r.SetClusters([]*clusterv1alpha1.Cluster{member("m", 100, 0)})
	r.SetQuotas("ns", []Quota{{Name: "q", Hard: hard("cpu=10")}})
	fits := func(key string, replicas int32, current ...workv1alpha2.TargetCluster) (p *Reservation) {
		t.Helper()
		_, p, err := r.Decide(key, request(replicas, aggregated, current...))
		if quota := (&QuotaError{}); err != nil && !errors.As(err, &quota) {
			t.Fatal(err)
		}
		return p
	}
	p := fits("ns/a", 6)
	if fits("ns/b", 5) != nil {
		t.Error("a reservation does not count")
	}
	p.Release()
	if p = fits("ns/b", 5); p == nil {
		t.Fatal("a released reservation counts")
	}
	p.Commit("5")
	if fits("ns/a", 6) != nil {
		t.Error("a committed decision does not count")
	}
	r.Observe("ns/b", seen("4", 1)) // older than our write
	if fits("ns/a", 6) != nil {
		t.Error("an old event replaces a committed decision")
	}
	// scaled down, not written yet
	p = fits("ns/b", 2, workv1alpha2.TargetCluster{Name: "m", Replicas: 5})
	if fits("ns/a", 6) != nil {
		t.Error("what is to go is free before it is written")
	}
	p.Commit("6")
	if p = fits("ns/a", 6); p == nil {
		t.Error("what is gone is not free")
	}
	p.Commit("7")
	r.Forget("ns/b", "8")
	if fits("ns/b", 4) == nil || fits("ns/b", 5) != nil {
		t.Error("4 more are free")
	}
	r.SetQuotas("ns", nil)
	if fits("ns/b", 50) == nil {
		t.Error("without a quota there is a bound")
	}
}

// However many decisions run at once, and whatever becomes of their writes, the namespace never
// requests more than its quota.
func TestQuotaIsNeverExceeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(0, 40).Draw(t, "limit")
		r := NewCache(CacheOptions{})
		r.SetClusters([]*clusterv1alpha1.Cluster{member("m", 1000, 0)})
		r.SetQuotas("ns", []Quota{{Name: "q", Hard: corev1.ResourceList{"cpu": *resource.NewQuantity(limit, resource.DecimalSI)}}})
		sizes := rapid.SliceOfN(rapid.Int32Range(0, 9), 16, 16).Draw(t, "replicas")
		failing := rapid.IntRange(1, 4).Draw(t, "failing")
		var version, placed atomic.Int64
		var workers sync.WaitGroup
		for i, n := range sizes {
			workers.Go(func() {
				current := []workv1alpha2.TargetCluster(nil)
				for k, next := range []int32{n, n / 2, n + 2} {
					d, p, err := r.Decide(fmt.Sprint("ns/", i), request(next, aggregated, current...))
					switch {
					case err != nil:
						continue
					case (i+k)%failing == 0 && failing > 1:
						p.Release()
						continue
					}
					var before, after int64
					for _, c := range current {
						before += int64(c.Replicas)
					}
					for _, c := range d.Clusters {
						after += int64(c.Replicas)
					}
					if sum := placed.Add(after - before); after > before && sum > limit {
						t.Errorf("%d replicas of a core, at most %d", sum, limit)
					}
					p.Commit(fmt.Sprint(version.Add(1)))
					current = d.Clusters
				}
			})
		}
		workers.Wait()
	})
}

// What is decided for one template counts in the ResourceQuotas of its namespace for the next one,
// before the cluster reports it; a commit without room for both decides again.
func TestQuotasOfMembersWithAssumed(t *testing.T) {
	c := member("m", 100, 0)
	c.Status.ResourceSummary.Quotas = []clusterv1alpha1.QuotaSummary{{Namespace: "shop", Left: hard("requests.cpu=5")}}
	r := NewCache(CacheOptions{})
	r.SetClusters([]*clusterv1alpha1.Cluster{c})
	decide := func(key string, replicas int32) error {
		req := request(replicas, weighted)
		req.Namespace = namespaceOf(key)
		_, p, err := r.Decide(key, req)
		if err == nil {
			p.Commit("1")
		}
		return err
	}
	if err := decide("shop/a", 3); err != nil {
		t.Fatal(err)
	}
	var full *scheduler.UnschedulableError
	if err := decide("shop/b", 3); !errors.As(err, &full) {
		t.Errorf("3 of 2 cores that are left: %v", err)
	}
	if err := decide("shop/b", 2); err != nil {
		t.Errorf("2 of 2 cores that are left: %v", err)
	}
	if err := decide("other/c", 3); err != nil {
		t.Errorf("a namespace without quota: %v", err)
	}
}
