package tables_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/natt"
	"github.com/pelago-net/pelago/test/clusterset"
)

// On an encrypted wire gateways are known by their fabric addresses, and only those are used that a
// tunnel leads to.
func TestDesiredEncrypted(t *testing.T) {
	objs, host := clusterset.Encrypted("n1")
	r := tables.Desired(objs, host)
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
	if diff := cmp.Diff(want, got, clusterset.Comparable); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if _, ok := r.State.Peers[ip("172.31.2.11")]; ok {
		t.Error("cable packets are taken from the underlay, too")
	}
	// Another node sends to its gateways as ever.
	objs, host = clusterset.Encrypted("n2")
	host.Wire = tables.Wire{}
	if r := tables.Desired(objs, host); r.State.Settings.CablePort != 0 || len(r.State.Clusters) > 0 || r.Wire != nil || len(r.State.Routes) == 0 {
		t.Errorf("a node that is no gateway: %+v, wire %v", r.State, r.Wire)
	}
}

func TestWirePeers(t *testing.T) {
	objs, _ := clusterset.Encrypted("n1")
	want := []cable.Peer{
		{Name: "g2/g2-n1", Fabric: ip("241.0.128.1"), Address: ip("172.31.2.11"), Port: 4500, Identity: map[string]string{"publicKey": "a,b"}, Tunnels: 2},
		{Name: "g2/g2-n2", Fabric: ip("241.0.128.2"), Address: ip("172.31.2.12"), Port: 4500, Identity: map[string]string{"publicKey": "a,b"}, Tunnels: 2},
	}
	if diff := cmp.Diff(want, tables.WirePeers(objs), clusterset.Comparable); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	objs.Peers[0].Status.Conditions = nil
	if got := tables.WirePeers(objs); len(got) > 0 {
		t.Errorf("of a cluster that is not accepted: %v", got)
	}
}

// A remote gateway that is leaving keeps its tunnels; one that left long ago does not.
func TestWireWithLeaving(t *testing.T) {
	a, b, c := cable.Peer{Name: "a", Fabric: ip("241.0.128.1")}, cable.Peer{Name: "b", Fabric: ip("241.0.128.2")}, cable.Peer{Name: "c", Fabric: ip("241.0.128.3")}
	// a as it was before its node was registered again
	again := cable.Peer{Name: "a", Fabric: ip("241.0.128.4")}
	leaving := map[netip.Addr]dataplane.Peer{b.Fabric: {}, ip("241.0.128.9"): {}, again.Fabric: {}}
	got := tables.WithDraining([]cable.Peer{a}, []cable.Peer{again, a, b, c}, leaving)
	if diff := cmp.Diff([]cable.Peer{a, b}, got, clusterset.Comparable); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// Packets fit through every gateway that they may meet.
func TestLimited(t *testing.T) {
	userspace := map[string]string{"ike": "psk", "esp": "userspace"}
	tests := map[string]struct {
		change func(*tables.Objects)
		want   int
	}{
		"ESP in the kernel everywhere": {func(*tables.Objects) {}, 1385},
		"one of our gateways does ESP in its IKE daemon": {func(o *tables.Objects) {
			o.NodeIndexes[1].Status.Gateway, o.NodeIndexes[1].Status.Wire = true, userspace
		}, 1350},
		"one of theirs does": {func(o *tables.Objects) { o.Peers[0].Spec.Gateways[1].Identity = userspace }, 1350},
		"one of a cluster that is refused does": {func(o *tables.Objects) {
			o.Peers[0].Spec.Gateways[1].Identity, o.Peers[0].Status.Conditions = userspace, nil
		}, 1385},
		"one that is no gateway any more did": {func(o *tables.Objects) {
			o.NodeIndexes[1].Status.Gateway, o.NodeIndexes[1].Status.Wire = false, userspace
		}, 1385},
		"the wire is in the clear": {func(o *tables.Objects) {
			o.Config.CableDriver, o.Peers[0].Spec.Gateways[1].Identity = config.CableVXLAN, userspace
		}, 1385},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objs, _ := clusterset.Encrypted("n1")
			objs.Config.CableDriver = config.CableLibreswan
			tt.change(&objs)
			if got := tables.LimitMTU(objs, 1385); got != tt.want {
				t.Errorf("MTU %d, want %d", got, tt.want)
			}
		})
	}
}

