package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Device names. A cluster's switch has one port per machine: "cp" and, for
// node i, "n<i>"; "uplink" leads to the router, whose ports have the clusters'
// names and "host".
const (
	bridgeDevice = "br0"
	uplinkPort   = "uplink"
	planePort    = "cp"
	machineLink  = "eth0" // the machine's end of its cable
	hostPort     = "host"
)

// port is the name of the node's port on its cluster's switch.
func (n Node) port() string { return fmt.Sprintf("n%d", n.Index) }

// netspace is an open network namespace with a netlink socket in it.
type netspace struct {
	*netlink.Handle
	ns   netns.NsHandle
	name string
}

func openNetspace(name string) (*netspace, error) {
	ns, err := netns.GetFromName(name)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", name, err)
	}
	handle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		ns.Close()
		return nil, fmt.Errorf("open netlink in %s: %w", name, err)
	}
	return &netspace{Handle: handle, ns: ns, name: name}, nil
}

func (s *netspace) close() {
	s.Handle.Close()
	s.ns.Close()
}

// ensureNetwork makes the router, the host link and the switches of all
// clusters with their control planes' cables. Nodes are cabled by ensureNodeNetwork.
func (l *Lab) ensureNetwork() error {
	plan := l.record.Plan
	router := plan.Namespace(routerName)
	if err := ensureNamespace(router, map[string]string{"ipv4/ip_forward": "1"}); err != nil {
		return err
	}
	if err := l.ensureHostLink(); err != nil {
		return err
	}
	for _, c := range plan.Clusters {
		if err := l.ensureClusterNetwork(c); err != nil {
			return fmt.Errorf("network of %s: %w", c.Name, err)
		}
	}
	return nil
}

// ensureHostLink joins the host's namespace to the router, so that kubectl and
// the CLI reach every API server from the host.
func (l *Lab) ensureHostLink() error {
	plan := l.record.Plan
	router, err := openNetspace(plan.Namespace(routerName))
	if err != nil {
		return err
	}
	defer router.close()
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer host.Close()
	if err := ensureCable(host, plan.Host.Device, router, hostPort); err != nil {
		return err
	}
	if err := configure(router.Handle, hostPort, netip.PrefixFrom(plan.Host.Router, plan.Host.Subnet.Bits())); err != nil {
		return err
	}
	if err := configure(host, plan.Host.Device, netip.PrefixFrom(plan.Host.Host, plan.Host.Subnet.Bits())); err != nil {
		return err
	}
	if err := route(host, plan.Underlay, plan.Host.Router); err != nil {
		return err
	}
	// Destinations outside of the lab are rejected at once, so that clients do not time out.
	nowhere := &netlink.Route{Dst: ipNet(netip.MustParsePrefix("0.0.0.0/0")), Type: unix.RTN_UNREACHABLE}
	if err := router.RouteReplace(nowhere); err != nil {
		return fmt.Errorf("refuse foreign destinations in the router: %w", err)
	}
	return nil
}

func (l *Lab) ensureClusterNetwork(c Cluster) error {
	plan := l.record.Plan
	// A switch does not filter what it carries.
	plain := map[string]string{"bridge/bridge-nf-call-iptables": "0", "bridge/bridge-nf-call-ip6tables": "0", "bridge/bridge-nf-call-arptables": "0"}
	if err := ensureNamespace(plan.switchNamespace(c.Name), plain); err != nil {
		return bridgeHint(err)
	}
	if err := ensureNamespace(plan.Namespace(c.Name), nil); err != nil {
		return err
	}
	sw, err := openNetspace(plan.switchNamespace(c.Name))
	if err != nil {
		return err
	}
	defer sw.close()
	if err := ensureBridge(sw); err != nil {
		return err
	}
	router, err := openNetspace(plan.Namespace(routerName))
	if err != nil {
		return err
	}
	defer router.close()
	if err := ensurePort(sw, uplinkPort, router, c.Name); err != nil {
		return err
	}
	if err := configure(router.Handle, c.Name, netip.PrefixFrom(c.Router, c.Subnet.Bits())); err != nil {
		return err
	}
	cp, err := openNetspace(plan.Namespace(c.Name))
	if err != nil {
		return err
	}
	defer cp.close()
	if err := ensurePort(sw, planePort, cp, machineLink); err != nil {
		return err
	}
	if err := configure(cp.Handle, machineLink, netip.PrefixFrom(c.ControlPlane, c.Subnet.Bits())); err != nil {
		return err
	}
	if err := route(cp.Handle, netip.MustParsePrefix("0.0.0.0/0"), c.Router); err != nil {
		return err
	}
	for _, n := range c.Nodes { // the API server calls webhooks and aggregated servers in pods
		if err := route(cp.Handle, n.PodCIDR, n.Address); err != nil {
			return err
		}
	}
	return nil
}

// bridgeHint explains why the bridge sysctls are missing.
func bridgeHint(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w (the kernel module br_netfilter is needed: modprobe br_netfilter)", err)
	}
	return err
}

