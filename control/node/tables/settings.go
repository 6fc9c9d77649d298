package tables

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/natt"
)

// Keys of a node's annotations and labels (names and meaning are Submariner's).
const (
	AnnotationPrefix   = "gateway.submariner.io/"
	KeyPublicIP        = AnnotationPrefix + "public-ip"
	KeyUDPPort         = AnnotationPrefix + "udp-port"
	KeyDiscoveryPort   = AnnotationPrefix + "natt-discovery-port"
	KeyPreferredServer = AnnotationPrefix + "preferred-server"
)

// GatewaySettings are those of a gateway by annotations and labels of its node. Zero values: not
// set.
type GatewaySettings struct {
	// PublicIP lists the sources of the public address in the order in which they are queried.
	PublicIP []PublicIPSource
	// UDPPort is the port of the cable.
	UDPPort uint16
	// DiscoveryPort is the UDP port of NAT discovery.
	DiscoveryPort uint16
	// PreferredServer: other gateways are to initiate the connection.
	PreferredServer bool
}

// parseSettings parses the annotations and labels of a node; an annotation overrides the label of
// the same key. Each invalid value is left out and has an error with node, key and remedy.
func parseSettings(node string, labels, annotations map[string]string) (GatewaySettings, []error) {
	var o GatewaySettings
	var errs []error
	values := map[string]string{}
	kinds := map[string]string{}
	for _, from := range []struct {
		kind   string
		values map[string]string
	}{{"label", labels}, {"annotation", annotations}} {
		for key, value := range from.values {
			if strings.HasPrefix(key, AnnotationPrefix) {
				values[key], kinds[key] = value, from.kind
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		value, err := strings.TrimSpace(values[key]), error(nil)
		switch key {
		case KeyPublicIP:
			var problems []error
			o.PublicIP, problems = sources(value)
			for _, p := range problems {
				errs = append(errs, located(node, kinds[key], key, p))
			}
		case KeyUDPPort:
			o.UDPPort, err = port(value)
		case KeyDiscoveryPort:
			o.DiscoveryPort, err = port(value)
		case KeyPreferredServer:
			if o.PreferredServer, err = strconv.ParseBool(value); err != nil {
				err = fmt.Errorf("%q is neither true nor false: use one of them", value)
			}
		default:
			err = errors.New("the key is not known: use public-ip, udp-port, natt-discovery-port or preferred-server, or remove it")
		}
		if err != nil {
			errs = append(errs, located(node, kinds[key], key, err))
		}
	}
	return o, errs
}

func located(node, kind, key string, err error) error {
	return fmt.Errorf("read %s %s of node %s: %w", kind, key, node, err)
}

func port(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is no UDP port: use a number from 1 to 65535", text)
	}
	return uint16(n), nil
}

// PublicIPMethod is how a public address is found.
type PublicIPMethod string

// Methods.
const (
	// IPv4 is a literal address.
	IPv4 PublicIPMethod = "ipv4"
	// DNS is the lowest A record of a name.
	DNS PublicIPMethod = "dns"
	// LoadBalancer is the address of a Service of type LoadBalancer in our namespace.
	LoadBalancer PublicIPMethod = "lb"
	// API is the first IPv4 address in the response of an https server.
	API PublicIPMethod = "api"
	// ExternalIP is the address of that type in the status of the Node. It is no form of the
	// annotation: it counts where the node has none.
	ExternalIP PublicIPMethod = "external-ip"
)

// PublicIPSource is one entry of the annotation: `<method>:<argument>`. It is comparable.
type PublicIPSource struct {
	Method PublicIPMethod
	// Argument is an IPv4 address, a DNS name, the name of a Service, or host and path of a URL
	// without its scheme.
	Argument string
}

func (s PublicIPSource) String() string { return string(s.Method) + ":" + s.Argument }

// sources parses `<method>:<argument>[,…]`. Invalid entries are left out and returned as errors.
func sources(text string) (out []PublicIPSource, errs []error) {
	for entry := range strings.SplitSeq(text, ",") {
		s, err := source(strings.TrimSpace(entry))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, s)
	}
	return out, errs
}

func source(entry string) (PublicIPSource, error) {
	method, argument, _ := strings.Cut(entry, ":")
	s := PublicIPSource{PublicIPMethod(method), strings.TrimSpace(argument)}
	switch s.Method {
	case IPv4:
		address, err := netip.ParseAddr(s.Argument)
		if err != nil {
			return s, fmt.Errorf("%q in %q is no IPv4 address: use ipv4:a.b.c.d", s.Argument, entry)
		}
		if err := UsableAddress(address); err != nil {
			return s, fmt.Errorf("read %q: %w: use the address under which other clusters reach this gateway", entry, err)
		}
	case DNS:
		if problems := validation.IsDNS1123Subdomain(strings.ToLower(strings.TrimSuffix(s.Argument, "."))); len(problems) > 0 {
			return s, fmt.Errorf("%q in %q is no DNS name: use dns:gateway.example.org", s.Argument, entry)
		}
	case LoadBalancer:
		if problems := validation.IsDNS1035Label(s.Argument); len(problems) > 0 {
			return s, fmt.Errorf("%q in %q is no name of a Service: use lb:NAME of a Service of type LoadBalancer in our namespace", s.Argument, entry)
		}
	case API:
		s.Argument = strings.TrimPrefix(s.Argument, "https://")
		u, err := url.Parse("https://" + s.Argument)
		if err != nil || u.Hostname() == "" || u.User != nil || strings.Contains(s.Argument, "://") {
			return s, fmt.Errorf("%q in %q is no address of an https server: use api:HOST/PATH", s.Argument, entry)
		}
	default:
		return s, fmt.Errorf("the method of %q is not known: use ipv4:ADDRESS, dns:NAME, lb:SERVICE or api:HOST/PATH, separated by commas", entry)
	}
	return s, nil
}

