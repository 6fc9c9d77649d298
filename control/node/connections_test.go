package node

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/record"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/natt"
)

var begin = time.Unix(1_700_000_000, 0)

// answering is a path that is well, silent one that has not answered for a time.
func answering() loader.Path {
	return loader.Path{Probed: true, Probes: 9, Replies: 9, Ready: true, Seen: 10 * time.Millisecond, RTT: 1200 * time.Microsecond, SRTT: 1200 * time.Microsecond}
}

func silent(age time.Duration) loader.Path {
	p := answering()
	p.Seen, p.Open, p.OldestOpen, p.Loss = age, 9, age, 1
	return p
}

func lossy() loader.Path { p := answering(); p.Loss = 0.12; return p }

// A connection is dead at once, and connected again after three seconds without a gap.
func TestConnectionIsDamped(t *testing.T) {
	var l link
	unready := answering()
	unready.Ready = false
	suspect := silent(100 * time.Millisecond)
	suspect.Loss = 0
	for _, step := range []struct {
		what   string
		at     time.Duration
		path   loader.Path
		absent bool
		status submarinerv1.ConnectionStatus
		says   string
	}{
		{"new", 0, loader.Path{Probes: 1}, false, submarinerv1.Connecting, "waiting for the first answer"},
		{"not all tables there", 100, unready, false, submarinerv1.Connecting, "its tables are not complete yet"},
		{"first good answer", 200, answering(), false, submarinerv1.Connected, ""},
		{"suspect", 300, suspect, false, submarinerv1.Connected, ""},
		{"dead", 1000, silent(2 * time.Second), false, submarinerv1.ConnectionError, "not answered any more: does the node run, and does UDP 4500 pass?"},
		{"answers", 2000, answering(), false, submarinerv1.Connecting, "answers again; connected after 3s"},
		{"still", 4900, answering(), false, submarinerv1.Connecting, "answers again"},
		{"a gap", 4950, suspect, false, submarinerv1.ConnectionError, "not answered"},
		{"answers anew", 5000, answering(), false, submarinerv1.Connecting, "answers again"},
		{"long enough after the first, not after the gap", 5100, answering(), false, submarinerv1.Connecting, "answers again"},
		{"steady", 8000, lossy(), false, submarinerv1.Connected, ""},
		{"the loss of the outage", 8100, lossy(), false, submarinerv1.Connected, ""},
		{"is forgotten", 8900, answering(), false, submarinerv1.Connected, ""},
		{"loses", 9000, lossy(), false, submarinerv1.Connected, "degraded: 12 % of the probes are lost"},
		{"loses less for a moment", 9100, answering(), false, submarinerv1.Connected, "degraded: 12 %"},
		{"loses less for long", 12100, answering(), false, submarinerv1.Connected, ""},
		{"the tunnel is gone", 13000, loader.Path{}, true, submarinerv1.ConnectionError, "not answered any more"},
		{"it still is", 13100, loader.Path{}, true, submarinerv1.ConnectionError, "not answered any more"},
		{"the tunnel is back, nobody answered yet", 14000, loader.Path{Probes: 1}, false, submarinerv1.ConnectionError, "not answered any more"},
		{"it answers, with loss", 15000, lossy(), false, submarinerv1.Connecting, "answers again"},
		{"with loss, steadily", 18000, lossy(), false, submarinerv1.Connected, ""},
		{"the loss is not that of the outage", 50000, lossy(), false, submarinerv1.Connected, "degraded"},
	} {
		l.note(step.path, !step.absent, begin.Add(step.at*time.Millisecond))
		if said := l.message("UDP 4500"); l.status != step.status || !strings.Contains(said, step.says) || (step.says == "") != (said == "") {
			t.Errorf("%s: %s %q, want %s %q", step.what, l.status, said, step.status, step.says)
		}
	}
}

func TestNeverAnswered(t *testing.T) {
	var l link
	never := loader.Path{Probes: 40, Open: 40, OldestOpen: time.Minute, Seen: time.Hour}
	l.note(never, true, begin)
	if l.status != submarinerv1.Connecting {
		t.Errorf("at the first look: %s", l.status)
	}
	l.note(never, true, begin.Add(firstAnswer))
	if l.status != submarinerv1.ConnectionError || !strings.Contains(l.message("UDP 4500 to x"), "does UDP 4500 to x pass in both directions") {
		t.Errorf("after %s: %s %q", firstAnswer, l.status, l.message("UDP 4500 to x"))
	}
}

