package tables_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/test/clusterset"
)

func TestPlainNode(t *testing.T) {
	objs, host := clusterset.Globalnet("n2")
	clusterset.Export(&objs, metav1.ConditionTrue)
	r := tables.Desired(objs, host)
	want := dataplane.State{
		Settings: dataplane.Settings{
			Address: ip("172.31.1.12"), CableAddress: ip("172.31.1.12"), Node: 2, Cluster: 1, MSS: 1410, Ready: true,
			Overlay: dataplane.Tokens{Current: 7}, Cable: dataplane.Tokens{Current: 9},
		},
		Routes:   map[netip.Prefix]uint16{netip.MustParsePrefix("120.1.0.0/24"): 1, netip.MustParsePrefix("120.2.0.0/24"): 2},
		Nodes:    map[uint16]dataplane.Hop{1: host.Hops[ip("172.31.1.11")]},
		Gateways: []uint16{1},
		Clusters: map[uint16][]dataplane.RemoteGateway{}, // a gateway's business
		Peers:    map[netip.Addr]dataplane.Peer{ip("172.31.1.11"): {Kind: dataplane.PeerNode, Node: 1}},
		Sources: map[netip.Addr]dataplane.Source{
			ip("10.7.2.5"):    {Egress: ip("120.1.0.2"), Ifindex: 3},
			ip("10.7.2.1"):    {Egress: ip("120.1.0.2"), Host: true},
			ip("172.31.1.12"): {Egress: ip("120.1.0.2"), Host: true},
		},
		Egresses: map[netip.Addr][]uint16{ip("120.1.0.2"): {1024}}, // the pending block is not used
		Globals: map[netip.Addr]dataplane.Global{
			ip("120.1.0.1"): {Kind: dataplane.GlobalEgress}, ip("120.1.0.2"): {Kind: dataplane.GlobalEgress}, ip("120.1.0.9"): {Kind: dataplane.GlobalService},
		},
		Blocks: map[dataplane.BlockKey]uint16{},
		Services: map[dataplane.ServiceKey]dataplane.Service{
			{Address: ip("120.1.0.9"), Port: 80, Protocol: 6}: {Backends: []netip.AddrPort{netip.MustParseAddrPort("10.7.2.5:8080")}},
		},
	}
	if diff := cmp.Diff(want, r.State, clusterset.Comparable); diff != "" {
		t.Errorf("state -want +got\n%s", diff)
	}
	if r.Gateway || len(r.Acks) > 0 || len(r.Problems) > 0 {
		t.Errorf("gateway %t, acks %v, problems %v; want a plain node without either", r.Gateway, r.Acks, r.Problems)
	}
}

func TestGateway(t *testing.T) {
	objs, host := clusterset.Globalnet("n1")
	clusterset.Export(&objs, metav1.ConditionFalse)
	r := tables.Desired(objs, host)
	s := r.State
	if !r.Gateway || !s.Settings.Gateway || s.Settings.CablePort != 4500 {
		t.Errorf("settings %+v, want a gateway with its cable", s.Settings)
	}
	wantGateways := map[uint16][]dataplane.RemoteGateway{2: {{Hop: host.Hops[ip("172.31.2.11")], Node: 1, Port: 4500}}}
	if diff := cmp.Diff(wantGateways, s.Clusters, clusterset.Comparable); diff != "" {
		t.Errorf("remote gateways -want +got\n%s", diff)
	}
	if got := s.Peers[ip("172.31.2.11")]; got != (dataplane.Peer{Kind: dataplane.PeerGateway, Cluster: 2, Node: 1}) {
		t.Errorf("remote gateway may send as %+v", got)
	}
	wantBlocks := map[dataplane.BlockKey]uint16{
		{Address: ip("120.1.0.1"), First: 1024}: 1, {Address: ip("120.1.0.2"), First: 1024}: 2, {Address: ip("120.1.0.2"), First: 1280}: 2,
	}
	if diff := cmp.Diff(wantBlocks, s.Blocks, clusterset.Comparable); diff != "" {
		t.Errorf("a gateway knows pending blocks too: -want +got\n%s", diff)
	}
	if diff := cmp.Diff([]string{"block-Pending", "ingress-web"}, r.Acks); diff != "" {
		t.Errorf("what is pending and in the tables is acknowledged: -want +got\n%s", diff)
	}
	service := s.Services[dataplane.ServiceKey{Address: ip("120.1.0.9"), Port: 80, Protocol: 6}]
	shares := map[uint16]int{}
	for _, n := range service.Table {
		shares[n]++
	}
	if len(shares) != 2 || shares[1] < len(service.Table)*2/5 || shares[2] < len(service.Table)*2/5 {
		t.Errorf("table shares %v: one ready backend on each node, so half each", shares)
	}
}

