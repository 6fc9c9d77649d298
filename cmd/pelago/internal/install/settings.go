package install

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/control/agent/clusterdns"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/natt"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/dns"
)

// Settings are the flags of join about the wire between gateways and about how other clusters reach the gateways, bound to the
// configuration. Annotations gateway.submariner.io/* of a gateway's node take precedence.
type Settings struct {
	config.Config
	nat  bool
	mode string
}

// Values of --gateway-mode.
const (
	activeActive  = "active-active"
	activePassive = "active-passive"
)

// Add adds the flags.
func (s *Settings) Add(f *pflag.FlagSet) {
	driver := view.AddChoice(f, &s.CableDriver, "cable-driver", config.CableWireGuard, "cable driver, which connects gateways: wireguard, libreswan (or "+
		"ipsec: IKEv2 and ESP by strongSwan) or vxlan (not encrypted); the same in all clusters", config.CableDrivers()...)
	driver.Aliases = map[string]string{"ipsec": config.CableLibreswan} // as in Submariner
	f.Uint16Var(&s.CablePort, "nattport", 4500, "UDP port of the cables between gateways")
	f.IntVar(&s.CableTunnels, "cable-tunnels", 1, fmt.Sprintf("tunnels between two gateways, 1 to %d, so that a pair of them uses several cores; of two clusters the smaller number applies. wireguard takes a UDP port for each, from --nattport on, and --nattport + %d to change keys", config.MaxCableTunnels, cable.MaxTunnels))
	view.AddChoice(f, &s.XDP, "xdp", config.XDPOff, "experimental, not tested with a physical network card: handle the common case in "+
		"the driver of the network card (XDP) on gateways: off, auto (uplinks that are network cards), on (all uplinks)",
		config.XDPSettings()...)
	view.AddChoice(f, &s.Datapath, "datapath", config.Datapaths()[0], "path of packets between pods and other clusters: strict (through "+
		"the node's stack), hybrid (those of established connections bypass it, conntrack and policies see one about every 0.7 s), fast (all "+
		"bypass it, except those of pods that a NetworkPolicy selects). The label "+pelagov1alpha1.LabelDatapath+" of a node or namespace "+
		"overrides it", config.Datapaths()...)
	f.BoolVar(&s.nat, "natt", true, "gateways with a public address are behind NAT: peers try that address first; NAT discovery runs in any case")
	f.Uint16Var(&s.DiscoveryPort, "natt-discovery-port", natt.DefaultPort, "UDP port of NAT discovery")
	f.BoolVar(&s.PreferredServer, "preferred-server", false, "gateways wait for others to connect, where those can")
	f.BoolVar(&s.LoadBalancer, "load-balancer", false, "reach the gateway through a Service of type LoadBalancer; for one gateway, and not with --cable-driver vxlan")
	view.AddChoice(f, &s.mode, "gateway-mode", activeActive, activeActive+" (flows are spread over all gateways of a cluster) or "+
		activePassive+" (all take one, and another when it fails); the same in all clusters", activeActive, activePassive)
	f.BoolVar(&s.AirGapped, "air-gapped", false, "never resolve a public address: accept only ipv4: of gateway.submariner.io/public-ip (without that annotation nothing is resolved anyway)")
	f.BoolVar(&s.ClusterSetIPs, "enable-clusterset-ip", false, "give the services that this cluster exports a ClusterSetIP, unless their ServiceExport has the "+
		"annotation "+submarinerv1.AnnotationUseClusterSetIP+"=false (default: the clusterset's; always so in mode mcs)")
	f.Var((*ranges)(&s.ExternalCIDRs), "external-cidr", "range of hosts outside the cluster, a `CIDR`; may be repeated. By a route to a gateway node they reach other "+
		"clusters; without globalnet they are reached under their own addresses, and the ranges cannot change later")
	f.BoolVar(&s.RouteServiceCIDR, "route-service-cidr", false, "let other clusters reach ClusterIPs that are not exported; without globalnet, and where kube-proxy "+
		"serves ClusterIPs (iptables or nftables)")
	f.StringVar(&s.CoreDNSCustom, "coredns-custom-configmap", "", "ConfigMap `[kube-system/]NAME` whose keys *.server the Corefile of CoreDNS imports, to write to instead of the Corefile "+
		"(default: "+clusterdns.CustomName+" where the Corefile has such an import, as in AKS and k3s)")
	f.DurationVar(&s.DNSTTL, "dns-ttl", dns.DefaultTTL, "TTL of the names of the clusterset, in whole seconds: how long resolvers keep an address, also that of a dead cluster")
	f.DurationVar(&s.DNSCache, "dns-cache", 0, "time, in whole seconds, for which the CoreDNS of this cluster keeps answers: they come as fast as those of cluster.local, and stay that long when a cluster dies or a service has several; 0: none is kept")
	f.BoolVar(&s.WorkloadsOnly, "workloads-only", false, "take workloads of the hub only: neither the network nor services, and nothing on the nodes")
	f.BoolVar(&s.NetworkOnly, "network-only", false, "take part in network and services only: nothing in the cluster gets the right to write workloads")
}

