package netns

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// End describes one end of a veth pair.
type End struct {
	NS    *NS
	Name  string
	MTU   int            // 0 = the kernel's default, 1500
	Addrs []netip.Prefix // may be empty
	// LinkType is that of a TUN device (ARPHRD_…); 0: none.
	LinkType int
}

// Veth joins two namespaces with a veth pair, gives each end its addresses and sets both up. Each
// end has one queue per direction and processor, as a container runtime makes them.
func Veth(a, b End) error {
	if err := veth(a, b); err != nil {
		return fmt.Errorf("make veth %s/%s - %s/%s: %w", a.NS.Name, a.Name, b.NS.Name, b.Name, err)
	}
	return nil
}

func veth(a, b End) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = a.Name, a.MTU
	link := netlink.NewVeth(attrs)
	link.PeerName, link.PeerMTU, link.PeerNamespace = b.Name, uint32(b.MTU), netlink.NsFd(b.NS.FD())
	if err := a.NS.nl.LinkAdd(link); err != nil {
		return err
	}
	ends := []End{a, b}
	for _, e := range ends {
		if err := e.NS.up(e.Name); err != nil {
			return err
		}
	}
	for _, e := range ends {
		if err := e.NS.waitUp(e.Name); err != nil {
			return err
		}
		for _, p := range e.Addrs {
			if err := e.NS.AddAddr(e.Name, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// waitUp waits until the kernel has noticed the carrier of dev. Until then (the kernel works on it
// asynchronously) the device drops what is sent, and the first packet of a test would be repeated a
// second later.
func (n *NS) waitUp(dev string) error {
	for range 1000 {
		l, err := n.link(dev)
		if err != nil {
			return err
		}
		if l.Attrs().OperState == netlink.OperUp {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("device %s/%s has no carrier after a second", n.Name, dev)
}

// Index returns the interface index of dev inside the namespace.
func (n *NS) Index(dev string) (int, error) {
	l, err := n.link(dev)
	if err != nil {
		return 0, err
	}
	return l.Attrs().Index, nil
}

// MAC returns the hardware address of dev.
func (n *NS) MAC(dev string) (net.HardwareAddr, error) {
	l, err := n.link(dev)
	if err != nil {
		return nil, err
	}
	return l.Attrs().HardwareAddr, nil
}

// AddAddr gives dev the address p (host bits kept). IPv6 addresses skip duplicate address
// detection, so that they are usable at once.
func (n *NS) AddAddr(dev string, p netip.Prefix) error {
	l, err := n.link(dev)
	if err != nil {
		return err
	}
	a := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if err := n.nl.AddrAdd(l, a); err != nil {
		return fmt.Errorf("add address %s to %s/%s: %w", p, n.Name, dev, err)
	}
	return nil
}

// AddRoute routes dst through the next hop via on dev. A zero via makes it an on-link route; a via
// that no connected prefix covers is taken as on-link.
func (n *NS) AddRoute(dst netip.Prefix, via netip.Addr, dev string) error {
	l, err := n.link(dev)
	if err != nil {
		return err
	}
	r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(dst.Masked())}
	if via.IsValid() {
		r.Gw, r.Flags = via.AsSlice(), int(netlink.FLAG_ONLINK)
	} else {
		r.Scope = netlink.SCOPE_LINK
	}
	if err := n.nl.RouteReplace(r); err != nil {
		return fmt.Errorf("route %s via %s dev %s in %s: %w", dst, via, dev, n.Name, err)
	}
	return nil
}

func (n *NS) up(dev string) error {
	l, err := n.link(dev)
	if err != nil {
		return err
	}
	if err := n.nl.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s/%s up: %w", n.Name, dev, err)
	}
	return nil
}

func (n *NS) link(dev string) (netlink.Link, error) {
	l, err := n.nl.LinkByName(dev)
	if err != nil {
		return nil, fmt.Errorf("find device %s/%s: %w", n.Name, dev, err)
	}
	return l, nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