func TestHeadlessPod(t *testing.T) {
	objs, host := clusterset.Globalnet("n2")
	clusterset.Export(&objs, metav1.ConditionTrue)
	objs.IngressIPs = []submarinerv1.GlobalIngressIP{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: "pod-web-1", UID: "ingress-pod"},
		Spec: submarinerv1.GlobalIngressIPSpec{
			Target: submarinerv1.HeadlessServicePod, ServiceRef: &corev1.LocalObjectReference{Name: "web"}, PodRef: &corev1.LocalObjectReference{Name: "web-1"},
		},
		Status: submarinerv1.GlobalIngressIPStatus{
			AllocatedIP: "120.1.0.10", Conditions: []metav1.Condition{{Type: submarinerv1.ConditionAllocated, Status: metav1.ConditionTrue}},
		},
	}}
	r := tables.Desired(objs, host)
	if got := r.State.Globals[ip("120.1.0.10")]; got != (dataplane.Global{Kind: dataplane.GlobalPod, Node: 2, Pod: ip("10.7.2.5")}) {
		t.Errorf("the pod's global IP leads to %+v", got)
	}
	if got := r.State.Sources[ip("10.7.2.5")]; got.Own != ip("120.1.0.10") || got.Egress.IsValid() {
		t.Errorf("the pod speaks from %+v, want its own global IP", got)
	}
}

func TestPeersThatAreNotAccepted(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		routed       bool
	}{
		{"without a gateway right now: routed, so that nothing leaks to the default route", pelagov1alpha1.ReasonNoGateway, true},
		{"without a gateway since it joined: untouched", pelagov1alpha1.ReasonAwaitingGateway, false},
		{"with overlapping ranges: untouched", pelagov1alpha1.ReasonOverlappingCIDR, false},
		{"with another wire: untouched", pelagov1alpha1.ReasonWireMismatch, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			objs, host := clusterset.Globalnet("n1")
			objs.Peers = []pelagov1alpha1.Peer{clusterset.Peer("g2", metav1.ConditionFalse, tt.reason)}
			if _, routed := tables.Desired(objs, host).State.Routes[netip.MustParsePrefix("120.2.0.0/24")]; routed != tt.routed {
				t.Errorf("routed: %t, want %t", routed, tt.routed)
			}
		})
	}
}

func TestProblemsAreNamed(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*tables.Objects, *tables.Host)
		want   string
		ready  bool
	}{
		{"no index yet", func(o *tables.Objects, _ *tables.Host) { o.NodeIndexes = nil }, "node n1 has no NodeIndex yet", false},
		{"no address", func(o *tables.Objects, _ *tables.Host) { o.Nodes[1].Status.Addresses = nil }, "node n2 has no IPv4 InternalIP", true},
		{"no route to a node", func(_ *tables.Objects, h *tables.Host) { delete(h.Hops, ip("172.31.1.12")) }, "no route to 172.31.1.12 of node n2", true},
		{"no route to a gateway", func(_ *tables.Objects, h *tables.Host) { delete(h.Hops, ip("172.31.2.11")) }, "no route to 172.31.2.11, gateway g2-n1 of cluster g2", true},
		{"subnet that is none", func(o *tables.Objects, _ *tables.Host) { o.Peers[0].Spec.Subnets = []string{"here"} }, `peer g2: subnet "here" is no IPv4 prefix`, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			objs, host := clusterset.Globalnet("n1")
			tt.change(&objs, &host)
			r := tables.Desired(objs, host)
			if !strings.Contains(strings.Join(r.Problems, "\n"), tt.want) {
				t.Errorf("problems %q, want one with %q", r.Problems, tt.want)
			}
			if r.State.Settings.Ready != tt.ready {
				t.Errorf("ready: %t, want %t", r.State.Settings.Ready, tt.ready)
			}
		})
	}
}