// ranges is the value of a flag that takes ranges, and may be repeated.
type ranges []netip.Prefix

// Set adds ranges, separated by commas; an empty text removes all.
func (r *ranges) Set(text string) error {
	if text == "" {
		*r = nil
		return nil
	}
	for one := range strings.SplitSeq(text, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(one))
		if err != nil {
			return fmt.Errorf("%q is no range in CIDR notation such as 192.0.2.0/24", one)
		}
		if p != p.Masked() {
			return fmt.Errorf("%s has bits behind its length: write %s", p, p.Masked())
		}
		if err := config.CheckRange(p); err != nil {
			return err
		}
		*r = append(*r, p)
	}
	return nil
}

func (r *ranges) String() string { return strings.Join(view.Texts(*r), ",") }

// Type is the word in the help.
func (r *ranges) Type() string { return "CIDR" }

// Check validates what the flags have in common.
func (s *Settings) Check() error {
	s.CoreDNSCustom = strings.TrimPrefix(s.CoreDNSCustom, clusterdns.Namespace+"/")
	if strings.Contains(s.CoreDNSCustom, "/") {
		return fmt.Errorf("--coredns-custom-configmap %s: the agent may write in namespace %s only: name a ConfigMap there", s.CoreDNSCustom, clusterdns.Namespace)
	}
	for flag, d := range map[string]time.Duration{"dns-ttl": s.DNSTTL, "dns-cache": s.DNSCache} {
		least := time.Second
		if flag == "dns-cache" {
			least = 0
		}
		if d < least || d > config.MaxDNSSeconds*time.Second || d%time.Second != 0 {
			return fmt.Errorf("--%s %s: use whole seconds, %s to %s", flag, d, least, config.MaxDNSSeconds*time.Second)
		}
	}
	if s.CableTunnels < 1 || s.CableTunnels > config.MaxCableTunnels {
		return fmt.Errorf("--cable-tunnels %d: use 1 to %d", s.CableTunnels, config.MaxCableTunnels)
	}
	if s.CableTunnels > 1 && s.CableDriver == config.CableVXLAN {
		return fmt.Errorf("--cable-tunnels %d: cable driver %s has no tunnels: use --cable-tunnels 1, or --cable-driver %s", s.CableTunnels, s.CableDriver, config.CableWireGuard)
	}
	if s.CablePort == 0 || s.CablePort == dataplane.OverlayPort {
		return fmt.Errorf("--nattport %d: use a port from 1 to 65535 other than %d, which the overlay inside the cluster has", s.CablePort, dataplane.OverlayPort)
	}
	if last := 65535 - cable.MaxTunnels; int(s.CablePort) > last && s.CableDriver != config.CableVXLAN {
		return fmt.Errorf("--nattport %d: cable driver %s needs the next %d ports as well: use one up to %d", s.CablePort, s.CableDriver, cable.MaxTunnels, last)
	}
	if slices.Contains(s.ports(), dataplane.OverlayPort) {
		return fmt.Errorf("--nattport %d: then cable driver %s with %d tunnels needs UDP port %d as well, which the overlay inside the cluster has: use another",
			s.CablePort, s.CableDriver, s.CableTunnels, dataplane.OverlayPort)
	}
	if s.DiscoveryPort == 0 || slices.Contains(append(s.ports(), dataplane.OverlayPort), s.DiscoveryPort) {
		return fmt.Errorf("--natt-discovery-port %d: use a port from 1 to 65535 that neither the cable (%d) nor the overlay (%d) has", s.DiscoveryPort, s.ports(), dataplane.OverlayPort)
	}
	if s.LoadBalancer && s.CableDriver == config.CableVXLAN {
		return fmt.Errorf("--load-balancer changes addresses on the way, and cable driver %s identifies gateways by their addresses: use --cable-driver %s, or --load-balancer=false", s.CableDriver, config.CableWireGuard)
	}
	return nil
}

