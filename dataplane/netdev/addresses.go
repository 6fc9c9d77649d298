package netdev

import (
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// kindDummy is the kind of kube-ipvs0, to which kube-proxy in IPVS mode binds every ClusterIP, and
// of similar devices of name servers and load balancers.
const (
	kindDummy = "dummy"
	kubeIPVS  = "kube-ipvs0"
)

// Addresses remembers the IPv4 addresses of the node until the kernel reports a change that may
// concern them. Those of dummy devices are left out, unless the device has the address by which
// others know the node, or a route has the address as source. The zero value is ready. Methods are
// safe for concurrent use.
type Addresses struct {
	mu sync.Mutex
	// known is the result of the last Read; nil: none, or it is stale.
	known *nodeAddresses
	// own is that of the last Read.
	own netip.Addr
	// changes counts them: what was read before one is not remembered.
	changes int
	// kinds are those of devices with addresses, by interface index.
	kinds map[int]deviceKind
}

type nodeAddresses struct {
	all     []netip.Addr
	devices []uint32
	// dummies have the node's own address.
	dummies map[int]bool
}

type deviceKind struct{ dummy, loopback bool }

// Read returns the addresses of the node except loopback ones; those on our own devices are
// included. own is the one by which others know the node; devices are those that have it and may
// receive packets for it: neither dummies nor lo. The slices must not be changed.
func (d *Addresses) Read(own netip.Addr) (all []netip.Addr, devices []uint32, err error) {
	d.mu.Lock()
	if d.known != nil && d.own == own {
		defer d.mu.Unlock()
		return d.known.all, d.known.devices, nil
	}
	d.own, d.known = own, nil
	changes := d.changes
	d.mu.Unlock()
	v, err := d.read(own)
	if err != nil {
		return nil, nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.changes == changes {
		d.known = &v
	}
	return v.all, v.devices, nil
}

func (d *Addresses) read(own netip.Addr) (nodeAddresses, error) {
	v := nodeAddresses{dummies: map[int]bool{}}
	listed, err := Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return v, fmt.Errorf("list addresses: %w", err)
	}
	ofDummies := map[int][]netip.Addr{}
	for _, a := range listed {
		ip, ok := netip.AddrFromSlice(a.IP.To4())
		if !ok || ip.IsLoopback() {
			continue
		}
		kind := d.kind(a.LinkIndex)
		if kind.dummy {
			ofDummies[a.LinkIndex] = append(ofDummies[a.LinkIndex], ip)
		} else {
			v.all = append(v.all, ip)
		}
		if ip == own && kind.dummy {
			v.dummies[a.LinkIndex] = true
		} else if ip == own && !kind.loopback {
			v.devices = append(v.devices, uint32(a.LinkIndex))
		}
	}
	candidates := map[netip.Addr]bool{}
	for ifindex, ips := range ofDummies {
		if v.dummies[ifindex] {
			v.all = append(v.all, ips...)
			continue
		}
		for _, ip := range ips {
			candidates[ip] = true
		}
	}
	if len(candidates) == 0 {
		return v, nil
	}
	// RouteList lists the main table.
	routes, err := Dump(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return v, fmt.Errorf("list the routes: %w", err)
	}
	for _, r := range routes {
		if ip, ok := netip.AddrFromSlice(r.Src.To4()); ok && candidates[ip] {
			v.all = append(v.all, ip)
			delete(candidates, ip)
		}
	}
	return v, nil
}

// kind looks up a device, once until it changes.
func (d *Addresses) kind(ifindex int) deviceKind {
	d.mu.Lock()
	kind, ok := d.kinds[ifindex]
	changes := d.changes
	d.mu.Unlock()
	if ok {
		return kind
	}
	link, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return kind // the device was removed, with its addresses
	}
	kind = kindOf(link)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.kinds == nil {
		d.kinds = map[int]deviceKind{}
	}
	if d.changes == changes {
		d.kinds[ifindex] = kind
	}
	return kind
}

func kindOf(link netlink.Link) deviceKind {
	a := link.Attrs()
	return deviceKind{dummy: link.Type() == kindDummy || a.Name == kubeIPVS, loopback: a.Flags&net.FlagLoopback != 0}
}

// AddressChanged forgets what an address event concerns, and reports whether it concerns anything:
// one of a dummy device does not.
func (d *Addresses) AddressChanged(u netlink.AddrUpdate) bool {
	dummy := d.kind(u.LinkIndex).dummy
	ip, _ := netip.AddrFromSlice(u.LinkAddress.IP.To4()) // IPv6: not valid, equal to no own address
	d.mu.Lock()
	defer d.mu.Unlock()
	if dummy && ip != d.own && (d.known == nil || !d.known.dummies[u.LinkIndex]) {
		return false
	}
	d.forget()
	return true
}

// RouteChanged forgets the addresses if a route has a source, and reports whether it is more than
// the local route of an address on a dummy device, which the kernel adds with the address.
func (d *Addresses) RouteChanged(r netlink.Route) bool {
	if r.Table == unix.RT_TABLE_LOCAL {
		return !d.kind(r.LinkIndex).dummy
	}
	if r.Src != nil && !OurRoute(r) {
		d.Forget()
	}
	return true
}

// DeviceChanged forgets the kind of a device, and the addresses.
func (d *Addresses) DeviceChanged(ifindex int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.kinds, ifindex)
	d.forget()
}

// Forget forgets all addresses and devices.
func (d *Addresses) Forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.kinds)
	d.forget()
}

func (d *Addresses) forget() {
	d.known = nil
	d.changes++
}
