//go:build linux

package cable

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane/netdev"
)

// linkAttrs are those of a new device: TxQLen -1 is the kernel's default.
func linkAttrs(name string) netlink.LinkAttrs { return netlink.LinkAttrs{Name: name, TxQLen: -1} }

// ensureLink makes a device, or adopts the one of that name if matches reports that it is the same.
func ensureLink(want netlink.Link, matches func(netlink.Link) bool) error {
	name := want.Attrs().Name
	link, err := netdev.FindLink(name)
	switch {
	case err != nil:
		return err
	case link == nil:
		if err := netlink.LinkAdd(want); err != nil {
			return fmt.Errorf("make device %s: %w", name, err)
		}
	case !matches(link):
		return fmt.Errorf("make device %s: a device of that name and of type %s exists: does another gateway daemon run? else `ip link del %s`",
			name, link.Type(), name)
	}
	return nil
}

// RemoveDevices deletes the devices, SAs and policies of all wires but one from the kernel, also
// those of other processes: what remains on a node when its daemon changes the wire or is
// uninstalled. but is a driver; "": all are removed.
func RemoveDevices(but string) error {
	links, err := netdev.Dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list the devices: %w", err)
	}
	var errs []error
	for _, l := range links {
		name := l.Attrs().Name
		for driver, prefix := range map[string]string{WireGuardDriver: wireGuardPrefix, IPsecDriver: ipsecPrefix} {
			number, ok := strings.CutPrefix(name, prefix)
			if _, err := strconv.Atoi(number); ok && err == nil && driver != but {
				errs = append(errs, netdev.RemoveLink(name))
			}
		}
	}
	if but != IPsecDriver {
		errs = append(errs, removeSAs())
	}
	return errors.Join(errs...)
}

// configureTunnel sets up the device of a tunnel; that of tunnel 0 has the fabric address. Packets
// from it are decrypted and checked against the peer's fabric address, and may come before the
// route of the peer leads to the device (ensureRoutes): hence no rp_filter.
func configureTunnel(name string, tunnel int, local Local) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("look up device %s: %w", name, err)
	}
	for _, kv := range [][2]string{
		{"ipv6/conf/" + name + "/disable_ipv6", "1"},
		{"ipv4/conf/" + name + "/rp_filter", "0"},
	} {
		if err := setSysctl(kv[0], kv[1]); err != nil {
			return nil, err
		}
	}
	if link.Attrs().MTU != local.MTU {
		if err := netlink.LinkSetMTU(link, local.MTU); err != nil {
			return nil, fmt.Errorf("set the MTU of %s to %d: %w", name, local.MTU, err)
		}
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		if err := netlink.LinkSetUp(link); err != nil {
			return nil, fmt.Errorf("bring up %s: %w", name, err)
		}
	}
	if tunnel == 0 {
		return link, ensureAddresses(link, local.Fabric)
	}
	return link, nil
}

// portInUse adds the remedy to the error that a UDP port is in use; it returns other errors as they
// are.
func portInUse(err error, port uint16) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("UDP port %d: %w: stop the program that listens there (IKE daemons use 4500), or join with another --nattport",
			port, netdev.ErrPortInUse)
	}
	return err
}

func setSysctl(key, value string) error {
	path := filepath.Join("/proc/sys/net", key)
	old, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // a kernel without IPv6
	}
	if err == nil && strings.TrimSpace(string(old)) == value {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set %s to %s: %w", path, value, err)
	}
	return nil
}

// ensureAddresses makes these the only IPv4 addresses of the device.
func ensureAddresses(link netlink.Link, want ...netip.Addr) error {
	name := link.Attrs().Name
	have, err := netdev.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_V4) })
	if err != nil {
		return fmt.Errorf("list the addresses of %s: %w", name, err)
	}
	var errs []error
	for _, h := range have {
		if slices.ContainsFunc(want, func(a netip.Addr) bool { return h.IP.Equal(a.AsSlice()) }) {
			continue
		}
		if err := netlink.AddrDel(link, &h); err != nil {
			errs = append(errs, fmt.Errorf("remove %s from %s: %w", h.IPNet, name, err))
		}
	}
	for _, a := range want {
		if slices.ContainsFunc(have, func(h netlink.Addr) bool { return h.IP.Equal(a.AsSlice()) }) {
			continue
		}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: host(a)}); err != nil && !errors.Is(err, syscall.EEXIST) {
			errs = append(errs, fmt.Errorf("add %s to %s: %w", a, name, err))
		}
	}
	return errors.Join(errs...)
}

