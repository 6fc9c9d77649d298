package spec

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/agent/clusterdns"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane/cable"
)

// Choice is a flag with a fixed set of values. Others are refused when the flag is parsed.
type Choice struct {
	value  *string
	values []string
	// Aliases are further names of values.
	Aliases map[string]string
}

// AddChoice adds a flag with a fixed set of values.
func AddChoice(f *pflag.FlagSet, value *string, name, preset, usage string, values ...string) *Choice {
	c := NewChoice(value, preset, values...)
	f.Var(c, name, usage)
	return c
}

// NewChoice sets the value to its preset, and makes what a flag sets it by.
func NewChoice(value *string, preset string, values ...string) *Choice {
	*value = preset
	return &Choice{value: value, values: values}
}

// Values are those for completion.
func (c *Choice) Values() []string { return c.values }

// Words are the values as text: a, b or c.
func (c *Choice) Words() string { return either(c.values) }

func (c *Choice) String() string { return *c.value }
func (c *Choice) Type() string   { return "string" }

func (c *Choice) Set(text string) error {
	if of, ok := c.Aliases[text]; ok {
		text = of
	}
	if !slices.Contains(c.values, text) {
		return errors.New("use " + either(c.values))
	}
	*c.value = text
	return nil
}

// hostPort is the value of a flag HOST[:PORT].
type hostPort struct{ value *string }

// AddHostPort adds a flag HOST[:PORT]: an address or a DNS name, without a scheme.
func AddHostPort(f *pflag.FlagSet, value *string, name, usage string) {
	f.Var(hostPort{value}, name, usage)
}

func (h hostPort) String() string {
	if h.value == nil {
		return ""
	}
	return *h.value
}

func (h hostPort) Type() string { return "string" }

func (h hostPort) Set(text string) error {
	if err := CheckHostPort(text); err != nil {
		return err
	}
	*h.value = text
	return nil
}

// CheckHostPort refuses what is neither empty nor HOST[:PORT].
func CheckHostPort(text string) error {
	host, port, err := net.SplitHostPort(text)
	if err != nil || strings.Contains(text, "://") {
		host, port = text, "1"
	}
	if text != "" && net.ParseIP(host) == nil && len(validation.IsDNS1123Subdomain(host)) > 0 {
		return errors.New("give HOST or HOST:PORT, an address or a DNS name in lower case, without https://")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%q is no port", port)
	}
	return nil
}

// MemberFlags are the flags of a Member.
type MemberFlags struct {
	*Member
	set            *pflag.FlagSet
	id             string
	pods, services []string
	custom         string
	placement      *PlacementFlags
}

// AddFlags sets the member to its defaults and adds its flags; id is the name of the one for its
// id.
func (m *Member) AddFlags(f *pflag.FlagSet, id string) *MemberFlags {
	*m = DefaultMember()
	b := &MemberFlags{Member: m, set: f, id: id}
	f.StringVar(&m.ClusterID, id, "", "id of the cluster: letters, digits and '-', at most 48; it never changes (default: prompt)")
	f.BoolVar(&m.Globalnet, "globalnet", m.Globalnet, "take part in globalnet if the clusterset has it; all of its clusters do, or none")
	f.TextVar(&m.GlobalCIDR, "globalnet-cidr", netip.Prefix{}, "GlobalCIDR of the cluster, a `CIDR` (default: the first free one)")
	f.Uint64Var(&m.GlobalnetClusterSize, "globalnet-cluster-size", 0, "addresses of the GlobalCIDR; rounded up to a power of two (default: the clusterset's)")
	f.TextVar(&m.ClustersetIPCIDR, "clusterset-ip-cidr", netip.Prefix{}, "range of ClusterSetIPs that this cluster allocates from, a `CIDR` (default: the first free /20)")
	f.StringSliceVar(&b.pods, "clustercidr", nil, "pod ranges of the cluster (default: discovered)")
	f.StringSliceVar(&b.services, "servicecidr", nil, "service ranges of the cluster (default: discovered)")
	b.addCable(f)
	f.IntVar(&m.Gateways, "gateways", m.Gateways, "number of nodes that the agent keeps as gateways while nodes come and go, spread over zones; it changes only labels of its own; "+
		"0: you label them (default where --gateway-node is given or nodes are labelled already)")
	f.StringArrayVar(&m.GatewayNodes, "gateway-node", nil, "node that becomes a gateway and stays one; may be repeated (default: those labelled "+submarinerv1.LabelGateway+", else prompt)")
	f.BoolVar(&m.LabelGateway, "label-gateway", m.LabelGateway, "label nodes as gateways if none is")
	f.StringVar(&m.Image, "image", m.Image, "image of all components")
	AddChoice(f, &m.PullPolicy, "image-pull-policy", m.PullPolicy, either(pullPolicies), pullPolicies...)
	b.placement = m.Placement.AddFlags(f, "namespace "+config.SystemNamespace, "all pods except pelago-node, which runs on every node,")
	f.StringVar(&m.HTTPProxy, "http-proxy", "", "URL of the proxy for the agents' http connections")
	f.StringVar(&m.HTTPSProxy, "https-proxy", "", "URL of the proxy for the agents' https connections, such as those to the hub")
	f.StringVar(&m.NoProxy, "no-proxy", "", "names, addresses and ranges that the agents reach without a proxy, separated by commas, besides the own cluster's")
	return b
}

