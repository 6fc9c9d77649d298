package services

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

var vipEpoch = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)

// vipRanges are the slices of three clusters.
func vipRanges() map[string][]netip.Prefix {
	return map[string][]netip.Prefix{
		"g1": {netip.MustParsePrefix("243.0.0.0/28")}, "g2": {netip.MustParsePrefix("243.0.0.16/28")}, "g3": {netip.MustParsePrefix("243.0.0.32/28")},
	}
}

func vipJoined(clusters ...string) map[string]time.Time {
	out := map[string]time.Time{}
	for _, c := range clusters {
		out[c] = vipEpoch.Add(-time.Hour)
	}
	return out
}

// exporting is a contribution to sample/web of that many minutes after the epoch.
func exporting(cluster, vip string, minute int) v1alpha1.ServiceContribution {
	return v1alpha1.ServiceContribution{Spec: v1alpha1.ServiceContributionSpec{
		Cluster: cluster, Namespace: "sample", Service: "web", Type: v1alpha1.ContributionClusterSetIP, ClusterSetIP: vip,
		ExportedAt: metav1.NewTime(vipEpoch.Add(time.Duration(minute) * time.Minute)),
	}}
}

// Which of the addresses that contributions name is the service's, and which are refused.
func TestChooseVIP(t *testing.T) {
	other := func(x v1alpha1.ServiceContribution) v1alpha1.ServiceContribution { x.Spec.Service = "zoo"; return x }
	headless := exporting("g1", "243.0.0.1", 0)
	headless.Spec.Type = v1alpha1.ContributionHeadless
	for name, tt := range map[string]struct {
		of      []v1alpha1.ServiceContribution
		rivals  []v1alpha1.ServiceContribution
		want    string
		refused string
	}{
		"nobody exports it":                    {},
		"no claim yet":                         {of: []v1alpha1.ServiceContribution{exporting("g1", "", 0)}},
		"one claim":                            {of: []v1alpha1.ServiceContribution{exporting("g1", "243.0.0.1", 0)}, want: "243.0.0.1 g1"},
		"the others copy it":                   {of: []v1alpha1.ServiceContribution{exporting("g2", "243.0.0.1", 1), exporting("g1", "243.0.0.1", 0)}, want: "243.0.0.1 g1"},
		"two claims: that of the older export": {of: []v1alpha1.ServiceContribution{exporting("g1", "243.0.0.1", 1), exporting("g2", "243.0.0.17", 0)}, want: "243.0.0.17 g2"},
		"the older export has none yet":        {of: []v1alpha1.ServiceContribution{exporting("g1", "", 0), exporting("g2", "243.0.0.17", 1)}, want: "243.0.0.17 g2"},
		"the first exporter has gone":          {of: []v1alpha1.ServiceContribution{exporting("g2", "243.0.0.1", 1)}, want: "243.0.0.1 g2"},
		"no address":                           {of: []v1alpha1.ServiceContribution{exporting("g1", "web", 0)}, refused: "is no IPv4 address"},
		"IPv6":                                 {of: []v1alpha1.ServiceContribution{exporting("g1", "fd00::1", 0)}, refused: "is no IPv4 address"},
		"a foreign address":                    {of: []v1alpha1.ServiceContribution{exporting("g1", "10.77.0.1", 0), exporting("g2", "243.0.0.17", 1)}, want: "243.0.0.17 g2", refused: "lies in no cluster's range"},
		"a range of a cluster that has left":   {of: []v1alpha1.ServiceContribution{exporting("g1", "243.0.0.33", 0)}, refused: "lies in no cluster's range"},
		"headless":                             {of: []v1alpha1.ServiceContribution{headless}},
		"another service's address": {of: []v1alpha1.ServiceContribution{exporting("g2", "243.0.0.1", 0)},
			rivals: []v1alpha1.ServiceContribution{other(exporting("g1", "243.0.0.1", 5))}, refused: "belongs to service sample/zoo of cluster g1"},
		"another service names ours": {of: []v1alpha1.ServiceContribution{exporting("g1", "243.0.0.1", 5)},
			rivals: []v1alpha1.ServiceContribution{other(exporting("g2", "243.0.0.1", 0))}, want: "243.0.0.1 g1"},
	} {
		t.Run(name, func(t *testing.T) {
			c := vips{joined: vipJoined("g1", "g2"), ranges: vipRanges(), rivals: tt.rivals}.choose(tt.of)
			got := ""
			if c.ip.IsValid() {
				got = c.ip.String() + " " + c.from
			}
			if refused := strings.Join(c.refused, "; "); got != tt.want || (refused == "") != (tt.refused == "") || !strings.Contains(refused, tt.refused) {
				t.Errorf("%q, refused %q; want %q and %q", got, refused, tt.want, tt.refused)
			}
		})
	}
}

// world is three agents and a hub that run the planning of one service against each other.
type vipWorld struct {
	now           time.Time
	joined        map[string]time.Time
	contributions map[string]v1alpha1.ServiceContribution
	exports       map[string]time.Time
	records       map[string]map[netip.Addr]time.Time // by cluster: when released, zero: in use
	awaits        map[string]time.Time
	// the address that must stay as long as the hub has a contribution to the service
	agreed netip.Addr
}

