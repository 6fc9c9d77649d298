package peering

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// remote is a Cluster copy with one GlobalCIDR that joined in the given minute.
func remote(id string, index, minute int, globalCIDR string) submarinerv1.Cluster {
	c := submarinerv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: id, Annotations: map[string]string{
			v1alpha1.AnnotationClusterIndex: fmt.Sprint(index), v1alpha1.AnnotationJoinedAt: fmt.Sprintf("2026-01-02T03:%02d:05Z", minute),
		}},
		Spec: submarinerv1.ClusterSpec{ClusterID: id},
	}
	if globalCIDR != "" {
		c.Spec.GlobalCIDR = []string{globalCIDR}
	}
	return c
}

// gateway is an Endpoint copy as the agent of a cluster publishes it.
func gateway(id, host, address, subnet string, change ...func(*submarinerv1.EndpointSpec)) submarinerv1.Endpoint {
	e := submarinerv1.Endpoint{ObjectMeta: metav1.ObjectMeta{Name: id + "-" + host}, Spec: submarinerv1.EndpointSpec{
		ClusterID: id, Hostname: host, PrivateIP: address, Subnets: []string{subnet}, Backend: "vxlan",
		BackendConfig: map[string]string{"udp-port": "4500", "node-index": "1", "wire-version": "1"},
	}}
	if strings.HasSuffix(host, "2") { // each node has its own
		e.Spec.BackendConfig["node-index"] = "2"
	}
	for _, c := range change {
		c(&e.Spec)
	}
	return e
}

// describe is one line for each peer: id, gateways, condition.
func describe(peers []*v1alpha1.Peer) []string {
	var out []string
	for _, p := range peers {
		text := p.Name
		for _, g := range p.Spec.Gateways {
			text += fmt.Sprintf(" %s=%s:%d", g.Name, g.Address, g.Port)
		}
		c := p.Status.Conditions[0]
		out = append(out, fmt.Sprintf("%s %s/%s: %s", text, c.Status, c.Reason, c.Message))
	}
	return out
}

