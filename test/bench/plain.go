package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/pelago-net/pelago/test/netns"
)

// The overlay of the variants that use the kernel's own tunnels, in the shape of Submariner's: one
// vxlan device inside each cluster (UDP 4800) and one between the gateways (UDP 4500).
const (
	devOverlay = "vx-in"
	devCable   = "vx-wan"
)

var (
	overNA  = netip.MustParsePrefix("240.1.0.1/24")
	overGA  = netip.MustParsePrefix("240.1.0.2/24")
	cableGA = netip.MustParsePrefix("241.0.0.1/24")
	cableGB = netip.MustParsePrefix("241.0.0.2/24")
	overGB  = netip.MustParsePrefix("240.2.0.2/24")
	overNB  = netip.MustParsePrefix("240.2.0.1/24")
)

// plain is the kernel's routing through its vxlan devices, without translation: the pods' unique
// addresses.
func plain() Variant {
	return Variant{Name: "plain", Setup: func(t *Topology, _ Scale) (setup, error) { return setup{}, kernelOverlay(t) }, Target: plainB}
}

// kernelOverlay makes the vxlan devices and the routes of both the plain and the global prefixes,
// over the first gateways.
func kernelOverlay(t *Topology) error {
	un, wan := device(devUn, 1), device(devWAN, 1)
	for _, d := range []struct {
		ns            *netns.NS
		name, under   string
		id, port      int
		local, remote netip.Prefix
		addr          netip.Prefix
	}{
		{t.NA, devOverlay, un, 100, 4800, underNA(1), underGA(1), overNA},
		{t.GA[0], devOverlay, un, 100, 4800, underGA(1), underNA(1), overGA},
		{t.GA[0], devCable, wan, 200, 4500, wanGA(1, 1), wanGB(1, 1), cableGA},
		{t.GB[0], devCable, wan, 200, 4500, wanGB(1, 1), wanGA(1, 1), cableGB},
		{t.GB[0], devOverlay, un, 100, 4800, underGB(1), underNB(1), overGB},
		{t.NB, devOverlay, un, 100, 4800, underNB(1), underGB(1), overNB},
	} {
		under, err := d.ns.Index(d.under)
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = d.name
		vxlan := &netlink.Vxlan{
			LinkAttrs: attrs, VxlanId: d.id, Port: d.port, VtepDevIndex: under, Learning: true,
			SrcAddr: d.local.Addr().AsSlice(), Group: d.remote.Addr().AsSlice(),
		}
		if err := d.ns.Handle().LinkAdd(vxlan); err != nil {
			return fmt.Errorf("make %s in %s: %w", d.name, d.ns.Name, err)
		}
		if err := errors.Join(d.ns.AddAddr(d.name, d.addr), d.ns.Handle().LinkSetUp(vxlan)); err != nil {
			return fmt.Errorf("set up %s in %s: %w", d.name, d.ns.Name, err)
		}
	}
	var errs []error
	for _, r := range []struct {
		ns  *netns.NS
		dev string
		via netip.Prefix
		dst []netip.Prefix
	}{
		{t.NA, devOverlay, overGA, []netip.Prefix{plainCIDRB, globalB}},
		{t.GA[0], devCable, cableGB, []netip.Prefix{plainCIDRB, globalB}},
		{t.GA[0], devOverlay, overNA, []netip.Prefix{plainCIDRA, podCIDR}},
		{t.GB[0], devOverlay, overNB, []netip.Prefix{plainCIDRB, podCIDR}},
		{t.GB[0], devCable, cableGA, []netip.Prefix{plainCIDRA, globalA}},
		{t.NB, devOverlay, overGB, []netip.Prefix{plainCIDRA, globalA}},
	} {
		for _, dst := range r.dst {
			errs = append(errs, r.ns.AddRoute(dst, r.via.Addr(), r.dev))
		}
	}
	return errors.Join(errs...)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
