package netdev

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane"
)

// Endpoints finds the devices of pods that have their own veth pair, by following the node's routes
// to them: to the pair itself, or to a bridge of which it is a port. A pod whose device or MAC
// address the kernel does not know yet, because the pod has not sent anything, is missing, and so
// is one with another kind of device.
func Endpoints(pods []netip.Addr) (map[netip.Addr]dataplane.Endpoint, error) {
	links, err := Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	kinds := map[int]string{}
	for _, l := range links {
		kinds[l.Attrs().Index] = l.Type()
	}
	neighbours, err := Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, unix.AF_INET) })
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	type on struct {
		ifindex int
		address netip.Addr
	}
	macs := map[on][6]byte{}
	for _, n := range neighbours {
		if a, ok := netip.AddrFromSlice(n.IP); ok && len(n.HardwareAddr) == 6 && n.State&(unix.NUD_FAILED|unix.NUD_INCOMPLETE) == 0 {
			macs[on{n.LinkIndex, a.Unmap()}] = [6]byte(n.HardwareAddr)
		}
	}
	ports, err := bridgePorts()
	if err != nil {
		return nil, err
	}
	out := map[netip.Addr]dataplane.Endpoint{}
	var errs []error
	for _, pod := range pods {
		routes, err := netlink.RouteGet(pod.AsSlice())
		if err != nil {
			if !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EHOSTUNREACH) {
				errs = append(errs, fmt.Errorf("look up the route to pod %s: %w", pod, err))
			}
			continue
		}
		device := routes[0].LinkIndex
		mac, ok := macs[on{device, pod}]
		if !ok {
			continue
		}
		if kinds[device] == "bridge" {
			device = ports[portKey{device, mac}]
		}
		if kinds[device] == "veth" {
			out[pod] = dataplane.Endpoint{Ifindex: uint32(device), MAC: mac}
		}
	}
	return out, errors.Join(errs...)
}

// portKey is a MAC address learnt by a bridge.
type portKey struct {
	bridge int
	mac    [6]byte
}

// bridgePorts returns the ports of all bridges by the addresses learnt there.
func bridgePorts() (map[portKey]int, error) {
	entries, err := Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, unix.AF_BRIDGE) })
	if err != nil {
		return nil, fmt.Errorf("list the forwarding tables of bridges: %w", err)
	}
	out := map[portKey]int{}
	for _, e := range entries {
		if len(e.HardwareAddr) == 6 && e.MasterIndex != 0 {
			out[portKey{e.MasterIndex, [6]byte(e.HardwareAddr)}] = e.LinkIndex
		}
	}
	return out, nil
}

// LenientConntrack makes conntrack accept TCP segments outside the window that it has seen: in
// hybrid mode it sees few of them. kube-proxy has the same option (--conntrack-tcp-be-liberal). The
// setting is the network namespace's and stays.
func LenientConntrack() error {
	return setSysctl("netfilter/nf_conntrack_tcp_be_liberal", "1")
}
