package netdev

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// Uplink is a device by which other nodes and gateways are reached.
type Uplink struct {
	Name string
	// MTU in bytes.
	MTU int
	// Problem is why the programs cannot work on it, for an operator; empty: they can.
	Problem string
}

// ReadUplink reads a device; false if it is gone.
func ReadUplink(ifindex uint32) (u Uplink, ok bool, err error) {
	link, err := netlink.LinkByIndex(int(ifindex))
	var gone netlink.LinkNotFoundError
	if errors.As(err, &gone) {
		return u, false, nil
	}
	if err != nil {
		return u, false, fmt.Errorf("look up device %d: %w", ifindex, err)
	}
	a := link.Attrs()
	return Uplink{Name: a.Name, MTU: a.MTU, Problem: UplinkProblem(a)}, true, nil
}

// UplinkProblem returns why the programs cannot work on a device that leads to others; empty if they
// can.
func UplinkProblem(a *netlink.LinkAttrs) string {
	switch a.EncapType {
	case "ether":
		return ""
	case "loopback":
		return fmt.Sprintf("its address is one of this node itself (device %s): give it an address of its own", a.Name)
	}
	return fmt.Sprintf("device %s, which leads to it, has link type %q: route its address by an Ethernet device", a.Name, a.EncapType)
}
