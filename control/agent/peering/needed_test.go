package peering

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

func TestNeeds(t *testing.T) {
	ip := netip.MustParseAddr
	endpoints := []discoveryv1.EndpointSlice{{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"172.31.1.2"}}, {Addresses: []string{"172.31.1.3"}}}}}
	dns := []corev1.Service{{Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.77.0.10", "fd00::10"}}}, {Spec: corev1.ServiceSpec{ClusterIPs: []string{"None"}}}}
	indexes := []v1alpha1.NodeIndex{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1alpha1.NodeIndexStatus{Needed: []string{"172.20.0.53", "127.0.0.53", "172.31.1.2", "here"}}}}
	want := []need{
		{"the API server", ip("172.31.1.2")}, {"the API server", ip("172.31.1.3")}, {"the API server", ip("172.31.9.9")},
		{"kube-dns", ip("10.77.0.10")}, {"kube-dns", ip("fd00::10")}, {"a server or resolver of node n1", ip("172.20.0.53")},
	}
	got := needs([]need{{"the API server", ip("172.31.9.9")}, {"the API server", ip("127.0.0.1")}}, endpoints, dns, indexes)
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(need{}), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// A range with an address that this cluster works by is refused, also of a Cluster and an Endpoint
// that are written past the hub's checks. A Peer that was accepted keeps its other ranges.
func TestRangesThatTakeWhatTheClusterNeeds(t *testing.T) {
	o := Options{
		ClusterID: "c1", ClusterIndex: 1, CableDriver: "vxlan", WireVersion: 1, Fabric: netip.MustParsePrefix("241.0.0.0/8"), SystemNamespace: "system", HubID: "hub",
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.7.0.0/16")}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.77.0.0/17")},
	}
	forged := remote("c2", 2, 0, "")
	forged.Spec.ClusterCIDR, forged.Spec.ServiceCIDR = []string{"10.9.0.0/16", "172.31.1.0/29"}, []string{"10.99.0.0/16"}
	e := gateway("c2", "gw", "192.0.2.2", "172.31.1.0/29", func(s *submarinerv1.EndpointSpec) { s.BackendConfig["fabric-ip"] = "241.0.128.1" })
	for _, who := range []string{"the API server", "kube-dns", "a server or resolver of node n1"} {
		for _, endpoints := range [][]submarinerv1.Endpoint{{e}, nil} {
			peers, _ := o.peers(known{
				clusters: []submarinerv1.Cluster{forged}, endpoints: endpoints, needed: []need{{who, netip.MustParseAddr("172.31.1.2")}},
				peers: []v1alpha1.Peer{peerWith("c2", metav1.ConditionTrue, v1alpha1.ReasonAccepted)},
			})
			got := strings.Join(describe(peers), "\n")
			if want := "False/OverlappingCIDR: 172.31.1.0/29 of cluster c2 overlaps 172.31.1.2/32 of " + who + " of this cluster c1: give one of them another range, or use globalnet"; !strings.Contains(got, want) {
				t.Errorf("%d gateways: %s\nwant %s", len(endpoints), got, want)
			}
			if routable(peers[0].Status) {
				t.Error("nodes would route it")
			}

			before := peerWith("c2", metav1.ConditionTrue, v1alpha1.ReasonAccepted)
			before.Spec = v1alpha1.PeerSpec{ClusterIndex: 2, Subnets: []string{"10.9.1.0/24", "10.99.0.0/16", "241.0.128.0/18"}}
			peers, _ = o.peers(known{
				clusters: []submarinerv1.Cluster{forged}, endpoints: endpoints, needed: []need{{who, netip.MustParseAddr("172.31.1.2")}},
				peers: []v1alpha1.Peer{before},
			})
			if diff := cmp.Diff([]string{"10.9.0.0/16", "10.99.0.0/16", "241.0.128.0/18"}, peers[0].Spec.Subnets); diff != "" {
				t.Errorf("%d gateways: ranges of a peer that was accepted, -want +got:\n%s", len(endpoints), diff)
			}
			got = strings.Join(describe(peers), "\n")
			if want := "True/RangeLeftOut: only the ranges 10.9.0.0/16, 10.99.0.0/16, 241.0.128.0/18 are used: 172.31.1.0/29 of cluster c2 overlaps 172.31.1.2/32 of " + who; len(endpoints) > 0 && !strings.Contains(got, want) {
				t.Errorf("a peer that was accepted: %s\nwant %s", got, want)
			}
		}
	}
}

// A cluster is routed from its first gateway on, and stays so while it has none.
func TestRoutedFromTheFirstGatewayOn(t *testing.T) {
	o := Options{ClusterID: "g1", ClusterIndex: 1, CableDriver: "vxlan", WireVersion: 1, Fabric: netip.MustParsePrefix("241.0.0.0/8"), GlobalCIDRs: []netip.Prefix{netip.MustParsePrefix("120.1.0.0/24")}}
	for _, tt := range []struct {
		name   string
		before []v1alpha1.Peer
		want   string
	}{
		{"never had one", nil, v1alpha1.ReasonAwaitingGateway},
		{"still has none", []v1alpha1.Peer{peerWith("g2", metav1.ConditionFalse, v1alpha1.ReasonAwaitingGateway)}, v1alpha1.ReasonAwaitingGateway},
		{"was refused", []v1alpha1.Peer{peerWith("g2", metav1.ConditionFalse, v1alpha1.ReasonOverlappingCIDR)}, v1alpha1.ReasonAwaitingGateway},
		{"had one", []v1alpha1.Peer{peerWith("g2", metav1.ConditionTrue, v1alpha1.ReasonAccepted)}, v1alpha1.ReasonNoGateway},
		{"had one, and none for a while", []v1alpha1.Peer{peerWith("g2", metav1.ConditionFalse, v1alpha1.ReasonNoGateway)}, v1alpha1.ReasonNoGateway},
	} {
		peers, _ := o.peers(known{clusters: []submarinerv1.Cluster{remote("g2", 2, 0, "120.2.0.0/24")}, peers: tt.before})
		if got := peers[0].Status.Conditions[0].Reason; got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func peerWith(id string, status metav1.ConditionStatus, reason string) v1alpha1.Peer {
	return v1alpha1.Peer{ObjectMeta: metav1.ObjectMeta{Name: id}, Status: v1alpha1.PeerStatus{Conditions: []metav1.Condition{{Type: v1alpha1.PeerAccepted, Status: status, Reason: reason}}}}
}