// addCable adds the flags about the cable between gateways, how other clusters reach them, and
// names. Annotations gateway.submariner.io/* of a gateway's node take precedence over some of them.
func (b *MemberFlags) addCable(f *pflag.FlagSet) {
	m := b.Member
	driver := AddChoice(f, &m.CableDriver, "cable-driver", "", "cable driver, which connects gateways: wireguard, libreswan (or ipsec: IKEv2 and ESP by "+
		"strongSwan) or vxlan (not encrypted); the same in all clusters (default: that of the clusterset's clusters, "+DefaultCableDriver+" for the first one)",
		config.CableDrivers()...)
	driver.Aliases = map[string]string{"ipsec": config.CableLibreswan} // as in Submariner
	f.Uint16Var(&m.CablePort, "nattport", m.CablePort, "UDP port of the cables between gateways")
	f.IntVar(&m.CableTunnels, "cable-tunnels", m.CableTunnels, fmt.Sprintf("tunnels between two gateways, 1 to %d, so that a pair of them uses several cores; of two clusters the smaller number applies. wireguard takes a UDP port for each, from --nattport on, and --nattport + %d to change keys", config.MaxCableTunnels, cable.MaxTunnels))
	AddChoice(f, &m.XDP, "xdp", m.XDP, "experimental, not tested with a physical network card: handle the common case in "+
		"the driver of the network card (XDP) on gateways: off, auto (uplinks that are network cards), on (all uplinks)",
		config.XDPSettings()...)
	AddChoice(f, &m.Datapath, "datapath", m.Datapath, "path of packets between pods and other clusters: strict (through "+
		"the node's stack), hybrid (those of established connections bypass it, conntrack and policies see one about every 0.7 s), fast (all "+
		"bypass it, except those of pods that a policy selects), auto (fast for pods that no policy selects, hybrid for others, strict where "+
		"kernel or CNI allow no more). The label "+pelagov1alpha1.LabelDatapath+" of a node or namespace "+
		"overrides it", config.Datapaths()...)
	f.BoolVar(&m.NAT, "natt", m.NAT, "gateways with a public address are behind NAT: peers try that address first; NAT discovery runs in any case")
	f.Uint16Var(&m.DiscoveryPort, "natt-discovery-port", m.DiscoveryPort, "UDP port of NAT discovery")
	f.BoolVar(&m.PreferredServer, "preferred-server", false, "gateways wait for others to connect, where those can")
	f.BoolVar(&m.LoadBalancer, "load-balancer", false, "reach the gateway through a Service of type LoadBalancer; for one gateway, and not with --cable-driver vxlan")
	AddChoice(f, &m.GatewayMode, "gateway-mode", m.GatewayMode, ActiveActive+" (flows are spread over all gateways of a cluster) or "+
		ActivePassive+" (all take one, and another when it fails); the same in all clusters", ActiveActive, ActivePassive)
	f.BoolVar(&m.AirGapped, "air-gapped", false, "never resolve a public address: accept only ipv4: of gateway.submariner.io/public-ip and the ExternalIP of the Node (without that annotation nothing is resolved anyway)")
	f.BoolVar(&m.ClustersetIPEnabled, "enable-clusterset-ip", false, "give the services that this cluster exports a ClusterSetIP, unless their ServiceExport has the "+
		"annotation "+submarinerv1.AnnotationUseClusterSetIP+"=false (default: the clusterset's; always so in mode mcs)")
	f.Var((*ranges)(&m.ExternalCIDR), "external-cidr", "range of hosts outside the cluster, a `CIDR`; may be repeated. By a route to a gateway node they reach other "+
		"clusters; without globalnet they are reached under their own addresses, and the ranges cannot change later")
	f.BoolVar(&m.RouteServiceCIDR, "route-service-cidr", false, "let other clusters reach ClusterIPs that are not exported; without globalnet, and where kube-proxy "+
		"serves ClusterIPs (iptables or nftables)")
	f.StringVar(&b.custom, "coredns-custom-configmap", "", "ConfigMap `[kube-system/]NAME` whose keys *.server the Corefile of CoreDNS imports, to write to instead of the Corefile "+
		"(default: "+clusterdns.CustomName+" where the Corefile has such an import, as in AKS and k3s)")
	f.DurationVar(&m.DNSTTL, "dns-ttl", m.DNSTTL, "TTL of the names of the clusterset, in whole seconds: how long resolvers keep an address, also that of a dead cluster")
	f.DurationVar(&m.DNSCache, "dns-cache", 0, "time, in whole seconds, for which the CoreDNS of this cluster keeps answers: they come as fast as those of cluster.local, and stay that long when a cluster dies or a service has several; 0: none is kept")
	f.BoolVar(&m.WorkloadsOnly, "workloads-only", false, "take workloads of the hub only: neither the network nor services, and nothing on the nodes")
	f.BoolVar(&m.NetworkOnly, "network-only", false, "take part in network and services only: nothing in the cluster gets the right to write workloads")
}

