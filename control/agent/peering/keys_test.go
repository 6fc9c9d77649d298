package peering

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// keyed is a WireGuard Endpoint with these settings.
func keyed(id string, number int, settings map[string]string) submarinerv1.Endpoint {
	return gateway(id, "gw", fmt.Sprintf("192.0.2.%d", number), fmt.Sprintf("10.%d.0.0/16", 100+number), func(s *submarinerv1.EndpointSpec) {
		s.Backend = "wireguard"
		for k, v := range settings {
			s.BackendConfig[k] = v
		}
	})
}

// numbered is a Cluster with ranges of its own that joined in the given minute.
func numbered(id string, number, minute int) submarinerv1.Cluster {
	c := remote(id, number, minute, "")
	c.Spec.ClusterCIDR, c.Spec.ServiceCIDR = []string{fmt.Sprintf("10.%d.0.0/16", 100+number)}, []string{fmt.Sprintf("10.%d.0.0/16", 200+number)}
	return c
}

// content is a Peer without the times of its conditions.
func content(p *v1alpha1.Peer) []any {
	return []any{p.ObjectMeta, p.Spec, describe([]*v1alpha1.Peer{p})}
}

func values(peers []*v1alpha1.Peer) []v1alpha1.Peer {
	var out []v1alpha1.Peer
	for _, p := range peers {
		out = append(out, *p)
	}
	return out
}

// The victim is the younger cluster, so the order of joining would decide for the copy.
func TestACopiedKeyHarmsTheCopierAlone(t *testing.T) {
	for _, copied := range []string{submarinerv1.BackendPublicKey, submarinerv1.BackendStandbyKey} {
		for name, victims := range map[string]string{"of a tunnel": key('v'), "of the standby tunnel": key('w')} {
			t.Run(name+" copied as "+copied, func(t *testing.T) {
				victim := keyed("v", 3, map[string]string{"publicKey": key('v'), "publicKeyStandby": key('w')})
				honest := keyed("h", 2, map[string]string{"publicKey": key('h')})
				k := known{clusters: []submarinerv1.Cluster{numbered("h", 2, 0), numbered("v", 3, 9)}, endpoints: []submarinerv1.Endpoint{honest, victim}}
				before, _ := c1("wireguard").peers(k)
				settings := map[string]string{"publicKey": key('h')}
				settings[copied] = victims
				k.endpoints, k.peers = []submarinerv1.Endpoint{keyed("h", 2, settings), victim}, values(before)
				after, _ := c1("wireguard").peers(k)
				if diff := cmp.Diff(content(before[1]), content(after[1])); diff != "" {
					t.Errorf("the victim's Peer changed -before +after\n%s", diff)
				}
				want := fmt.Sprintf("h False/InvalidEndpoint: gateway gw of cluster h has %s, which cluster v has already: each needs its own", victims)
				if got := describe(after)[0]; got != want {
					t.Errorf("the copier's Peer: %s\nwant %s", got, want)
				}
				// A key that is no longer published is free.
				k.endpoints[1] = keyed("v", 3, map[string]string{"publicKey": key('x')})
				k.peers = values(after)
				if freed, _ := c1("wireguard").peers(k); !accepted(freed[0].Status) || !accepted(freed[1].Status) {
					t.Errorf("after the victim rotated its keys: %v", describe(freed))
				}
			})
		}
	}
}

// Two Endpoints with one node index have one fabric address, by which wires tell gateways apart:
// one is used.
func TestTwoGatewaysOfOneNodeIndex(t *testing.T) {
	second := keyed("h", 2, map[string]string{"publicKey": key('i')})
	second.Spec.Hostname, second.Spec.PrivateIP, second.Name = "gw2", "192.0.2.9", "h-gw2"
	k := known{clusters: []submarinerv1.Cluster{numbered("h", 2, 0)},
		endpoints: []submarinerv1.Endpoint{second, keyed("h", 2, map[string]string{"publicKey": key('h')})}}
	peers, _ := c1("wireguard").peers(k)
	fabric := peers[0].Spec.Gateways[0].FabricAddress
	want := fmt.Sprintf("1 of 2 gateways are used; gateway gw2 of cluster h has the fabric address %s (node index), which gateway gw of cluster h has already: each needs its own", fabric)
	if got := peers[0].Status.Conditions[0]; len(peers[0].Spec.Gateways) != 1 || got.Message != want {
		t.Errorf("%d gateways, %q, want %q", len(peers[0].Spec.Gateways), got.Message, want)
	}
}

