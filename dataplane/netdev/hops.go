package netdev

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/pelago-net/pelago/dataplane"
)

// Hops remembers how the node reaches outer addresses, until the kernel reports a change that may
// concern them: a look-up costs a netlink request for each node of the cluster. The zero value is
// ready. Methods are safe for concurrent use.
type Hops struct {
	mu sync.Mutex
	// known is never changed, but replaced: callers of Resolve have it.
	known map[netip.Addr]dataplane.Hop
	// asked are being looked up; stale are those of them that a change concerns.
	asked, stale map[netip.Addr]bool
}

// Resolve returns the next hops of the addresses, and forgets others. An address without a route is
// left out, and looked up again by the next call. The map must not be changed. There is one call at
// a time.
func (h *Hops) Resolve(addresses []netip.Addr) map[netip.Addr]dataplane.Hop {
	h.mu.Lock()
	out := make(map[netip.Addr]dataplane.Hop, len(addresses))
	h.asked, h.stale = map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, a := range addresses {
		if hop, ok := h.known[a]; ok {
			out[a] = hop
		} else {
			h.asked[a] = true
		}
	}
	asked := slices.Collect(maps.Keys(h.asked))
	h.mu.Unlock()
	found := map[netip.Addr]dataplane.Hop{}
	for _, a := range asked {
		if hop, err := Resolve(a); err == nil {
			found[a] = hop
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	remembered := make(map[netip.Addr]dataplane.Hop, len(addresses))
	for a := range out {
		if hop, ok := h.known[a]; ok { // not forgotten since
			remembered[a] = hop
		}
	}
	for a, hop := range found {
		if out[a] = hop; !h.stale[a] {
			remembered[a] = hop
		}
	}
	h.known, h.asked = remembered, nil
	return out
}

// RouteChanged forgets the addresses that a route covers.
func (h *Hops) RouteChanged(r netlink.Route) {
	covers := func(a netip.Addr) bool { return r.Dst == nil || r.Dst.Contains(a.AsSlice()) }
	h.forget(covers, func(a netip.Addr, _ dataplane.Hop) bool { return covers(a) })
}

// DeviceChanged forgets the addresses that are reached by a device.
func (h *Hops) DeviceChanged(ifindex int) {
	h.forget(func(netip.Addr) bool { return true }, func(_ netip.Addr, hop dataplane.Hop) bool { return hop.Ifindex == uint32(ifindex) })
}

// Forget forgets all addresses.
func (h *Hops) Forget() {
	h.forget(func(netip.Addr) bool { return true }, func(netip.Addr, dataplane.Hop) bool { return true })
}

// forget forgets what is known, or being looked up, and concerned.
func (h *Hops) forget(asked func(netip.Addr) bool, known func(netip.Addr, dataplane.Hop) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for a := range h.asked {
		if asked(a) {
			h.stale[a] = true
		}
	}
	left := make(map[netip.Addr]dataplane.Hop, len(h.known))
	for a, hop := range h.known {
		if !known(a, hop) {
			left[a] = hop
		}
	}
	if len(left) < len(h.known) {
		h.known = left
	}
}
