package spec

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/pelago-net/pelago/control/config"
)

// bind parses flags of join, without those that are wrong only together.
func bind(t *testing.T, args ...string) (*Member, *MemberFlags) {
	t.Helper()
	m := &Member{}
	f := pflag.NewFlagSet("join", pflag.ContinueOnError)
	flags := m.AddFlags(f, "clusterid")
	if err := errors.Join(f.Parse(append([]string{"--clusterid=c1"}, args...)), Join(flags.Read())); err != nil {
		t.Fatal(err)
	}
	return m, flags
}

// parse is what the command line makes of flags of join, and the error that it prints.
func parse(args ...string) (Member, error) {
	var m Member
	f := pflag.NewFlagSet("join", pflag.ContinueOnError)
	flags := m.AddFlags(f, "clusterid")
	if err := f.Parse(append([]string{"--clusterid=c1"}, args...)); err != nil {
		return m, err
	}
	return m, flags.Names().Error(Join(append(flags.Read(), m.Validate()...)))
}

func withID(c config.Config) config.Config {
	c.ClusterID = "c1"
	return c
}

func TestWireFlags(t *testing.T) {
	tests := map[string]struct {
		args  []string
		want  config.Config // without a driver: the hub decides
		ports []uint16
		err   string
	}{
		"no flag":              {nil, config.Config{CablePort: 4500}, []uint16{4500, 4504}, ""},
		"all of them":          {[]string{"--cable-driver", "ipsec", "--nattport", "4600", "--cable-tunnels", "4", "--xdp", "auto"}, config.Config{CableDriver: "libreswan", CablePort: 4600, CableTunnels: 4, XDP: "auto"}, []uint16{4600}, ""},
		"three of WireGuard":   {[]string{"--cable-tunnels", "3"}, config.Config{CablePort: 4500, CableTunnels: 3}, []uint16{4500, 4501, 4502, 4504}, ""},
		"the wire in the open": {[]string{"--cable-driver", "vxlan", "--nattport", "65535", "--cable-tunnels", "1"}, config.Config{CableDriver: "vxlan", CablePort: 65535}, []uint16{65535}, ""},
		"no tunnels":           {[]string{"--cable-tunnels", "0"}, config.Config{}, nil, "--cable-tunnels 0: use 1 to 4"},
		"too many tunnels":     {[]string{"--cable-tunnels", "5"}, config.Config{}, nil, "--cable-tunnels 5: use 1 to 4"},
		"tunnels of vxlan":     {[]string{"--cable-driver", "vxlan", "--cable-tunnels", "2"}, config.Config{}, nil, "cable driver vxlan has no tunnels"},
		"tunnel on 4800":       {[]string{"--nattport", "4798", "--cable-tunnels", "3"}, config.Config{}, nil, "needs UDP port 4800 as well"},
		"standby on 4800":      {[]string{"--nattport", "4796"}, config.Config{}, nil, "needs UDP port 4800 as well"},
		"the last ports":       {[]string{"--nattport", "65532"}, config.Config{}, nil, "use one up to 65531"},
		"names":                {[]string{"--dns-ttl", "30s", "--dns-cache", "1s"}, config.Config{CablePort: 4500, DNSTTL: 30 * time.Second, DNSCache: time.Second}, []uint16{4500, 4504}, ""},
		"default TTL":          {[]string{"--dns-ttl", "5s"}, config.Config{CablePort: 4500}, []uint16{4500, 4504}, ""},
		"no TTL":               {[]string{"--dns-ttl", "0s"}, config.Config{}, nil, "--dns-ttl 0s: use whole seconds, 1s to 1h0m0s"},
		"part of a second":     {[]string{"--dns-cache", "500ms"}, config.Config{}, nil, "--dns-cache 500ms: use whole seconds, 0s to 1h0m0s"},
		"generic XDP":          {[]string{"--xdp", "generic"}, config.Config{}, nil, `"generic" for "--xdp" flag: use off, auto or on`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w, err := parse(tt.args...)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("got %v, want %q", err, tt.err)
			}
			if err != nil {
				return
			}
			tt.want.Gateways = w.Gateways
			if diff := cmp.Diff(withID(tt.want).Data(), w.Config().Data()); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if diff := cmp.Diff(tt.ports, w.CablePorts()); diff != "" {
				t.Errorf("ports -want +got\n%s", diff)
			}
		})
	}
}

