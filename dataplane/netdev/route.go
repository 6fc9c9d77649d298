package netdev

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane"
)

// fallbackMetric is that of the unreachable routes: they take over when pelago0 is gone, so that
// nothing for a remote prefix leaves by the default route in the clear.
const fallbackMetric = 4096

// ensureRoutes routes every prefix into pelago0, with an unreachable route as fallback.
func ensureRoutes(ifindex int, c Config) error {
	wanted := map[string]netlink.Route{}
	for _, p := range c.Prefixes {
		into := netlink.Route{
			LinkIndex: ifindex, Dst: ipNet(p), Table: Table, Protocol: Protocol, Scope: netlink.SCOPE_LINK,
			Type: unix.RTN_UNICAST, Src: c.Source.AsSlice(), Family: netlink.FAMILY_V4,
			MTU: limit(c, p),
		}
		behind := netlink.Route{
			Dst: ipNet(p), Table: Table, Protocol: Protocol, Type: unix.RTN_UNREACHABLE, Priority: fallbackMetric,
			Family: netlink.FAMILY_V4,
		}
		wanted[routeKey(into)], wanted[routeKey(behind)] = into, behind
	}
	have, err := ourRoutes()
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range have {
		key := routeKey(r)
		if w, ok := wanted[key]; ok && r.LinkIndex == w.LinkIndex && net.IP.Equal(r.Src, w.Src) && r.MTU == w.MTU {
			delete(wanted, key)
		}
	}
	for _, r := range wanted {
		if err := netlink.RouteReplace(&r); err != nil {
			errs = append(errs, fmt.Errorf("route %s into %s: %w", r.Dst, Overlay, err))
		}
	}
	still := map[string]bool{}
	for _, p := range c.Prefixes {
		still[ipNet(p).String()] = true
	}
	for _, r := range have {
		if r.Dst == nil || !still[r.Dst.String()] {
			if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, syscall.ESRCH) {
				errs = append(errs, fmt.Errorf("remove the route of %s: %w", r.Dst, err))
			}
		}
	}
	return errors.Join(errs...)
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
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("remove the route of %s: %w", r.Dst, err))
		}
	}
	return errors.Join(errs...)
}

func ourRoutes() ([]netlink.Route, error) {
	routes, err := Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: Table, Protocol: Protocol},
			netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return nil, fmt.Errorf("list the routes of table %d: %w", Table, err)
	}
	return routes, nil
}

// rulesOf returns the rules that send packets to a routing table.
func rulesOf(table int) ([]netlink.Rule, error) {
	return Dump(func() ([]netlink.Rule, error) {
		return netlink.RuleListFiltered(netlink.FAMILY_V4, &netlink.Rule{Table: table}, netlink.RT_FILTER_TABLE)
	})
}

func routeKey(r netlink.Route) string { return fmt.Sprintf("%s metric %d", r.Dst, r.Priority) }

// ensureRule sends all packets to our table, before other tables: it holds only routes of remote
// prefixes, so packets for any other destination fall through to the next rule (ip-rule(8)). One
// rule costs each packet of the node the same, however many prefixes there are. Every other rule
// that leads to the table is removed: it comes from others, or from a version that had a rule for
// each prefix. Without a prefix there is no rule.
func ensureRule(wanted bool) error {
	have, err := rulesOf(Table)
	if err != nil {
		return fmt.Errorf("list the rules of table %d: %w", Table, err)
	}
	rule := netlink.NewRule()
	rule.Family, rule.Table, rule.Priority = netlink.FAMILY_V4, Table, RulePriority
	// To the kernel, any rule of this priority equals the one to add (fib4_rule_compare ignores
	// attributes that are not set).
	taken, there := false, false
	for _, r := range have {
		taken, there = taken || r.Priority == RulePriority, there || sameRule(r, *rule)
	}
	var errs []error
	add := func() {
		if err := netlink.RuleAdd(rule); err != nil {
			errs = append(errs, fmt.Errorf("add the rule of table %d: %w", Table, err))
		}
	}
	// before others go, so that no packet for a remote prefix leaves by the default route meanwhile
	if wanted && !taken {
		add()
	}
	for _, r := range have {
		if wanted && sameRule(r, *rule) {
			continue
		}
		if err := netlink.RuleDel(&r); err != nil {
			errs = append(errs, fmt.Errorf("remove rule %v: %w", r, err))
		}
	}
	if wanted && taken && !there {
		add()
	}
	return errors.Join(errs...)
}

// sameRule compares a rule as the kernel lists it with one to make: all but who made it, which it
// fills in.
func sameRule(listed, wanted netlink.Rule) bool {
	listed.Protocol, listed.Type = wanted.Protocol, wanted.Type
	return reflect.DeepEqual(listed, wanted)
}

// Resolve reports how the node reaches an outer address: by which uplink and next hop.
func Resolve(a netip.Addr) (dataplane.Hop, error) {
	routes, err := netlink.RouteGet(a.AsSlice())
	if err != nil {
		return dataplane.Hop{}, fmt.Errorf("find the way to %s: %w", a, err)
	}
	r := routes[0]
	hop := dataplane.Hop{Address: a, Next: a, Ifindex: uint32(r.LinkIndex)}
	if gw, ok := netip.AddrFromSlice(r.Gw); ok {
		hop.Next = gw.Unmap()
	}
	return hop, nil
}

// UplinkMTU is the MTU of a device.
func UplinkMTU(ifindex uint32) (int, error) {
	link, err := netlink.LinkByIndex(int(ifindex))
	if err != nil {
		return 0, fmt.Errorf("look up device %d: %w", ifindex, err)
	}
	return link.Attrs().MTU, nil
}

// LocalAddresses returns the IPv4 addresses of the node except loopback ones; those on our own
// devices are included.
func LocalAddresses() ([]netip.Addr, error) {
	addrs, err := Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var out []netip.Addr
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP.To4()); ok && !ip.IsLoopback() {
			out = append(out, ip)
		}
	}
	return out, nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}
}
