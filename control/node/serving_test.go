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
	"github.com/pelago-net/pelago/dataplane/loader"
)

func TestTenure(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	remote := map[uint16][]dataplane.RemoteGateway{2: {{Hop: dataplane.Hop{Address: ip("172.31.2.11")}}, {Hop: dataplane.Hop{Address: ip("172.31.2.12")}}}}
	answered := func(age time.Duration) loader.Path { return loader.Path{Replies: 5, Seen: age} }
	for _, tt := range []struct {
		name    string
		resumed bool
		after   time.Duration // since the label was set
		remote  map[uint16][]dataplane.RemoteGateway
		paths   map[netip.Addr]loader.Path
		want    bool
	}{
		{"all have answered", false, 3 * time.Second, remote,
			map[netip.Addr]loader.Path{ip("172.31.2.11"): answered(time.Second), ip("172.31.2.12"): answered(time.Second)}, true},
		{"one has not answered yet", false, 3 * time.Second, remote,
			map[netip.Addr]loader.Path{ip("172.31.2.11"): answered(time.Second), ip("172.31.2.12"): {Probes: 3}}, false},
		{"answers of an earlier tenure do not count", false, 3 * time.Second, remote,
			map[netip.Addr]loader.Path{ip("172.31.2.11"): answered(time.Second), ip("172.31.2.12"): answered(time.Minute)}, false},
		{"one never answers: it is waited for a while only", false, 11 * time.Second, remote,
			map[netip.Addr]loader.Path{ip("172.31.2.11"): answered(time.Second)}, true},
		{"nobody to be introduced to", false, time.Second, nil, nil, true},
		{"the daemon was restarted", true, 0, remote, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var g tenure
			g.note(true, tt.resumed, start)
			g.introduce(tt.remote, false, tt.paths, start.Add(tt.after))
			if g.serves != tt.want {
				t.Errorf("serves: %t, want %t", g.serves, tt.want)
			}
		})
	}
	t.Run("it ends and drains", func(t *testing.T) {
		var g tenure
		g.note(true, true, start)
		if !g.note(false, false, start.Add(time.Hour)) || g.serves || !g.until.Equal(start.Add(time.Hour+drain)) {
			t.Errorf("after the label went: %+v, want a drain of %s from then on", g, drain)
		}
		if g.note(false, false, start.Add(2*time.Hour)) {
			t.Error("it ends twice")
		}
	})
}

func TestFarewells(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	both := peer("g2", metav1.ConditionTrue, pelagov1alpha1.ReasonAccepted)
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
		{"it left long ago", []pelagov1alpha1.Peer{one}, []pelagov1alpha1.Peer{one}, drain, none},
		{"it is back", []pelagov1alpha1.Peer{one}, []pelagov1alpha1.Peer{both}, time.Second, none},
		{"its cluster is no longer accepted", []pelagov1alpha1.Peer{one}, []pelagov1alpha1.Peer{revoked}, time.Second, none},
		{"its cluster is gone", []pelagov1alpha1.Peer{one}, nil, time.Second, none},
		{"its cluster was revoked with both", []pelagov1alpha1.Peer{revoked}, []pelagov1alpha1.Peer{revoked}, time.Second, none},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var f farewells
			f.note(config.Config{CableDriver: config.CableVXLAN}, []pelagov1alpha1.Peer{both}, start)
			f.note(config.Config{CableDriver: config.CableVXLAN}, tt.then, start)
			got, _ := f.note(config.Config{CableDriver: config.CableVXLAN}, tt.now, start.Add(tt.at))
			if diff := cmp.Diff(tt.want, got, comparable); diff != "" {
				t.Errorf("packets are still taken from: -want +got\n%s", diff)
			}
		})
	}
}

func TestGatewaysThatServe(t *testing.T) {
	for _, tt := range []struct {
		name   string
		serves map[string]bool
		want   []uint16
	}{
		{"both", map[string]bool{"n1": true, "n3": true}, []uint16{1, 3}},
		{"one is being introduced", map[string]bool{"n1": true}, []uint16{1}},
		{"both are: they are used all the same", nil, []uint16{1, 3}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, self := range []string{"n1", "n2", "n3"} {
				objs, host := world(self)
				objs.Nodes = append(objs.Nodes, node("n3", "172.31.1.13", true))
				objs.NodeIndexes = append(objs.NodeIndexes, pelagov1alpha1.NodeIndex{
					ObjectMeta: metav1.ObjectMeta{Name: "n3"}, Spec: pelagov1alpha1.NodeIndexSpec{Index: 3},
					Status: pelagov1alpha1.NodeIndexStatus{Ready: true, Gateway: true},
				})
				host.Hops[ip("172.31.1.13")] = dataplane.Hop{Address: ip("172.31.1.13"), Next: ip("172.31.1.13"), Ifindex: 2}
				for i := range objs.NodeIndexes {
					n := &objs.NodeIndexes[i]
					n.Status.Serving = tt.serves[n.Name]
				}
				if diff := cmp.Diff(tt.want, Desired(objs, host).State.Gateways); diff != "" {
					t.Errorf("gateways that %s uses: -want +got\n%s", self, diff)
				}
			}
		})
	}
}

func TestPacketsOfALeavingGatewayAreTaken(t *testing.T) {
	objs, host := world("n1")
	left := dataplane.Peer{Kind: dataplane.PeerGateway, Cluster: 2, Node: 2}
	host.Leaving = map[netip.Addr]dataplane.Peer{ip("172.31.2.12"): left}
	r := Desired(objs, host)
	if r.State.Peers[ip("172.31.2.12")] != left {
		t.Errorf("peers %v, want the leaving gateway among them", r.State.Peers)
	}
	for _, g := range r.State.Clusters[2] {
		if g.Hop.Address == ip("172.31.2.12") {
			t.Error("packets are still sent to it")
		}
	}
}