func TestLatencyWindow(t *testing.T) {
	var w rttWindow
	p := answering()
	for i, rtt := range []time.Duration{time.Millisecond, 3 * time.Millisecond, 2 * time.Millisecond} {
		p.Replies, p.RTT = uint64(i+1), rtt
		w.note(p)
		w.note(p) // the same answer is counted once
	}
	want := &submarinerv1.LatencyRTTSpec{Last: "2ms", Min: "1ms", Average: "2ms", Max: "3ms", StdDev: "1ms"}
	if diff := cmp.Diff(want, w.spec()); diff != "" {
		t.Error(diff)
	}
	for i := range rttSamples {
		p.Replies, p.RTT = uint64(i+10), 5*time.Millisecond
		w.note(p)
	}
	if got := w.spec(); got.Min != "5ms" || got.StdDev != "0s" {
		t.Errorf("old samples are counted after %d new ones: %+v", rttSamples, got)
	}
}

// pair is the encrypted world with what a gateway of it looks at.
func pair(from string) (snapshot, *links) {
	objs, host := encryptedWorld(from)
	r := Desired(objs, host)
	l := newLinks()
	l.wire = map[netip.Addr]cable.Status{
		ip("241.0.128.1"): {Endpoint: netip.MustParseAddrPort("203.0.113.9:31000"), Tunnels: 2, RxBytes: 7, TxBytes: 8},
		ip("241.0.128.2"): {Endpoint: netip.MustParseAddrPort("172.31.2.12:4500"), Error: "no handshake yet"},
	}
	return newSnapshot(objs, r, Reach{}), l
}

