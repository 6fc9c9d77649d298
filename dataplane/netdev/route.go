package netdev

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane"
)

// kernelProtocol is who made our rule and routes, as the kernel lists it: systemd-networkd removes
// what others have made unless it has this value (ManageForeignRoutingPolicyRules= and
// ManageForeignRoutes= in networkd.conf(5)).
const kernelProtocol = unix.RTPROT_KERNEL

// fallbackMetric is that of the unreachable routes behind those into pelago0. They take over when
// pelago0 is gone, and, outside of our table, when the rule that leads to it is: nothing for a
// remote prefix leaves by the default route in the clear. In other tables it also tells which routes
// are ours.
const fallbackMetric = 4800

// ensureRoutes routes every prefix into pelago0, with an unreachable route as fallback there and in
// each of the other tables. missing: some were not there.
func ensureRoutes(ifindex int, c Config, tables []int) (missing bool, err error) {
	wanted := map[string]netlink.Route{}
	for _, p := range c.Prefixes {
		into := netlink.Route{
			LinkIndex: ifindex, Dst: ipNet(p), Table: Table, Protocol: kernelProtocol, Scope: netlink.SCOPE_LINK,
			Type: unix.RTN_UNICAST, Src: c.Source.AsSlice(), Family: netlink.FAMILY_V4,
			MTU: limit(c, p),
		}
		wanted[routeKey(into)] = into
		for _, table := range append([]int{Table}, tables...) {
			behind := netlink.Route{
				Dst: ipNet(p), Table: table, Protocol: kernelProtocol, Type: unix.RTN_UNREACHABLE, Priority: fallbackMetric,
				Family: netlink.FAMILY_V4,
			}
			wanted[routeKey(behind)] = behind
		}
	}
	have, err := ourRoutes()
	if err != nil {
		return false, err
	}
	listed := map[string][]netlink.Route{}
	for _, r := range have {
		listed[routeKey(r)] = append(listed[routeKey(r)], r)
	}
	var errs []error
	for key, r := range wanted {
		if !slices.ContainsFunc(listed[key], func(h netlink.Route) bool { return sameRoute(h, r) }) {
			missing = missing || r.Table == Table || r.Table == unix.RT_TABLE_MAIN // not for a new table
			if err := netlink.RouteReplace(&r); err != nil {
				errs = append(errs, fmt.Errorf("route %s: %w", key, err))
			}
		}
	}
	for key, routes := range listed {
		if _, ok := wanted[key]; ok {
			continue
		}
		for _, r := range routes {
			errs = append(errs, removeRoute(r))
		}
	}
	return missing, errors.Join(errs...)
}

// sameRoute compares a route as the kernel lists it with one to make that has the same key.
func sameRoute(listed, wanted netlink.Route) bool {
	return listed.Protocol == wanted.Protocol && listed.LinkIndex == wanted.LinkIndex &&
		net.IP.Equal(listed.Src, wanted.Src) && listed.MTU == wanted.MTU
}

// limit is the MTU of a prefix's route, 0 if it is that of the device. The kernel keeps to it for
// its own packets and for those that it forwards, which it answers with "fragmentation needed"
// (ip_dst_mtu_maybe_forward).
func limit(c Config, p netip.Prefix) int {
	if mtu := c.Limits[p]; mtu < c.MTU {
		return mtu
	}
	return 0
}

func removeRoutes() error {
	have, err := ourRoutes()
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range have {
		errs = append(errs, removeRoute(r))
	}
	return errors.Join(errs...)
}

func removeRoute(r netlink.Route) error {
	if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("remove the route of %s: %w", routeKey(r), err)
	}
	return nil
}

// ourRoutes are those of our table, and the unreachable ones in others. The kernel selects them: in
// IPVS mode the local table has a route for each ClusterIP, with BGP the main one for each block of
// pods.
func ourRoutes() ([]netlink.Route, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("list the routes: %w", err)
	}
	defer h.Close()
	if err := h.SetStrictCheck(true); err != nil {
		return nil, fmt.Errorf("list the routes: %w", err)
	}
	var out []netlink.Route
	for _, filter := range []netlink.Route{{Table: Table}, {Table: unix.RT_TABLE_UNSPEC, Type: unix.RTN_UNREACHABLE}} {
		mask := netlink.RT_FILTER_TABLE
		if filter.Type != 0 {
			mask |= netlink.RT_FILTER_TYPE
		}
		routes, err := Dump(func() ([]netlink.Route, error) { return h.RouteListFiltered(netlink.FAMILY_V4, &filter, mask) })
		if err != nil && !errors.Is(err, syscall.ENOENT) { // the table has no route yet
			return nil, fmt.Errorf("list the routes: %w", err)
		}
		for _, r := range routes {
			if OurRoute(r) && (r.Table != Table || filter.Table == Table) { // once
				out = append(out, r)
			}
		}
	}
	return out, nil
}

// OurRoute reports whether Ensure has made the route.
func OurRoute(r netlink.Route) bool {
	return r.Dst != nil && (r.Table == Table ||
		r.Type == unix.RTN_UNREACHABLE && r.Priority == fallbackMetric && r.Protocol == kernelProtocol)
}

func routeKey(r netlink.Route) string {
	return fmt.Sprintf("%s table %d metric %d", r.Dst, r.Table, r.Priority)
}

// Resolve reports how the node reaches an outer address: by which uplink and next hop.
func Resolve(a netip.Addr) (dataplane.Hop, error) {
	return resolve(&netlink.Handle{}, a)
}

func resolve(socket *netlink.Handle, a netip.Addr) (dataplane.Hop, error) {
	routes, err := socket.RouteGet(a.AsSlice())
	if err != nil {
		return dataplane.Hop{}, fmt.Errorf("find the way to %s: %w", a, err)
	}
	return hopOf(a, routes[0]), nil
}

func hopOf(a netip.Addr, r netlink.Route) dataplane.Hop {
	hop := dataplane.Hop{Address: a, Next: a, Ifindex: uint32(r.LinkIndex)}
	if gw, ok := netip.AddrFromSlice(r.Gw); ok {
		hop.Next = gw.Unmap()
	}
	return hop
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}
}