// Nodes and gateways reached by a device that does not support the programs are omitted, and
// nothing else.
func TestUnusableUplink(t *testing.T) {
	objs, host := clusterset.Globalnet("n1")
	whole := tables.Desired(objs, host).State
	for a, ifindex := range map[string]uint32{"172.31.1.12": 9, "172.31.2.11": 8} {
		hop := host.Hops[ip(a)]
		hop.Ifindex = ifindex
		host.Hops[ip(a)] = hop
	}
	for name, tt := range map[string]struct {
		unusable map[uint32]string
		want     []string
	}{
		"none":             {nil, nil},
		"that of a node":   {map[uint32]string{9: "device tun0 is odd"}, []string{"node n1 leaves out node n2 at 172.31.1.12: device tun0 is odd"}},
		"that of gateways": {map[uint32]string{8: "device ppp0 is odd"}, []string{"node n1 leaves out gateway g2-n1 of cluster g2 at 172.31.2.11: device ppp0 is odd"}},
	} {
		t.Run(name, func(t *testing.T) {
			host.Unusable = tt.unusable
			r := tables.Desired(objs, host)
			if diff := cmp.Diff(tt.want, r.Unreached); diff != "" {
				t.Errorf("unreached -want +got\n%s", diff)
			}
			_, node := r.State.Nodes[2]
			_, peer := r.State.Peers[ip("172.31.1.12")]
			if out := tt.unusable[9] != ""; node == out || peer == out {
				t.Errorf("node 2 is in the tables: %t, and a peer: %t", node, peer)
			}
			if out := tt.unusable[8] != ""; len(r.State.Clusters) > 0 == out {
				t.Errorf("remote gateways %v", r.State.Clusters)
			}
			if diff := cmp.Diff(whole.Sources, r.State.Sources, clusterset.Comparable); diff != "" || !r.State.Settings.Ready || len(r.State.Routes) != len(whole.Routes) {
				t.Errorf("other tables have changed: %+v", r.State)
			}
		})
	}
}

// Pods take precedence over addresses of the node itself; omitted addresses are reported.
func TestMoreAddressesThanSources(t *testing.T) {
	for name, fixture := range map[string]func(string) (tables.Objects, tables.Host){"globalnet": clusterset.Globalnet, "flat": clusterset.Flat} {
		t.Run(name, func(t *testing.T) {
			objs, host := fixture("n1")
			host.Addresses = []netip.Addr{ip("172.31.1.11")}
			for a := ip("10.96.0.1"); len(host.Addresses) < dataplane.MaxSources+100; a = a.Next() {
				host.Addresses = append(host.Addresses, a)
			}
			objs.Pods, host.Devices = nil, map[netip.Addr]uint32{}
			for i := range 250 {
				// sorted after the addresses of the node
				a := netip.AddrFrom4([4]byte{200, 7, 2, byte(i)})
				objs.Pods = append(objs.Pods, clusterset.Pod("p"+a.String(), "n1", a.String()))
				host.Devices[a] = 3
			}
			r := tables.Desired(objs, host)
			if n := len(r.State.Sources); n > dataplane.MaxSources-200 {
				t.Errorf("%d sources leave no room for the next pods", n)
			}
			for a := range host.Devices {
				if _, ok := r.State.Sources[a]; !ok {
					t.Fatalf("pod %s is left out", a)
				}
			}
			if !r.State.Sources[ip("172.31.1.11")].Host {
				t.Error("the node's address is left out")
			}
			if all := strings.Join(r.Problems, "\n"); !strings.Contains(all, "of its own, such as 10.96.16.") {
				t.Errorf("problems %q; want one with what is left out", r.Problems)
			}
		})
	}
}

