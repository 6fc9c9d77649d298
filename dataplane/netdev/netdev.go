// Package netdev manages the host networking around the programs: pelago0, the device of the vxlan
// cable, their routes, rules and sysctls, and firewall rules that accept their packets. It works in
// the network namespace of the calling thread, changes only what it created, besides
// nf_conntrack_tcp_be_liberal, which stays, and leftovers of Submariner; every call is idempotent.
package netdev

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane"
)

// Names and numbers on a node.
const (
	Overlay = "pelago0"
	Cable   = "pelago-cable"
	// Table is the routing table of remote prefixes only. RulePriority precedes the rules of CNIs
	// for pods (110 and up) and follows 100, to which Cilium moves the look-up of local addresses.
	Table        = 4800
	RulePriority = 105
	// Protocol marks our routes of the cable's fabric addresses (rtnetlink's rtm_protocol).
	Protocol netlink.RouteProtocol = 80
	// Overhead is what the overlay adds to a packet on an IPv4 underlay: IPv4 20 + UDP 8 + VXLAN
	// 8 + Ethernet 14.
	Overhead = 50
)

// mac is the address of every pelago0; bpf/encap.h writes it into every inner header.
var mac = net.HardwareAddr{0x02, 0x50, 0x45, 0x4c, 0x00, 0x02}

// ErrPortInUse: another program listens on the cable's UDP port.
var ErrPortInUse = errors.New("the UDP port is in use")

// Config is the desired networking of a node.
type Config struct {
	// Edge is the interface index of pelago0 (EnsureOverlay).
	Edge int
	// Source is the node's own source address towards remote prefixes.
	Source netip.Addr
	// Prefixes are routed into pelago0.
	Prefixes []netip.Prefix
	// MTU of pelago0 and the cable's device, bytes. Limits are smaller ones of single prefixes.
	MTU    int
	Limits map[netip.Prefix]int
	// CablePort is the UDP port of the vxlan cable on a gateway; 0: no such cable here.
	CablePort uint16
}

// EnsureOverlay creates or repairs pelago0 with an MTU in bytes and returns its interface index.
func EnsureOverlay(mtu int) (ifindex int, err error) {
	overlay, err := ensureVxlan(Overlay, dataplane.OverlayPort, mtu)
	if err != nil {
		return 0, err
	}
	return overlay.Attrs().Index, nil
}

// Ensure creates or repairs the device of the vxlan cable, routes and rules, and removes those of
// earlier calls that c does not contain. missing: some route or the rule was not there, which after
// an earlier call with c is the work of others.
func Ensure(c Config) (missing bool, err error) {
	if err := ensureCable(c); err != nil {
		return false, err
	}
	rules, err := listRules()
	if err != nil {
		return false, err
	}
	routes, routesErr := ensureRoutes(c.Edge, c, tablesBehind(rules))
	rule, ruleErr := ensureRule(rules, len(c.Prefixes) > 0)
	return routes || rule, errors.Join(routesErr, ruleErr)
}

// Remove removes everything that EnsureOverlay, Ensure and Firewall created.
func Remove() error {
	rules, err := listRules()
	_, ruleErr := ensureRule(rules, false)
	errs := []error{err, ruleErr, removeRoutes(), removeFirewall()}
	for _, name := range []string{Overlay, Cable} {
		errs = append(errs, RemoveLink(name))
	}
	return errors.Join(errs...)
}

// FindLink returns the device of that name, nil if none exists.
func FindLink(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up device %s: %w", name, err)
	}
	return link, nil
}

// RemoveLink deletes the device if it exists.
func RemoveLink(name string) error {
	link, err := FindLink(name)
	if err != nil || link == nil {
		return err
	}
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, syscall.ENODEV) {
		return fmt.Errorf("delete device %s: %w", name, err)
	}
	return nil
}

func ensureCable(c Config) error {
	if c.CablePort != 0 {
		_, err := ensureVxlan(Cable, c.CablePort, c.MTU)
		return err
	}
	return RemoveLink(Cable)
}

// Receivers returns the indexes of the devices other than pelago0 that receive overlay packets:
// that of the cable, which holds the port. The programs hand all packets to pelago0, so packets at
// these devices have bypassed them.
func Receivers() ([]int, error) {
	link, err := FindLink(Cable)
	if err != nil || link == nil {
		return nil, err
	}
	return []int{link.Attrs().Index}, nil
}

// ensureVxlan creates a vxlan device in collect-metadata mode, without learning and ARP, as
// receiver of its port.
func ensureVxlan(name string, port uint16, mtu int) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if err == nil {
		v, ok := link.(*netlink.Vxlan)
		if !ok || !v.FlowBased || v.Port != int(port) {
			// Type, mode and port cannot be changed in place.
			if err := netlink.LinkDel(link); err != nil {
				return nil, fmt.Errorf("delete device %s: %w", name, err)
			}
			link = nil
		}
	}
	if err != nil || link == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr, attrs.MTU = name, mac, mtu
		v := &netlink.Vxlan{LinkAttrs: attrs, FlowBased: true, Learning: false, Port: int(port)}
		if err := netlink.LinkAdd(v); err != nil {
			return nil, fmt.Errorf("create device %s: %w", name, err)
		}
		if link, err = netlink.LinkByName(name); err != nil {
			return nil, fmt.Errorf("look up device %s: %w", name, err)
		}
	}
	// The programs have checked packets of pelago0, sources included. accept_local saves the
	// reverse route look-up that policy rules cause for every packet. The cable's device has no
	// route, so the strict rp_filter drops all its packets.
	filter, forward, local := "0", "1", "1"
	if name == Cable {
		filter, forward, local = "1", "0", "0"
	}
	for _, kv := range [][2]string{
		{"ipv6/conf/" + name + "/disable_ipv6", "1"},
		{"ipv4/conf/" + name + "/rp_filter", filter},
		{"ipv4/conf/" + name + "/accept_local", local},
		{"ipv4/conf/" + name + "/forwarding", forward},
	} {
		if err := setSysctl(kv[0], kv[1]); err != nil {
			return nil, err
		}
	}
	if a := link.Attrs(); a.MTU != mtu {
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			return nil, fmt.Errorf("set the MTU of %s to %d: %w", name, mtu, err)
		}
	}
	if link.Attrs().RawFlags&unix.IFF_NOARP == 0 {
		if err := netlink.LinkSetARPOff(link); err != nil {
			return nil, fmt.Errorf("switch off ARP on %s: %w", name, err)
		}
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		err := netlink.LinkSetUp(link)
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("bring up %s on UDP port %d: %w: stop the program that listens there (IKE daemons use 4500), or join with another --nattport", name, port, ErrPortInUse)
		}
		if err != nil {
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
	if err == nil && string(old) == value+"\n" {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set %s to %s: %w", path, value, err)
	}
	return nil
}
