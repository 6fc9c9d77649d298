package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/pelago-net/pelago/control/config"
)

func TestReachFlags(t *testing.T) {
	const wireguard, vxlan = config.CableWireGuard, config.CableVXLAN
	tests := map[string]struct {
		driver string
		args   []string
		want   config.Config
		err    string
	}{
		"nothing said":       {vxlan, nil, config.Config{}, ""},
		"all of them":        {wireguard, []string{"--natt=false", "--natt-discovery-port", "4491", "--preferred-server", "--load-balancer", "--air-gapped", "--gateway-mode", "active-passive"}, config.Config{SingleGateway: true, NoNAT: true, DiscoveryPort: 4491, PreferredServer: true, LoadBalancer: true, AirGapped: true}, ""},
		"no mode":            {vxlan, []string{"--gateway-mode", "both"}, config.Config{}, `--gateway-mode "both" is unknown`},
		"no port":            {vxlan, []string{"--natt-discovery-port", "0"}, config.Config{}, "--natt-discovery-port 0"},
		"the overlay's port": {vxlan, []string{"--natt-discovery-port", "4800"}, config.Config{}, "--natt-discovery-port 4800"},
		"a tunnel's port":    {wireguard, []string{"--natt-discovery-port", "4504"}, config.Config{}, "--natt-discovery-port 4504"},
		"balanced vxlan":     {vxlan, []string{"--load-balancer"}, config.Config{}, "use --cable-driver wireguard"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var r reachFlags
			f := pflag.NewFlagSet("join", pflag.ContinueOnError)
			r.add(f)
			if err := f.Parse(tt.args); err != nil {
				t.Fatal(err)
			}
			err := r.check(wireFlags{driver: tt.driver, port: 4500, tunnels: 1})
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("got %v, want %q", err, tt.err)
			}
			var got config.Config
			if r.apply(&got); err == nil {
				if diff := cmp.Diff(tt.want.Data(), got.Data()); diff != "" {
					t.Errorf("-want +got\n%s", diff)
				}
			}
		})
	}
}

func TestLoadBalancerPorts(t *testing.T) {
	have := []corev1.ServicePort{{Name: "udp-4500", Protocol: corev1.ProtocolUDP, Port: 4500, NodePort: 31000}, {Name: "udp-1", Port: 1}}
	got := loadBalancerPorts(config.Config{CableDriver: config.CableWireGuard, CablePort: 4500}, have)
	var ports []int32
	for _, p := range got {
		ports = append(ports, p.Port, p.NodePort)
	}
	if want := []int32{4490, 0, 4500, 31000, 4504, 0}; !slices.Equal(ports, want) {
		t.Errorf("ports and node ports %v, want %v", ports, want)
	}
	if n := len(loadBalancerPorts(config.Config{CableDriver: config.CableWireGuard, CablePort: 4500, CableTunnels: 4}, nil)); n != 6 {
		t.Errorf("%d ports with four tunnels, want those, the standby's and that of NAT discovery", n)
	}
}