func TestPeers(t *testing.T) {
	plain := remote("c2", 2, 0, "")
	plain.Spec.ClusterCIDR, plain.Spec.ServiceCIDR = []string{"10.8.0.0/16"}, []string{"10.77.128.0/17"}
	set := func(key, value string) func(*submarinerv1.EndpointSpec) {
		return func(s *submarinerv1.EndpointSpec) { s.BackendConfig[key] = value }
	}
	waiting := func(c submarinerv1.Cluster) submarinerv1.Cluster {
		c.Annotations[v1alpha1.AnnotationUnapproved] = "true"
		return c
	}
	tests := map[string]struct {
		clusters  []submarinerv1.Cluster
		endpoints []submarinerv1.Endpoint
		want      []string
	}{
		"the own cluster is no peer": {
			[]submarinerv1.Cluster{remote("g1", 1, 0, "120.1.0.0/24")}, []submarinerv1.Endpoint{gateway("g1", "gw", "192.0.2.1", "120.1.0.0/24")}, nil,
		},
		"two gateways": {
			[]submarinerv1.Cluster{remote("g2", 2, 0, "120.2.0.0/24")},
			[]submarinerv1.Endpoint{gateway("g2", "gw2", "192.0.2.3", "120.2.0.0/24"), gateway("g2", "gw1", "192.0.2.2", "120.2.0.0/25"), gateway("g3", "gw", "192.0.2.4", "120.3.0.0/24")},
			[]string{"g2 gw1=192.0.2.2:4500 gw2=192.0.2.3:4500 True/Accepted: 2 gateways are used"},
		},
		"behind NAT: the public address": {
			[]submarinerv1.Cluster{remote("g2", 2, 0, "120.2.0.0/24")},
			[]submarinerv1.Endpoint{gateway("g2", "gw", "10.0.0.2", "120.2.0.0/24", func(s *submarinerv1.EndpointSpec) { s.NATEnabled, s.PublicIP = true, "198.51.100.2" })},
			[]string{"g2 gw=198.51.100.2:4500 True/Accepted: 1 gateways are used"},
		},
		"behind NAT without a public address": {
			[]submarinerv1.Cluster{remote("g2", 2, 0, "120.2.0.0/24")},
			[]submarinerv1.Endpoint{gateway("g2", "gw", "10.0.0.2", "120.2.0.0/24", func(s *submarinerv1.EndpointSpec) { s.NATEnabled = true })},
			[]string{`g2 False/InvalidEndpoint: Endpoint g2-gw: public_ip "" is no IPv4 address: gateways reach each other by IPv4`},
		},
		"no gateway": {
			[]submarinerv1.Cluster{remote("g2", 2, 0, "120.2.0.0/24")}, nil,
			[]string{"g2 False/AwaitingGateway: cluster g2 has no ready gateway: label a node of it with submariner.io/gateway=true and see that pelago-node is ready there"},
		},
		"a cluster that is not accepted takes no range from a younger one": {
			[]submarinerv1.Cluster{waiting(remote("g2", 2, 0, "120.2.0.0/24")), remote("g3", 2, 1, "120.2.0.0/25")},
			[]submarinerv1.Endpoint{gateway("g2", "gw", "192.0.2.2", "120.2.0.0/24"), gateway("g3", "gw", "192.0.2.3", "120.2.0.0/25")},
			[]string{"g2 gw=192.0.2.2:4500 False/Unapproved: no administrator of the hub has accepted cluster g2: run `pelago clusters accept g2` with access to the hub",
				"g3 gw=192.0.2.3:4500 True/Accepted: 1 gateways are used"},
		},
		"the own cluster waits for acceptance": {
			[]submarinerv1.Cluster{waiting(remote("g1", 1, 0, "120.1.0.0/24")), remote("g2", 2, 1, "120.2.0.0/24")},
			[]submarinerv1.Endpoint{gateway("g2", "gw", "192.0.2.2", "120.2.0.0/24")},
			[]string{"g2 gw=192.0.2.2:4500 False/Unapproved: no administrator of the hub has accepted cluster g1: run `pelago clusters accept g1` with access to the hub"},
		},
		"another wire": {
			[]submarinerv1.Cluster{remote("g2", 2, 0, "120.2.0.0/24")},
			[]submarinerv1.Endpoint{gateway("g2", "gw", "192.0.2.2", "120.2.0.0/24", func(s *submarinerv1.EndpointSpec) { s.Backend = "libreswan" })},
			[]string{"g2 False/WireMismatch: gateway gw of cluster g2 uses cable driver libreswan, this cluster vxlan: join both with the same --cable-driver"},
		},
		"next wire version": {
			[]submarinerv1.Cluster{remote("g2", 2, 0, "120.2.0.0/24")}, []submarinerv1.Endpoint{gateway("g2", "gw", "192.0.2.2", "120.2.0.0/24", set("wire-version", "2"))},
			[]string{"g2 gw=192.0.2.2:4500 True/Accepted: 1 gateways are used"},
		},
		"far wire version": {
			[]submarinerv1.Cluster{remote("g2", 2, 0, "120.2.0.0/24")}, []submarinerv1.Endpoint{gateway("g2", "gw", "192.0.2.2", "120.2.0.0/24", set("wire-version", "3"))},
			[]string{"g2 False/WireMismatch: gateway gw of cluster g2 speaks version 3 of the overlay header over vxlan, this cluster version 1 over vxlan: neighbouring versions work together"},
		},
		"one gateway of two is unusable": {
			[]submarinerv1.Cluster{remote("g2", 2, 0, "120.2.0.0/24")},
			[]submarinerv1.Endpoint{gateway("g2", "gw1", "192.0.2.2", "120.2.0.0/24"), gateway("g2", "gw2", "192.0.2.3", "120.2.0.0/24", set("udp-port", "0"))},
			[]string{`g2 gw1=192.0.2.2:4500 True/Accepted: 1 of 2 gateways are used; Endpoint g2-gw2: udp-port: "0" is no number from 1 to 65535`},
		},
		"a claim outside of its ranges": {
			[]submarinerv1.Cluster{remote("g2", 2, 0, "120.2.0.0/24")}, []submarinerv1.Endpoint{gateway("g2", "gw", "192.0.2.2", "120.2.0.0/16")},
			[]string{"g2 False/InvalidEndpoint: Endpoint g2-gw claims 120.2.0.0/16, which is not within the ranges of cluster g2: 120.2.0.0/24"},
		},
		"without globalnet": {
			[]submarinerv1.Cluster{plain}, []submarinerv1.Endpoint{gateway("c2", "gw", "192.0.2.2", "10.8.0.0/16")},
			[]string{"c2 gw=192.0.2.2:4500 False/GlobalnetMismatch: cluster g1 has a GlobalCIDR and cluster c2 has none: in one clusterset all have one or none; join one of them again"},
		},
		"overlap with the own services": {
			[]submarinerv1.Cluster{remote("g2", 2, 0, "10.77.128.0/17")}, []submarinerv1.Endpoint{gateway("g2", "gw", "192.0.2.2", "10.77.128.0/17")},
			[]string{"g2 gw=192.0.2.2:4500 False/OverlappingCIDR: 10.77.128.0/17 of cluster g2 overlaps 10.77.0.0/16 of the services of this cluster g1: give one of them another range, or use globalnet"},
		},
		"overlap with a node": {
			[]submarinerv1.Cluster{remote("g2", 2, 0, "192.0.2.0/24")}, []submarinerv1.Endpoint{gateway("g2", "gw", "198.51.100.2", "192.0.2.0/24")},
			[]string{"g2 gw=198.51.100.2:4500 False/OverlappingCIDR: 192.0.2.0/24 of cluster g2 overlaps 192.0.2.1/32 of node gw of this cluster g1: give one of them another range, or use globalnet"},
		},
		"overlap with the fabric": {
			[]submarinerv1.Cluster{remote("g2", 2, 0, "241.0.128.0/24")}, []submarinerv1.Endpoint{gateway("g2", "gw", "192.0.2.2", "241.0.128.0/24")},
			[]string{"g2 gw=192.0.2.2:4500 False/OverlappingCIDR: 241.0.128.0/24 of cluster g2 overlaps the clusterset's fabric range 241.0.0.0/8: give it another range, or deploy the broker with another --fabric-cidr"},
		},
		"overlap, and no gateway just now": {
			[]submarinerv1.Cluster{remote("g2", 2, 0, "10.7.1.0/24")}, nil,
			[]string{"g2 False/OverlappingCIDR: 10.7.1.0/24 of cluster g2 overlaps 10.7.0.0/16 of the pods of this cluster g1: give one of them another range, or use globalnet"},
		},
		"the fabric address of another": {
			[]submarinerv1.Cluster{remote("g2", 2, 0, "120.2.0.0/24")}, []submarinerv1.Endpoint{gateway("g2", "gw", "192.0.2.2", "120.2.0.0/24", set("fabric-ip", "241.0.64.1"))},
			[]string{`g2 False/InvalidEndpoint: Endpoint g2-gw: fabric-ip is "241.0.64.1", but node 1 of cluster 2 has 241.0.128.1 in the fabric 241.0.0.0/8: are both clusters joined with the same broker?`},
		},
		"a node index beyond the fabric": {
			[]submarinerv1.Cluster{remote("g2", 2, 0, "120.2.0.0/24")}, []submarinerv1.Endpoint{gateway("g2", "gw", "192.0.2.2", "120.2.0.0/24", set("node-index", "16384"))},
			[]string{`g2 False/InvalidEndpoint: Endpoint g2-gw: node index 16384 is not from 1 to 16383: it has no fabric address`},
		},
		"tunnels that are too many": {
			[]submarinerv1.Cluster{remote("g2", 2, 0, "120.2.0.0/24")}, []submarinerv1.Endpoint{gateway("g2", "gw", "192.0.2.2", "120.2.0.0/24", set("tunnels", "5"))},
			[]string{`g2 False/InvalidEndpoint: Endpoint g2-gw: tunnels: "5" is no number from 1 to 4`},
		},
		"the address of a node of this cluster": {
			[]submarinerv1.Cluster{remote("g2", 2, 0, "120.2.0.0/24")}, []submarinerv1.Endpoint{gateway("g2", "gw", "192.0.2.1", "120.2.0.0/24")},
			[]string{"g2 False/InvalidEndpoint: gateway gw of cluster g2 has the address 192.0.2.1 of node gw of this cluster g1: give it a public address by the annotation gateway.submariner.io/public-ip"},
		},
		"two gateways with one address": {
			[]submarinerv1.Cluster{remote("g2", 2, 0, "120.2.0.0/24"), remote("g3", 3, 1, "120.3.0.0/24")},
			[]submarinerv1.Endpoint{gateway("g2", "gw1", "192.0.2.2", "120.2.0.0/24"), gateway("g2", "gw2", "192.0.2.2", "120.2.0.0/24"), gateway("g3", "gw", "192.0.2.2", "120.3.0.0/24")},
			[]string{
				"g2 gw1=192.0.2.2:4500 True/Accepted: 1 of 2 gateways are used; gateway gw2 of cluster g2 has 192.0.2.2, which gateway gw1 of cluster g2 has already: each needs its own",
				"g3 False/InvalidEndpoint: gateway gw of cluster g3 has 192.0.2.2, which gateway gw1 of cluster g2 has already: each needs its own",
			},
		},
		"overlap with the own GlobalCIDR": {
			[]submarinerv1.Cluster{remote("g2", 2, 0, "120.0.0.0/8")}, []submarinerv1.Endpoint{gateway("g2", "gw", "192.0.2.2", "120.0.0.0/8")},
			[]string{"g2 gw=192.0.2.2:4500 False/OverlappingCIDR: 120.0.0.0/8 of cluster g2 overlaps 120.1.0.0/24 of the GlobalCIDR of this cluster g1: give one of them another range, or use globalnet"},
		},
		"of two clusters that overlap the older stays": {
			[]submarinerv1.Cluster{remote("g2", 2, 9, "120.5.0.0/25"), remote("g3", 3, 1, "120.5.0.0/24")},
			[]submarinerv1.Endpoint{gateway("g2", "gw", "192.0.2.2", "120.5.0.0/25"), gateway("g3", "gw", "192.0.2.3", "120.5.0.0/24")},
			[]string{
				"g3 gw=192.0.2.3:4500 True/Accepted: 1 gateways are used",
				"g2 gw=192.0.2.2:4500 False/OverlappingCIDR: 120.5.0.0/25 of cluster g2 overlaps 120.5.0.0/24 of cluster g3: give one of them another range, or use globalnet",
			},
		},
		"one that is refused takes nothing": {
			[]submarinerv1.Cluster{remote("g2", 2, 1, "120.5.0.0/25"), remote("g3", 3, 9, "120.5.0.0/24")},
			[]submarinerv1.Endpoint{
				gateway("g2", "gw", "192.0.2.3", "120.5.0.0/25", func(s *submarinerv1.EndpointSpec) { s.Backend = "libreswan" }),
				gateway("g3", "gw", "192.0.2.3", "120.5.0.0/24"),
			},
			[]string{
				"g2 False/WireMismatch: gateway gw of cluster g2 uses cable driver libreswan, this cluster vxlan: join both with the same --cable-driver",
				"g3 gw=192.0.2.3:4500 True/Accepted: 1 gateways are used",
			},
		},
		"one that is without gateways for a while keeps its ranges": {
			[]submarinerv1.Cluster{remote("g2", 2, 1, "120.5.0.0/25"), remote("g3", 3, 9, "120.5.0.0/24")},
			[]submarinerv1.Endpoint{gateway("g3", "gw", "192.0.2.3", "120.5.0.0/24")},
			[]string{
				"g2 False/AwaitingGateway: cluster g2 has no ready gateway: label a node of it with submariner.io/gateway=true and see that pelago-node is ready there",
				"g3 gw=192.0.2.3:4500 False/OverlappingCIDR: 120.5.0.0/24 of cluster g3 overlaps 120.5.0.0/25 of cluster g2: give one of them another range, or use globalnet",
			},
		},
		"the index of another": {
			[]submarinerv1.Cluster{remote("g2", 1, 0, "120.2.0.0/24")}, []submarinerv1.Endpoint{gateway("g2", "gw", "192.0.2.2", "120.2.0.0/24")},
			[]string{"g2 gw=192.0.2.2:4500 False/InvalidEndpoint: cluster index 1 is that of cluster g1"},
		},
		"two Endpoints of a gateway that moves": {
			[]submarinerv1.Cluster{remote("g2", 2, 0, "120.2.0.0/24")},
			[]submarinerv1.Endpoint{gateway("g2", "gw", "192.0.2.9", "120.2.0.0/24"), gateway("g2", "gw", "192.0.2.2", "120.2.0.0/24")},
			[]string{"g2 gw=192.0.2.2:4500 True/Accepted: 1 gateways are used"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			peers, problems := g1.peers(known{clusters: tt.clusters, endpoints: tt.endpoints, nodes: []corev1.Node{node("gw", "192.0.2.1", nil)}})
			if diff := cmp.Diff(tt.want, describe(peers)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if len(problems) > 0 {
				t.Errorf("problems %+v", problems)
			}
		})
	}
}

// The labels that the administrator of the hub gives to a cluster select it as target of exports.
func TestLabelsOfAPeer(t *testing.T) {
	c := remote("g2", 2, 0, "120.2.0.0/24")
	c.Labels = map[string]string{"env": "prod", "app.kubernetes.io/managed-by": "pelago"}
	peers, _ := g1.peers(known{clusters: []submarinerv1.Cluster{c}})
	if diff := cmp.Diff(map[string]string{"env": "prod"}, peers[0].Spec.Labels); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if len(c.Labels) != 2 {
		t.Error("the labels of the copy were changed")
	}
}

// A cluster that has joined with --workloads-only has no ranges, and would be refused as one
// without globalnet.
func TestAClusterWithoutNetworkIsNoPeer(t *testing.T) {
	in, out := remote("g2", 2, 0, "120.2.0.0/24"), remote("w1", 3, 0, "")
	out.Annotations[v1alpha1.AnnotationWorkloadsOnly] = "true"
	copies := g1.clusterCopies([]submarinerv1.Cluster{in, out}, "")
	if len(copies) != 1 || copies[0].Name != "g2" {
		t.Errorf("copies %v, want that of g2 alone", copies)
	}
}

func TestAClusterWithoutIndexIsReported(t *testing.T) {
	c := remote("g2", 2, 0, "120.2.0.0/24")
	delete(c.Annotations, v1alpha1.AnnotationClusterIndex)
	peers, problems := g1.peers(known{clusters: []submarinerv1.Cluster{c}})
	if len(peers) > 0 || len(problems) != 1 || problems[0].reason != "NoClusterIndex" || !strings.Contains(problems[0].message, "g2") {
		t.Errorf("peers %v, problems %+v", peers, problems)
	}
}

// Whatever the hub holds: accepted peers overlap neither each other nor the own cluster, and the
// order of the objects does not matter.
func TestAcceptedPeersAreDisjoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var k known
		for i, id := range []string{"a", "b", "c", "d"} {
			bits := rapid.IntRange(8, 24).Draw(t, id+" bits")
			subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{rapid.SampledFrom([]byte{10, 120}).Draw(t, id), byte(rapid.IntRange(0, 3).Draw(t, id+" second")), 0, 0}), bits).Masked().String()
			k.clusters = append(k.clusters, remote(id, rapid.IntRange(1, 5).Draw(t, id+" index"), rapid.IntRange(0, 2).Draw(t, id+" minute"), subnet))
			k.endpoints = append(k.endpoints, gateway(id, "gw", fmt.Sprintf("192.0.2.%d", i), subnet))
		}
		peers, _ := g1.peers(k)
		taken := append(prefixes("10.7.0.0/16", "10.77.0.0/16"), g1.GlobalCIDRs...)
		indexes := map[int32]bool{1: true}
		for _, p := range peers {
			if !accepted(p.Status) {
				continue
			}
			for _, r := range prefixes(p.Spec.Subnets...) {
				for _, other := range taken {
					if r.Overlaps(other) {
						t.Fatalf("%s of accepted peer %s overlaps %s", r, p.Name, other)
					}
				}
				taken = append(taken, r)
			}
			if indexes[p.Spec.ClusterIndex] {
				t.Fatalf("two clusters have index %d", p.Spec.ClusterIndex)
			}
			indexes[p.Spec.ClusterIndex] = true
		}
		again, _ := g1.peers(known{clusters: rapid.Permutation(k.clusters).Draw(t, "clusters"), endpoints: rapid.Permutation(k.endpoints).Draw(t, "endpoints")})
		if diff := cmp.Diff(describe(peers), describe(again)); diff != "" {
			t.Fatalf("-one order +another\n%s", diff)
		}
	})
}