// UsableAddress refuses addresses at which no other cluster can reach a gateway. Private ones are
// accepted: the networks between clusters may be private.
func UsableAddress(a netip.Addr) error {
	switch {
	case !a.Is4():
		return fmt.Errorf("%s is no IPv4 address", a)
	case a.IsUnspecified(), a.IsLoopback(), a.IsMulticast(), a.IsLinkLocalUnicast(), a.As4()[0] == 0, a.As4()[0] >= 240:
		return fmt.Errorf("%s is not the address of a host", a)
	}
	return nil
}

// ErrNoSource is the result of a look-up without sources.
var ErrNoSource = errors.New("no " + KeyPublicIP + " is set, and the Node has no ExternalIP: no public address is looked up")

// externalIP is the first usable ExternalIP of a node that is not its InternalIP as well.
func externalIP(n *corev1.Node) (netip.Addr, bool) {
	internal, _ := InternalIP(n)
	for _, a := range n.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if a.Type == corev1.NodeExternalIP && err == nil && ip != internal && UsableAddress(ip) == nil {
			return ip, true
		}
	}
	return netip.Addr{}, false
}

// GatewaySettingsOf returns the settings of this gateway: those of its node, else those of its
// cluster. refused are the invalid ones, as messages for an operator; never nil.
func GatewaySettingsOf(objs Objects) (settings GatewaySettings, refused []string) {
	node := OwnNode(objs)
	o, errs := parseSettings(objs.Name, node.Labels, node.Annotations)
	_, labelled := node.Labels[KeyPublicIP]
	_, annotated := node.Annotations[KeyPublicIP]
	c := objs.Config
	if c.AirGapped {
		o.PublicIP = slices.DeleteFunc(o.PublicIP, func(s PublicIPSource) bool {
			if s.Method != IPv4 {
				errs = append(errs, fmt.Errorf("leave out %q of node %s: the cluster has joined with --air-gapped: use ipv4:ADDRESS", s, objs.Name))
			}
			return s.Method != IPv4
		})
	}
	if c.LoadBalancer && len(o.PublicIP) == 0 {
		o.PublicIP = []PublicIPSource{{Method: LoadBalancer, Argument: config.LoadBalancerService}}
		if n := len(WantedGateways(objs)); n > 1 {
			errs = append(errs, fmt.Errorf("node %s is one of %d gateways behind the one load balancer %s, which spreads packets over all: "+
				"use one gateway, or give each its own by the annotation %s", objs.Name, n, config.LoadBalancerService, KeyPublicIP))
		}
	}
	if ip, ok := externalIP(node); ok && !labelled && !annotated && len(o.PublicIP) == 0 {
		o.PublicIP = []PublicIPSource{{Method: ExternalIP, Argument: ip.String()}}
	}
	o.PreferredServer = o.PreferredServer || c.PreferredServer || c.LoadBalancer
	if slices.ContainsFunc(o.PublicIP, func(s PublicIPSource) bool { return s.Argument == config.LoadBalancerService }) && o.UDPPort|o.DiscoveryPort != 0 {
		errs = append(errs, fmt.Errorf("leave out the ports of node %s: Service %s passes on those of `pelago join`: set them there", objs.Name, config.LoadBalancerService))
		o.UDPPort, o.DiscoveryPort = 0, 0
	}
	ports := func(first uint16) []uint16 {
		return append(cable.Ports(c.CableDriver, cable.Local{Listen: first, Tunnels: c.CableTunnels}), first)
	}
	if o.UDPPort != 0 && slices.Contains(ports(o.UDPPort), dataplane.OverlayPort) {
		errs = append(errs, fmt.Errorf("leave out %s of node %s: with %d the wire needs UDP port %d, which the overlay inside the cluster has: use another",
			KeyUDPPort, objs.Name, o.UDPPort, dataplane.OverlayPort))
		o.UDPPort = 0
	}
	if o.UDPPort == 0 {
		o.UDPPort = c.CablePort
	}
	others := append(ports(o.UDPPort), dataplane.OverlayPort)
	if slices.Contains(others, o.DiscoveryPort) {
		errs = append(errs, fmt.Errorf("leave out %s of node %s: UDP port %d is that of the cable or of the overlay: use another", KeyDiscoveryPort, objs.Name, o.DiscoveryPort))
		o.DiscoveryPort = 0
	}
	if o.DiscoveryPort == 0 {
		o.DiscoveryPort = c.DiscoveryPort
	}
	if o.DiscoveryPort == 0 {
		o.DiscoveryPort = natt.DefaultPort
	}
	refused = []string{}
	for _, err := range errs {
		refused = append(refused, err.Error())
	}
	return o, refused
}
