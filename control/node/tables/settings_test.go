package tables_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/test/clusterset"
)

func TestParse(t *testing.T) {
	const at = "read annotation gateway.submariner.io/"
	for name, c := range map[string]struct {
		labels, annotations map[string]string
		want                tables.GatewaySettings
		errs                []string
	}{
		"nothing": {},
		"foreign keys are not ours": {
			labels:      map[string]string{"submariner.io/gateway": "true", "gateway.submariner.io": "x"},
			annotations: map[string]string{"gateway.example.org/public-ip": "ipv4:1.2.3.4"},
		},
		"all": {
			annotations: map[string]string{
				tables.KeyPublicIP: "ipv4:198.51.100.7,dns:gw.example.org,lb:submariner-gateway,api:ip.example.org/v4",
				tables.KeyUDPPort:  "4501", tables.KeyDiscoveryPort: "4491", tables.KeyPreferredServer: "true",
			},
			want: tables.GatewaySettings{
				PublicIP: []tables.PublicIPSource{{Method: tables.IPv4, Argument: "198.51.100.7"}, {Method: tables.DNS, Argument: "gw.example.org"}, {Method: tables.LoadBalancer, Argument: "submariner-gateway"}, {Method: tables.API, Argument: "ip.example.org/v4"}},
				UDPPort:  4501, DiscoveryPort: 4491, PreferredServer: true,
			},
		},
		"annotation beats label": {
			labels:      map[string]string{tables.KeyUDPPort: "1", tables.KeyDiscoveryPort: "2", tables.KeyPreferredServer: "true"},
			annotations: map[string]string{tables.KeyUDPPort: "3", tables.KeyPreferredServer: "false"},
			want:        tables.GatewaySettings{UDPPort: 3, DiscoveryPort: 2},
		},
		"a wrong annotation is not replaced by the label": {
			labels:      map[string]string{tables.KeyUDPPort: "1"},
			annotations: map[string]string{tables.KeyUDPPort: "x"},
			errs:        []string{at + `udp-port of node gw: "x" is no UDP port: use a number from 1 to 65535`},
		},
		"white space and a scheme": {
			annotations: map[string]string{tables.KeyPublicIP: " api:https://ip.example.org:8443/ , dns:gw.example.org. ", tables.KeyUDPPort: " 7 "},
			want:        tables.GatewaySettings{PublicIP: []tables.PublicIPSource{{Method: tables.API, Argument: "ip.example.org:8443/"}, {Method: tables.DNS, Argument: "gw.example.org."}}, UDPPort: 7},
		},
		"wrong values": {
			labels:      map[string]string{tables.KeyUDPPort: "65536"},
			annotations: map[string]string{tables.KeyDiscoveryPort: "0", tables.KeyPreferredServer: "perhaps", tables.AnnotationPrefix + "colour": "red"},
			errs: []string{
				at + "colour of node gw: the key is not known: use public-ip, udp-port, natt-discovery-port or preferred-server, or remove it",
				at + `natt-discovery-port of node gw: "0" is no UDP port: use a number from 1 to 65535`,
				at + `preferred-server of node gw: "perhaps" is neither true nor false: use one of them`,
				`read label gateway.submariner.io/udp-port of node gw: "65536" is no UDP port: use a number from 1 to 65535`,
			},
		},
		"a wrong source does not spoil the others": {
			annotations: map[string]string{tables.KeyPublicIP: "ipv6:2001:db8::1,ipv4:198.51.100.7,"},
			want:        tables.GatewaySettings{PublicIP: []tables.PublicIPSource{{Method: tables.IPv4, Argument: "198.51.100.7"}}},
			errs: []string{
				at + `public-ip of node gw: the method of "ipv6:2001:db8::1" is not known: use ipv4:ADDRESS, dns:NAME, lb:SERVICE or api:HOST/PATH, separated by commas`,
				at + `public-ip of node gw: the method of "" is not known: use ipv4:ADDRESS, dns:NAME, lb:SERVICE or api:HOST/PATH, separated by commas`,
			},
		},
		"wrong arguments": {
			annotations: map[string]string{tables.KeyPublicIP: "ipv4:1.2.3,ipv4:2001:db8::1,ipv4:127.0.0.1,dns:a b,dns:,lb:A/B,api:,api:http://x/,api:user@x/"},
			errs: []string{
				at + `public-ip of node gw: "1.2.3" in "ipv4:1.2.3" is no IPv4 address: use ipv4:a.b.c.d`,
				at + `public-ip of node gw: read "ipv4:2001:db8::1": 2001:db8::1 is no IPv4 address: use the address under which other clusters reach this gateway`,
				at + `public-ip of node gw: read "ipv4:127.0.0.1": 127.0.0.1 is not the address of a host: use the address under which other clusters reach this gateway`,
				at + `public-ip of node gw: "a b" in "dns:a b" is no DNS name: use dns:gateway.example.org`,
				at + `public-ip of node gw: "" in "dns:" is no DNS name: use dns:gateway.example.org`,
				at + `public-ip of node gw: "A/B" in "lb:A/B" is no name of a Service: use lb:NAME of a Service of type LoadBalancer in our namespace`,
				at + `public-ip of node gw: "" in "api:" is no address of an https server: use api:HOST/PATH`,
				at + `public-ip of node gw: "http://x/" in "api:http://x/" is no address of an https server: use api:HOST/PATH`,
				at + `public-ip of node gw: "user@x/" in "api:user@x/" is no address of an https server: use api:HOST/PATH`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, errs := tables.ParseSettings("gw", c.labels, c.annotations)
			var texts []string
			for _, err := range errs {
				texts = append(texts, err.Error())
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("overrides (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.errs, texts); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
		})
	}
}

// Whatever stands in an annotation: no panic, and what is taken can be asked.
func FuzzSources(f *testing.F) {
	for _, s := range []string{"", ",", ":", "ipv4:1.2.3.4,lb:x", "api:[::1]:443/%zz", "dns:.", "api:\x00", "ipv4:::ffff:1.2.3.4", "api:x/#"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		out, errs := tables.Sources(text)
		if len(out) == 0 && len(errs) == 0 {
			t.Errorf("sources(%q) is neither something nor an error", text)
		}
		for _, s := range out {
			if again, err := tables.Source(s.String()); err != nil || again != s {
				t.Errorf("source(%q) = %v, %v; want what it was made of, %v", s, again, err, s)
			}
		}
	})
}

func TestGatewaySettings(t *testing.T) {
	type facts struct {
		Sources   string
		UDP, Find uint16
		Server    bool
		Problems  []string
	}
	set := func(keys ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(keys); i += 2 {
			m[tables.AnnotationPrefix+keys[i]] = keys[i+1]
		}
		return m
	}
	tests := map[string]struct {
		annotations map[string]string
		config      func(*config.Config)
		want        facts
		external    []string
	}{
		"the node's ExternalIP":            {want: facts{Sources: "external-ip:203.0.113.7", UDP: 4500, Find: 4490}, external: []string{"2001:db8::7", "203.0.113.7", "203.0.113.8"}},
		"an ExternalIP, air-gapped":        {nil, func(c *config.Config) { c.AirGapped = true }, facts{Sources: "external-ip:203.0.113.7", UDP: 4500, Find: 4490}, []string{"203.0.113.7"}},
		"an annotation beats it":           {set("public-ip", "ipv4:198.51.100.7"), nil, facts{"ipv4:198.51.100.7", 4500, 4490, false, nil}, []string{"203.0.113.7"}},
		"a wrong annotation, too":          {set("public-ip", "ipv4:bogus"), nil, facts{UDP: 4500, Find: 4490, Problems: []string{"bogus"}}, []string{"203.0.113.7"}},
		"so does the load balancer":        {nil, func(c *config.Config) { c.LoadBalancer = true }, facts{"lb:submariner-gateway", 4500, 4490, true, nil}, []string{"203.0.113.7"}},
		"an ExternalIP that is InternalIP": {nil, nil, facts{UDP: 4500, Find: 4490}, []string{"172.31.1.11"}},
		"an ExternalIP of no host":         {nil, nil, facts{UDP: 4500, Find: 4490}, []string{"127.0.0.1"}},
		"nothing said":                     {nil, nil, facts{UDP: 4500, Find: 4490}, nil},
		"said by its node":                 {set("public-ip", "ipv4:198.51.100.7", "udp-port", "4600", "natt-discovery-port", "4601", "preferred-server", "true"), nil, facts{"ipv4:198.51.100.7", 4600, 4601, true, nil}, nil},
		"said at join":                     {nil, func(c *config.Config) { c.DiscoveryPort, c.PreferredServer = 4491, true }, facts{UDP: 4500, Find: 4491, Server: true}, nil},
		"the node beats it":                {set("natt-discovery-port", "4492"), func(c *config.Config) { c.DiscoveryPort = 4491 }, facts{UDP: 4500, Find: 4492}, nil},
		"load balancer":                    {nil, func(c *config.Config) { c.LoadBalancer = true }, facts{"lb:submariner-gateway", 4500, 4490, true, nil}, nil},
		"its own address":                  {set("public-ip", "ipv4:198.51.100.7"), func(c *config.Config) { c.LoadBalancer = true }, facts{"ipv4:198.51.100.7", 4500, 4490, true, nil}, nil},
		"ports behind it":                  {set("udp-port", "4600"), func(c *config.Config) { c.LoadBalancer = true }, facts{"lb:submariner-gateway", 4500, 4490, true, []string{"Service submariner-gateway passes on"}}, nil},
		"air-gapped":                       {set("public-ip", "dns:gw.example.org,ipv4:198.51.100.7"), func(c *config.Config) { c.AirGapped = true }, facts{"ipv4:198.51.100.7", 4500, 4490, false, []string{"--air-gapped"}}, nil},
		"an unknown key":                   {set("colour", "blue"), nil, facts{UDP: 4500, Find: 4490, Problems: []string{"gateway.submariner.io/colour"}}, nil},
		"the overlay's port":               {set("udp-port", "4800"), nil, facts{UDP: 4500, Find: 4490, Problems: []string{"udp-port"}}, nil},
		"a tunnel on 4800": {set("udp-port", "4798"), func(c *config.Config) { c.CableDriver, c.CableTunnels = config.CableWireGuard, 3 },
			facts{UDP: 4500, Find: 4490, Problems: []string{"needs UDP port 4800"}}, nil},
		"a tunnel's port": {set("natt-discovery-port", "4502"), func(c *config.Config) { c.CableDriver, c.CableTunnels = config.CableWireGuard, 3 },
			facts{UDP: 4500, Find: 4490, Problems: []string{"natt-discovery-port"}}, nil},
		"the cable's port": {set("natt-discovery-port", "4504"), func(c *config.Config) { c.CableDriver = config.CableWireGuard }, facts{UDP: 4500, Find: 4490, Problems: []string{"natt-discovery-port"}}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objs, _ := clusterset.Globalnet("n1")
			objs.Nodes[0].Annotations = tt.annotations
			for _, ip := range tt.external {
				objs.Nodes[0].Status.Addresses = append(objs.Nodes[0].Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: ip})
			}
			if tt.config != nil {
				tt.config(&objs.Config)
			}
			o, problems := tables.GatewaySettingsOf(objs)
			got := facts{UDP: o.UDPPort, Find: o.DiscoveryPort, Server: o.PreferredServer}
			for _, s := range o.PublicIP {
				got.Sources += s.String()
			}
			for i, p := range problems {
				if i < len(tt.want.Problems) && strings.Contains(p, tt.want.Problems[i]) && strings.Contains(p, "n1") {
					p = tt.want.Problems[i]
				}
				got.Problems = append(got.Problems, p)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// Another ExternalIP wakes the daemon of the node, another ExternalDNS does not.
func TestSameNodeExternalIP(t *testing.T) {
	node := func(kind corev1.NodeAddressType, address string) *corev1.Node {
		n := clusterset.Node("n1", "172.31.1.11", true)
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: kind, Address: address})
		reduced, err := tables.Reduce(&n)
		if err != nil {
			t.Fatal(err)
		}
		return reduced.(*corev1.Node)
	}
	if tables.SameNode(node(corev1.NodeExternalIP, "203.0.113.7"), node(corev1.NodeExternalIP, "203.0.113.8")) {
		t.Error("a change of the ExternalIP is ignored")
	}
	if !tables.SameNode(node(corev1.NodeExternalDNS, "a.example.org"), node(corev1.NodeExternalDNS, "b.example.org")) {
		t.Error("a change of the ExternalDNS counts")
	}
}