// reconcile is what the agent of a cluster does about the service once.
func (w *vipWorld) reconcile(id string) {
	s := vipState{vips: vips{joined: w.joined, ranges: vipRanges()}, now: w.now, present: slices.Collect(maps.Values(w.contributions))}
	for ip, at := range w.records[id] {
		s.records = append(s.records, vipRecord{ip: ip, releasedAt: at})
	}
	at, exported := w.exports[id]
	if exported {
		own := exporting(id, "", 0)
		own.Spec.ExportedAt = metav1.NewTime(at)
		s.own = &own
	}
	if since, ok := w.awaits[id]; ok {
		s.waited = w.now.Sub(since) >= claimGrace
	}
	p := cluster{id: id}.vip(s)
	if _, waiting := w.awaits[id]; p.awaits != "" && !waiting {
		w.awaits[id] = w.now
	} else if p.awaits == "" {
		delete(w.awaits, id)
	}
	if p.claim {
		for ip := range candidates(types.NamespacedName{Namespace: "sample", Name: "web"}, vipRanges()[id]) {
			p.ip = ip
			break
		}
		w.records[id][p.ip] = time.Time{}
	}
	for _, ip := range p.renew {
		w.records[id][ip] = time.Time{}
	}
	for _, ip := range p.release {
		w.records[id][ip] = w.now
	}
	for _, ip := range p.free {
		delete(w.records[id], ip)
	}
	if !exported {
		delete(w.contributions, id)
		if len(w.contributions) == 0 {
			w.agreed = netip.Addr{} // an export that has not reached the hub keeps nothing
		}
		return
	}
	if p.ip.IsValid() {
		s.own.Spec.ClusterSetIP = p.ip.String()
		if own := slices.ContainsFunc(vipRanges()[id], func(r netip.Prefix) bool { return r.Contains(p.ip) }); own {
			w.records[id][p.ip] = time.Time{}
		}
	}
	w.contributions[id] = *s.own
}

func (w *vipWorld) settle() {
	for range 4 {
		for _, id := range []string{"g1", "g2", "g3"} {
			if _, member := w.joined[id]; member {
				w.reconcile(id)
			}
		}
		w.now = w.now.Add(claimGrace)
	}
}

// Whatever clusters export, un-export, leave and join, in any order: all members agree on one
// address while one exports, which stays while one export lives, and no address is given to another
// service before it has rested.
func TestVIPModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &vipWorld{now: vipEpoch, joined: vipJoined("g1", "g2", "g3"), contributions: map[string]v1alpha1.ServiceContribution{},
			exports: map[string]time.Time{}, records: map[string]map[netip.Addr]time.Time{"g1": {}, "g2": {}, "g3": {}}, awaits: map[string]time.Time{}}
		log := ""
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			id := rapid.SampledFrom([]string{"g1", "g2", "g3"}).Draw(t, "cluster")
			do := rapid.SampledFrom([]string{"export", "unexport", "reconcile", "leave", "join", "settle"}).Draw(t, "step")
			log += fmt.Sprintf(" %s:%s", id, do)
			_, member := w.joined[id]
			owned := w.agreed.IsValid() && slices.ContainsFunc(vipRanges()[id], func(r netip.Prefix) bool { return r.Contains(w.agreed) })
			switch {
			case do == "export" && member && w.exports[id].IsZero():
				w.exports[id] = w.now
			case do == "unexport":
				delete(w.exports, id)
			case do == "reconcile" && member:
				w.reconcile(id)
			case do == "leave" && member:
				delete(w.joined, id)
				delete(w.exports, id)
				delete(w.contributions, id)
				clear(w.records[id])
				if owned || len(w.contributions) == 0 {
					// the range of a cluster goes with it; an export that has not reached the hub
					// keeps nothing
					w.agreed = netip.Addr{}
				}
			case do == "join" && !member:
				w.joined[id] = w.now
			case do == "settle":
				w.settle()
				c := vips{joined: w.joined, ranges: vipRanges()}.choose(slices.Collect(maps.Values(w.contributions)))
				switch {
				case len(w.exports) == 0:
					if c.ip.IsValid() || len(w.contributions) > 0 {
						t.Fatalf("nobody exports it, and it has %s:%s", c.ip, log)
					}
					w.agreed = netip.Addr{}
				case !c.ip.IsValid():
					t.Fatalf("%d clusters export it, and it has no address:%s", len(w.exports), log)
				case w.agreed.IsValid() && c.ip != w.agreed:
					t.Fatalf("the address changed from %s to %s:%s", w.agreed, c.ip, log)
				default:
					w.agreed = c.ip
					for _, x := range w.contributions {
						if x.Spec.ClusterSetIP != c.ip.String() {
							t.Fatalf("cluster %s names %s, the service has %s:%s", x.Spec.Cluster, x.Spec.ClusterSetIP, c.ip, log)
						}
					}
				}
			}
			if len(w.exports) == 0 {
				w.agreed = netip.Addr{}
			}
		}
	})
}

// An address that no export uses rests before it is free.
func TestVIPRests(t *testing.T) {
	ip := netip.MustParseAddr("243.0.0.1")
	plan := func(releasedAt, now time.Time) vipPlan {
		return cluster{id: "g1"}.vip(vipState{vips: vips{joined: vipJoined("g1"), ranges: vipRanges()}, records: []vipRecord{{ip, releasedAt}}, now: now})
	}
	if p := plan(time.Time{}, vipEpoch); !slices.Equal(p.release, []netip.Addr{ip}) {
		t.Errorf("in use by nobody: %+v", p)
	}
	if p := plan(vipEpoch, vipEpoch.Add(119*time.Second)); len(p.free) > 0 || p.wait != time.Second {
		t.Errorf("after 119 s: %+v", p)
	}
	if p := plan(vipEpoch, vipEpoch.Add(120*time.Second)); !slices.Equal(p.free, []netip.Addr{ip}) {
		t.Errorf("after 120 s: %+v", p)
	}
}

func TestSooner(t *testing.T) {
	for _, tt := range []struct{ a, b, want time.Duration }{{0, 0, 0}, {0, 2, 2}, {2, 0, 2}, {2, 3, 2}, {3, 2, 2}} {
		if got := sooner(tt.a, tt.b); got != tt.want {
			t.Errorf("sooner(%d, %d) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