func TestDrainingGatewayGoesOnSwitching(t *testing.T) {
	for name, leave := range map[string]func(*corev1.Node){
		"label taken away": func(n *corev1.Node) { delete(n.Labels, submarinerv1.LabelGateway) },
		"drained":          func(n *corev1.Node) { n.Annotations = map[string]string{pelagov1alpha1.AnnotationDrained: "true"} },
		"cordoned":         func(n *corev1.Node) { n.Spec.Unschedulable = true },
	} {
		objs, host := clusterset.Globalnet("n1")
		objs.Nodes[1].Labels = map[string]string{submarinerv1.LabelGateway: "true"}
		objs.NodeIndexes[1].Status.Gateway, objs.NodeIndexes[1].Status.Serving = true, true
		objs.Answering = map[string]bool{"n2": true}
		leave(&objs.Nodes[0])
		host.Draining = true
		r := tables.Desired(objs, host)
		if r.Gateway || slices.Contains(r.State.Gateways, r.State.Settings.Node) {
			t.Errorf("%s: the node is still offered as a gateway", name)
		}
		if !r.State.Settings.Gateway || len(r.State.Clusters) == 0 {
			t.Errorf("%s: it drops what others still send to it", name)
		}
		if !r.State.Settings.Leaving {
			t.Errorf("%s: it does not tell others to leave it", name)
		}
	}
}

// A pod whose device is not known sends nothing: another one could send in its name. It is still
// the pod of its address.
func TestPodWithoutDevice(t *testing.T) {
	for name, cluster := range map[string]func(string) (tables.Objects, tables.Host){"globalnet": clusterset.Globalnet, "flat": clusterset.Flat} {
		t.Run(name, func(t *testing.T) {
			objs, host := cluster("n2")
			delete(host.Devices, ip("10.7.2.5"))
			r := tables.Desired(objs, host)
			if src, ok := r.State.Sources[ip("10.7.2.5")]; ok {
				t.Errorf("source %+v; want none", src)
			}
			if r.Owners[ip("10.7.2.5")] != "uid-web-1" {
				t.Errorf("owners %v; want the pod", r.Owners)
			}
			if !strings.Contains(strings.Join(r.Problems, "\n"), "pod sample/web-1 is not connected") {
				t.Errorf("problems %q; want one of the pod", r.Problems)
			}
			objs.Pods[0].DeletionTimestamp = ptr.To(metav1.Now())
			if r := tables.Desired(objs, host); len(r.Problems) > 0 {
				t.Errorf("problems %q of a pod that ends", r.Problems)
			}
		})
	}
}

func TestPodKeepsItsEgressIPWhenBlocksCome(t *testing.T) {
	objs, host := clusterset.Globalnet("n2")
	before := tables.Desired(objs, host).State.Sources[ip("10.7.2.5")].Egress
	more := clusterset.Block("120.1.0.2", 1536, "n2", pelagov1alpha1.BlockActive)
	objs.PortBlocks = append(objs.PortBlocks, more)
	r := tables.Desired(objs, host)
	if got := r.State.Sources[ip("10.7.2.5")].Egress; got != before {
		t.Errorf("egress IP changed from %s to %s", before, got)
	}
	if diff := cmp.Diff([]uint16{1024, 1536}, r.State.Egresses[before]); diff != "" {
		t.Errorf("ports -want +got\n%s", diff)
	}
}

// terminate has the backend on a pod terminate and still serve.
func terminate(pod string) func(*tables.Objects) {
	return func(o *tables.Objects) {
		for i, e := range o.Slices[web][0].Endpoints {
			if e.TargetRef.Name == pod {
				o.Slices[web][0].Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(true), Terminating: ptr.To(true)}
			}
		}
	}
}

// New connections go to ready backends; without any, to those that terminate but serve (KEP-1669).
func TestTerminatingBackends(t *testing.T) {
	first, second := "10.7.2.5:8080", "10.7.1.5:8080" // of web-1 on n2 and web-2 on n1
	for name, tt := range map[string]struct {
		change []func(*tables.Objects)
		want   map[string][]string // by node
	}{
		"none terminates":         {nil, map[string][]string{"n1": {second}, "n2": {first}}},
		"one of two terminates":   {[]func(*tables.Objects){terminate("web-1")}, map[string][]string{"n1": {second}, "n2": nil}},
		"both terminate":          {[]func(*tables.Objects){terminate("web-1"), terminate("web-2")}, map[string][]string{"n1": {second}, "n2": {first}}},
		"both, and one is silent": {[]func(*tables.Objects){terminate("web-1"), terminate("web-2"), silent("web-1")}, map[string][]string{"n1": {second}, "n2": nil}},
	} {
		t.Run(name, func(t *testing.T) {
			for node, want := range tt.want {
				objs, host := clusterset.Globalnet(node)
				clusterset.Export(&objs, metav1.ConditionTrue)
				for _, f := range tt.change {
					f(&objs)
				}
				service := tables.Desired(objs, host).State.Services[dataplane.ServiceKey{Address: ip("120.1.0.9"), Port: 80, Protocol: 6}]
				var got []string
				for _, b := range service.Backends {
					got = append(got, b.String())
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("backends on %s: -want +got\n%s", node, diff)
				}
			}
		})
	}
}

