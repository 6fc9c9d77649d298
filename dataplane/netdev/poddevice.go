package netdev

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// NamespacesDir is where container runtimes bind the network namespaces of pods.
const NamespacesDir = "/run/netns"

// PodDevices finds the devices at which packets of pods arrive. The zero value is ready; it
// remembers what it read.
type PodDevices struct {
	// namespaces are the devices by address of each network namespace, by inode.
	namespaces map[uint64]map[netip.Addr]uint32
}

// Find returns the interface indexes by address. It is that of the route to a pod, if the route
// leads to the pod's own device or to a bridge. Some CNIs, such as Cilium, route all pods to one
// device but receive from a veth device per pod: that one is found from the pod's end, in the
// namespaces bound in dir. Pods whose device is not found are missing. So are pods to which only
// the route of an uplink leads, unless the uplink is a bridge that pods are attached to.
func (d *PodDevices) Find(pods []netip.Addr, uplinks map[uint32]bool, dir string) (map[netip.Addr]uint32, error) {
	links, err := Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	byIndex := map[int]netlink.Link{}
	for _, l := range links {
		byIndex[l.Attrs().Index] = l
	}
	out, shared := map[netip.Addr]uint32{}, map[netip.Addr]uint32{}
	routed := map[uint32]int{}
	for _, pod := range pods {
		hop, err := Resolve(pod)
		if err != nil {
			continue // not routed yet
		}
		routed[hop.Ifindex]++
		uplink, kind := uplinks[hop.Ifindex], ""
		l := byIndex[int(hop.Ifindex)]
		if l != nil {
			kind = l.Type()
		}
		switch {
		case kind == "bridge" && (!uplink || hop.Next == pod):
			out[pod] = hop.Ifindex
		// The other end of Cilium's cilium_host is here as well, so it is no pod's.
		case kind == "veth" && !uplink && l.Attrs().NetNsID >= 0:
			out[pod] = hop.Ifindex
		default:
			shared[pod] = hop.Ifindex
		}
	}
	// A veth device to which several pods are routed is no pod's either: it leads to a namespace of
	// the CNI.
	for pod, ifindex := range out {
		if l := byIndex[int(ifindex)]; l.Type() == "veth" && routed[ifindex] > 1 {
			shared[pod] = ifindex
			delete(out, pod)
		}
	}
	if len(shared) == 0 {
		d.namespaces = nil
		return out, nil
	}
	own, err := d.read(dir, byIndex, shared)
	for pod, ifindex := range shared {
		if device, ok := own[pod]; ok {
			out[pod] = device
		} else if !uplinks[ifindex] {
			out[pod] = ifindex
		}
	}
	return out, err
}

// read returns the devices of pods by the namespaces in dir. Namespaces that were read before are
// read again only while a pod is missing.
func (d *PodDevices) read(dir string, host map[int]netlink.Link, pods map[netip.Addr]uint32) (map[netip.Addr]uint32, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the network namespaces of pods: %w", err)
	}
	namespaces, out := map[uint64]map[netip.Addr]uint32{}, map[netip.Addr]uint32{}
	var errs []error
	collect := func(again bool) {
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			info, err := os.Stat(path)
			if err != nil {
				continue // removed
			}
			inode := info.Sys().(*syscall.Stat_t).Ino
			devices, known := d.namespaces[inode]
			if !known || again {
				if devices, err = devicesOf(path, host); err != nil {
					errs = append(errs, fmt.Errorf("read network namespace %s: %w", path, err))
					continue
				}
			}
			namespaces[inode] = devices
			for a, ifindex := range devices {
				if _, asked := pods[a]; asked {
					out[a] = ifindex
				}
			}
		}
	}
	collect(false)
	if len(out) < len(pods) {
		collect(true)
	}
	d.namespaces = namespaces
	return out, errors.Join(errs...)
}

// devicesOf returns the host's ends of the veth pairs of a network namespace, by the addresses of
// the other end. host are the links of this namespace by index.
func devicesOf(path string, host map[int]netlink.Link) (map[netip.Addr]uint32, error) {
	ns, err := netns.GetFromPath(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	id, err := netlink.GetNetNsIdByFd(int(ns))
	if errors.Is(err, unix.EINVAL) {
		return nil, nil // a file that is no network namespace
	}
	if err != nil || id < 0 {
		return nil, err // without an id no device of this namespace has its other end there
	}
	handle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	links, err := Dump(handle.LinkList)
	if err != nil {
		return nil, err
	}
	out := map[netip.Addr]uint32{}
	for _, l := range links {
		end := host[l.Attrs().ParentIndex]
		if l.Type() != "veth" || end == nil || end.Type() != "veth" || end.Attrs().NetNsID != id || end.Attrs().ParentIndex != l.Attrs().Index {
			continue
		}
		addresses, err := Dump(func() ([]netlink.Addr, error) { return handle.AddrList(l, netlink.FAMILY_V4) })
		if err != nil {
			return nil, err
		}
		for _, a := range addresses {
			if address, ok := netip.AddrFromSlice(a.IP.To4()); ok {
				out[address] = uint32(end.Attrs().Index)
			}
		}
	}
	return out, nil
}
