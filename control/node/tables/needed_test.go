package tables_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/test/clusterset"
)

func routesTo(r tables.Result, cluster uint16) (out []string) {
	for p, c := range r.State.Routes {
		if c == cluster {
			out = append(out, p.String())
		}
	}
	slices.Sort(out)
	return out
}

// leads reports whether the tables route an address to another cluster.
func leads(r tables.Result, a string) bool {
	for p, c := range r.State.Routes {
		if c != 1 && p.Contains(ip(a)) {
			return true
		}
	}
	return false
}

// Whatever range a peer has, even an accepted one: what the node works by is not routed to it.
func TestWhatTheNodeNeedsIsNotRouted(t *testing.T) {
	for _, tt := range []struct {
		name, subnet, address string
		change                func(*tables.Objects, *tables.Host)
	}{
		{"its API server", "172.31.9.0/29", "172.31.9.2", func(o *tables.Objects, _ *tables.Host) {
			o.Slices[tables.KubernetesService] = []discoveryv1.EndpointSlice{{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
				AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"172.31.9.2"}}},
			}}
		}},
		{"the daemon's own connection, resolver, hub", "172.16.0.0/12", "172.20.0.53", func(_ *tables.Objects, h *tables.Host) {
			h.Needed = []netip.Addr{ip("172.20.0.53")}
		}},
		{"another node", "172.31.0.0/16", "172.31.1.12", func(*tables.Objects, *tables.Host) {}},
		{"the node itself", "172.31.1.0/24", "172.31.1.11", func(*tables.Objects, *tables.Host) {}},
		{"the next hop towards a node", "192.168.0.0/16", "192.168.3.1", func(_ *tables.Objects, h *tables.Host) {
			for a, hop := range h.Hops {
				hop.Next = ip("192.168.3.1")
				h.Hops[a] = hop
			}
		}},
	} {
		for _, node := range []string{"n1", "n2"} {
			t.Run(tt.name+", at "+node, func(t *testing.T) {
				objs, host := clusterset.Flat(node)
				objs.Peers[0].Spec.Subnets = []string{tt.subnet}
				tt.change(&objs, &host)
				r := tables.Desired(objs, host)
				if leads(r, tt.address) {
					t.Errorf("%s is routed to a peer by %v", tt.address, routesTo(r, 2))
				}
				neighbour := netip.MustParsePrefix(tt.subnet).Addr().Next().Next().Next().Next()
				if !leads(r, neighbour.String()) {
					t.Errorf("%s is not routed to the peer: %v", neighbour, routesTo(r, 2))
				}
				if all := strings.Join(r.Problems, "\n"); !strings.Contains(all, "peer g2: range "+tt.subnet+" contains") || !strings.Contains(all, tt.address) {
					t.Errorf("problems %q, want one that names %s and %s", r.Problems, tt.subnet, tt.address)
				}
			})
		}
	}
}

// A cable must reach gateways that are in the ranges of their own cluster: with pods in the nodes'
// network, its outer packets would enter the tunnel that they carry.
func TestGatewaysInTheirOwnRange(t *testing.T) {
	objs, host := clusterset.Flat("n1")
	objs.Peers[0].Spec.Subnets = []string{"172.31.2.8/29"}
	objs.Peers[0].Spec.Gateways[0].PrivateAddress = "172.31.2.14"
	r := tables.Desired(objs, host)
	want := []string{"172.31.2.10/32", "172.31.2.12/31", "172.31.2.15/32", "172.31.2.8/31"}
	if diff := cmp.Diff(want, routesTo(r, 2)); diff != "" {
		t.Errorf("routes -want +got\n%s", diff)
	}
	other := *objs.Peers[0].DeepCopy()
	other.Name, other.Spec.ClusterIndex, other.Spec.Subnets, other.Spec.Gateways = "g3", 3, []string{"172.31.3.0/24"}, nil
	objs.Peers[0].Spec.Gateways[0].PublicAddress = "172.31.3.9"
	objs.Peers = append(objs.Peers, other)
	if got := routesTo(tables.Desired(objs, host), 3); !cmp.Equal(got, []string{"172.31.3.0/24"}) {
		t.Errorf("a gateway of g2 changes the routes of g3 to %v", got)
	}
}