// silent has the backend on a pod serve no more.
func silent(pod string) func(*tables.Objects) {
	return func(o *tables.Objects) {
		for i, e := range o.Slices[web][0].Endpoints {
			if e.TargetRef.Name == pod {
				o.Slices[web][0].Endpoints[i].Conditions.Serving = ptr.To(false)
			}
		}
	}
}

// SCTP ports are exported where the pods listen on the same port.
func TestSCTPService(t *testing.T) {
	for target, want := range map[int32]string{80: "", 8080: "service sample/web: SCTP port 80 leads to port 8080"} {
		objs, host := clusterset.Globalnet("n2")
		clusterset.Export(&objs, metav1.ConditionTrue)
		objs.Services[web].Spec.Ports[0].Protocol = corev1.ProtocolSCTP
		objs.Slices[web][0].Ports[0].Port, objs.Slices[web][0].Ports[0].Protocol = ptr.To(target), ptr.To(corev1.ProtocolSCTP)
		r := tables.Desired(objs, host)
		service, ok := r.State.Services[dataplane.ServiceKey{Address: ip("120.1.0.9"), Port: 80, Protocol: 132}]
		if reached := len(service.Backends) == 1; !ok || reached != (want == "") {
			t.Errorf("target port %d: service %+v, %t", target, service, ok)
		}
		if got := strings.Join(r.Problems, "\n"); !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("target port %d: problems %q; want %q", target, got, want)
		}
	}
}

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

// The annotations of an egress object apply to all of its pods, and to the node and hosts outside
// the cluster if it is the cluster's.
func TestNATBehavior(t *testing.T) {
	independent := map[string]string{submarinerv1.AnnotationNATMapping: "EndpointIndependent", submarinerv1.AnnotationNATFiltering: "EndpointIndependent"}
	for name, c := range map[string]struct {
		change func(*tables.Objects)
		want   map[string]string
	}{
		"none":    {func(*tables.Objects) {}, map[string]string{}},
		"cluster": {func(o *tables.Objects) { o.ClusterEgress.Annotations = independent }, map[string]string{"172.31.1.11": "open", "192.0.2.0/24": "open"}},
		"pool":    {func(o *tables.Objects) { o.EgressIPs[0].Annotations = independent }, map[string]string{"10.7.2.5": "open"}},
		"mapped": {func(o *tables.Objects) {
			o.EgressIPs[0].Annotations = map[string]string{submarinerv1.AnnotationNATMapping: "EndpointIndependent"}
		}, map[string]string{"10.7.2.5": "mapped"}},
		"invalid": {func(o *tables.Objects) {
			o.EgressIPs[0].Annotations = map[string]string{submarinerv1.AnnotationNATFiltering: "EndpointIndependent"}
		}, map[string]string{}},
	} {
		objs, host := clusterset.Full(true)
		c.change(&objs)
		objs.Config.ExternalCIDRs = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		host.External = map[netip.Addr]uint32{ip("192.0.2.1"): 4}
		state := tables.Desired(objs, host).State
		got := map[string]string{}
		note := func(at string, src dataplane.Source) {
			switch {
			case src.Open:
				got[at] = "open"
			case src.Mapped:
				got[at] = "mapped"
			}
		}
		for a, src := range state.Sources {
			if a != ip("10.7.2.1") { // another address of the node
				note(a.String(), src)
			}
		}
		for p, src := range state.Externals {
			note(p.String(), src)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s, sources -want +got\n%s", name, diff)
		}
	}
}
