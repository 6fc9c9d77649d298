package node

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	const at = "read annotation gateway.submariner.io/"
	for name, c := range map[string]struct {
		labels, annotations map[string]string
		want                Overrides
		errs                []string
	}{
		"nothing": {},
		"foreign keys are not ours": {
			labels:      map[string]string{"submariner.io/gateway": "true", "gateway.submariner.io": "x"},
			annotations: map[string]string{"gateway.example.org/public-ip": "ipv4:1.2.3.4"},
		},
		"all": {
			annotations: map[string]string{
				KeyPublicIP: "ipv4:198.51.100.7,dns:gw.example.org,lb:submariner-gateway,api:ip.example.org/v4",
				KeyUDPPort:  "4501", KeyDiscoveryPort: "4491", KeyPreferredServer: "true",
			},
			want: Overrides{
				PublicIP: []PublicIPSource{{IPv4, "198.51.100.7"}, {DNS, "gw.example.org"}, {LoadBalancer, "submariner-gateway"}, {API, "ip.example.org/v4"}},
				UDPPort:  4501, DiscoveryPort: 4491, PreferredServer: true,
			},
		},
		"annotation beats label": {
			labels:      map[string]string{KeyUDPPort: "1", KeyDiscoveryPort: "2", KeyPreferredServer: "true"},
			annotations: map[string]string{KeyUDPPort: "3", KeyPreferredServer: "false"},
			want:        Overrides{UDPPort: 3, DiscoveryPort: 2},
		},
		"a wrong annotation is not replaced by the label": {
			labels:      map[string]string{KeyUDPPort: "1"},
			annotations: map[string]string{KeyUDPPort: "x"},
			errs:        []string{at + `udp-port of node gw: "x" is no UDP port: use a number from 1 to 65535`},
		},
		"white space and a scheme": {
			annotations: map[string]string{KeyPublicIP: " api:https://ip.example.org:8443/ , dns:gw.example.org. ", KeyUDPPort: " 7 "},
			want:        Overrides{PublicIP: []PublicIPSource{{API, "ip.example.org:8443/"}, {DNS, "gw.example.org."}}, UDPPort: 7},
		},
		"wrong values": {
			labels:      map[string]string{KeyUDPPort: "65536"},
			annotations: map[string]string{KeyDiscoveryPort: "0", KeyPreferredServer: "perhaps", AnnotationPrefix + "colour": "red"},
			errs: []string{
				at + "colour of node gw: the key is not known: use public-ip, udp-port, natt-discovery-port or preferred-server, or remove it",
				at + `natt-discovery-port of node gw: "0" is no UDP port: use a number from 1 to 65535`,
				at + `preferred-server of node gw: "perhaps" is neither true nor false: use one of them`,
				`read label gateway.submariner.io/udp-port of node gw: "65536" is no UDP port: use a number from 1 to 65535`,
			},
		},
		"a wrong source does not spoil the others": {
			annotations: map[string]string{KeyPublicIP: "ipv6:2001:db8::1,ipv4:198.51.100.7,"},
			want:        Overrides{PublicIP: []PublicIPSource{{IPv4, "198.51.100.7"}}},
			errs: []string{
				at + `public-ip of node gw: the method of "ipv6:2001:db8::1" is not known: use ipv4:ADDRESS, dns:NAME, lb:SERVICE or api:HOST/PATH, separated by commas`,
				at + `public-ip of node gw: the method of "" is not known: use ipv4:ADDRESS, dns:NAME, lb:SERVICE or api:HOST/PATH, separated by commas`,
			},
		},
		"wrong arguments": {
			annotations: map[string]string{KeyPublicIP: "ipv4:1.2.3,ipv4:2001:db8::1,ipv4:127.0.0.1,dns:a b,dns:,lb:A/B,api:,api:http://x/,api:user@x/"},
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
			got, errs := ParseOverrides("gw", c.labels, c.annotations)
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
		out, errs := sources(text)
		if len(out) == 0 && len(errs) == 0 {
			t.Errorf("sources(%q) is neither something nor an error", text)
		}
		for _, s := range out {
			if again, err := source(s.String()); err != nil || again != s {
				t.Errorf("source(%q) = %v, %v; want what it was made of, %v", s, again, err, s)
			}
		}
	})
}

func FuzzFirstIPv4(f *testing.F) {
	f.Add([]byte("198.51.100.7\n"))
	f.Add([]byte("...."))
	f.Add([]byte("1.2.3.4.5 v1.2.3.4"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if a, ok := firstIPv4(text); ok && !a.Is4() {
			t.Errorf("firstIPv4(%q) = %s", text, a)
		}
	})
}

func TestFirstIPv4(t *testing.T) {
	for text, want := range map[string]string{
		"198.51.100.7":                           "198.51.100.7",
		"198.51.100.7\n":                         "198.51.100.7",
		`{"ip":"198.51.100.7","port":443}`:       "198.51.100.7",
		"<p>Your IP is: 198.51.100.7.</p>":       "198.51.100.7",
		"IP:198.51.100.7,203.0.113.9":            "198.51.100.7",
		"server v1.2.3.4 says 198.51.100.7":      "198.51.100.7",
		"1.2.3.4.5 300.1.1.1 010.0.0.1 10.1.1.1": "10.1.1.1",
		"2001:db8::1":                            "none",
		"":                                       "none",
		"...":                                    "none",
		"nginx/1.18.0":                           "none",
	} {
		got := "none"
		if a, ok := firstIPv4([]byte(text)); ok {
			got = a.String()
		}
		if got != want {
			t.Errorf("firstIPv4(%q) = %s; want %s", text, got, want)
		}
	}
}