// Read parses what flags do not parse themselves, and returns an error for each whose form is
// wrong.
func (b *MemberFlags) Read() field.ErrorList {
	var l list
	for _, r := range []struct {
		name, flag string
		texts      []string
		to         *[]netip.Prefix
	}{{"clusterCIDR", "clustercidr", b.pods, &b.ClusterCIDR}, {"serviceCIDR", "servicecidr", b.services, &b.ServiceCIDR}} {
		if len(r.texts) == 0 {
			*r.to = nil
			continue
		}
		var err error
		if *r.to, err = ParseRanges(r.texts); err != nil {
			l.add(r.name, strings.Join(r.texts, ","), "spec.%s: %v", r.name, err)
		}
	}
	if b.CoreDNSCustom = nil; b.set.Changed("coredns-custom-configmap") {
		b.CoreDNSCustom = customName(b.custom)
	}
	return append(field.ErrorList(l), b.placement.Read()...)
}

// Given reports whether the flag of a field was given.
func (b *MemberFlags) Given(path string) bool {
	if path == "spec.clusterID" {
		return b.set.Changed(b.id)
	}
	return b.set.Changed(strings.TrimPrefix(Flags(Member{})[path], "--"))
}

// Names are the flags of the fields.
func (b *MemberFlags) Names() Names {
	names := Flags(Member{})
	names["spec.clusterID"] = "--" + b.id
	return names
}

// customName is a ConfigMap without the namespace of CoreDNS.
func customName(text string) *string {
	name := strings.TrimPrefix(text, clusterdns.Namespace+"/")
	return &name
}

// ParseRanges reads at least one range.
func ParseRanges(texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return nil, err
		}
		if p != p.Masked() {
			return nil, fmt.Errorf("range %s has host bits: write %s", p, p.Masked())
		}
		out = append(out, p)
	}
	if len(out) == 0 {
		return nil, errors.New("no range")
	}
	return out, nil
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
		if err := checkRange(p); err != nil {
			return err
		}
		*r = append(*r, p)
	}
	return nil
}

func (r *ranges) String() string {
	var texts []string
	for _, p := range *r {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ",")
}

// Type is the word in the help.
func (r *ranges) Type() string { return "CIDR" }