func TestConnections(t *testing.T) {
	snap, l := pair("n1")
	l.note(snap, map[netip.Addr]loader.Path{ip("241.0.128.1"): lossy()}, nil, begin)
	got := gatewayReport(snap, l, "v3")
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
			LatencyRTT: &submarinerv1.LatencyRTTSpec{Last: "1.2ms", Min: "1.2ms", Average: "1.2ms", Max: "1.2ms", StdDev: "0s"},
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
	completeEndpoints(got, []submarinerv1.Endpoint{published, local})
	if c := got.Connections[1]; c.Endpoint.PrivateIP != "10.0.0.5" {
		t.Errorf("private IP %s", c.Endpoint.PrivateIP)
	}
	if e := got.LocalEndpoint; e.HealthCheckIP != "10.9.9.9" || e.BackendConfig["wire-version"] != "1" || e.BackendConfig["publicKey"] != "own" {
		t.Errorf("local endpoint %+v", e)
	}
	objs, host := world("n2")
	r := Desired(objs, host)
	if gatewayReport(newSnapshot(objs, r, Reach{}), newLinks(), "v3") != nil {
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
		way    natt.Verdict
		driver string
		wire   string // where the wire sends
		want   facts
	}{
		"nothing discovered": {pelagov1alpha1.PeerGateway{Address: "10.0.0.2", PrivateAddress: "10.0.0.2"}, natt.Verdict{}, "", "",
			facts{Private: "10.0.0.2", Using: "10.0.0.2", Says: waits}},
		"an agent of before": {pelagov1alpha1.PeerGateway{Address: "10.0.0.2"}, natt.Verdict{}, "", "", facts{Private: "10.0.0.2", Using: "10.0.0.2", Says: waits}},
		"public by its word": {pelagov1alpha1.PeerGateway{Address: "198.51.100.7", PrivateAddress: "10.0.0.2", PublicAddress: "198.51.100.7"}, natt.Verdict{}, "", "",
			with(both, "198.51.100.7", true, waits)},
		"public alone is of use": {pelagov1alpha1.PeerGateway{Address: "198.51.100.7", PublicAddress: "198.51.100.7"}, natt.Verdict{}, "", "",
			facts{Public: "198.51.100.7", Behind: true, Using: "198.51.100.7", NAT: true, Says: waits}},
		"private confirmed": {pelagov1alpha1.PeerGateway{Address: "10.0.0.2", PrivateAddress: "10.0.0.2", PublicAddress: "198.51.100.7"},
			natt.Verdict{State: natt.Confirmed, Address: ip("10.0.0.2"), Private: true, Reason: "answers"}, "", "",
			with(both, "10.0.0.2", false, waits+" (NAT discovery says: it answers)")},
		"public confirmed, nothing rewritten": {pelagov1alpha1.PeerGateway{Address: "198.51.100.7", PrivateAddress: "10.0.0.2", PublicAddress: "198.51.100.7"},
			natt.Verdict{State: natt.Confirmed, Address: ip("198.51.100.7")}, "", "", with(both, "198.51.100.7", false, waits)},
		"public confirmed, this one is masked": {pelagov1alpha1.PeerGateway{Address: "198.51.100.7", PrivateAddress: "10.0.0.2", PublicAddress: "198.51.100.7"},
			natt.Verdict{State: natt.Confirmed, Address: ip("198.51.100.7"), Out: masked}, "", "198.51.100.7:4500", with(both, "198.51.100.7", true, waits)},
		"it is to call": {pelagov1alpha1.PeerGateway{PrivateAddress: "10.0.0.2"}, natt.Verdict{State: natt.Waiting, Caller: caller, In: masked, Reason: "calls"}, "", "",
			facts{Private: "10.0.0.2", Using: "203.0.113.9", NAT: true, Says: waits + " (NAT discovery says: it calls)"}},
		"it has called": {pelagov1alpha1.PeerGateway{PrivateAddress: "10.0.0.2"}, natt.Verdict{State: natt.Waiting, Caller: caller, In: masked}, "", "203.0.113.10:31000",
			facts{Private: "10.0.0.2", Using: "203.0.113.10", NAT: true, Says: waits}},
		"vxlan, refused": {pelagov1alpha1.PeerGateway{PrivateAddress: "10.0.0.2", PublicAddress: "198.51.100.7"},
			natt.Verdict{State: natt.Confirmed, Out: masked, Reason: "NAT lies between"}, config.CableVXLAN, "", with(both, "", true, "NAT lies between")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objs, host := encryptedWorld("n1")
			if tt.driver != "" {
				objs.Config.CableDriver = tt.driver
			}
			g := &objs.Peers[0].Spec.Gateways[0]
			g.Address, g.PrivateAddress, g.PublicAddress = tt.g.Address, tt.g.PrivateAddress, tt.g.PublicAddress
			objs.Ways = map[string]natt.Verdict{"g2/g2-n1": tt.way}
			l := newLinks()
			if tt.wire != "" {
				l.wire = map[netip.Addr]cable.Status{ip("241.0.128.1"): {Endpoint: netip.MustParseAddrPort(tt.wire)}}
			}
			snap := newSnapshot(objs, Desired(objs, host), Reach{})
			l.note(snap, nil, nil, begin)
			all := connections(snap, l)
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
		snap.reach.Public, snap.objs.Config.NoNAT = tt.public, tt.noNAT
		l.note(snap, nil, nil, begin)
		if e := gatewayReport(snap, l, "v3").LocalEndpoint; e.PublicIP != tt.want || e.NATEnabled != tt.nat {
			t.Errorf("%+v: public IP %q, NAT %t", tt, e.PublicIP, e.NATEnabled)
		}
	}
}

// What is urgent changes with a status, not with numbers.
func TestUrgent(t *testing.T) {
	snap, l := pair("n1")
	paths := map[netip.Addr]loader.Path{ip("241.0.128.1"): answering()}
	l.note(snap, paths, nil, begin)
	before := l.urgent(snap)
	slower := answering()
	slower.Replies, slower.RTT = 20, time.Second
	l.note(snap, map[netip.Addr]loader.Path{ip("241.0.128.1"): slower}, nil, begin.Add(time.Second))
	if l.urgent(snap) != before {
		t.Error("another round-trip time is urgent")
	}
	l.note(snap, map[netip.Addr]loader.Path{ip("241.0.128.1"): silent(time.Second)}, nil, begin.Add(2*time.Second))
	if l.urgent(snap) == before {
		t.Error("a death is not urgent")
	}
}

func TestEvents(t *testing.T) {
	snap, l := pair("n1")
	events := record.NewFakeRecorder(10)
	d := &Daemon{opts: Options{NodeName: "n1", Namespace: "pelago-system", Events: events}, links: l}
	second := answering()
	at := func(p loader.Path, after time.Duration) string {
		l.note(snap, map[netip.Addr]loader.Path{ip("241.0.128.1"): p, ip("241.0.128.2"): second}, nil, begin.Add(after))
		d.mourn(snap)
		select {
		case e := <-events.Events:
			return e
		default:
			return ""
		}
	}
	lost := "Warning ConnectionLost the connection from gateway n1 of g1 to gateway g2-n1 of g2 (203.0.113.9, vxlan) is dead: " +
		"probes are not answered any more: does the node run, and does UDP 4500 to 203.0.113.9 of node g2-n1 pass? Packets go to g2-n2 instead."
	back := "Normal ConnectionRestored the connection from gateway n1 of g1 to gateway g2-n1 of g2 (203.0.113.9, vxlan) is back: probes were answered for 3s"
	for i, step := range []struct {
		path  loader.Path
		after time.Duration
		want  string
	}{
		{answering(), 0, ""}, {silent(time.Second), time.Second, lost}, {silent(2 * time.Second), 2 * time.Second, ""},
		{answering(), 3 * time.Second, ""}, {silent(time.Second), 4 * time.Second, ""}, // no news
		{answering(), 5 * time.Second, ""}, {answering(), 8 * time.Second, back}, {answering(), 9 * time.Second, ""},
	} {
		if got := at(step.path, step.after); got != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
	second = silent(time.Second)
	at(silent(time.Second), 10*time.Second)
	if e := <-events.Events; !strings.Contains(e, "From here no other gateway of g2 answers.") {
		t.Errorf("%q", e)
	}
}

func TestView(t *testing.T) {
	snap, l := pair("n1")
	l.role = roleServing
	l.note(snap, map[netip.Addr]loader.Path{ip("241.0.128.1"): answering()}, nil, begin)
	v := view(snap, l)
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
