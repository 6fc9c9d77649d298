package netdev

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane"
)

// Hops remembers how the node reaches outer addresses, until the kernel reports a change that may
// concern them: a look-up costs a netlink request for each node of the cluster. The zero value is
// ready. Methods are safe for concurrent use.
type Hops struct {
	mu    sync.Mutex
	known map[netip.Addr]way
	// asked are being looked up; stale are those of them that a change concerns.
	asked, stale map[netip.Addr]bool
}

// way is how an address is reached.
type way struct {
	hop dataplane.Hop
	// others are the devices of the other next hops of its route.
	others []uint32
}

// Resolve returns the next hops of the addresses, and forgets others. An address without a route is
// left out, and looked up again by the next call. others are the further devices by which an
// address with a multipath route is reached: the kernel may use any of them, and may choose another
// for packets in the opposite direction. There is one call at a time.
func (h *Hops) Resolve(addresses []netip.Addr) (hops map[netip.Addr]dataplane.Hop, others map[netip.Addr][]uint32) {
	h.mu.Lock()
	out := make(map[netip.Addr]way, len(addresses))
	h.asked, h.stale = map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, a := range addresses {
		if w, ok := h.known[a]; ok {
			out[a] = w
		} else {
			h.asked[a] = true
		}
	}
	asked := slices.Collect(maps.Keys(h.asked))
	h.mu.Unlock()
	found := map[netip.Addr]way{}
	if len(asked) > 0 {
		// Without a socket nothing is found, as without routes.
		if socket, err := netlink.NewHandle(unix.NETLINK_ROUTE); err == nil {
			for _, a := range asked {
				if w, err := lookUp(socket, a); err == nil {
					found[a] = w
				}
			}
			socket.Close()
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	remembered := make(map[netip.Addr]way, len(addresses))
	for a := range out {
		if w, ok := h.known[a]; ok { // not forgotten since
			remembered[a] = w
		}
	}
	for a, w := range found {
		if out[a] = w; !h.stale[a] {
			remembered[a] = w
		}
	}
	h.known, h.asked = remembered, nil
	hops, others = make(map[netip.Addr]dataplane.Hop, len(out)), map[netip.Addr][]uint32{}
	for a, w := range out {
		hops[a] = w.hop
		if len(w.others) > 0 {
			others[a] = w.others
		}
	}
	return hops, others
}

// lookUp looks up an address. For one without a multipath route the kernel's choice is the matching
// route itself, except for an address of this node.
func lookUp(socket *netlink.Handle, a netip.Addr) (w way, err error) {
	matching, err := socket.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err == nil && len(matching) == 0 {
		err = syscall.ENETUNREACH
	}
	if err != nil {
		return w, fmt.Errorf("find the way to %s: %w", a, err)
	}
	route := matching[0]
	if route.Type == unix.RTN_UNICAST && len(route.MultiPath) == 0 && route.Via == nil {
		return way{hop: hopOf(a, route)}, nil
	}
	if w.hop, err = resolve(socket, a); err != nil {
		return w, err
	}
	for _, n := range route.MultiPath {
		if other := uint32(n.LinkIndex); other != w.hop.Ifindex && !slices.Contains(w.others, other) {
			w.others = append(w.others, other)
		}
	}
	slices.Sort(w.others)
	return w, nil
}

// RouteChanged forgets the addresses that a route covers.
func (h *Hops) RouteChanged(r netlink.Route) {
	covers := func(a netip.Addr) bool { return r.Dst == nil || r.Dst.Contains(a.AsSlice()) }
	h.forget(covers, func(a netip.Addr, _ way) bool { return covers(a) })
}

// DeviceChanged forgets the addresses that are reached by a device.
func (h *Hops) DeviceChanged(ifindex int) {
	h.forget(func(netip.Addr) bool { return true }, func(_ netip.Addr, w way) bool {
		return w.hop.Ifindex == uint32(ifindex) || slices.Contains(w.others, uint32(ifindex))
	})
}

// Forget forgets all addresses.
func (h *Hops) Forget() {
	h.forget(func(netip.Addr) bool { return true }, func(netip.Addr, way) bool { return true })
}

// forget forgets what is known, or being looked up, and concerned.
func (h *Hops) forget(asked func(netip.Addr) bool, known func(netip.Addr, way) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for a := range h.asked {
		if asked(a) {
			h.stale[a] = true
		}
	}
	maps.DeleteFunc(h.known, known)
}