// Ranges outside of those of the clusterset are refused here as well: the hub may have lost its
// policies. What is routed stays.
func TestRangesOutsideOfTheClusterset(t *testing.T) {
	flat := g1
	flat.GlobalCIDRs, flat.PodCIDRs, flat.ServiceCIDRs = nil, prefixes("10.1.0.0/16"), prefixes("10.101.0.0/16")
	global := g1
	global.GlobalRange = netip.MustParsePrefix("120.0.0.0/8")
	own := remote("g1", 1, 0, "")
	own.Annotations[v1alpha1.AnnotationClusterRanges] = "10.0.0.0/8,11.128.0.0/9"
	with := func(pods ...string) submarinerv1.Cluster {
		c := remote("g2", 2, 1, "")
		c.Spec.ClusterCIDR, c.Spec.ServiceCIDR = pods, []string{"10.102.0.0/16"}
		c.Annotations[v1alpha1.AnnotationClusterRanges] = "0.0.0.0/0" // a member's own
		return c
	}
	routed := func(subnets ...string) []v1alpha1.Peer {
		return []v1alpha1.Peer{{ObjectMeta: metav1.ObjectMeta{Name: "g2"}, Spec: v1alpha1.PeerSpec{ClusterIndex: 2, Subnets: subnets},
			Status: v1alpha1.PeerStatus{Conditions: []metav1.Condition{{Type: v1alpha1.PeerAccepted, Status: metav1.ConditionTrue}}}}}
	}
	for name, tt := range map[string]struct {
		o       Options
		own     submarinerv1.Cluster
		cluster submarinerv1.Cluster
		peers   []v1alpha1.Peer
		want    string // reason
		message string
	}{
		"inside":           {flat, own, with("11.200.0.0/16"), nil, v1alpha1.ReasonAwaitingGateway, ""},
		"IPv6":             {flat, own, with("10.2.0.0/16", "2001:db8::/64"), nil, v1alpha1.ReasonAwaitingGateway, ""},
		"outside":          {flat, own, with("8.8.8.0/24"), nil, v1alpha1.ReasonUnroutableCIDR, "pelago deploy-broker --cluster-ranges 8.8.8.0/24"},
		"partly outside":   {flat, own, with("11.0.0.0/8"), nil, v1alpha1.ReasonUnroutableCIDR, "outside of the ranges of the clusterset, 10.0.0.0/8 11.128.0.0/9"},
		"a hub without it": {flat, remote("g1", 1, 0, ""), with("8.8.8.0/24"), nil, v1alpha1.ReasonAwaitingGateway, ""},
		"routed already":   {flat, own, with("8.8.8.0/24"), routed("8.8.8.0/24"), v1alpha1.ReasonNoGateway, ""},
		"a part is routed": {flat, own, with("8.8.0.0/16"), routed("8.8.8.0/24", "10.102.0.0/16"), v1alpha1.ReasonNoGateway, ""},
		"globalnet":        {global, remote("g1", 1, 0, "120.1.0.0/24"), remote("g2", 2, 1, "120.2.0.0/24"), nil, v1alpha1.ReasonAwaitingGateway, ""},
		"outside of globalnet": {global, remote("g1", 1, 0, "120.1.0.0/24"), remote("g2", 2, 1, "8.8.8.0/24"), nil, v1alpha1.ReasonUnroutableCIDR,
			"outside of the ranges of the clusterset, 120.0.0.0/8"},
	} {
		t.Run(name, func(t *testing.T) {
			peers, problems := tt.o.peers(known{clusters: []submarinerv1.Cluster{tt.own, tt.cluster}, peers: tt.peers})
			if len(peers) != 1 || len(problems) > 0 {
				t.Fatalf("%d Peers, problems %+v", len(peers), problems)
			}
			c := peers[0].Status.Conditions[0]
			if c.Reason != tt.want || !strings.Contains(c.Message, tt.message) {
				t.Errorf("%s: %s; want %s with %q", c.Reason, c.Message, tt.want, tt.message)
			}
			if strings.Contains(fmt.Sprint(peers[0].Spec.Subnets), "8.8.0.0/16") && c.Reason == v1alpha1.ReasonNoGateway {
				t.Errorf("a range that was never permitted is routed: %v", peers[0].Spec.Subnets)
			}
		})
	}
}
