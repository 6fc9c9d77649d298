package peering

import (
	"encoding/base64"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// c1 is the own cluster of the tests without globalnet.
func c1(driver string) Options {
	o := g1
	o.ClusterID, o.GlobalCIDRs, o.CableDriver = "c1", nil, driver
	o.Subnets = prefixes("10.7.0.0/16", "10.77.0.0/16", "241.0.64.0/18")
	return o
}

// plain is a Cluster copy with pod and service ranges of its own.
func plain(id string, index int, pods, services string) submarinerv1.Cluster {
	c := remote(id, index, index, "")
	c.Spec.ClusterCIDR, c.Spec.ServiceCIDR = strings.Split(pods, ","), []string{services}
	return c
}

func TestPeersWithoutGlobalnet(t *testing.T) {
	c2 := plain("c2", 2, "10.8.0.0/16,fd00:8::/48", "10.88.0.0/16")
	endpoint := func(change ...func(*submarinerv1.EndpointSpec)) submarinerv1.Endpoint {
		e := gateway("c2", "gw", "192.0.2.2", "10.8.0.0/16", change...)
		e.Spec.Subnets = append(e.Spec.Subnets, "fd00:8::/48")
		e.Spec.BackendConfig["fabric-ip"] = "241.0.128.1"
		return e
	}
	tests := map[string]struct {
		cluster submarinerv1.Cluster
		change  func(*submarinerv1.EndpointSpec)
		subnets []string
		want    string
	}{
		"pods, services and its share of the fabric; only IPv4": {c2, func(*submarinerv1.EndpointSpec) {},
			[]string{"10.8.0.0/16", "10.88.0.0/16", "241.0.128.0/18"}, "True/Accepted: 1 gateways are used"},
		"it may claim its share of the fabric": {c2, func(s *submarinerv1.EndpointSpec) { s.Subnets = []string{"241.0.128.0/18"} },
			[]string{"10.8.0.0/16", "10.88.0.0/16", "241.0.128.0/18"}, "True/Accepted: 1 gateways are used"},
		"but not that of another": {c2, func(s *submarinerv1.EndpointSpec) { s.Subnets = []string{"241.0.64.0/18"} },
			[]string{"10.8.0.0/16", "10.88.0.0/16", "241.0.128.0/18"},
			"False/InvalidEndpoint: Endpoint c2-gw claims 241.0.64.0/18, which is not within the ranges of cluster c2: 10.8.0.0/16, fd00:8::/48, 10.88.0.0/16, 241.0.128.0/18"},
		"overlap with the own services names both": {plain("c2", 2, "10.8.0.0/16,10.77.128.0/17", "10.88.0.0/16"), func(*submarinerv1.EndpointSpec) {},
			[]string{"10.8.0.0/16", "10.77.128.0/17", "10.88.0.0/16", "241.0.128.0/18"},
			"False/OverlappingCIDR: 10.77.128.0/17 of cluster c2 overlaps 10.77.0.0/16 of the services of this cluster c1: give one of them another range, or use globalnet"},
		"with globalnet": {remote("c2", 2, 0, "120.2.0.0/24"), func(s *submarinerv1.EndpointSpec) { s.Subnets = nil },
			[]string{"120.2.0.0/24"},
			"False/GlobalnetMismatch: cluster c2 has a GlobalCIDR and cluster c1 has none: in one clusterset all have one or none; join one of them again"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			e := endpoint(tt.change)
			if strings.HasPrefix(tt.want, "False/Glob") {
				e.Spec.Subnets = nil
			}
			peers, _ := c1("vxlan").peers(known{clusters: []submarinerv1.Cluster{tt.cluster}, endpoints: []submarinerv1.Endpoint{e}})
			c := meta.FindStatusCondition(peers[0].Status.Conditions, v1alpha1.PeerAccepted)
			got := string(c.Status) + "/" + c.Reason + ": " + c.Message
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("condition -want +got\n%s", diff)
			}
			if diff := cmp.Diff(tt.subnets, peers[0].Spec.Subnets); diff != "" {
				t.Errorf("routed -want +got\n%s", diff)
			}
		})
	}
}

