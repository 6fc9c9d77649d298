package node

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/natt"
)

// What is known of the way to a gateway decides which address the wire gets, and whether the vxlan wire may be used at all.
func TestSteer(t *testing.T) {
	private, public := ip("10.0.0.2"), ip("198.51.100.7")
	rewritten := natt.Rewriting{SourceIP: true}
	calls := netip.MustParseAddrPort("198.51.100.7:20001")
	tests := map[string]struct {
		v             natt.Verdict
		driver        string
		used          string
		server, other bool // this gateway, and the other one, would rather be called
		want          string
		problem       string
	}{
		"confirmed private":              {v: natt.Verdict{State: natt.Confirmed, Address: private}, want: "10.0.0.2"},
		"confirmed public":               {v: natt.Verdict{State: natt.Confirmed, Address: public, Out: rewritten}, want: "198.51.100.7"},
		"it calls":                       {v: natt.Verdict{State: natt.Waiting, Caller: calls, In: rewritten}, used: "10.0.0.2", want: ""},
		"nothing known yet":              {v: natt.Verdict{State: natt.Probing}, want: "192.0.2.99"},
		"nothing known any more":         {v: natt.Verdict{State: natt.Probing}, used: "198.51.100.7", want: "198.51.100.7"},
		"the address used is given up":   {v: natt.Verdict{State: natt.Probing}, used: "198.51.100.8", want: "192.0.2.99"},
		"its former address":             {v: natt.Verdict{State: natt.Probing, Address: private}, used: "198.51.100.7", want: "10.0.0.2"},
		"unreachable":                    {v: natt.Verdict{State: natt.Unreachable, Address: public}, want: "198.51.100.7"},
		"it is to call":                  {v: natt.Verdict{State: natt.Confirmed, Address: public, Caller: calls}, server: true, want: ""},
		"it is to call, but does not":    {v: natt.Verdict{State: natt.Confirmed, Address: public}, server: true, want: "198.51.100.7"},
		"both are to be called":          {v: natt.Verdict{State: natt.Confirmed, Address: public, Caller: calls}, server: true, other: true, want: "198.51.100.7"},
		"vxlan, confirmed private":       {v: natt.Verdict{State: natt.Confirmed, Address: private}, driver: config.CableVXLAN, want: "10.0.0.2"},
		"vxlan ignores who is called":    {v: natt.Verdict{State: natt.Confirmed, Address: private, Caller: calls}, driver: config.CableVXLAN, server: true, want: "10.0.0.2"},
		"vxlan behind NAT":               {v: natt.Verdict{State: natt.Confirmed, Address: public, Out: rewritten, Reason: "answers"}, driver: config.CableVXLAN, want: "", problem: "NAT lies between: it answers"},
		"vxlan, the other is behind NAT": {v: natt.Verdict{State: natt.Probing, Caller: calls, In: rewritten, Reason: "calls"}, driver: config.CableVXLAN, want: "", problem: "--cable-driver wireguard"},
		"vxlan, it only calls":           {v: natt.Verdict{State: natt.Waiting, Caller: calls}, driver: config.CableVXLAN, want: "", problem: "NAT lies between"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objs, host := encryptedWorld("n1")
			if tt.driver != "" {
				objs.Config.CableDriver = tt.driver
			}
			g := &objs.Peers[0].Spec.Gateways[0]
			g.Address, g.PrivateAddress, g.PublicAddress, g.NATTPort = "192.0.2.99", private.String(), public.String(), 4490
			if tt.other {
				g.Identity = map[string]string{"preferred-server": "true"}
			}
			steered, problems := steer(objs, tt.server, map[string]natt.Verdict{"g2/g2-n1": tt.v}, map[string]string{"g2/g2-n1": tt.used})
			if got := steered.Peers[0].Spec.Gateways[0].Address; got != tt.want {
				t.Errorf("address %q, want %q", got, tt.want)
			}
			if got := steered.Peers[0].Spec.Gateways[1].Address; got != "172.31.2.12" {
				t.Errorf("a gateway without NAT discovery has the address %q", got)
			}
			if got := objs.Peers[0].Spec.Gateways[0].Address; got != "192.0.2.99" {
				t.Errorf("the cache's object was changed: %q", got)
			}
			if v := steered.Ways["g2/g2-n1"]; v.Address.IsValid() != (tt.want != "") || tt.problem != "" && !strings.Contains(v.Reason, tt.problem) {
				t.Errorf("way %+v", v)
			}
			if tt.problem == "" && len(problems) > 0 || tt.problem != "" && (len(problems) != 1 || !strings.Contains(problems[0], tt.problem)) {
				t.Errorf("problems %q, want %q", problems, tt.problem)
			}
			// What has no address is a peer of an encrypted wire, and none of vxlan; neither is a problem of its own.
			refused := tt.driver == config.CableVXLAN && tt.want == ""
			isFirst := func(p cable.Peer) bool { return p.Name == "g2/g2-n1" }
			if got := slices.ContainsFunc(wirePeers(steered), isFirst); got == refused {
				t.Errorf("the wire has the peer: %t", got)
			}
			for _, p := range Desired(steered, host).Problems {
				if strings.Contains(p, "g2-n1") && tt.want == "" {
					t.Errorf("a second time: %s", p)
				}
			}
		})
	}
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
			m[AnnotationPrefix+keys[i]] = keys[i+1]
		}
		return m
	}
	tests := map[string]struct {
		annotations map[string]string
		config      func(*config.Config)
		want        facts
	}{
		"nothing said":       {nil, nil, facts{UDP: 4500, Find: 4490}},
		"said by its node":   {set("public-ip", "ipv4:198.51.100.7", "udp-port", "4600", "natt-discovery-port", "4601", "preferred-server", "true"), nil, facts{"ipv4:198.51.100.7", 4600, 4601, true, nil}},
		"said at join":       {nil, func(c *config.Config) { c.DiscoveryPort, c.PreferredServer = 4491, true }, facts{UDP: 4500, Find: 4491, Server: true}},
		"the node beats it":  {set("natt-discovery-port", "4492"), func(c *config.Config) { c.DiscoveryPort = 4491 }, facts{UDP: 4500, Find: 4492}},
		"load balancer":      {nil, func(c *config.Config) { c.LoadBalancer = true }, facts{"lb:submariner-gateway", 4500, 4490, true, nil}},
		"its own address":    {set("public-ip", "ipv4:198.51.100.7"), func(c *config.Config) { c.LoadBalancer = true }, facts{"ipv4:198.51.100.7", 4500, 4490, true, nil}},
		"ports behind it":    {set("udp-port", "4600"), func(c *config.Config) { c.LoadBalancer = true }, facts{"lb:submariner-gateway", 4500, 4490, true, []string{"Service submariner-gateway passes on"}}},
		"air-gapped":         {set("public-ip", "dns:gw.example.org,ipv4:198.51.100.7"), func(c *config.Config) { c.AirGapped = true }, facts{"ipv4:198.51.100.7", 4500, 4490, false, []string{"--air-gapped"}}},
		"an unknown key":     {set("colour", "blue"), nil, facts{UDP: 4500, Find: 4490, Problems: []string{"gateway.submariner.io/colour"}}},
		"the overlay's port": {set("udp-port", "4800"), nil, facts{UDP: 4500, Find: 4490, Problems: []string{"udp-port"}}},
		"a tunnel on 4800": {set("udp-port", "4798"), func(c *config.Config) { c.CableDriver, c.CableTunnels = config.CableWireGuard, 3 },
			facts{UDP: 4500, Find: 4490, Problems: []string{"needs UDP port 4800"}}},
		"a tunnel's port": {set("natt-discovery-port", "4502"), func(c *config.Config) { c.CableDriver, c.CableTunnels = config.CableWireGuard, 3 },
			facts{UDP: 4500, Find: 4490, Problems: []string{"natt-discovery-port"}}},
		"the cable's port": {set("natt-discovery-port", "4504"), func(c *config.Config) { c.CableDriver = config.CableWireGuard }, facts{UDP: 4500, Find: 4490, Problems: []string{"natt-discovery-port"}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objs, _ := world("n1")
			objs.Nodes[0].Annotations = tt.annotations
			if tt.config != nil {
				tt.config(&objs.Config)
			}
			o, problems := gatewaySettings(objs)
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

// A public address that was once found stays while its source is wanted, also over a restart with nobody to ask.
func TestPublicAddress(t *testing.T) {
	name := PublicIPSource{Method: DNS, Argument: "gw.example.org"}
	found := PublicIP{Address: ip("198.51.100.7"), Source: name}
	former := &pelagov1alpha1.PublicIP{Address: "198.51.100.7", Source: name.String()}
	fails := PublicIP{Err: errors.New("no server answers")}
	tests := map[string]struct {
		former *pelagov1alpha1.PublicIP
		wanted []PublicIPSource
		result PublicIP
		want   *pelagov1alpha1.PublicIP
	}{
		"none is wanted":        {former, nil, found, nil},
		"found":                 {nil, []PublicIPSource{name}, found, former},
		"not looked for yet":    {nil, []PublicIPSource{name}, PublicIP{Err: ErrNoSource}, &pelagov1alpha1.PublicIP{}},
		"after a restart":       {former, []PublicIPSource{name}, PublicIP{Err: ErrNoSource}, former},
		"and nobody answers":    {former, []PublicIPSource{name}, fails, &pelagov1alpha1.PublicIP{Address: "198.51.100.7", Source: name.String(), Message: "no server answers"}},
		"from another source":   {former, []PublicIPSource{{Method: DNS, Argument: "other.example.org"}}, fails, &pelagov1alpha1.PublicIP{Message: "no server answers"}},
		"never, nobody answers": {nil, []PublicIPSource{name}, fails, &pelagov1alpha1.PublicIP{Message: "no server answers"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, publicAddress(tt.former, tt.wanted, tt.result)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}
