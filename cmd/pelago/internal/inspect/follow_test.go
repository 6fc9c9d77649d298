package inspect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/liveness"
	"github.com/pelago-net/pelago/dataplane/trace"
	"github.com/pelago-net/pelago/dns"
)

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

// The way of the traced packet: pod 10.7.0.10 on node 2 of cluster 1, gateway 1 of cluster 1,
// gateway 1 of cluster 2, node 2 of cluster 2 with pod 10.7.0.20. Service 120.2.0.21:80 of cluster
// 2 is in its namespace sample.
var (
	na, ga = trace.Place{Cluster: 1, Node: 2}, trace.Place{Cluster: 1, Node: 1}
	gb, nb = trace.Place{Cluster: 2, Node: 1}, trace.Place{Cluster: 2, Node: 2}
)

func address(p trace.Place) netip.Addr { return ip(fmt.Sprintf("172.28.%d.1%d", p.Cluster, p.Node)) }

func hop(p trace.Place) dataplane.Hop {
	return dataplane.Hop{Address: address(p), Next: address(p), Ifindex: 2}
}

// world is both clusters. Tests change parts of it.
type world struct {
	tables   map[trace.Place]*trace.Tables
	sites    map[uint16]*Site
	stack    trace.Stack
	services []corev1.Service // of cluster 1
	policies []networkingv1.NetworkPolicy
	peers    map[uint16][]pelagov1alpha1.Peer
	zone     dns.Table
	down     map[string]bool // nodes without daemon
	size     int
}

func newWorld() *world {
	w := &world{
		tables: map[trace.Place]*trace.Tables{}, sites: map[uint16]*Site{}, down: map[string]bool{},
		stack: trace.Stack{Device: "pelago0", Overlay: true, MTU: 1450}, peers: map[uint16][]pelagov1alpha1.Peer{},
		zone: dns.Table{Mode: dns.ModeSubmariner, LocalCluster: "g1", Zones: []string{"clusterset.local"}, Services: []dns.Service{{
			Namespace: "sample", Name: "web", Type: dns.ClusterSetIP, Ports: []dns.Port{{Protocol: "tcp", Number: 80}},
			Clusters: []dns.Cluster{{ID: "g2", Endpoints: []dns.Endpoint{{IP: ip("120.2.0.21"), Ready: true}}}},
		}}},
	}
	for _, at := range []trace.Place{na, ga, gb, nb} {
		other := 3 - at.Cluster
		service := dataplane.ServiceKey{Address: ip(fmt.Sprintf("120.%d.0.21", at.Cluster)), Port: 80, Protocol: dataplane.ProtocolTCP}
		s := dataplane.State{
			Settings: dataplane.Settings{
				Address: address(at), CableAddress: address(at), Node: at.Node, Cluster: at.Cluster, Gateway: at.Node == 1, Ready: true,
				Overlay: dataplane.Tokens{Current: uint32(at.Cluster)}, Cable: dataplane.Tokens{Current: 77}, CablePort: 4500, MSS: 1360,
			},
			Routes:   map[netip.Prefix]uint16{netip.MustParsePrefix(fmt.Sprintf("120.%d.0.0/24", other)): other},
			Nodes:    map[uint16]dataplane.Hop{1: hop(trace.Place{Cluster: at.Cluster, Node: 1}), 2: hop(trace.Place{Cluster: at.Cluster, Node: 2})},
			Gateways: []uint16{1},
			Clusters: map[uint16][]dataplane.RemoteGateway{other: {{Hop: hop(trace.Place{Cluster: other, Node: 1}), Node: 1, Port: 4500}}},
			Peers: map[netip.Addr]dataplane.Peer{
				address(trace.Place{Cluster: at.Cluster, Node: 1}): {Kind: dataplane.PeerNode, Node: 1},
				address(trace.Place{Cluster: at.Cluster, Node: 2}): {Kind: dataplane.PeerNode, Node: 2},
				address(trace.Place{Cluster: other, Node: 1}):      {Kind: dataplane.PeerGateway, Cluster: other, Node: 1},
			},
			Sources:  map[netip.Addr]dataplane.Source{ip("10.7.0.10"): {Egress: ip(fmt.Sprintf("120.%d.0.1", at.Cluster)), Ifindex: 7}},
			Egresses: map[netip.Addr][]uint16{ip(fmt.Sprintf("120.%d.0.1", at.Cluster)): {1280}},
			Globals: map[netip.Addr]dataplane.Global{
				ip(fmt.Sprintf("120.%d.0.1", at.Cluster)): {Kind: dataplane.GlobalEgress}, service.Address: {Kind: dataplane.GlobalService},
			},
			Services: map[dataplane.ServiceKey]dataplane.Service{service: {Backends: []netip.AddrPort{netip.MustParseAddrPort("10.7.0.20:8080")}, Table: []uint16{2, 2, 2}}},
		}
		w.tables[at] = &trace.Tables{State: s}
	}
	for cluster := uint16(1); cluster <= 2; cluster++ {
		name := fmt.Sprintf("g%d", cluster)
		w.sites[cluster] = &Site{
			Name: name, Index: cluster, Nodes: map[uint16]string{1: name + "-n1", 2: name + "-n2"},
			Others: map[uint16]string{3 - cluster: fmt.Sprintf("g%d", 3-cluster)},
			Ask: func(_ context.Context, node string, r trace.Request) (trace.Answer, error) {
				if w.down[node] {
					return trace.Answer{}, fmt.Errorf("%w: on %s", errNoDaemon, node)
				}
				at := trace.Place{Cluster: cluster, Node: uint16(node[len(node)-1] - '0')}
				tables := *w.tables[at]
				tables.Size, tables.MTU = r.Size, map[uint32]int{2: 1500}
				if r.Header != nil {
					return trace.Walk(tables, r, nil), nil
				}
				return trace.Walk(tables, r, &w.stack), nil
			},
			Shadow: func(p trace.Packet) string { return shadow(w.services, p) },
			Forbidden: func(_ context.Context, p trace.Packet, out bool) (string, error) {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Labels: map[string]string{"app": "web"}}}
				if names := forbids(w.policies, pod, out, p.Source.Addr(), corev1.ProtocolTCP, p.Destination.Port()); !out && len(names) > 0 {
					return "NetworkPolicy " + strings.Join(names, ", "), nil
				}
				return "", nil
			},
			Refused: func(a netip.Addr) string { return refused(w.peers[cluster], a) },
		}
	}
	return w
}

