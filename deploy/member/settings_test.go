package member

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/pelago-net/pelago/control/config"
)

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
