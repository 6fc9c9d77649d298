package netdev

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// GatewayMAC returns the MAC address to which a pod sends packets for other networks: the neighbour
// entry of its default gateway. It is nil if the pod has not resolved one yet. path is that of its
// network namespace.
func GatewayMAC(path string) (net.HardwareAddr, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	defer ns.Close()
	handle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink in %s: %w", path, err)
	}
	defer handle.Close()
	routes, err := Dump(func() ([]netlink.Route, error) { return handle.RouteList(nil, netlink.FAMILY_V4) })
	neighbours, err2 := Dump(func() ([]netlink.Neigh, error) { return handle.NeighList(0, netlink.FAMILY_V4) })
	if err := errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("read the routes of %s: %w", path, err)
	}
	for _, r := range routes {
		if r.Gw == nil || r.Dst != nil && !r.Dst.IP.IsUnspecified() {
			continue
		}
		for _, n := range neighbours {
			if n.LinkIndex == r.LinkIndex && n.IP.Equal(r.Gw) && n.State&(unix.NUD_FAILED|unix.NUD_INCOMPLETE) == 0 && len(n.HardwareAddr) == 6 {
				return n.HardwareAddr, nil
			}
		}
	}
	return nil, nil
}
