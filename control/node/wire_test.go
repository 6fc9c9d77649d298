package node

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
)

// encryptedWorld is world with the wire wireguard: g2's gateways n1 and n2, of which the first answers.
func encryptedWorld(from string) (Objects, Host) {
	objs, host := world(from)
	objs.Config.CableDriver, objs.Config.FabricCIDR = config.CableWireGuard, netip.MustParsePrefix("241.0.0.0/8")
	gateway := objs.Peers[0].Spec.Gateways[0]
	gateway.FabricAddress, gateway.Tunnels, gateway.Identity = "241.0.128.1", 2, map[string]string{"publicKey": "a,b"}
	silent := gateway
	silent.Name, silent.Address, silent.NodeIndex, silent.FabricAddress = "g2-n2", "172.31.2.12", 2, "241.0.128.2"
	objs.Peers[0].Spec.Gateways = append(objs.Peers[0].Spec.Gateways[:0:0], gateway, silent)
	host.Wire = Wire{
		Devices: []int{20, 21, 24}, Tunnels: map[netip.Addr][]int{ip("241.0.128.1"): {20, 21}}, Ports: []uint16{4500},
		Identity: map[string]string{"publicKey": "own"},
	}
	return objs, host
}

// On an encrypted wire gateways are known by their fabric addresses, and only those are used that a tunnel leads to.
func TestDesiredEncrypted(t *testing.T) {
	objs, host := encryptedWorld("n1")
	r := Desired(objs, host)
	type facts struct {
		Settings [2]netip.Addr
		Port     uint16
		Gateways map[uint16][]dataplane.RemoteGateway
		Far      dataplane.Peer
		Silent   bool
		Wire     map[string]string
	}
	_, silent := r.State.Peers[ip("241.0.128.2")]
	got := facts{
		[2]netip.Addr{r.State.Settings.Address, r.State.Settings.CableAddress}, r.State.Settings.CablePort, r.State.Clusters,
		r.State.Peers[ip("241.0.128.1")], silent, r.Wire,
	}
	far := ip("241.0.128.1")
	want := facts{
		Settings: [2]netip.Addr{ip("172.31.1.11"), ip("241.0.64.1")},
		Gateways: map[uint16][]dataplane.RemoteGateway{2: {{
			Hop: dataplane.Hop{Address: far, Next: far}, Node: 1, Port: 4800, Tunnels: []uint32{20, 21},
		}}},
		Far:  dataplane.Peer{Kind: dataplane.PeerGateway, Cluster: 2, Node: 1},
		Wire: map[string]string{"publicKey": "own"},
	}
	if diff := cmp.Diff(want, got, comparable); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if _, ok := r.State.Peers[ip("172.31.2.11")]; ok {
		t.Error("cable packets are taken from the underlay, too")
	}
	// Another node sends to its gateways as ever.
	objs, host = encryptedWorld("n2")
	host.Wire = Wire{}
	if r := Desired(objs, host); r.State.Settings.CablePort != 0 || len(r.State.Clusters) > 0 || r.Wire != nil || len(r.State.Routes) == 0 {
		t.Errorf("a node that is no gateway: %+v, wire %v", r.State, r.Wire)
	}
}

func TestWirePeers(t *testing.T) {
	objs, _ := encryptedWorld("n1")
	want := []cable.Peer{
		{Name: "g2/g2-n1", Fabric: ip("241.0.128.1"), Address: ip("172.31.2.11"), Port: 4500, Identity: map[string]string{"publicKey": "a,b"}, Tunnels: 2},
		{Name: "g2/g2-n2", Fabric: ip("241.0.128.2"), Address: ip("172.31.2.12"), Port: 4500, Identity: map[string]string{"publicKey": "a,b"}, Tunnels: 2},
	}
	if diff := cmp.Diff(want, wirePeers(objs), comparable); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	objs.Peers[0].Status.Conditions = nil
	if got := wirePeers(objs); len(got) > 0 {
		t.Errorf("of a cluster that is not accepted: %v", got)
	}
}

// A remote gateway that is leaving keeps its tunnels; one that left long ago does not.
func TestWireWithLeaving(t *testing.T) {
	a, b, c := cable.Peer{Name: "a", Fabric: ip("241.0.128.1")}, cable.Peer{Name: "b", Fabric: ip("241.0.128.2")}, cable.Peer{Name: "c", Fabric: ip("241.0.128.3")}
	leaving := map[netip.Addr]dataplane.Peer{b.Fabric: {}, ip("241.0.128.9"): {}}
	got := withLeaving([]cable.Peer{a}, []cable.Peer{a, b, c}, leaving)
	if diff := cmp.Diff([]cable.Peer{a, b}, got, comparable); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// A gateway to which no tunnel leads yet is waited for.
func TestWaiting(t *testing.T) {
	objs, host := encryptedWorld("n1")
	if !waiting(snapshot{state: Desired(objs, host).State, objs: objs}) {
		t.Error("the second gateway of g2 does not answer yet")
	}
	host.Wire.Tunnels[ip("241.0.128.2")] = []int{20}
	if waiting(snapshot{state: Desired(objs, host).State, objs: objs}) {
		t.Error("both gateways of g2 have tunnels")
	}
}

// Packets fit through every gateway that they may meet.
func TestLimited(t *testing.T) {
	userspace := map[string]string{"ike": "psk", "esp": "userspace"}
	tests := map[string]struct {
		change func(*Objects)
		want   int
	}{
		"ESP in the kernel everywhere": {func(*Objects) {}, 1385},
		"one of our gateways does ESP in its IKE daemon": {func(o *Objects) {
			o.NodeIndexes[1].Status.Gateway, o.NodeIndexes[1].Status.Wire = true, userspace
		}, 1350},
		"one of theirs does": {func(o *Objects) { o.Peers[0].Spec.Gateways[1].Identity = userspace }, 1350},
		"one of a cluster that is refused does": {func(o *Objects) {
			o.Peers[0].Spec.Gateways[1].Identity, o.Peers[0].Status.Conditions = userspace, nil
		}, 1385},
		"one that is no gateway any more did": {func(o *Objects) {
			o.NodeIndexes[1].Status.Gateway, o.NodeIndexes[1].Status.Wire = false, userspace
		}, 1385},
		"the wire is in the clear": {func(o *Objects) {
			o.Config.CableDriver, o.Peers[0].Spec.Gateways[1].Identity = config.CableVXLAN, userspace
		}, 1385},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objs, _ := encryptedWorld("n1")
			objs.Config.CableDriver = config.CableLibreswan
			tt.change(&objs)
			if got := limited(objs, 1385); got != tt.want {
				t.Errorf("MTU %d, want %d", got, tt.want)
			}
		})
	}
}
