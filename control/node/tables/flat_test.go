package tables_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/test/clusterset"
)

var webPort = dataplane.ServiceKey{Address: ip("10.77.0.9"), Port: 80, Protocol: 6}

func TestPlainNodeWithoutGlobalnet(t *testing.T) {
	objs, host := clusterset.Flat("n2")
	r := tables.Desired(objs, host)
	want := dataplane.State{
		Settings: dataplane.Settings{
			Address: ip("172.31.1.12"), CableAddress: ip("172.31.1.12"), Node: 2, Cluster: 1, MSS: 1410, Ready: true,
			Overlay: dataplane.Tokens{Current: 7}, Cable: dataplane.Tokens{Current: 9},
		},
		Routes: map[netip.Prefix]uint16{
			netip.MustParsePrefix("10.8.0.0/16"): 2, netip.MustParsePrefix("10.88.0.0/16"): 2, netip.MustParsePrefix("241.0.128.0/18"): 2,
		},
		Nodes:    map[uint16]dataplane.Hop{1: host.Hops[ip("172.31.1.11")]},
		Gateways: []uint16{1},
		Clusters: map[uint16][]dataplane.RemoteGateway{},
		Peers:    map[netip.Addr]dataplane.Peer{ip("172.31.1.11"): {Kind: dataplane.PeerNode, Node: 1}},
		Sources: map[netip.Addr]dataplane.Source{
			ip("10.7.2.5"):    {Own: ip("10.7.2.5"), Ifindex: 3},
			ip("10.7.2.1"):    {Own: ip("241.0.64.2"), Host: true},
			ip("172.31.1.12"): {Own: ip("241.0.64.2"), Host: true},
		},
		Egresses: map[netip.Addr][]uint16{},
		Globals: map[netip.Addr]dataplane.Global{
			ip("10.7.2.5"):   {Kind: dataplane.GlobalPod, Node: 2, Pod: ip("10.7.2.5")},
			ip("241.0.64.2"): {Kind: dataplane.GlobalPod, Node: 2, Pod: ip("172.31.1.12")},
			ip("10.77.0.9"):  {Kind: dataplane.GlobalService},
		},
		Blocks:   map[dataplane.BlockKey]uint16{},
		Services: map[dataplane.ServiceKey]dataplane.Service{webPort: {Backends: []netip.AddrPort{netip.MustParseAddrPort("10.7.2.5:8080")}}},
	}
	if diff := cmp.Diff(want, r.State, clusterset.Comparable); diff != "" {
		t.Errorf("state -want +got\n%s", diff)
	}
	if diff := cmp.Diff(map[netip.Addr]types.UID{ip("10.7.2.5"): "uid-web-1"}, r.Owners, clusterset.Comparable); diff != "" {
		t.Errorf("owners -want +got\n%s", diff)
	}
	if r.Gateway || len(r.Acks) > 0 || len(r.Problems) > 0 {
		t.Errorf("gateway %t, acks %v, problems %v; want a plain node without either", r.Gateway, r.Acks, r.Problems)
	}
}

func TestGatewayWithoutGlobalnet(t *testing.T) {
	objs, host := clusterset.Flat("n1")
	r := tables.Desired(objs, host)
	want := map[netip.Addr]dataplane.Global{
		ip("10.7.1.5"): {Kind: dataplane.GlobalPod, Node: 1, Pod: ip("10.7.1.5")},
		// 10.7.9.9 is on a node that has no index yet
		ip("10.7.2.5"):   {Kind: dataplane.GlobalPod, Node: 2},
		ip("241.0.64.1"): {Kind: dataplane.GlobalPod, Node: 1, Pod: ip("172.31.1.11")},
		ip("241.0.64.2"): {Kind: dataplane.GlobalPod, Node: 2},
		ip("10.77.0.9"):  {Kind: dataplane.GlobalService},
	}
	if diff := cmp.Diff(want, r.State.Globals, clusterset.Comparable); diff != "" {
		t.Errorf("what is where -want +got\n%s", diff)
	}
	shares := map[uint16]int{}
	for _, n := range r.State.Services[webPort].Table {
		shares[n]++
	}
	if len(shares) != 2 || !r.Gateway || len(r.Acks) > 0 || len(r.Problems) > 0 {
		t.Errorf("table shares %v, gateway %t, acks %v, problems %v; want both nodes in a gateway's table, nothing to acknowledge", shares, r.Gateway, r.Acks, r.Problems)
	}
}

