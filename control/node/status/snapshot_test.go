package status

import (
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/liveness"
	"github.com/pelago-net/pelago/test/clusterset"
)

// A gateway to which no tunnel leads yet is waited for.
func TestWaiting(t *testing.T) {
	objs, host := clusterset.Encrypted("n1")
	if !(Snapshot{State: tables.Desired(objs, host).State, Objects: objs}).AwaitsTunnel() {
		t.Error("the second gateway of g2 does not answer yet")
	}
	host.Wire.Tunnels[ip("241.0.128.2")] = []int{20}
	if (Snapshot{State: tables.Desired(objs, host).State, Objects: objs}).AwaitsTunnel() {
		t.Error("both gateways of g2 have tunnels")
	}
}

func TestSettled(t *testing.T) {
	one, two := netip.MustParseAddr("241.0.128.1"), netip.MustParseAddr("241.0.128.2")
	answers := liveness.Path{Probes: 9, Replies: 9}
	silent := liveness.Path{Probes: 9, Replies: 3, Open: 6, OldestOpen: time.Second}
	cases := map[string]struct {
		node    bool // no gateway
		tunnels []netip.Addr
		paths   map[netip.Addr]liveness.Path
		want    bool
	}{
		"a node that is no gateway":            {node: true, want: true},
		"no tunnel":                            {},
		"one of two tunnels":                   {tunnels: []netip.Addr{one}, paths: map[netip.Addr]liveness.Path{one: answers}},
		"nothing known of the paths":           {tunnels: []netip.Addr{one, two}},
		"probed, and no answer yet":            {tunnels: []netip.Addr{one, two}, paths: map[netip.Addr]liveness.Path{one: {Probes: 2, Open: 2}}},
		"answers from before, and silence":     {tunnels: []netip.Addr{one, two}, paths: map[netip.Addr]liveness.Path{one: silent, two: silent}},
		"one gateway of the cluster answers":   {tunnels: []netip.Addr{one, two}, paths: map[netip.Addr]liveness.Path{one: silent, two: answers}, want: true},
		"one answers, and is not ready itself": {tunnels: []netip.Addr{one, two}, paths: map[netip.Addr]liveness.Path{one: answers, two: {}}, want: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			objs, _ := clusterset.Encrypted("n1")
			snap := Snapshot{Objects: objs, Gateway: !c.node, State: dataplane.State{Clusters: map[uint16][]dataplane.RemoteGateway{}}}
			index := uint16(objs.Peers[0].Spec.ClusterIndex)
			for _, a := range c.tunnels {
				snap.State.Clusters[index] = append(snap.State.Clusters[index], dataplane.RemoteGateway{Hop: dataplane.Hop{Address: a}})
			}
			if got := snap.Connected(c.paths); got != c.want {
				t.Errorf("settled: %v, want %v", got, c.want)
			}
		})
	}
}

// A cluster is lossy if the path of every gateway of it that answers is lossy, and unreachable if
// none answers.
func TestReach(t *testing.T) {
	one, two := ip("172.31.2.1"), ip("172.31.2.2")
	snap := Snapshot{State: dataplane.State{Clusters: map[uint16][]dataplane.RemoteGateway{
		2: {{Hop: dataplane.Hop{Address: one}}, {Hop: dataplane.Hop{Address: two}}},
	}}}
	good, lossy, silent := path(true), path(true), path(false)
	lossy.Lossy = true
	for _, tt := range []struct {
		what               string
		one, two           liveness.Path
		unreachable, lossy bool
	}{
		{"both are good", good, good, false, false},
		{"one is lossy", lossy, good, false, false},
		{"both are lossy", lossy, lossy, false, true},
		{"one is lossy, the other silent", lossy, silent, false, true},
		{"both are silent", silent, silent, true, false},
	} {
		paths := map[netip.Addr]liveness.Path{one: tt.one, two: tt.two}
		if u, l := snap.Unreachable(paths)[2], snap.Lossy(paths)[2]; u != tt.unreachable || l != tt.lossy {
			t.Errorf("%s: unreachable %t, lossy %t; want %t, %t", tt.what, u, l, tt.unreachable, tt.lossy)
		}
	}
}

// A peer without a gateway that the wire can reach is in no table, and unreachable all the same.
func TestReachWithoutGateways(t *testing.T) {
	p := clusterset.Peer("g2", metav1.ConditionTrue, pelagov1alpha1.ReasonAccepted)
	snap := Snapshot{Objects: tables.Objects{Peers: []pelagov1alpha1.Peer{p}}}
	if got := snap.Unreachable(nil); !got[2] {
		t.Errorf("unreachable %v, want cluster 2", got)
	}
}