func TestTooManyNeededAddresses(t *testing.T) {
	objs, host := clusterset.Flat("n1")
	objs.Peers[0].Spec.Subnets = []string{"10.8.0.0/16", "10.88.0.0/16"}
	for a := ip("10.8.0.1"); len(host.Needed) < 65; a = a.Next() {
		host.Needed = append(host.Needed, a)
	}
	r := tables.Desired(objs, host)
	if got := routesTo(r, 2); !cmp.Equal(got, []string{"10.88.0.0/16"}) || !strings.Contains(strings.Join(r.Problems, "\n"), "range 10.8.0.0/16 contains more than 64 addresses") {
		t.Errorf("routes %v, problems %q", got, r.Problems)
	}
}

// The parts of a range are what it holds without the addresses, each address once.
func TestPartsOfARange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := netip.PrefixFrom(ip("10.8.0.0"), rapid.IntRange(24, 32).Draw(t, "bits"))
		var needed []netip.Addr
		for _, n := range rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "needed") {
			needed = append(needed, netip.AddrFrom4([4]byte{10, 8, 0, n}))
		}
		objs, host := clusterset.Flat("n1")
		objs.Peers[0].Spec.Subnets, objs.Peers[0].Status.Conditions[0].Reason = []string{p.String()}, pelagov1alpha1.ReasonAccepted
		host.Needed = needed
		var parts []netip.Prefix
		for p := range tables.Desired(objs, host).State.Routes {
			parts = append(parts, p)
		}
		for n := range 256 {
			a := netip.AddrFrom4([4]byte{10, 8, 0, byte(n)})
			got, want := 0, 0
			for _, part := range parts {
				if part.Contains(a) {
					got++
				}
			}
			if p.Contains(a) && !slices.Contains(needed, a) {
				want = 1
			}
			if got != want {
				t.Fatalf("%s is in %d parts of %s without %v, want %d: %v", a, got, p, needed, want, parts)
			}
		}
	})
}

// A restart without the API server knows the addresses of the API server, so that routes that are
// restored leave the way to it.
func TestSavedObjectsNameTheAPIServer(t *testing.T) {
	objs, _ := clusterset.Full(false)
	objs.Slices[tables.KubernetesService] = []discoveryv1.EndpointSlice{{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"172.31.1.2"}}},
	}}
	parts := map[string][]byte{}
	content, err := tables.Encode(objs, "boot", func(name string, content []byte) error { parts[name] = content; return nil })
	if err != nil {
		t.Fatal(err)
	}
	read, err := tables.Decode(content, objs.Name, "boot", func(name string) ([]byte, error) { return parts[name], nil })
	if err != nil {
		t.Fatal(err)
	}
	if got := tables.APIServers(read.Slices[tables.KubernetesService]); len(got) != 1 || got[0] != ip("172.31.1.2") {
		t.Errorf("the saved objects have the API servers %v", got)
	}
}

// A pod outside of the registered ranges is reported: others drop what it sends.
func TestPodsOutsideOfTheRegisteredRanges(t *testing.T) {
	objs, host := clusterset.Flat("n2")
	objs.Config.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.7.0.0/16")}
	if r := tables.Desired(objs, host); len(r.Outside) > 0 || len(r.LeftOut) > 0 {
		t.Errorf("outside %v, left out %v; want none", r.Outside, r.LeftOut)
	}
	objs.Config.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.7.1.0/24")}
	r := tables.Desired(objs, host)
	if diff := cmp.Diff([]string{"pod sample/web-1 at 10.7.2.5"}, r.Outside); diff != "" {
		t.Errorf("outside: -want +got\n%s", diff)
	}
	if len(r.LeftOut) != 1 || r.LeftOut[0].Connected || !strings.Contains(r.LeftOut[0].Reason, "join again with --clustercidr") {
		t.Errorf("left out %+v, want the pod with the remedy", r.LeftOut)
	}
}
