package status

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/liveness"
	"github.com/pelago-net/pelago/dataplane/natt"
	"github.com/pelago-net/pelago/test/clusterset"
)

var (
	fits = liveness.Size{Full: 1390, Passes: 1390}
	hole = liveness.Size{Full: 1390, Passes: 1300}
)

// A black hole stands in the status of the connection, of the node and in the metrics, and is
// reported at once; the connection stays connected.
func TestBlackHoleIsShown(t *testing.T) {
	const says = "packets of more than 1300 bytes are lost on the way (with headers 1410; the uplinks allow 1500), so pods are told to send none: " +
		"let packets of 1500 bytes pass on every link between the nodes, or set the MTU of the uplinks to 1410"
	far := ip("241.0.128.1")
	snap, l := pair("n1")
	paths := map[netip.Addr]liveness.Path{far: clusterset.Answering()}
	l.update(snap, paths, map[netip.Addr]liveness.Size{far: fits}, begin)
	before := l.urgentKey(snap)
	if said := l.connections(snap)[0].StatusMessage; said != "" {
		t.Errorf("all is well: %q", said)
	}
	l.update(snap, paths, map[netip.Addr]liveness.Size{far: hole}, begin)
	if l.urgentKey(snap) == before {
		t.Error("it is not urgent")
	}
	c := l.connections(snap)[0]
	if c.Status != submarinerv1.Connected || c.StatusMessage != says {
		t.Errorf("%s %q", c.Status, c.StatusMessage)
	}
	found := false
	for _, p := range l.View(snap).Peers {
		if p.Path == far {
			found = p.BlackHole && p.MTU == 1300
		}
	}
	if !found {
		t.Errorf("the view is %+v", l.View(snap).Peers)
	}
	weak := lossy()
	l.update(snap, map[netip.Addr]liveness.Path{far: weak}, map[netip.Addr]liveness.Size{far: hole}, begin)
	if said := l.connections(snap)[0].StatusMessage; said != "degraded: 12 % of the probes are lost; "+says {
		t.Errorf("with loss: %q", said)
	}

	// At a node that is no gateway.
	snap, l = town("n2")
	snap.Objects.NodeIndexes[2].Status.PathMTU = map[string]int32{"g2": 1280}
	n1, n3 := ip("172.31.1.11"), ip("172.31.1.13")
	l.update(snap, map[netip.Addr]liveness.Path{n1: clusterset.Answering(), n3: slow(clusterset.Answering())}, map[netip.Addr]liveness.Size{n1: {Full: 1450, Passes: 1400}}, begin)
	said := l.routeAgent(snap).Status.RemoteEndpoints[0].StatusMessage
	for _, part := range []string{"To gateway n1 packets of more than 1400 bytes are lost", "From gateway n3 to g2 packets of more than 1280 bytes are lost", "Through gateway n1"} {
		if !strings.Contains(said, part) {
			t.Errorf("%q does not say %q", said, part)
		}
	}
}

// pair is the encrypted world with what a gateway of it looks at.
func pair(from string) (Snapshot, *Tracker) {
	objs, host := clusterset.Encrypted(from)
	r := tables.Desired(objs, host)
	l := NewTracker("v3")
	l.wire = map[netip.Addr]cable.Status{
		ip("241.0.128.1"): {Endpoint: netip.MustParseAddrPort("203.0.113.9:31000"), Tunnels: 2, RxBytes: 7, TxBytes: 8},
		ip("241.0.128.2"): {Endpoint: netip.MustParseAddrPort("172.31.2.12:4500"), Error: "no handshake yet"},
	}
	return NewSnapshot(objs, r, tables.Reach{}, false), l
}

