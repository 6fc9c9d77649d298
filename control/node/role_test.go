package node

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/liveness"
	"github.com/pelago-net/pelago/test/clusterset"
)

func TestRole(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	remote := map[uint16][]dataplane.RemoteGateway{2: {{Hop: dataplane.Hop{Address: ip("172.31.2.11")}}, {Hop: dataplane.Hop{Address: ip("172.31.2.12")}}}}
	answered := func(age time.Duration) liveness.Path { return liveness.Path{Replies: 5, Seen: age} }
	for _, tt := range []struct {
		name    string
		resumed bool
		after   time.Duration // since the label was set
		remote  map[uint16][]dataplane.RemoteGateway
		paths   map[netip.Addr]liveness.Path
		want    bool
	}{
		{"all have answered", false, 3 * time.Second, remote,
			map[netip.Addr]liveness.Path{ip("172.31.2.11"): answered(time.Second), ip("172.31.2.12"): answered(time.Second)}, true},
		{"one has not answered yet", false, 3 * time.Second, remote,
			map[netip.Addr]liveness.Path{ip("172.31.2.11"): answered(time.Second), ip("172.31.2.12"): {Probes: 3}}, false},
		{"answers of an earlier tenure do not count", false, 3 * time.Second, remote,
			map[netip.Addr]liveness.Path{ip("172.31.2.11"): answered(time.Second), ip("172.31.2.12"): answered(time.Minute)}, false},
		{"one never answers: it is waited for a while only", false, 11 * time.Second, remote,
			map[netip.Addr]liveness.Path{ip("172.31.2.11"): answered(time.Second)}, true},
		{"nobody to be introduced to", false, time.Second, nil, nil, true},
		{"the daemon was restarted", true, 0, remote, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var g role
			g.update(true, tt.resumed, start)
			g.introduce(tt.remote, false, tt.paths, start.Add(tt.after))
			if g.serves != tt.want {
				t.Errorf("serves: %t, want %t", g.serves, tt.want)
			}
		})
	}
	t.Run("it ends and drains", func(t *testing.T) {
		var g role
		g.update(true, true, start)
		if !g.update(false, false, start.Add(time.Hour)) || g.serves || !g.until.Equal(start.Add(time.Hour+drainTime)) {
			t.Errorf("after the label went: %+v, want a drain of %s from then on", g, drainTime)
		}
		if g.update(false, false, start.Add(2*time.Hour)) {
			t.Error("it ends twice")
		}
	})
}

func TestDrainingPeers(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	both := clusterset.Peer("g2", metav1.ConditionTrue, pelagov1alpha1.ReasonAccepted)
	second := both.Spec.Gateways[0]
	second.Name, second.Address, second.NodeIndex = "g2-n2", "172.31.2.12", 2
	both.Spec.Gateways = append(both.Spec.Gateways, second)
	one, revoked := *both.DeepCopy(), *both.DeepCopy()
	one.Spec.Gateways = one.Spec.Gateways[:1]
	revoked.Status.Conditions[0].Status, revoked.Status.Conditions[0].Reason = metav1.ConditionFalse, pelagov1alpha1.ReasonOverlappingCIDR

	leaving := map[netip.Addr]dataplane.Peer{ip("172.31.2.12"): {Kind: dataplane.PeerGateway, Cluster: 2, Node: 2}}
	none := map[netip.Addr]dataplane.Peer{}
	for _, tt := range []struct {
		name string
		then []pelagov1alpha1.Peer
		now  []pelagov1alpha1.Peer
		at   time.Duration
		want map[netip.Addr]dataplane.Peer
	}{
		{"nobody has left", []pelagov1alpha1.Peer{both}, []pelagov1alpha1.Peer{both}, time.Second, none},
		{"one has just left", []pelagov1alpha1.Peer{one}, []pelagov1alpha1.Peer{one}, time.Second, leaving},
		{"it left long ago", []pelagov1alpha1.Peer{one}, []pelagov1alpha1.Peer{one}, drainTime, none},
		{"it is back", []pelagov1alpha1.Peer{one}, []pelagov1alpha1.Peer{both}, time.Second, none},
		{"its cluster is no longer accepted", []pelagov1alpha1.Peer{one}, []pelagov1alpha1.Peer{revoked}, time.Second, none},
		{"its cluster is gone", []pelagov1alpha1.Peer{one}, nil, time.Second, none},
		{"its cluster was revoked with both", []pelagov1alpha1.Peer{revoked}, []pelagov1alpha1.Peer{revoked}, time.Second, none},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var f drainingPeers
			f.update(config.Config{CableDriver: config.CableVXLAN}, []pelagov1alpha1.Peer{both}, start)
			f.update(config.Config{CableDriver: config.CableVXLAN}, tt.then, start)
			got, _ := f.update(config.Config{CableDriver: config.CableVXLAN}, tt.now, start.Add(tt.at))
			if diff := cmp.Diff(tt.want, got, clusterset.Comparable); diff != "" {
				t.Errorf("packets are still taken from: -want +got\n%s", diff)
			}
		})
	}
}