// Each member refuses ranges that it must not route to another cluster, whatever the hub accepted.
func TestUnroutableRangesAreRefused(t *testing.T) {
	for pods, want := range map[string]string{
		"10.8.0.0/16":        "",
		"169.254.169.254/32": "UnroutableCIDR: cluster c3: range 169.254.169.254/32 overlaps 169.254.0.0/16 (link-local)",
		"127.0.0.0/8":        "UnroutableCIDR: cluster c3: range 127.0.0.0/8 overlaps 127.0.0.0/8 (loopback)",
		"224.0.0.0/24":       "UnroutableCIDR: cluster c3: range 224.0.0.0/24 overlaps 224.0.0.0/4 (multicast)",
		"0.0.0.0/32":         "UnroutableCIDR: cluster c3: range 0.0.0.0/32 overlaps 0.0.0.0/8 (unspecified)",
		"64.0.0.0/7":         "UnroutableCIDR: cluster c3: range 64.0.0.0/7 is larger than a /8",
		"fe80::/10":          "UnroutableCIDR: cluster c3: range fe80::/10 overlaps fe80::/10 (link-local)",
		"203.0.113.7/32":     "OverlappingCIDR: 203.0.113.7/32 of cluster c3 overlaps 203.0.113.7/32 of the hub's API server",
		"192.0.2.0/30":       "OverlappingCIDR: 192.0.2.0/30 of cluster c3 overlaps 192.0.2.1/32 of node gw of this cluster c1",
		"198.51.100.0/24":    "OverlappingCIDR: 198.51.100.0/24 of cluster c3 overlaps 198.51.100.1/32 of node gw of this cluster c1",
	} {
		gw := node("gw", "192.0.2.1", nil)
		gw.Status.Addresses = append(gw.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "198.51.100.1"})
		peers, _ := c1("vxlan").peers(known{
			clusters:  []submarinerv1.Cluster{plain("c2", 2, "10.9.0.0/16", "10.89.0.0/16"), plain("c3", 3, pods, "10.88.0.0/16")},
			endpoints: []submarinerv1.Endpoint{gateway("c2", "gw", "192.0.2.200", "10.9.0.0/16"), gateway("c3", "gw", "203.0.113.3", "10.88.0.0/16")},
			nodes:     []corev1.Node{gw}, hub: []netip.Addr{netip.MustParseAddr("203.0.113.7")},
		})
		c := peers[1].Status.Conditions[0]
		if want == "" && !accepted(peers[1].Status) || want != "" && !strings.HasPrefix(c.Reason+": "+c.Message, want) {
			t.Errorf("%s: %s %s: %s; want %q", pods, c.Status, c.Reason, c.Message, want)
		}
		if !accepted(peers[0].Status) {
			t.Errorf("%s: the other cluster is refused: %v", pods, describe(peers[:1]))
		}
	}
}

// key is a public key of as many equal bytes as WireGuard's have.
func key(b byte) string {
	return base64.StdEncoding.EncodeToString([]byte(strings.Repeat(string(rune(b)), 32)))
}

// ikeKeyText is a public key of an IPsec gateway.
const ikeKeyText = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAES6R2PFqfMpdSevNSxztlDMcejBn0hWvIVU3EVmEflmpQydEYLJGFu+l4eb64UHeJwZYOqy+LKXm7g6pOvLVaYw=="

