package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

const (
	maxClusters = 100
	maxNodes    = 100

	hubName    = "hub"
	routerName = "router"

	hubServiceCIDR = "10.96.0.0/12"
)

// Plan is every name and address of a lab: a pure function of its options.
type Plan struct {
	Name     string       `json:"name"`
	Underlay netip.Prefix `json:"underlay"`
	Host     HostLink     `json:"host"`
	// Clusters holds g1, g2, … and, last, the hub if there is one.
	Clusters []Cluster `json:"clusters"`
}

// HostLink is the veth pair between the host's network namespace and the router.
type HostLink struct {
	Device string       `json:"device"` // the host's end
	Subnet netip.Prefix `json:"subnet"`
	Host   netip.Addr   `json:"host"`
	Router netip.Addr   `json:"router"`
}

// Cluster is one control plane with its nodes; the hub has none.
type Cluster struct {
	Name         string       `json:"name"`
	Hub          bool         `json:"hub,omitempty"`
	Subnet       netip.Prefix `json:"subnet"` // of its switch
	Router       netip.Addr   `json:"router"`
	ControlPlane netip.Addr   `json:"controlPlane"`
	PodCIDR      netip.Prefix `json:"podCIDR"` // zero for the hub
	ServiceCIDR  netip.Prefix `json:"serviceCIDR"`
	Kubernetes   netip.Addr   `json:"kubernetes"` // service IP of the API server
	DNS          netip.Addr   `json:"dns"`        // service IP of kube-dns
	Nodes        []Node       `json:"nodes,omitempty"`
}

// Node is one machine of a cluster.
type Node struct {
	Name    string       `json:"name"`
	Cluster string       `json:"cluster"`
	Index   int          `json:"index"` // from 1
	Address netip.Addr   `json:"address"`
	PodCIDR netip.Prefix `json:"podCIDR"`
	Gateway bool         `json:"gateway,omitempty"` // labelled as one by the lab
}

// hostDevice is the name of the host's end of its cable to a lab's router.
func hostDevice(lab string) string { return "lab-" + lab }

// Namespace returns the name of a network namespace of the lab, as "ip netns"
// shows it. Member is "router", a cluster (its control plane) or a node.
func (p Plan) Namespace(member string) string { return p.Name + "-" + member }

// switchNamespace is the namespace of a cluster's bridge.
func (p Plan) switchNamespace(cluster string) string { return p.Name + "-" + cluster + "-switch" }

// namespaces lists all of them in the order in which they are made.
func (p Plan) namespaces() []string {
	all := []string{p.Namespace(routerName)}
	for _, c := range p.Clusters {
		all = append(all, p.switchNamespace(c.Name), p.Namespace(c.Name))
		for _, n := range c.Nodes {
			all = append(all, p.Namespace(n.Name))
		}
	}
	return all
}

// Cluster finds a cluster or the hub by name.
func (p Plan) Cluster(name string) (Cluster, error) {
	for _, c := range p.Clusters {
		if c.Name == name {
			return c, nil
		}
	}
	return Cluster{}, fmt.Errorf("lab %s has no cluster %q (pelago-lab status lists them)", p.Name, name)
}

// Node finds a node by name.
func (p Plan) Node(name string) (Node, error) {
	for _, c := range p.Clusters {
		for _, n := range c.Nodes {
			if n.Name == name {
				return n, nil
			}
		}
	}
	return Node{}, fmt.Errorf("lab %s has no node %q (pelago-lab status lists them)", p.Name, name)
}

// URL is the address of the cluster's API server.
func (c Cluster) URL() string { return fmt.Sprintf("https://%s:6443", c.ControlPlane) }

// newPlan lays out a lab; o is complete (also the underlay) and valid.
//
// Underlay, cut into /24: the first is the host link, number i belongs to
// cluster g<i> (.1 router, .2 control plane, .11 … nodes), the last to the hub.
func newPlan(o Options) (Plan, error) {
	u := o.Underlay
	if !u.IsValid() || !u.Addr().Is4() || u.Masked() != u || u.Bits() < 16 || u.Bits() > 20 {
		return Plan{}, fmt.Errorf("underlay: %s is not an IPv4 prefix of /16 to /20 without host bits", u)
	}
	subnets := 1 << (24 - u.Bits())
	if o.Clusters > subnets-2 {
		return Plan{}, fmt.Errorf("underlay: %s has room for %d clusters, not %d", u, subnets-2, o.Clusters)
	}
	host := subnet(u, 24, 0)
	p := Plan{Name: o.Name, Underlay: u, Host: HostLink{
		Device: hostDevice(o.Name), Subnet: host, Router: address(host, 1), Host: address(host, 2)}}
	for i := 1; i <= o.Clusters; i++ {
		c, err := planCluster(o, i)
		if err != nil {
			return Plan{}, err
		}
		p.Clusters = append(p.Clusters, c)
	}
	if !o.NoHub {
		c := Cluster{Name: hubName, Hub: true, ServiceCIDR: netip.MustParsePrefix(hubServiceCIDR)}
		c.place(subnet(u, 24, subnets-1))
		p.Clusters = append(p.Clusters, c)
	}
	return p, p.check()
}