// trace follows a packet to service sample/web.
func (w *world) trace(t *testing.T) *Trace {
	t.Helper()
	d, err := parseDestination("sample/web", "tcp", w.zone.Zones)
	if err != nil {
		t.Fatal(err)
	}
	found := &Trace{}
	end, err := resolve(w.zone, w.services, &d)
	if err != nil {
		t.Fatal(err)
	}
	if end != nil {
		found.End = *end
		return found
	}
	packet := trace.Packet{Protocol: dataplane.ProtocolTCP, Source: netip.MustParseAddrPort("10.7.0.10:40000"), Destination: netip.AddrPortFrom(d.address, d.port)}
	Follow(t.Context(), w.sites, na, trace.Request{Packet: packet, Size: w.size}, found)
	return found
}

// unanswered is a path whose probes get no replies.
var unanswered = liveness.Path{Probed: true, Ready: true, Open: 20, OldestOpen: time.Minute, Seen: time.Minute}

func peer(name, subnet string, reason string) []pelagov1alpha1.Peer {
	p := pelagov1alpha1.Peer{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: pelagov1alpha1.PeerSpec{Subnets: []string{subnet}}}
	p.Status.Conditions = []metav1.Condition{{Type: pelagov1alpha1.PeerAccepted, Status: metav1.ConditionFalse, Reason: reason, Message: "see there"}}
	return []pelagov1alpha1.Peer{p}
}