// ensureRoutes routes what the node itself sends to each peer's fabric address into the wanted
// devices, given by index, and removes our other routes into devices, which are all devices of the
// wire. Packets of pods need no route, but the stack receives their GSO packets, and drops those
// that arrive on a device other than that of the route to their source if rp_filter of "all" is
// strict. During a key rotation this affects a draining tunnel: TCP retransmits until the peer has
// left it.
func ensureRoutes(local netip.Addr, wanted map[netip.Addr][]int, devices []int) error {
	routes, err := netdev.Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: netdev.Protocol}, netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return fmt.Errorf("list the routes: %w", err)
	}
	var errs []error
	present := map[netip.Addr]bool{}
	for _, r := range routes {
		hops := hopsOf(r)
		if r.Dst == nil || !slices.ContainsFunc(hops, func(index int) bool { return slices.Contains(devices, index) }) {
			continue
		}
		dst, _ := netip.AddrFromSlice(r.Dst.IP)
		want, ok := wanted[dst.Unmap()]
		switch {
		case !ok:
			if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, syscall.ESRCH) {
				errs = append(errs, fmt.Errorf("remove the route of %s: %w", r.Dst, err))
			}
		case slices.Equal(hops, slices.Sorted(slices.Values(want))) && r.Src.Equal(local.AsSlice()):
			present[dst.Unmap()] = true
		}
	}
	for dst, want := range wanted {
		if present[dst] {
			continue
		}
		route := &netlink.Route{
			Dst: host(dst), Src: local.AsSlice(), Scope: netlink.SCOPE_LINK, Protocol: netdev.Protocol, Type: unix.RTN_UNICAST, Family: netlink.FAMILY_V4,
		}
		if len(want) == 1 {
			route.LinkIndex = want[0]
		} else {
			for _, index := range want {
				route.MultiPath = append(route.MultiPath, &netlink.NexthopInfo{LinkIndex: index})
			}
		}
		// Replaced, not deleted and added: in between, packets would take another route.
		if err := netlink.RouteReplace(route); err != nil {
			errs = append(errs, fmt.Errorf("route %s into devices %v: %w", dst, want, err))
		}
	}
	return errors.Join(errs...)
}

// hopsOf are the devices of a route, in order of their indexes.
func hopsOf(r netlink.Route) []int {
	if len(r.MultiPath) == 0 {
		return []int{r.LinkIndex}
	}
	var out []int
	for _, hop := range r.MultiPath {
		out = append(out, hop.LinkIndex)
	}
	slices.Sort(out)
	return out
}

// linger is the default time for which a retired tunnel, or a retired peer in a tunnel, still
// receives. It exceeds the time that peers usually take to observe the new Identity, and the caller
// of Ensure to redirect elsewhere.
const linger = 30 * time.Second

// Bounds of the traffic of an idle tunnel: keepalives of 32 bytes in each direction, handshakes.
const (
	idlePerSecond = 80 // bytes
	idleBurst     = 600
)

// idle reports whether a tunnel that has carried so many bytes in that time carries no packets of
// the overlay.
func idle(bytes uint64, in time.Duration) bool {
	return float64(bytes) <= idleBurst+idlePerSecond*in.Seconds()
}

// retired holds what is no longer wanted and still receives.
type retired[K comparable] map[K]retirement

type retirement struct {
	since    time.Time // its removal, or the last traffic
	received uint64    // bytes by then
}

// lingers reports whether k, which has received so many bytes, still receives: until it has been
// idle for linger. It then forgets k.
func (r retired[K]) lingers(k K, received uint64, now time.Time, linger time.Duration) bool {
	last, known := r[k]
	if !known || !idle(received-last.received, now.Sub(last.since)) {
		last = retirement{now, received}
	}
	if now.Sub(last.since) >= linger {
		delete(r, k)
		return false
	}
	r[k] = last
	return true
}

// retireTunnels removes the devices of the tunnels from first to MaxTunnels-1 once they have
// lingered, and returns the numbers and the interface indexes of those that still receive. A peer
// that still sends has not observed the change, perhaps because the hub is down: it keeps the
// device without a bound.
func retireTunnels(r retired[int], first int, now time.Time, linger time.Duration,
	name func(tunnel int) string, remove func(tunnel int) error) (tunnels, indexes []int, err error) {
	for i := range first {
		delete(r, i)
	}
	var errs []error
	for i := first; i < MaxTunnels; i++ {
		link, err := netdev.FindLink(name(i))
		switch {
		case err != nil:
			errs = append(errs, err)
		case link != nil && r.lingers(i, link.Attrs().Statistics.RxBytes, now, linger):
			tunnels, indexes = append(tunnels, i), append(indexes, link.Attrs().Index)
		default:
			delete(r, i)
			errs = append(errs, remove(i))
		}
	}
	return tunnels, indexes, errors.Join(errs...)
}

// host returns the prefix that contains only a.
func host(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}