// What is known of the way to a gateway decides which address the wire gets, and whether the vxlan
// wire may be used at all.
func TestSteer(t *testing.T) {
	private, public := ip("10.0.0.2"), ip("198.51.100.7")
	rewritten := natt.Rewriting{SourceIP: true}
	calls := netip.MustParseAddrPort("198.51.100.7:20001")
	tests := map[string]struct {
		v             natt.Reachability
		driver        string
		used          string
		server, other bool // this gateway, and the other one, would rather be called
		want          string
		problem       string
	}{
		"confirmed private":              {v: natt.Reachability{State: natt.Confirmed, Address: private}, want: "10.0.0.2"},
		"confirmed public":               {v: natt.Reachability{State: natt.Confirmed, Address: public, Out: rewritten}, want: "198.51.100.7"},
		"it calls":                       {v: natt.Reachability{State: natt.Waiting, Source: calls, In: rewritten}, used: "10.0.0.2", want: ""},
		"nothing known yet":              {v: natt.Reachability{State: natt.Probing}, want: "192.0.2.99"},
		"nothing known any more":         {v: natt.Reachability{State: natt.Probing}, used: "198.51.100.7", want: "198.51.100.7"},
		"the address used is given up":   {v: natt.Reachability{State: natt.Probing}, used: "198.51.100.8", want: "192.0.2.99"},
		"its former address":             {v: natt.Reachability{State: natt.Probing, Address: private}, used: "198.51.100.7", want: "10.0.0.2"},
		"unreachable":                    {v: natt.Reachability{State: natt.Unreachable, Address: public}, want: "198.51.100.7"},
		"it is to call":                  {v: natt.Reachability{State: natt.Confirmed, Address: public, Source: calls}, server: true, want: ""},
		"it is to call, but does not":    {v: natt.Reachability{State: natt.Confirmed, Address: public}, server: true, want: "198.51.100.7"},
		"both are to be called":          {v: natt.Reachability{State: natt.Confirmed, Address: public, Source: calls}, server: true, other: true, want: "198.51.100.7"},
		"vxlan, confirmed private":       {v: natt.Reachability{State: natt.Confirmed, Address: private}, driver: config.CableVXLAN, want: "10.0.0.2"},
		"vxlan ignores who is called":    {v: natt.Reachability{State: natt.Confirmed, Address: private, Source: calls}, driver: config.CableVXLAN, server: true, want: "10.0.0.2"},
		"vxlan behind NAT":               {v: natt.Reachability{State: natt.Confirmed, Address: public, Out: rewritten, Reason: "answers"}, driver: config.CableVXLAN, want: "", problem: "NAT lies between: it answers"},
		"vxlan, the other is behind NAT": {v: natt.Reachability{State: natt.Probing, Source: calls, In: rewritten, Reason: "calls"}, driver: config.CableVXLAN, want: "", problem: "--cable-driver wireguard"},
		"vxlan, it only calls":           {v: natt.Reachability{State: natt.Waiting, Source: calls}, driver: config.CableVXLAN, want: "", problem: "NAT lies between"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objs, host := clusterset.Encrypted("n1")
			if tt.driver != "" {
				objs.Config.CableDriver = tt.driver
			}
			g := &objs.Peers[0].Spec.Gateways[0]
			g.Address, g.PrivateAddress, g.PublicAddress, g.NATTPort = "192.0.2.99", private.String(), public.String(), 4490
			if tt.other {
				g.Identity = map[string]string{"preferred-server": "true"}
			}
			steered, problems := tables.SelectAddresses(objs, tt.server, map[string]natt.Reachability{"g2/g2-n1": tt.v}, map[string]string{"g2/g2-n1": tt.used})
			if got := steered.Peers[0].Spec.Gateways[0].Address; got != tt.want {
				t.Errorf("address %q, want %q", got, tt.want)
			}
			if got := steered.Peers[0].Spec.Gateways[1].Address; got != "172.31.2.12" {
				t.Errorf("a gateway without NAT discovery has the address %q", got)
			}
			if got := objs.Peers[0].Spec.Gateways[0].Address; got != "192.0.2.99" {
				t.Errorf("the cache's object was changed: %q", got)
			}
			if v := steered.Discovered["g2/g2-n1"]; v.Address.IsValid() != (tt.want != "") || tt.problem != "" && !strings.Contains(v.Reason, tt.problem) {
				t.Errorf("way %+v", v)
			}
			if tt.problem == "" && len(problems) > 0 || tt.problem != "" && (len(problems) != 1 || !strings.Contains(problems[0], tt.problem)) {
				t.Errorf("problems %q, want %q", problems, tt.problem)
			}
			// What has no address is a peer of an encrypted wire, and none of vxlan; neither is a
			// problem of its own.
			refused := tt.driver == config.CableVXLAN && tt.want == ""
			isFirst := func(p cable.Peer) bool { return p.Name == "g2/g2-n1" }
			if got := slices.ContainsFunc(tables.WirePeers(steered), isFirst); got == refused {
				t.Errorf("the wire has the peer: %t", got)
			}
			for _, p := range tables.Desired(steered, host).Problems {
				if strings.Contains(p, "g2-n1") && tt.want == "" {
					t.Errorf("a second time: %s", p)
				}
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
				objs, host := clusterset.Globalnet(self)
				objs.Nodes = append(objs.Nodes, clusterset.Node("n3", "172.31.1.13", true))
				objs.NodeIndexes = append(objs.NodeIndexes, pelagov1alpha1.NodeIndex{
					ObjectMeta: metav1.ObjectMeta{Name: "n3"}, Spec: pelagov1alpha1.NodeIndexSpec{Index: 3},
					Status: pelagov1alpha1.NodeIndexStatus{Ready: true, Gateway: true},
				})
				host.Hops[ip("172.31.1.13")] = dataplane.Hop{Address: ip("172.31.1.13"), Next: ip("172.31.1.13"), Ifindex: 2}
				for i := range objs.NodeIndexes {
					n := &objs.NodeIndexes[i]
					n.Status.Serving = tt.serves[n.Name]
				}
				if diff := cmp.Diff(tt.want, tables.Desired(objs, host).State.Gateways); diff != "" {
					t.Errorf("gateways that %s uses: -want +got\n%s", self, diff)
				}
			}
		})
	}
}