// Each fault has its own reason, and the trace names the node or object.
func TestFaults(t *testing.T) {
	webService := func(s corev1.ServiceSpec) []corev1.Service {
		s.Ports = []corev1.ServicePort{{Port: 80}}
		return []corev1.Service{{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "taker"}, Spec: s}}
	}
	denyAll := []networkingv1.NetworkPolicy{{ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: "deny"}}}
	for name, c := range map[string]struct {
		fault   func(*world)
		outcome Outcome
		reason  string
		names   string // what the message has to name
		hops    int
	}{
		"none": {func(*world) {}, Delivered, "", "g2-n2", 4},
		"no route": {func(w *world) {
			w.tables[na].State.Routes = nil
			w.peers[1] = peer("g2", "120.2.0.0/24", pelagov1alpha1.ReasonOverlappingCIDR)
		}, Dropped, "drop-no-route", "Peer g2 is not accepted: OverlappingCIDR", 1},
		"no ports": {func(w *world) {
			key := trace.Packet{Protocol: dataplane.ProtocolTCP, Source: netip.MustParseAddrPort("120.1.0.1:0"), Destination: netip.MustParseAddrPort("120.2.0.21:80")}
			w.tables[na].PortsInUse = map[trace.Packet]int{key: dataplane.BlockPorts}
		}, Dropped, "drop-ports-exhausted", "g1-n2", 1},
		"dead gateway": {func(w *world) {
			w.tables[na].Paths = map[netip.Addr]liveness.Path{address(ga): unanswered}
			w.down["g1-n1"] = true
		}, Dropped, "gateway-down", address(ga).String(), 1},
		"wire down": {func(w *world) { w.tables[ga].Paths = map[netip.Addr]liveness.Path{address(gb): unanswered} },
			Dropped, "wire-down", address(gb).String(), 4},
		"policy drop":        {func(w *world) { w.policies = denyAll }, Dropped, "policy", "sample/deny", 5},
		"MTU of the route":   {func(w *world) { w.size, w.stack.MTU = 1450, 1400 }, Dropped, "drop-too-big", "g1-n2", 1},
		"MTU of the uplink":  {func(w *world) { w.size, w.stack.MTU = 1460, 1500 }, Dropped, "drop-too-big", "g1-n2", 1},
		"a packet that fits": {func(w *world) { w.size = 1450 }, Delivered, "", "g2-n2", 4},
		"wrong token":        {func(w *world) { w.tables[gb].State.Settings.Cable = dataplane.Tokens{Current: 78} }, Dropped, "drop-bad-token", "g2-n1", 3},
		"wrong token, no path": {func(w *world) {
			w.tables[gb].State.Settings.Cable = dataplane.Tokens{Current: 78}
			w.tables[ga].Paths = map[netip.Addr]liveness.Path{address(gb): unanswered}
		}, Dropped, "drop-bad-token", "g2-n1", 3},
		"no backend": {func(w *world) {
			for key := range w.tables[gb].State.Services {
				w.tables[gb].State.Services[key] = dataplane.Service{}
			}
		}, Dropped, "drop-no-backend", "g2-n1", 3},
		"no backend by DNS": {func(w *world) { w.zone.Services[0].Clusters[0].Endpoints[0].Ready = false }, Dropped, "no-backend", "web.sample.svc", 0},
		"unaccepted cluster": {func(w *world) {
			w.tables[gb].State.Routes = nil
			w.peers[2] = peer("g1", "120.1.0.0/24", pelagov1alpha1.ReasonWireMismatch)
		}, Dropped, "drop-spoofed-source", "Peer g1 is not accepted: WireMismatch", 3},
		"DNS name without import": {func(w *world) { w.zone.Services = nil }, Dropped, "no-import", "web.sample.svc.clusterset.local", 0},
		"kube-proxy rule": {func(w *world) { w.services = webService(corev1.ServiceSpec{ExternalIPs: []string{"120.2.0.21"}}) },
			Dropped, "shadowed", "other/taker", 1},
		"another's rule": {func(w *world) { w.services = webService(corev1.ServiceSpec{ClusterIPs: []string{"120.2.0.22"}}) }, Delivered, "", "g2-n2", 4},
		"stale daemon":   {func(w *world) { w.tables[ga].Confirmed = time.Hour }, Unknown, "stale-daemon", "g1-n1", 4},
		"stale and dropped": {func(w *world) {
			w.tables[na].Confirmed, w.tables[nb].State.Settings.Ready = time.Hour, false
		}, Dropped, "drop-not-ready", "g2-n2", 4},
		"daemon away":      {func(w *world) { w.down["g2-n2"] = true }, Unknown, "no-daemon", "g2-n2", 3},
		"another rule":     {func(w *world) { w.stack = trace.Stack{Device: "eth0"} }, Dropped, "not-routed", "eth0", 1},
		"no other context": {func(w *world) { delete(w.sites, 2) }, Unknown, "remote-unseen", "g2", 2},
		"no wire, no other": {func(w *world) {
			delete(w.sites, 2)
			w.tables[ga].Paths = map[netip.Addr]liveness.Path{address(gb): unanswered}
		}, Dropped, "wire-down", address(gb).String(), 2},
		"own service": {func(w *world) {
			w.services = []corev1.Service{{ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIPs: []string{"120.2.0.21"}}}}
		}, Delivered, "own-cluster", "120.2.0.21", 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			c.fault(w)
			found := w.trace(t)
			if found.Outcome != c.outcome || found.Reason != c.reason || !strings.Contains(found.Message, c.names) || len(found.Hops) != c.hops {
				t.Errorf("%s, %s after %d hops: %s; want %s, %s after %d hops, naming %s",
					found.Outcome, found.Reason, len(found.Hops), found.Message, c.outcome, c.reason, c.hops, c.names)
			}
			if (found.Remedy == "") != (found.Reason == "") {
				t.Errorf("remedy %q for reason %q", found.Remedy, found.Reason)
			}
			for _, h := range found.Hops {
				if h.Hook != "stack" && len(h.Used) == 0 {
					t.Errorf("%s at %s names no entry", h.Verdict, h.Node)
				}
			}
			var text strings.Builder
			if err := printTrace(&text, true, found); err != nil || !strings.Contains(text.String(), "Verdict: "+string(c.outcome)) {
				t.Errorf("printed as %q, %v", text.String(), err)
			}
		})
	}
}

