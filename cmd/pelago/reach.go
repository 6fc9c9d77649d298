package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/natt"
	"github.com/pelago-net/pelago/dataplane/netdev"
)

// reachFlags are the flags of join about how other clusters reach the gateways. Annotations gateway.submariner.io/* of a gateway's
// node go before them.
type reachFlags struct {
	nat, preferredServer, loadBalancer, airGapped bool
	discoveryPort                                 uint16
	mode                                          string
}

// Values of --gateway-mode.
const (
	activeActive  = "active-active"
	activePassive = "active-passive"
)

func (r *reachFlags) add(f *pflag.FlagSet) {
	f.BoolVar(&r.nat, "natt", true, "gateways with a public address are behind NAT: others begin with that address; NAT discovery finds out in any case")
	f.Uint16Var(&r.discoveryPort, "natt-discovery-port", natt.DefaultPort, "UDP port of NAT discovery")
	f.BoolVar(&r.preferredServer, "preferred-server", false, "gateways wait for others to connect, where those can")
	f.BoolVar(&r.loadBalancer, "load-balancer", false, "reach the gateway through a Service of type LoadBalancer; for one gateway, and not with --cable-driver vxlan")
	f.StringVar(&r.mode, "gateway-mode", activeActive, activeActive+" (flows are spread over all gateways of a cluster) or "+activePassive+" (all take one, and another when it fails); the same in all clusters")
	f.BoolVar(&r.airGapped, "air-gapped", false, "never look a public address up: take only ipv4: of gateway.submariner.io/public-ip (without that annotation nothing is looked up anyway)")
}

func (r *reachFlags) check(w wireFlags) error {
	taken := append(w.ports(), netdev.OverlayPort)
	if r.discoveryPort == 0 || slices.Contains(taken, r.discoveryPort) {
		return fmt.Errorf("--natt-discovery-port %d: use a port from 1 to 65535 that neither the wire (%d) nor the overlay (%d) has", r.discoveryPort, w.ports(), netdev.OverlayPort)
	}
	if r.mode != activeActive && r.mode != activePassive {
		return fmt.Errorf("--gateway-mode %q is unknown: use %s or %s", r.mode, activeActive, activePassive)
	}
	if r.loadBalancer && w.driver == config.CableVXLAN {
		return fmt.Errorf("--load-balancer changes addresses on the way, and the wire %s knows gateways by their addresses: use --cable-driver %s, or --load-balancer=false", w.driver, config.CableWireGuard)
	}
	return nil
}

func (r *reachFlags) apply(c *config.Config) {
	c.NoNAT, c.PreferredServer, c.LoadBalancer, c.AirGapped = !r.nat, r.preferredServer, r.loadBalancer, r.airGapped
	c.SingleGateway = r.mode == activePassive
	if r.discoveryPort != natt.DefaultPort {
		c.DiscoveryPort = r.discoveryPort
	}
}

// loadBalancer makes the Service that leads to the gateway, or removes the one of a former join. It selects nothing: the agent
// says which node is behind it.
func (m *member) loadBalancer(ctx context.Context, c config.Config) error {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: config.SystemNamespace, Name: config.LoadBalancerService}}
	owner := kube.Owner{HubID: c.HubID}
	if c.LoadBalancer {
		return m.put(ctx, s, func() {
			owner.Mark(s)
			s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
			s.Spec.Ports = loadBalancerPorts(c, s.Spec.Ports)
		})
	}
	err := m.client.Get(ctx, client.ObjectKeyFromObject(s), s)
	if err == nil && owner.Owns(s) {
		err = m.client.Delete(ctx, s)
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove Service %s/%s, which a former join made: %w", s.Namespace, s.Name, err)
	}
	return nil
}

// loadBalancerPorts are the wire's ports and that of NAT discovery. Node ports that were given out stay.
func loadBalancerPorts(c config.Config, have []corev1.ServicePort) []corev1.ServicePort {
	discovery := c.DiscoveryPort
	if discovery == 0 {
		discovery = natt.DefaultPort
	}
	ports := append(cable.Ports(c.CableDriver, cable.Local{Listen: c.CablePort, Tunnels: c.CableTunnels}), discovery)
	slices.Sort(ports)
	var out []corev1.ServicePort
	for _, port := range ports {
		p := corev1.ServicePort{Name: fmt.Sprintf("udp-%d", port), Protocol: corev1.ProtocolUDP, Port: int32(port)}
		if i := slices.IndexFunc(have, func(h corev1.ServicePort) bool { return h.Name == p.Name }); i >= 0 {
			p = have[i]
		}
		out = append(out, p)
	}
	return out
}