// ensureNodeNetwork makes the node's namespace and plugs it into its switch.
func (l *Lab) ensureNodeNetwork(c Cluster, n Node) error {
	plan := l.record.Plan
	sysctls := map[string]string{
		"ipv4/ip_forward": "1",
		// Traffic between pods of one node crosses the bridge of the CNI; without
		// this, kube-proxy's translation would not see its replies.
		"bridge/bridge-nf-call-iptables": "1",
	}
	if err := ensureNamespace(plan.Namespace(n.Name), sysctls); err != nil {
		return bridgeHint(err)
	}
	sw, err := openNetspace(plan.switchNamespace(c.Name))
	if err != nil {
		return err
	}
	defer sw.close()
	node, err := openNetspace(plan.Namespace(n.Name))
	if err != nil {
		return err
	}
	defer node.close()
	if err := ensurePort(sw, n.port(), node, machineLink); err != nil {
		return err
	}
	if err := configure(node.Handle, machineLink, netip.PrefixFrom(n.Address, c.Subnet.Bits())); err != nil {
		return err
	}
	if err := route(node.Handle, netip.MustParsePrefix("0.0.0.0/0"), c.Router); err != nil {
		return err
	}
	for _, other := range c.Nodes {
		if other.Name == n.Name || l.network().ownRoutes {
			continue
		}
		if err := route(node.Handle, other.PodCIDR, other.Address); err != nil {
			return err
		}
	}
	return nil
}

func ensureBridge(sw *netspace) error {
	if _, err := sw.LinkByName(bridgeDevice); err == nil {
		return nil
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeDevice}}
	if err := sw.LinkAdd(bridge); err != nil {
		return fmt.Errorf("make bridge %s in %s: %w", bridgeDevice, sw.name, err)
	}
	if err := sw.LinkSetUp(bridge); err != nil {
		return fmt.Errorf("bring up bridge %s in %s: %w", bridgeDevice, sw.name, err)
	}
	return nil
}

// ensurePort runs a cable from a new port of the switch to device far in the
// namespace peer. A port that exists is left as it is: it may be cut on purpose.
func ensurePort(sw *netspace, name string, peer *netspace, far string) error {
	if _, err := sw.LinkByName(name); err == nil {
		return nil
	}
	if err := ensureCable(sw.Handle, name, peer, far); err != nil {
		return err
	}
	return connectPort(sw, name)
}

// connectPort puts a port into its switch's bridge and brings it up.
func connectPort(sw *netspace, name string) error {
	port, err := sw.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find port %s of %s: %w", name, sw.name, err)
	}
	bridge, err := sw.LinkByName(bridgeDevice)
	if err != nil {
		return fmt.Errorf("find bridge %s of %s: %w", bridgeDevice, sw.name, err)
	}
	if err := sw.LinkSetMaster(port, bridge); err != nil {
		return fmt.Errorf("connect port %s of %s: %w", name, sw.name, err)
	}
	if err := sw.LinkSetUp(port); err != nil {
		return fmt.Errorf("bring up port %s of %s: %w", name, sw.name, err)
	}
	return nil
}

// ensureCable makes a veth pair from near (through handle) to far in peer.
func ensureCable(handle *netlink.Handle, near string, peer *netspace, far string) error {
	if _, err := handle.LinkByName(near); err == nil {
		return nil
	}
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: near})
	veth.PeerName, veth.PeerNamespace = far, netlink.NsFd(int(peer.ns))
	if err := handle.LinkAdd(veth); err != nil {
		return fmt.Errorf("make a veth pair from %s to %s in %s: %w", near, far, peer.name, err)
	}
	return nil
}

// configure gives a device its address and brings it up.
func configure(handle *netlink.Handle, device string, prefix netip.Prefix) error {
	link, err := handle.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find %s: %w", device, err)
	}
	ip := &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), 32)}
	if err := handle.AddrReplace(link, &netlink.Addr{IPNet: ip}); err != nil {
		return fmt.Errorf("give %s the address %s: %w", device, prefix, err)
	}
	if err := handle.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up %s: %w", device, err)
	}
	return nil
}

func route(handle *netlink.Handle, dst netip.Prefix, via netip.Addr) error {
	if err := handle.RouteReplace(&netlink.Route{Dst: ipNet(dst), Gw: via.AsSlice()}); err != nil {
		return fmt.Errorf("route %s via %s: %w", dst, via, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// hostPrefixes lists what the host's main table routes, without its default
// route and without device except.
func hostPrefixes(except string) ([]netip.Prefix, error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list the host's routes: %w", err)
	}
	own := -1
	if link, err := netlink.LinkByName(except); err == nil {
		own = link.Attrs().Index
	}
	var prefixes []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil || r.LinkIndex == own {
			continue
		}
		ip, ok := netip.AddrFromSlice(r.Dst.IP.To4())
		ones, _ := r.Dst.Mask.Size()
		if ok && ones > 0 {
			prefixes = append(prefixes, netip.PrefixFrom(ip, ones))
		}
	}
	return prefixes, nil
}

// chooseUnderlay returns the wanted prefix if the host does not use it, or the
// first free default if none is wanted.
func chooseUnderlay(wanted netip.Prefix, used []netip.Prefix) (netip.Prefix, error) {
	free := func(p netip.Prefix) error {
		for _, u := range used {
			if p.Overlaps(u) {
				return fmt.Errorf("underlay: the host already has a route to %s, which overlaps %s", u, p)
			}
		}
		return nil
	}
	if wanted.IsValid() {
		return wanted, free(wanted)
	}
	for octet := byte(31); octet >= 20; octet-- {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{172, octet, 0, 0}), 16)
		if free(p) == nil {
			return p, nil
		}
	}
	return netip.Prefix{}, errors.New("underlay: the host uses all of 172.20.0.0/16 to 172.31.0.0/16: give a free prefix with --underlay")
}

// requireRoot refuses to go on without root.
func requireRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("a lab makes network namespaces and mounts: run as root (sudo)")
	}
	return nil
}