// The exit status tells scripts what the table tells people.
func TestStatus(t *testing.T) {
	for outcome, want := range map[Outcome]int{Delivered: 0, Unknown: 1, Dropped: 2} {
		var status Status
		err := Trace{End: End{Outcome: outcome}}.status()
		if errors.As(err, &status); status.Code != want {
			t.Errorf("%s: exit status %d, want %d", outcome, status.Code, want)
		}
	}
}

// Every verdict that drops a packet has a sentence and a remedy, here and in docs/reference.md, and
// no reason is that of a verdict that is gone.
func TestReasons(t *testing.T) {
	reference, err := os.ReadFile("../../../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	dropping := 0
	for _, v := range bpf.Verdicts() {
		if !v.Dropped() {
			continue
		}
		dropping++
		r, ok := reasonOf(v.String())
		if !ok || r.message == "" || r.remedy == "" {
			t.Errorf("verdict %s has no reason with both texts", v)
		}
		if row := fmt.Sprintf("| `%s` | %s | %s |\n", v, r.message, r.remedy); !strings.Contains(string(reference), row) {
			t.Errorf("docs/reference.md lacks\n%s", row)
		}
	}
	if len(drops) != dropping {
		t.Errorf("%d reasons for drops, and %d verdicts drop a packet", len(drops), dropping)
	}
	for name, r := range reasons {
		if strings.HasPrefix(name, "drop-") {
			t.Errorf("reason %s looks like a verdict", name)
		}
		if r.message == "" || r.remedy == "" {
			t.Errorf("reason %s lacks a text", name)
		}
	}
	rows := strings.Count(string(reference), "\n| `drop-")
	if rows != dropping {
		t.Errorf("docs/reference.md has rows for %d drops, want %d", rows, dropping)
	}
}