// ports are the UDP ports at which the wire listens, sorted.
func (s *Settings) ports() []uint16 {
	out := append(cable.Ports(s.CableDriver, cable.Local{Listen: s.CablePort, Tunnels: s.CableTunnels}), s.CablePort)
	slices.Sort(out)
	return slices.Compact(out)
}

// Parsed is the configuration of the flags, in which defaults of optional settings are zero.
func (s *Settings) Parsed() config.Config {
	c := s.Config
	c.NoNAT, c.SingleGateway = !s.nat, s.mode == activePassive
	if c.CableTunnels == 1 {
		c.CableTunnels = 0
	}
	if c.XDP == config.XDPOff {
		c.XDP = ""
	}
	if c.Datapath == config.Datapaths()[0] {
		c.Datapath = ""
	}
	if c.DNSTTL == dns.DefaultTTL {
		c.DNSTTL = 0
	}
	if c.DiscoveryPort == natt.DefaultPort {
		c.DiscoveryPort = 0
	}
	return c
}

// JoinFlags are the flags of the join that has left a configuration.
func JoinFlags(c config.Config) map[string]string {
	if c.WorkloadsOnly {
		return map[string]string{"workloads-only": "true"}
	}
	var s Settings
	f := pflag.NewFlagSet("join", pflag.ContinueOnError)
	s.Add(f)
	s.Config, s.nat = c, !c.NoNAT
	if c.SingleGateway {
		s.mode = activePassive
	}
	s.CableTunnels, s.DiscoveryPort = max(1, c.CableTunnels), cmp.Or(c.DiscoveryPort, natt.DefaultPort)
	s.DNSTTL = cmp.Or(c.DNSTTL, dns.DefaultTTL)
	s.XDP, s.Datapath = cmp.Or(c.XDP, config.XDPOff), cmp.Or(c.Datapath, config.Datapaths()[0])
	flags := map[string]string{}
	f.VisitAll(func(f *pflag.Flag) { flags[f.Name] = f.Value.String() })
	return flags
}

// BrokerFlags are the flags of the deploy-broker that has written these settings.
func BrokerFlags(set broker.Clusterset, book broker.Book) map[string]string {
	flags := map[string]string{
		"mode":                 set.Mode,
		"custom-domains":       strings.Join(set.CustomDomains, ","),
		"components":           strings.Join(set.Components, ","),
		"broker-url":           set.BrokerURL,
		"auto-accept":          strconv.FormatBool(set.AutoAccept),
		"globalnet":            strconv.FormatBool(book.Globalnet),
		"enable-clusterset-ip": strconv.FormatBool(set.ClusterSetIPs),
	}
	if book.ClusterSetIPs.IsValid() {
		flags["clusterset-ip-cidr-range"] = book.ClusterSetIPs.String()
	}
	if set.Fabric.IsValid() {
		flags["fabric-cidr"] = set.Fabric.String()
	}
	if book.Globalnet {
		flags["globalnet-cidr-range"], flags["globalnet-cluster-size"] = book.Range.String(), strconv.FormatUint(book.ClusterSize, 10)
	}
	return flags
}
