package node

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane/cable"
)

// XDP selects the uplinks of a gateway on which XDP forwards what needs no stack.
type XDP string

const (
	XDPAuto XDP = config.XDPAuto // on network cards
	XDPOn   XDP = config.XDPOn   // on every uplink
	XDPOff  XDP = config.XDPOff
)

// ParseXDP parses the value of --xdp; empty: the cluster's configuration is used.
func ParseXDP(s string) (XDP, error) {
	if s == "" || slices.Contains(config.XDPSettings(), s) {
		return XDP(s), nil
	}
	return "", fmt.Errorf("XDP %q: use %s", s, strings.Join(config.XDPSettings(), ", "))
}

// or returns x, or if empty the cluster's configuration.
func (x XDP) or(c config.Config) XDP {
	if x != "" {
		return x
	}
	return XDP(c.XDP)
}

// devices returns those of a gateway's uplinks that use XDP. kind returns the kind of a device as
// the kernel names it.
func (x XDP) devices(gateway bool, uplinks []int, kind func(ifindex int) string) []int {
	if !gateway || x == XDPOff || x == "" {
		return nil
	}
	if x == XDPOn {
		return uplinks
	}
	return slices.DeleteFunc(slices.Clone(uplinks), func(ifindex int) bool { return kind(ifindex) != networkCard })
}

// networkCard is the kind of a device that a driver has created, in netlink.
const networkCard = "device"

// deviceKind is "" for a removed device, and for one without an Ethernet header.
func deviceKind(ifindex int) string {
	link, err := netlink.LinkByIndex(ifindex)
	if err != nil || link.Attrs().EncapType != "ether" {
		return ""
	}
	return link.Type()
}

// handshakePeers are the addresses of remote gateways: the published ones, and those from which an
// authenticated peer last sent.
func handshakePeers(peers []cable.Peer, status map[netip.Addr]cable.Status) []netip.Addr {
	known := map[netip.Addr]bool{}
	for _, p := range peers {
		known[p.Address.Unmap()] = true
		if s := status[p.Fabric]; !s.Handshake.IsZero() {
			known[s.Endpoint.Addr().Unmap()] = true
		}
	}
	delete(known, netip.Addr{})
	return slices.SortedFunc(maps.Keys(known), netip.Addr.Compare)
}

// guard installs the limit on handshakes at the ports of a WireGuard wire.
func (d *Daemon) guard(c config.Config, w tables.Wire) error {
	var ports []uint16
	var known []netip.Addr
	if c.CableDriver == config.CableWireGuard && len(w.Ports) > 0 {
		ports, known = w.Ports, handshakePeers(d.gateway.peers, d.gateway.status)
	}
	guarded := fmt.Sprint(ports, known)
	if guarded == d.kernel.guarded && !d.kernel.reapply {
		return nil
	}
	if err := d.loader.Guard(ports, known); err != nil {
		return err
	}
	d.kernel.guarded = guarded
	return nil
}