func TestConnections(t *testing.T) {
	snap, l := pair("n1")
	l.update(snap, map[netip.Addr]liveness.Path{ip("241.0.128.1"): lossy()}, nil, begin)
	got := l.gateway(snap)
	endpoint := func(host, address, fabric, node string) submarinerv1.EndpointSpec {
		return submarinerv1.EndpointSpec{
			ClusterID: "g2", CableName: "submariner-cable-g2-" + strings.ReplaceAll(address, ".", "-"), Hostname: host,
			Subnets: []string{"120.2.0.0/24"}, PrivateIP: address, Backend: "vxlan",
			BackendConfig: map[string]string{"udp-port": "4500", "cluster-index": "2", "node-index": node, "fabric-ip": fabric, "tunnels": "2", "publicKey": "a,b"},
		}
	}
	want := &submarinerv1.GatewayStatus{
		Version: "v3", HAStatus: submarinerv1.HAStatusActive,
		LocalEndpoint: submarinerv1.EndpointSpec{
			ClusterID: "g1", CableName: "submariner-cable-g1-172-31-1-11", Hostname: "n1", Subnets: []string{"120.1.0.0/24"},
			PrivateIP: "172.31.1.11", Backend: "wireguard",
			BackendConfig: map[string]string{"udp-port": "4500", "cluster-index": "1", "node-index": "1", "fabric-ip": "241.0.64.1", "publicKey": "own"},
		},
		Connections: []submarinerv1.Connection{{
			Status: submarinerv1.Connected, StatusMessage: "degraded: 12 % of the probes are lost", Endpoint: endpoint("g2-n1", "172.31.2.11", "241.0.128.1", "1"),
			UsingIP: "203.0.113.9", UsingNAT: true,
			LatencyRTT: &submarinerv1.LatencyRTTSpec{Last: "1.2ms", Min: "1.2ms", Average: "1.2ms", Max: "1.2ms", StdDev: "0s"}, LossPercent: 12,
		}, {
			Status: submarinerv1.Connecting, StatusMessage: "waiting for the first answer to a probe (the wire says: no handshake yet)",
			Endpoint: endpoint("g2-n2", "172.31.2.12", "241.0.128.2", "2"), UsingIP: "172.31.2.12",
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	// What was published is more exact than what peers know.
	published := submarinerv1.Endpoint{Spec: endpoint("g2-n2", "172.31.2.12", "241.0.128.2", "2")}
	published.Spec.PrivateIP, published.Spec.PublicIP, published.Spec.NATEnabled = "10.0.0.5", "172.31.2.12", true
	local := submarinerv1.Endpoint{Spec: submarinerv1.EndpointSpec{ClusterID: "g1", Hostname: "n1", HealthCheckIP: "10.9.9.9", BackendConfig: map[string]string{"wire-version": "1", "publicKey": "older"}}}
	CompleteEndpoints(got, []submarinerv1.Endpoint{published, local})
	if c := got.Connections[1]; c.Endpoint.PrivateIP != "10.0.0.5" {
		t.Errorf("private IP %s", c.Endpoint.PrivateIP)
	}
	if e := got.LocalEndpoint; e.HealthCheckIP != "10.9.9.9" || e.BackendConfig["wire-version"] != "1" || e.BackendConfig["publicKey"] != "own" {
		t.Errorf("local endpoint %+v", e)
	}
	objs, host := clusterset.Globalnet("n2")
	r := tables.Desired(objs, host)
	if NewTracker("v3").gateway(NewSnapshot(objs, r, tables.Reach{}, false)) != nil {
		t.Error("a node that is no gateway has a Gateway object")
	}
}

// What NAT discovery found decides what a connection is said to use, and whether NAT lies between.
func TestConnectionsAsReached(t *testing.T) {
	caller := netip.MustParseAddrPort("203.0.113.9:20001")
	masked := natt.Rewriting{SourceIP: true}
	type facts struct {
		Private, Public string
		Behind          bool // NATEnabled
		Using           string
		NAT             bool
		Says            string
	}
	both := facts{Private: "10.0.0.2", Public: "198.51.100.7", Behind: true}
	with := func(f facts, using string, nat bool, says string) facts {
		f.Using, f.NAT, f.Says = using, nat, says
		return f
	}
	const waits = "waiting for the first answer to a probe"
	tests := map[string]struct {
		g      pelagov1alpha1.PeerGateway // addresses
		way    natt.Reachability
		driver string
		wire   string // where the wire sends
		want   facts
	}{
		"nothing discovered": {pelagov1alpha1.PeerGateway{Address: "10.0.0.2", PrivateAddress: "10.0.0.2"}, natt.Reachability{}, "", "",
			facts{Private: "10.0.0.2", Using: "10.0.0.2", Says: waits}},
		"an agent of before": {pelagov1alpha1.PeerGateway{Address: "10.0.0.2"}, natt.Reachability{}, "", "", facts{Private: "10.0.0.2", Using: "10.0.0.2", Says: waits}},
		"public by its word": {pelagov1alpha1.PeerGateway{Address: "198.51.100.7", PrivateAddress: "10.0.0.2", PublicAddress: "198.51.100.7"}, natt.Reachability{}, "", "",
			with(both, "198.51.100.7", true, waits)},
		"public alone is of use": {pelagov1alpha1.PeerGateway{Address: "198.51.100.7", PublicAddress: "198.51.100.7"}, natt.Reachability{}, "", "",
			facts{Public: "198.51.100.7", Behind: true, Using: "198.51.100.7", NAT: true, Says: waits}},
		"private confirmed": {pelagov1alpha1.PeerGateway{Address: "10.0.0.2", PrivateAddress: "10.0.0.2", PublicAddress: "198.51.100.7"},
			natt.Reachability{State: natt.Confirmed, Address: ip("10.0.0.2"), Private: true, Reason: "answers"}, "", "",
			with(both, "10.0.0.2", false, waits+" (NAT discovery says: it answers)")},
		"public confirmed, nothing rewritten": {pelagov1alpha1.PeerGateway{Address: "198.51.100.7", PrivateAddress: "10.0.0.2", PublicAddress: "198.51.100.7"},
			natt.Reachability{State: natt.Confirmed, Address: ip("198.51.100.7")}, "", "", with(both, "198.51.100.7", false, waits)},
		"public confirmed, this one is masked": {pelagov1alpha1.PeerGateway{Address: "198.51.100.7", PrivateAddress: "10.0.0.2", PublicAddress: "198.51.100.7"},
			natt.Reachability{State: natt.Confirmed, Address: ip("198.51.100.7"), Out: masked}, "", "198.51.100.7:4500", with(both, "198.51.100.7", true, waits)},
		"it is to call": {pelagov1alpha1.PeerGateway{PrivateAddress: "10.0.0.2"}, natt.Reachability{State: natt.Waiting, Source: caller, In: masked, Reason: "calls"}, "", "",
			facts{Private: "10.0.0.2", Using: "203.0.113.9", NAT: true, Says: waits + " (NAT discovery says: it calls)"}},
		"it has called": {pelagov1alpha1.PeerGateway{PrivateAddress: "10.0.0.2"}, natt.Reachability{State: natt.Waiting, Source: caller, In: masked}, "", "203.0.113.10:31000",
			facts{Private: "10.0.0.2", Using: "203.0.113.10", NAT: true, Says: waits}},
		"vxlan, refused": {pelagov1alpha1.PeerGateway{PrivateAddress: "10.0.0.2", PublicAddress: "198.51.100.7"},
			natt.Reachability{State: natt.Confirmed, Out: masked, Reason: "NAT lies between"}, config.CableVXLAN, "", with(both, "", true, "NAT lies between")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objs, host := clusterset.Encrypted("n1")
			if tt.driver != "" {
				objs.Config.CableDriver = tt.driver
			}
			g := &objs.Peers[0].Spec.Gateways[0]
			g.Address, g.PrivateAddress, g.PublicAddress = tt.g.Address, tt.g.PrivateAddress, tt.g.PublicAddress
			objs.Discovered = map[string]natt.Reachability{"g2/g2-n1": tt.way}
			l := NewTracker("v3")
			if tt.wire != "" {
				l.wire = map[netip.Addr]cable.Status{ip("241.0.128.1"): {Endpoint: netip.MustParseAddrPort(tt.wire)}}
			}
			snap := NewSnapshot(objs, tables.Desired(objs, host), tables.Reach{}, false)
			l.update(snap, nil, nil, begin)
			all := l.connections(snap)
			i := slices.IndexFunc(all, func(c submarinerv1.Connection) bool { return c.Endpoint.Hostname == "g2-n1" })
			if len(all) != 2 || i < 0 {
				t.Fatalf("connections %+v", all)
			}
			c := all[i]
			got := facts{c.Endpoint.PrivateIP, c.Endpoint.PublicIP, c.Endpoint.NATEnabled, c.UsingIP, c.UsingNAT, c.StatusMessage}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if refused := tt.driver == config.CableVXLAN; refused != (c.Status == submarinerv1.ConnectionError) {
				t.Errorf("status %s", c.Status)
			}
		})
	}
}

func TestLocalEndpointHasItsPublicAddress(t *testing.T) {
	for _, tt := range []struct {
		public *pelagov1alpha1.PublicIP
		noNAT  bool
		want   string
		nat    bool
	}{
		{nil, false, "", false},
		{&pelagov1alpha1.PublicIP{Message: "no server answers"}, false, "", false},
		{&pelagov1alpha1.PublicIP{Address: "198.51.100.1"}, false, "198.51.100.1", true},
		{&pelagov1alpha1.PublicIP{Address: "198.51.100.1"}, true, "198.51.100.1", false},
		{&pelagov1alpha1.PublicIP{Address: "172.31.1.11"}, false, "172.31.1.11", false},
	} {
		snap, l := pair("n1")
		snap.Reach.Public, snap.Objects.Config.NoNAT = tt.public, tt.noNAT
		l.update(snap, nil, nil, begin)
		if e := l.gateway(snap).LocalEndpoint; e.PublicIP != tt.want || e.NATEnabled != tt.nat {
			t.Errorf("%+v: public IP %q, NAT %t", tt, e.PublicIP, e.NATEnabled)
		}
	}
}

// What is urgent changes with a status, not with numbers.
func TestUrgent(t *testing.T) {
	snap, l := pair("n1")
	paths := map[netip.Addr]liveness.Path{ip("241.0.128.1"): clusterset.Answering()}
	l.update(snap, paths, nil, begin)
	before := l.urgentKey(snap)
	slower := clusterset.Answering()
	slower.Replies, slower.RTT = 20, time.Second
	l.update(snap, map[netip.Addr]liveness.Path{ip("241.0.128.1"): slower}, nil, begin.Add(time.Second))
	if l.urgentKey(snap) != before {
		t.Error("another round-trip time is urgent")
	}
	l.update(snap, map[netip.Addr]liveness.Path{ip("241.0.128.1"): clusterset.Silent(time.Second)}, nil, begin.Add(2*time.Second))
	if l.urgentKey(snap) == before {
		t.Error("a death is not urgent")
	}
}

func TestEvents(t *testing.T) {
	snap, l := pair("n1")
	second := clusterset.Answering()
	at := func(p liveness.Path, after time.Duration) string {
		l.update(snap, map[netip.Addr]liveness.Path{ip("241.0.128.1"): p, ip("241.0.128.2"): second}, nil, begin.Add(after))
		var all []string
		for _, e := range l.events(snap) {
			all = append(all, e.Type+" "+e.Reason+" "+e.Message)
		}
		return strings.Join(all, "\n")
	}
	lost := "Warning ConnectionLost the connection from gateway n1 of g1 to gateway g2-n1 of g2 (203.0.113.9, vxlan) is dead: " +
		"probes are not answered any more: does the node run, and does UDP 4500 to 203.0.113.9 of node g2-n1 pass? Packets go to g2-n2 instead."
	back := "Normal ConnectionRestored the connection from gateway n1 of g1 to gateway g2-n1 of g2 (203.0.113.9, vxlan) is back: probes were answered for 3s"
	for i, step := range []struct {
		path  liveness.Path
		after time.Duration
		want  string
	}{
		{clusterset.Answering(), 0, ""}, {clusterset.Silent(time.Second), time.Second, lost}, {clusterset.Silent(2 * time.Second), 2 * time.Second, ""},
		// no news
		{clusterset.Answering(), 3 * time.Second, ""}, {clusterset.Silent(time.Second), 4 * time.Second, ""},
		{clusterset.Answering(), 5 * time.Second, ""}, {clusterset.Answering(), 8 * time.Second, back}, {clusterset.Answering(), 9 * time.Second, ""},
	} {
		if got := at(step.path, step.after); got != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
	second = clusterset.Silent(time.Second)
	if e := at(clusterset.Silent(time.Second), 10*time.Second); strings.Count(e, "From here no other gateway of g2 answers.") != 2 {
		t.Errorf("%q", e)
	}
}

func TestView(t *testing.T) {
	snap, l := pair("n1")
	l.role = RoleServing
	l.update(snap, map[netip.Addr]liveness.Path{ip("241.0.128.1"): clusterset.Answering()}, nil, begin)
	v := l.View(snap)
	type row struct {
		up     bool
		status string
		rx     uint64
	}
	got := map[string]row{}
	for _, p := range v.Peers {
		got[p.Cluster+"/"+p.Gateway+"/"+p.Path.String()] = row{p.Up, p.Connection.Status, p.Connection.RxBytes}
	}
	want := map[string]row{"g2/g2-n1/241.0.128.1": {true, "connected", 7}, "g2/g2-n2/241.0.128.2": {false, "connecting", 0}}
	if !maps.Equal(want, got) || v.State != "serving" || v.Gateways != 1 {
		t.Errorf("%v, want %v; %+v", got, want, v)
	}
	if r := v.Ranges[0]; r.Usable != 254 || r.ClusterEgress != 2 {
		t.Errorf("%+v", r)
	}
}