func TestPacketsOfALeavingGatewayAreTaken(t *testing.T) {
	objs, host := clusterset.Globalnet("n1")
	left := dataplane.Peer{Kind: dataplane.PeerGateway, Cluster: 2, Node: 2}
	host.DrainingPeers = map[netip.Addr]dataplane.Peer{ip("172.31.2.12"): left}
	r := tables.Desired(objs, host)
	if r.State.Peers[ip("172.31.2.12")] != left {
		t.Errorf("peers %v, want the leaving gateway among them", r.State.Peers)
	}
	for _, g := range r.State.Clusters[2] {
		if g.Hop.Address == ip("172.31.2.12") {
			t.Error("packets are still sent to it")
		}
	}
}

// A gateway whose tunnels ended with an earlier process has the others use other gateways until
// it is connected again.
func TestGatewayLeavesUntilItsWireIsUp(t *testing.T) {
	for name, tt := range map[string]struct{ fleeting, settled, leaving bool }{
		"the wire stayed in the kernel":      {fleeting: false, settled: false, leaving: false},
		"the wire is new, not yet connected": {fleeting: true, settled: false, leaving: true},
		"the wire is new, connected":         {fleeting: true, settled: true, leaving: false},
	} {
		t.Run(name, func(t *testing.T) {
			objs, host := clusterset.Encrypted("n1")
			host.Wire.Fleeting, host.Settled = tt.fleeting, tt.settled
			if r := tables.Desired(objs, host); !r.Gateway || r.State.Settings.Leaving != tt.leaving {
				t.Errorf("gateway %t, leaving %t; want leaving %t", r.Gateway, r.State.Settings.Leaving, tt.leaving)
			}
		})
	}
}