// Whatever hostile clusters write into their own Endpoints, in whatever order the caches show them,
// the Peer of the victim stays.
func TestHostilePeersNeverChangeAnothersPeer(t *testing.T) {
	for _, driver := range []string{"wireguard", "vxlan"} {
		t.Run(driver, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				o := c1(driver)
				victim := keyed("v", 50, map[string]string{"publicKey": key('v') + "," + key('w'), "publicKeyStandby": key('x'), "tunnels": "2"})
				victim.Spec.Backend = driver
				k := known{clusters: []submarinerv1.Cluster{numbered("v", 50, 30)}, endpoints: []submarinerv1.Endpoint{victim}}
				first, _ := o.peers(k)
				k.peers = values(first)
				n := rapid.IntRange(1, 5).Draw(t, "hostile clusters")
				for i := range n {
					k.clusters = append(k.clusters, numbered(fmt.Sprintf("a%d", i), 2+i, rapid.SampledFrom([]int{0, 59}).Draw(t, "minute")))
				}
				for range 3 {
					k.endpoints = []submarinerv1.Endpoint{victim}
					for i := range n {
						for range rapid.IntRange(0, 3).Draw(t, "Endpoints") {
							k.endpoints = append(k.endpoints, hostile(t, i, driver))
						}
					}
					k.clusters, k.endpoints = rapid.Permutation(k.clusters).Draw(t, "clusters"), rapid.Permutation(k.endpoints).Draw(t, "endpoints")
					peers, _ := o.peers(k)
					seen := map[string]string{}
					for _, p := range peers {
						if p.Name == "v" {
							if diff := cmp.Diff(content(first[0]), content(p)); diff != "" {
								t.Fatalf("the victim's Peer -before +after\n%s", diff)
							}
						}
						for _, g := range p.Spec.Gateways {
							for _, key := range append(distinguishing(g), g.FabricAddress) {
								if other := seen[key]; other != "" && accepted(p.Status) {
									t.Fatalf("%s belongs to %s and to %s", key, other, p.Name)
								}
								if accepted(p.Status) {
									seen[key] = p.Name
								}
							}
						}
					}
					k.peers = values(peers)
				}
			})
		})
	}
}

// hostile is an Endpoint of the i-th hostile cluster with content of its choice.
func hostile(t *rapid.T, i int, driver string) submarinerv1.Endpoint {
	keys := rapid.SampledFrom([]string{key('v'), key('w'), key('x'), key('a'), key('b'), key('v')[:42] + "B=", "", ",", "abc"})
	settings := map[string]string{
		"publicKey": keys.Draw(t, "key"), "publicKeyStandby": keys.Draw(t, "standby key"),
		"tunnels":    rapid.SampledFrom([]string{"1", "2", "0"}).Draw(t, "tunnels"),
		"node-index": rapid.SampledFrom([]string{"1", "2"}).Draw(t, "node"),
		"draining":   rapid.SampledFrom([]string{"", "0,1,2,3,4"}).Draw(t, "draining"),
	}
	if rapid.Bool().Draw(t, "second key") {
		settings["publicKey"] += "," + keys.Draw(t, "another key")
	}
	e := keyed(fmt.Sprintf("a%d", i), 2+i, settings)
	e.Spec.Backend = driver
	e.Spec.Hostname = rapid.SampledFrom([]string{"gw", "gw2", "v"}).Draw(t, "host")
	address := rapid.SampledFrom([]string{"192.0.2.50", "::ffff:192.0.2.50", "192.0.2.2", "192.0.2.60", "10.150.0.1"})
	e.Spec.PrivateIP, e.Spec.PublicIP = address.Draw(t, "private"), address.Draw(t, "public")
	e.Spec.NATEnabled = rapid.Bool().Draw(t, "NAT")
	return e
}
