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
	// L3: its packets have no Ethernet header, so it has no neighbours. Tailscale's, WireGuard's
	// and PPP's are such devices.
	L3 bool
	// Problem is why the programs cannot work on it, for an operator; empty: they can.
	Problem string
}

// ReadUplink reads a device; ok is false if it does not exist.
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
	u = Uplink{Name: a.Name, MTU: a.MTU}
	switch a.EncapType {
	case "ether":
	case "none", "ppp", rawIP:
		u.L3 = true
	case "loopback":
		u.Problem = fmt.Sprintf("its address is one of this node itself (device %s): give it an address of its own", a.Name)
	default:
		u.Problem = fmt.Sprintf("device %s, which leads to it, has link type %q: route its address by an Ethernet, TUN, WireGuard or PPP device", a.Name, a.EncapType)
	}
	return u, true, nil
}

// rawIP is the link type of mobile modems (ARPHRD_RAWIP), for which the library has no name.
const rawIP = "unknown519"