func TestReachFlags(t *testing.T) {
	const wireguard, vxlan = config.CableWireGuard, config.CableVXLAN
	tests := map[string]struct {
		driver string
		args   []string
		want   config.Config
		err    string
	}{
		"no flag":            {vxlan, nil, config.Config{}, ""},
		"all of them":        {wireguard, []string{"--natt=false", "--natt-discovery-port", "4491", "--preferred-server", "--load-balancer", "--air-gapped", "--gateway-mode", "active-passive"}, config.Config{SingleGateway: true, NoNAT: true, DiscoveryPort: 4491, PreferredServer: true, LoadBalancer: true, AirGapped: true}, ""},
		"no mode":            {vxlan, []string{"--gateway-mode", "both"}, config.Config{}, `"both" for "--gateway-mode" flag: use active-active or active-passive`},
		"no port":            {vxlan, []string{"--natt-discovery-port", "0"}, config.Config{}, "--natt-discovery-port 0"},
		"the overlay's port": {vxlan, []string{"--natt-discovery-port", "4800"}, config.Config{}, "--natt-discovery-port 4800"},
		"a tunnel's port":    {wireguard, []string{"--natt-discovery-port", "4504"}, config.Config{}, "--natt-discovery-port 4504"},
		"outside the cluster": {wireguard, []string{"--external-cidr", "192.0.2.0/25", "--external-cidr", "198.51.100.0/24", "--route-service-cidr"},
			config.Config{ExternalCIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/25"), netip.MustParsePrefix("198.51.100.0/24")}, RouteServiceCIDR: true}, ""},
		"no range":       {wireguard, []string{"--external-cidr", "192.0.2.7"}, config.Config{}, `"192.0.2.7" is no range in CIDR notation`},
		"host bits":      {wireguard, []string{"--external-cidr", "192.0.2.7/24"}, config.Config{}, "write 192.0.2.0/24"},
		"loopback":       {wireguard, []string{"--external-cidr", "127.0.1.0/24"}, config.Config{}, "overlaps 127.0.0.0/8 (loopback)"},
		"balanced vxlan": {vxlan, []string{"--load-balancer"}, config.Config{}, "use --cable-driver wireguard"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := parse(append(tt.args, "--cable-driver", tt.driver)...)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("got %v, want %q", err, tt.err)
			}
			if tt.want.CableDriver, tt.want.CablePort, tt.want.Gateways = tt.driver, 4500, DefaultGateways; err == nil {
				if diff := cmp.Diff(withID(tt.want).Data(), r.Config().Data()); diff != "" {
					t.Errorf("-want +got\n%s", diff)
				}
			}
		})
	}
}

// Whatever flags a join was given, another one without them makes the same configuration.
func TestJoinAgainKeepsEveryFlag(t *testing.T) {
	again := func(args []string, former *config.Config) config.Config {
		t.Helper()
		m, flags := bind(t, args...)
		if former != nil {
			m.Keep(FromConfig(*former), flags.Given)
		}
		if err := Join(m.Validate()); err != nil {
			t.Fatal(err)
		}
		return m.Config()
	}
	all := []string{
		"--cable-driver", "libreswan", "--nattport", "4600", "--cable-tunnels", "4", "--xdp", "auto", "--natt=false", "--natt-discovery-port", "4491",
		"--preferred-server", "--load-balancer", "--air-gapped", "--gateway-mode", "active-passive", "--network-only",
		"--external-cidr", "192.0.2.0/25", "--external-cidr", "198.51.100.0/24", "--route-service-cidr",
	}
	for _, args := range [][]string{nil, all} {
		first := again(args, nil)
		if diff := cmp.Diff(first.Data(), again(nil, &first).Data()); diff != "" {
			t.Errorf("join %v, then join: -first +second\n%s", args, diff)
		}
	}
	first := again(all, nil)
	second := again([]string{"--nattport", "4700", "--load-balancer=false", "--external-cidr", ""}, &first)
	want := first
	want.CablePort, want.LoadBalancer, want.ExternalCIDRs = 4700, false, nil
	if diff := cmp.Diff(want.Data(), second.Data()); diff != "" {
		t.Errorf("changes: -want +got\n%s", diff)
	}
}