func TestIdentityOfAWireGuardGateway(t *testing.T) {
	tests := map[string]struct {
		settings map[string]string
		want     string // "" = accepted
	}{
		"one key":             {map[string]string{"publicKey": key('a')}, ""},
		"a key for each":      {map[string]string{"publicKey": key('a') + "," + key('b'), "tunnels": "2", "natt-discovery-port": "4490"}, ""},
		"no key":              {nil, "it has no publicKey, without which no peer can encrypt for it: see that pelago-node is ready on that gateway"},
		"a key that is none":  {map[string]string{"publicKey": "c2hvcnQ="}, `publicKey "c2hvcnQ=" is not 32 bytes in base64`},
		"too few keys":        {map[string]string{"publicKey": key('a'), "tunnels": "2"}, "it has 2 tunnels and 1 keys in publicKey"},
		"one key twice":       {map[string]string{"publicKey": key('a') + "," + key('a'), "tunnels": "2"}, "which gateway gw of cluster c2 has already"},
		"a standby key":       {map[string]string{"publicKey": key('a'), "publicKeyStandby": key('b')}, ""},
		"no standby key":      {map[string]string{"publicKey": key('a'), "publicKeyStandby": "c2hvcnQ="}, `publicKeyStandby "c2hvcnQ=" is not 32 bytes`},
		"two standby keys":    {map[string]string{"publicKey": key('a'), "publicKeyStandby": key('b') + "," + key('c')}, "2 keys in publicKeyStandby"},
		"its key as standby":  {map[string]string{"publicKey": key('a'), "publicKeyStandby": key('a')}, "which gateway gw of cluster c2 has already"},
		"our key as standby":  {map[string]string{"publicKey": key('a'), "publicKeyStandby": key('z')}, "which this cluster c1 has already"},
		"another spelling":    {map[string]string{"publicKey": key('a')[:42] + "F="}, "is not 32 bytes in base64"},
		"with a line break":   {map[string]string{"publicKey": key('a') + "\n"}, "is not 32 bytes in base64"},
		"the key of our own":  {map[string]string{"publicKey": key('z')}, "which this cluster c1 has already"},
		"tunnels without end": {map[string]string{"publicKey": key('a'), "tunnels": "many"}, `tunnels: "many" is no number from 1 to 4`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			own := gateway("c1", "own", "192.0.2.1", "10.7.0.0/16")
			own.Spec.BackendConfig["publicKey"] = key('z')
			e := gateway("c2", "gw", "192.0.2.2", "10.8.0.0/16", func(s *submarinerv1.EndpointSpec) {
				s.Backend = "wireguard"
				for k, v := range tt.settings {
					s.BackendConfig[k] = v
				}
			})
			peers, _ := c1("wireguard").peers(known{
				clusters: []submarinerv1.Cluster{plain("c2", 2, "10.8.0.0/16", "10.88.0.0/16")}, endpoints: []submarinerv1.Endpoint{own, e}})
			c := meta.FindStatusCondition(peers[0].Status.Conditions, v1alpha1.PeerAccepted)
			if tt.want != "" {
				if c.Reason != v1alpha1.ReasonInvalidEndpoint || !strings.Contains(c.Message, tt.want) {
					t.Errorf("%s: %s; want InvalidEndpoint with %q", c.Reason, c.Message, tt.want)
				}
				return
			}
			tunnels, discovery := int32(1), int32(0)
			identity := map[string]string{}
			for k, v := range tt.settings {
				switch k {
				case "tunnels":
					tunnels = 2
				case "natt-discovery-port":
					discovery = 4490
				default:
					identity[k] = v
				}
			}
			want := []v1alpha1.PeerGateway{{Name: "gw", Address: "192.0.2.2", PrivateAddress: "192.0.2.2", NATTPort: discovery, Port: 4500, Wire: "wireguard", NodeIndex: 1,
				FabricAddress: "241.0.128.1", Tunnels: tunnels, Identity: identity}}
			if diff := cmp.Diff(want, peers[0].Spec.Gateways); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestWhatANodeReportsOfItsWireIsPublished(t *testing.T) {
	tests := map[string]struct {
		driver string
		change func(*v1alpha1.NodeIndexStatus)
		want   map[string]string
		reason string // of the problem, with which nothing is published
	}{
		"the key, and a port of its own": {"wireguard", func(s *v1alpha1.NodeIndexStatus) {
			s.FabricAddress = "241.0.64.2"
			s.Wire = map[string]string{"publicKey": key('a'), "udp-port": "4999", "cluster-index": "9"}
		}, map[string]string{"publicKey": key('a'), "udp-port": "4999", "cluster-index": "1", "node-index": "2", "wire-version": "1", "fabric-ip": "241.0.64.2"}, ""},
		"no key yet": {"wireguard", func(*v1alpha1.NodeIndexStatus) {}, nil, "the cable driver wireguard: it has no publicKey"},
		"what the IKE daemon said": {"libreswan", func(s *v1alpha1.NodeIndexStatus) {
			s.Wire = map[string]string{"ike": "psk", "esp": "kernel"}
		}, map[string]string{"ike": "psk", "esp": "kernel", "udp-port": "4500", "cluster-index": "1", "node-index": "2", "wire-version": "1", "fabric-ip": "241.0.64.2"}, ""},
		"IKE keys": {"libreswan", func(s *v1alpha1.NodeIndexStatus) {
			s.Wire = map[string]string{"ike": "psk", "esp": "kernel", "ikePublicKeys": ikeKeyText + "," + ikeKeyText}
		}, map[string]string{"ike": "psk", "esp": "kernel", "ikePublicKeys": ikeKeyText + "," + ikeKeyText, "udp-port": "4500", "cluster-index": "1", "node-index": "2", "wire-version": "1", "fabric-ip": "241.0.64.2"}, ""},
		"a key that is none": {"libreswan", func(s *v1alpha1.NodeIndexStatus) {
			s.Wire = map[string]string{"ike": "psk", "esp": "kernel", "ikePublicKeys": ikeKeyText + "," + key('a')}
		}, nil, "the cable driver libreswan: ikePublicKeys \"" + key('a') + "\" is no public key of ECDSA P-256 in base64"},
		"no IKE daemon yet": {"libreswan", func(s *v1alpha1.NodeIndexStatus) { s.Wire = map[string]string{"ike": "psk"} }, nil,
			"the cable driver libreswan: it has no ike and esp, so its IKE daemon does not run"},
		"another fabric address": {"vxlan", func(s *v1alpha1.NodeIndexStatus) { s.FabricAddress = "241.0.64.3" }, nil,
			"uses the fabric address 241.0.64.3 instead of 241.0.64.2"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			i := index("gw", 2, true, true)
			tt.change(&i.Status)
			endpoints, problems := c1(tt.driver).ownEndpoints([]corev1.Node{node("gw", "192.0.2.1", nil)}, []v1alpha1.NodeIndex{i}, nil)
			if tt.reason != "" {
				if len(endpoints) > 0 || len(problems) != 1 || problems[0].reason != "NoWire" || !strings.Contains(problems[0].message, tt.reason) {
					t.Errorf("%d Endpoints, problems %+v; want none and %q", len(endpoints), problems, tt.reason)
				}
				return
			}
			if len(problems) > 0 || len(endpoints) != 1 {
				t.Fatalf("%d Endpoints, problems %+v", len(endpoints), problems)
			}
			if diff := cmp.Diff(tt.want, endpoints[0].Spec.BackendConfig); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}