func planCluster(o Options, i int) (Cluster, error) {
	pods, err := cidrOf(o, i, "pod-cidr", o.PodCIDRs, "10.7.0.0/16", "10.8.0.0/16", 1)
	if err != nil {
		return Cluster{}, err
	}
	services, err := cidrOf(o, i, "service-cidr", o.ServiceCIDRs, "10.77.0.0/16", "10.88.0.0/16", 11)
	if err != nil {
		return Cluster{}, err
	}
	if services.Bits() > 26 {
		return Cluster{}, fmt.Errorf("service-cidr: %s is smaller than /26", services)
	}
	c := Cluster{Name: fmt.Sprintf("g%d", i), PodCIDR: pods, ServiceCIDR: services}
	c.place(subnet(o.Underlay, 24, i))
	bits := nodeBits(pods)
	if room := 1<<(bits-pods.Bits()) - 1; o.Nodes > room || bits > 28 {
		return Cluster{}, fmt.Errorf("pod-cidr: %s has no room for %d nodes of /28 or larger", pods, o.Nodes)
	}
	for n := 1; n <= o.Nodes; n++ {
		c.Nodes = append(c.Nodes, Node{
			Name: fmt.Sprintf("%s-n%d", c.Name, n), Cluster: c.Name, Index: n,
			Address: address(c.Subnet, 10+n), PodCIDR: subnet(pods, bits, n), Gateway: n <= o.Gateways})
	}
	return c, nil
}

// place fills in what follows from the underlay subnet and the service CIDR.
func (c *Cluster) place(underlay netip.Prefix) {
	c.Subnet, c.Router, c.ControlPlane = underlay, address(underlay, 1), address(underlay, 2)
	c.Kubernetes, c.DNS = address(c.ServiceCIDR, 1), address(c.ServiceCIDR, 10)
}

// nodeBits is the length of the prefix of one node's pods: /24, longer if the
// pod CIDR is small.
func nodeBits(pods netip.Prefix) int { return max(24, pods.Bits()+7) }

// cidrOf chooses a CIDR of cluster i. Consecutive defaults grow by step, as the
// walk-throughs' numbers do (pods 10.8, 10.9; services 10.88, 10.99).
func cidrOf(o Options, i int, option string, given []netip.Prefix, overlapping, consecutive string, step int) (netip.Prefix, error) {
	switch {
	case len(given) > 1:
		return given[i-1], nil
	case len(given) == 1 && (o.Addressing == Overlapping || i == 1):
		return given[0], nil
	case len(given) == 1:
		return following(given[0], i-1, option)
	case o.Addressing == Overlapping:
		return netip.ParsePrefix(overlapping)
	}
	return following(netip.MustParsePrefix(consecutive), (i-1)*step, option)
}

// following returns the n-th prefix of p's size after p. It must stay within
// p's first octet, so that a long row of clusters does not wander into
// unintended addresses.
func following(p netip.Prefix, n int, option string) (netip.Prefix, error) {
	next := uint64(number(p.Addr())) + uint64(n)<<(32-p.Bits())
	q := netip.PrefixFrom(addr(uint32(next)), p.Bits())
	if next > 0xffffffff || q.Addr().As4()[0] != p.Addr().As4()[0] {
		return netip.Prefix{}, fmt.Errorf("%s: no room for %d consecutive prefixes from %s on; give one per cluster or use --overlapping", option, n+1, p)
	}
	return q, nil
}

// check refuses prefixes that collide within one cluster, or with the underlay.
func (p Plan) check() error {
	var errs []error
	for _, c := range p.Clusters {
		parts := []struct {
			name   string
			prefix netip.Prefix
		}{{"underlay", p.Underlay}, {"service CIDR", c.ServiceCIDR}, {"pod CIDR", c.PodCIDR}}
		for i, a := range parts {
			for _, b := range parts[i+1:] {
				if a.prefix.IsValid() && b.prefix.IsValid() && a.prefix.Overlaps(b.prefix) {
					errs = append(errs, fmt.Errorf("%s: %s %s overlaps %s %s", c.Name, b.name, b.prefix, a.name, a.prefix))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// subnet returns the n-th prefix of the given length inside p.
func subnet(p netip.Prefix, bits, n int) netip.Prefix {
	return netip.PrefixFrom(addr(number(p.Addr())+uint32(n)<<(32-bits)), bits)
}

// address returns the n-th address of p.
func address(p netip.Prefix, n int) netip.Addr { return addr(number(p.Addr()) + uint32(n)) }

func number(a netip.Addr) uint32 { b := a.As4(); return binary.BigEndian.Uint32(b[:]) }

func addr(n uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	return netip.AddrFrom4(b)
}