func TestWhatIsNotRoutedWithoutGlobalnet(t *testing.T) {
	objs, host := clusterset.Flat("n1")
	objs.NodeIndexes = append(objs.NodeIndexes, pelagov1alpha1.NodeIndex{
		ObjectMeta: metav1.ObjectMeta{Name: "n3"}, Spec: pelagov1alpha1.NodeIndexSpec{Index: 16384},
	})
	inNode := clusterset.Pod("daemon", "n1", "172.31.1.11")
	inNode.Spec.HostNetwork = true
	ended := clusterset.Pod("job", "n1", "10.7.1.6")
	ended.Status.Phase = corev1.PodSucceeded
	objs.Pods = append(objs.Pods, inNode, ended)
	r := tables.Desired(objs, host)
	if _, ok := r.State.Globals[ip("10.7.1.6")]; ok {
		t.Error("the address of a pod that has ended still leads there")
	}
	if _, ok := r.State.Globals[ip("172.31.1.11")]; ok {
		t.Error("the node's own address is offered to other clusters")
	}
	if !strings.Contains(strings.Join(r.Problems, "\n"), "node n3 has no fabric address") {
		t.Errorf("problems %q, want one about node n3", r.Problems)
	}
}

// change is a step that the benchmark below does not expect.
type change struct{}

func ofKey[K, V any](K, *V) change { return change{} }

var changes = dataplane.Steps[change]{
	Settings: func(dataplane.Settings) change { return change{} }, Gateways: func([]uint16) change { return change{} },
	VIPRange: func(netip.Prefix) change { return change{} },
	Routes:   ofKey[netip.Prefix, uint16], Nodes: ofKey[uint16, dataplane.Hop], Clusters: ofKey[uint16, []dataplane.RemoteGateway],
	Peers: ofKey[netip.Addr, dataplane.Peer], Sources: ofKey[netip.Addr, dataplane.Source], Externals: ofKey[netip.Prefix, dataplane.Source],
	Endpoints: ofKey[netip.Addr, dataplane.Endpoint], Egresses: ofKey[netip.Addr, []uint16], Globals: ofKey[netip.Addr, dataplane.Global],
	Audiences: ofKey[netip.Addr, dataplane.ClusterSet], Blocks: ofKey[dataplane.BlockKey, uint16],
	Services: ofKey[dataplane.ServiceKey, dataplane.Service], VIPPods: ofKey[dataplane.VIPPod, uint16], VIPs: ofKey[dataplane.ServiceKey, dataplane.VIP], Backings: ofKey[netip.Addr, netip.Addr],
}

// What a gateway pays for 10,000 pods whenever something changes: the tables, and the difference to
// those of before.
func BenchmarkGatewayWithoutGlobalnet(b *testing.B) {
	objs, host := clusterset.Flat("n1")
	objs.PodNodes = map[netip.Addr]string{}
	for i := range 10000 {
		objs.PodNodes[netip.MustParseAddr(fmt.Sprintf("10.7.%d.%d", i/250, i%250))] = "n2"
	}
	have := tables.Desired(objs, host).State
	b.ReportAllocs()
	for b.Loop() {
		want := tables.Desired(objs, host).State
		if found := dataplane.Diff(have, want, changes); len(found) > 0 {
			b.Fatalf("%d changes of nothing", len(found))
		}
	}
}
