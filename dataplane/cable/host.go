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

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane/netdev"
)

// settle gives a wire's device its settings. Packets come out of it decrypted and checked against the peer's fabric
// address, so rp_filter is off: the host's route of a peer leads to one device, its packets come in on any.
func settle(name string, mtu int) (netlink.Link, error) {
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
	if link.Attrs().MTU != mtu {
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			return nil, fmt.Errorf("set the MTU of %s to %d: %w", name, mtu, err)
		}
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		if err := netlink.LinkSetUp(link); err != nil {
			return nil, fmt.Errorf("bring up %s: %w", name, err)
		}
	}
	return link, nil
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

// ensureAddress makes a the only IPv4 address of the device.
func ensureAddress(link netlink.Link, a netip.Addr) error {
	name := link.Attrs().Name
	have, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list the addresses of %s: %w", name, err)
	}
	var errs []error
	found := false
	for _, h := range have {
		if h.IP.Equal(a.AsSlice()) {
			found = true
		} else if err := netlink.AddrDel(link, &h); err != nil {
			errs = append(errs, fmt.Errorf("remove %s from %s: %w", h.IPNet, name, err))
		}
	}
	if !found {
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: host(a)}); err != nil && !errors.Is(err, syscall.EEXIST) {
			errs = append(errs, fmt.Errorf("add %s to %s: %w", a, name, err))
		}
	}
	return errors.Join(errs...)
}

// ensureRoutes leads what the node itself sends to each peer into a device, and takes away our routes of peers that are no
// longer there. devices are all of the wire's. The packets of pods need no route.
func ensureRoutes(local netip.Addr, wanted map[netip.Addr]int, devices []int) error {
	have, err := fabricRoutes(devices)
	if err != nil {
		return err
	}
	var errs []error
	as := map[netip.Addr]bool{}
	for _, r := range have {
		dst, _ := netip.AddrFromSlice(r.Dst.IP)
		index, ok := wanted[dst.Unmap()]
		switch {
		case !ok:
			if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, syscall.ESRCH) {
				errs = append(errs, fmt.Errorf("remove the route of %s: %w", r.Dst, err))
			}
		case r.LinkIndex == index && r.Src.Equal(local.AsSlice()):
			as[dst.Unmap()] = true
		}
	}
	for dst, index := range wanted {
		if as[dst] {
			continue
		}
		// Replace and not delete and add: no packet in between finds another way.
		err := netlink.RouteReplace(&netlink.Route{
			LinkIndex: index, Dst: host(dst), Src: local.AsSlice(), Scope: netlink.SCOPE_LINK, Protocol: netdev.Protocol,
			Type: unix.RTN_UNICAST, Family: netlink.FAMILY_V4,
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("route %s into device %d: %w", dst, index, err))
		}
	}
	return errors.Join(errs...)
}

func fabricRoutes(devices []int) ([]netlink.Route, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: netdev.Protocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil, fmt.Errorf("list the routes: %w", err)
	}
	return slices.DeleteFunc(routes, func(r netlink.Route) bool {
		return r.Dst == nil || !slices.Contains(devices, r.LinkIndex)
	}), nil
}

// removeLink deletes the device if it is there.
func removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up device %s: %w", name, err)
	}
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, syscall.ENODEV) {
		return fmt.Errorf("delete device %s: %w", name, err)
	}
	return nil
}

// RemoveDevices takes the devices, keys and policies of all wires but one from the kernel, whoever made them: what a node
// keeps when its daemon changes the wire or ends for good. but is a driver, "": none stays.
func RemoveDevices(but string) error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list the devices: %w", err)
	}
	var errs []error
	for _, l := range links {
		name := l.Attrs().Name
		for driver, prefix := range map[string]string{WireGuardDriver: wireGuardPrefix, IPsecDriver: ipsecPrefix} {
			number, ok := strings.CutPrefix(name, prefix)
			if _, err := strconv.Atoi(number); ok && err == nil && driver != but {
				errs = append(errs, removeLink(name))
			}
		}
	}
	if but != IPsecDriver {
		errs = append(errs, removeSAs())
	}
	return errors.Join(errs...)
}

// host is a as a network of one address.
func host(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}
