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

	"github.com/pelago-net/pelago/dataplane"
)

// NamespacesDir is where container runtimes bind the network namespaces of pods.
const NamespacesDir = "/run/netns"

// Kinds of devices, as the kernel names them (IFLA_INFO_KIND).
const (
	kindBridge = "bridge"
	kindVeth   = "veth"
	kindNetkit = "netkit"
)

// PodDevice is how packets of a pod arrive at the node, and how it is delivered to.
type PodDevice struct {
	// Source is the interface index at which the node's stack receives the pod's packets; 0: it is
	// not known, or the pod cannot be served.
	Source uint32
	// Endpoint is the node's end of the pod's own veth pair, with the pod's MAC address; without an
	// interface index if there is none, or it is not known.
	Endpoint dataplane.Endpoint
	// Strict is why the pod's packets must pass the node's stack, for an operator; empty: they need
	// not. The end is a port of a switch other than a bridge with the pods' route, whose pipeline,
	// such as the policies of a CNI on Open vSwitch, or a queueing discipline, such as the limits of
	// the CNI plugin bandwidth, would be bypassed.
	Strict string
	// Problem is why Source or Endpoint is missing, for an operator.
	Problem string
	// Namespace is the path of the pod's network namespace, Index the interface index of the pod's
	// own end of Endpoint in it; empty: not known.
	Namespace string
	Index     int
}

// PodDevices finds the devices of pods. The zero value is ready; it remembers what it read.
type PodDevices struct {
	// namespaces are the pods' own devices of each network namespace, by inode and address.
	namespaces map[uint64]map[netip.Addr]podEnd
}

// podEnd is a pod's device in its own network namespace.
type podEnd struct {
	kind  string
	index int
	mac   [6]byte
	// host is the interface index of its other end on the node, netns the id of the pod's namespace
	// there; for veth and netkit pairs only.
	host, netns int
	// path is that of the namespace.
	path string
}

// Find returns the devices of pods, from the namespaces bound in dir. A pod whose namespace is not
// there is found by the node's route to it. uplinks are devices that lead to other nodes: no pod's
// packets arrive there, unless it is a bridge that pods are attached to.
func (d *PodDevices) Find(pods []netip.Addr, uplinks map[uint32]bool, dir string) (map[netip.Addr]PodDevice, error) {
	links, err := Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	host := map[int]netlink.Link{}
	for _, l := range links {
		host[l.Attrs().Index] = l
	}
	queues, err := queueing()
	if err != nil {
		return nil, err
	}
	ends, err := d.read(dir, host, pods)
	routes, users := map[netip.Addr]dataplane.Hop{}, map[uint32]int{}
	for _, pod := range pods {
		if hop, err := Resolve(pod); err == nil { // else it is not routed yet
			routes[pod] = hop
			users[hop.Ifindex]++
		}
	}
	var learnt neighbours
	out := make(map[netip.Addr]PodDevice, len(pods))
	for _, pod := range pods {
		hop, routed := routes[pod]
		at := podPlace{uplink: uplinks[hop.Ifindex], onLink: hop.Next == pod, shared: users[hop.Ifindex] > 1}
		if routed {
			at.route = hostLinkOf(host[int(hop.Ifindex)])
		}
		if end, ok := ends[pod]; ok {
			at.own = &end
			if at.end = hostLinkOf(host[end.host]); at.end != nil {
				at.master = hostLinkOf(host[at.end.master])
			}
		}
		v := at.decide()
		if at.own != nil {
			v.Namespace, v.Index = at.own.path, at.own.index
		}
		if v.Source != 0 && at.own == nil {
			if learnt.macs == nil {
				var failed error
				if learnt, failed = readNeighbours(); failed != nil {
					return nil, failed
				}
			}
			v.Endpoint, v.Problem = learnt.endpoint(pod, int(v.Source), host)
		}
		if kind, ok := queues[int(v.Endpoint.Ifindex)]; ok && v.Strict == "" {
			v.Strict = fmt.Sprintf("its device %s has the queueing discipline %s, which must see all packets", host[int(v.Endpoint.Ifindex)].Attrs().Name, kind)
		}
		out[pod] = v
	}
	return out, err
}

// queueing returns the kind of a queueing discipline of each device that has one in either
// direction: a pair of veth has none by itself, and clsact is only a place for programs.
func queueing() (map[int]string, error) {
	all, err := Dump(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(nil) })
	if err != nil {
		return nil, fmt.Errorf("list queueing disciplines: %w", err)
	}
	out := map[int]string{}
	for _, q := range all {
		if q.Type() != "noqueue" && q.Type() != "clsact" {
			out[q.Attrs().LinkIndex] = q.Type()
		}
	}
	return out, nil
}

// hostLink is a device of the node.
type hostLink struct {
	index, master int
	name, kind    string
	// away: its other end is in another namespace. That of Cilium's cilium_host is on the node as
	// well.
	away bool
}

func hostLinkOf(l netlink.Link) *hostLink {
	if l == nil {
		return nil
	}
	a := l.Attrs()
	return &hostLink{index: a.Index, master: a.MasterIndex, name: a.Name, kind: l.Type(), away: a.NetNsID >= 0}
}

// podPlace is what the node knows of one pod.
type podPlace struct {
	// own is the pod's device, end its other end on the node, master the switch of which that is a
	// port; nil: not known, or none.
	own         *podEnd
	end, master *hostLink
	// route is the device of the route to the pod; nil: none. uplink: it leads to other nodes;
	// onLink: to the pod without a gateway; shared: to several pods.
	route                  *hostLink
	uplink, onLink, shared bool
}

// decide returns where packets of the pod arrive, and its endpoint as far as it is known from its
// namespace.
func (p podPlace) decide() PodDevice {
	switch {
	case p.own == nil:
		return p.byRoute()
	case p.own.kind == kindNetkit:
		return PodDevice{Problem: "its device is of kind netkit, at whose packets the node does not see the device they come from: use veth"}
	case p.own.kind != kindVeth:
		return p.shares()
	}
	v := PodDevice{Endpoint: dataplane.Endpoint{Ifindex: uint32(p.end.index), MAC: p.own.mac}}
	switch {
	case p.end.master == 0:
		v.Source = uint32(p.end.index)
	case p.route != nil && p.route.index == p.end.master:
		v.Source = uint32(p.route.index)
	case p.route != nil && !p.uplink:
		// Packets enter the stack at another device of the switch.
		v.Source, v.Strict = uint32(p.route.index), "its device is a port of a switch, whose rules must see all packets"
	case p.master != nil && p.master.kind == kindBridge:
		v.Source = uint32(p.master.index)
	default:
		return PodDevice{Problem: fmt.Sprintf("%s, its device on the node, is a port of a switch, and the node has no route to the pod by a device of that switch", p.end.name)}
	}
	return v
}

// shares is decide for a pod that shares a device of the node with others, as with macvlan.
func (p podPlace) shares() PodDevice {
	if p.route == nil || p.uplink {
		return PodDevice{Problem: fmt.Sprintf("its device is of kind %s, and the node has no device of its own beside it: its packets do not pass the node's stack", p.own.kind)}
	}
	return PodDevice{Source: uint32(p.route.index), Problem: fmt.Sprintf("its device is of kind %s, which has no end on the node", p.own.kind)}
}

// byRoute is decide for a pod whose namespace is not known.
func (p podPlace) byRoute() PodDevice {
	unknown := fmt.Sprintf("its network namespace is not in %s", NamespacesDir)
	switch {
	case p.route == nil:
		return PodDevice{Problem: unknown + ", and the node has no route to it"}
	case p.route.kind == kindBridge && (!p.uplink || p.onLink):
		return PodDevice{Source: uint32(p.route.index)}
	case p.uplink:
		return PodDevice{Problem: fmt.Sprintf("%s, and the route to it leads to %s, an uplink", unknown, p.route.name)}
	case p.route.kind != kindVeth && p.route.kind != kindNetkit:
		return PodDevice{Source: uint32(p.route.index)}
	case p.shared:
		return PodDevice{Problem: fmt.Sprintf("%s, and the route to it leads to %s, as those of other pods", unknown, p.route.name)}
	case p.route.kind == kindNetkit:
		return PodDevice{Problem: fmt.Sprintf("its device %s is of kind netkit, at whose packets the node does not see the device they come from: use veth", p.route.name)}
	case !p.route.away || p.route.master != 0:
		return PodDevice{Problem: fmt.Sprintf("%s, and the route to it leads to %s, which is not the pod's", unknown, p.route.name)}
	}
	return PodDevice{Source: uint32(p.route.index)}
}

// read returns the pods' own devices by the namespaces in dir. Namespaces that were read before are
// read again only while a pod is missing.
func (d *PodDevices) read(dir string, host map[int]netlink.Link, pods []netip.Addr) (map[netip.Addr]podEnd, error) {
	if len(pods) == 0 {
		d.namespaces = nil
		return nil, nil
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the network namespaces of pods: %w", err)
	}
	namespaces, out := map[uint64]map[netip.Addr]podEnd{}, map[netip.Addr]podEnd{}
	asked := map[netip.Addr]bool{}
	for _, pod := range pods {
		asked[pod] = true
	}
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
			for a, end := range devices {
				if asked[a] && end.present(host) {
					out[a] = end
				}
			}
		}
	}
	collect(false)
	if len(out) < len(asked) {
		collect(true)
	}
	d.namespaces = namespaces
	return out, errors.Join(errs...)
}

// present reports whether the other end of a pair is still on the node.
func (e podEnd) present(host map[int]netlink.Link) bool {
	if e.kind != kindVeth && e.kind != kindNetkit {
		return true
	}
	end := host[e.host]
	return end != nil && end.Type() == e.kind && end.Attrs().ParentIndex == e.index && end.Attrs().NetNsID == e.netns
}

// devicesOf returns the devices of a network namespace that lead to this one, by their addresses.
// host are the links of this namespace by index.
func devicesOf(path string, host map[int]netlink.Link) (map[netip.Addr]podEnd, error) {
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
	if err != nil {
		return nil, err
	}
	handle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	self, err := netns.Get()
	if err != nil {
		return nil, err
	}
	defer self.Close()
	node, err := handle.GetNetNsIdByFd(int(self))
	if err != nil || id < 0 && node < 0 {
		return nil, err // without an id no device has its other end, or its parent, in this namespace
	}
	links, err := Dump(handle.LinkList)
	if err != nil {
		return nil, err
	}
	out := map[netip.Addr]podEnd{}
	for _, l := range links {
		end := podEnd{kind: l.Type(), index: l.Attrs().Index, path: path}
		switch end.kind {
		case kindVeth, kindNetkit:
			end.host, end.netns = l.Attrs().ParentIndex, id
			if id < 0 || !end.present(host) {
				continue
			}
		case "macvlan", "macvtap", "ipvlan", "ipvtap", "vlan":
			if node < 0 || l.Attrs().NetNsID != node {
				continue
			}
		default:
			continue
		}
		if len(l.Attrs().HardwareAddr) == len(end.mac) {
			end.mac = [6]byte(l.Attrs().HardwareAddr)
		}
		addresses, err := Dump(func() ([]netlink.Addr, error) { return handle.AddrList(l, netlink.FAMILY_V4) })
		if err != nil {
			return nil, err
		}
		for _, a := range addresses {
			if address, ok := netip.AddrFromSlice(a.IP.To4()); ok {
				out[address] = end
			}
		}
	}
	return out, nil
}

// neighbours are the MAC addresses that the node has learnt.
type neighbours struct {
	macs  map[onDevice][6]byte
	ports map[portKey]int
}

type onDevice struct {
	ifindex int
	address netip.Addr
}

// portKey is a MAC address learnt by a bridge.
type portKey struct {
	bridge int
	mac    [6]byte
}

// readNeighbours reads the neighbour tables, and the ports of all bridges by the addresses learnt
// there. For a device without ARP the kernel enters the device's own MAC address.
func readNeighbours() (neighbours, error) {
	out := neighbours{map[onDevice][6]byte{}, map[portKey]int{}}
	entries, err := Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, unix.AF_INET) })
	if err != nil {
		return out, fmt.Errorf("list neighbours: %w", err)
	}
	for _, n := range entries {
		a, ok := netip.AddrFromSlice(n.IP)
		if ok && len(n.HardwareAddr) == 6 && n.State&(unix.NUD_FAILED|unix.NUD_INCOMPLETE|unix.NUD_NOARP) == 0 {
			out.macs[onDevice{n.LinkIndex, a.Unmap()}] = [6]byte(n.HardwareAddr)
		}
	}
	entries, err = Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, unix.AF_BRIDGE) })
	if err != nil {
		return out, fmt.Errorf("list the forwarding tables of bridges: %w", err)
	}
	for _, e := range entries {
		if len(e.HardwareAddr) == 6 && e.MasterIndex != 0 {
			out.ports[portKey{e.MasterIndex, [6]byte(e.HardwareAddr)}] = e.LinkIndex
		}
	}
	return out, nil
}

// endpoint returns the endpoint of a pod whose packets arrive at a device: that device, or the port
// of a bridge.
func (n neighbours) endpoint(pod netip.Addr, device int, host map[int]netlink.Link) (e dataplane.Endpoint, problem string) {
	unknown := fmt.Sprintf("its network namespace is not in %s", NamespacesDir)
	mac, ok := n.macs[onDevice{device, pod}]
	if !ok {
		return e, unknown + ", and it has not sent a packet yet"
	}
	if l := host[device]; l != nil && l.Type() == kindBridge {
		device = n.ports[portKey{device, mac}]
	}
	if l := host[device]; l == nil || l.Type() != kindVeth {
		return e, unknown + ", and it has no veth pair"
	}
	return dataplane.Endpoint{Ifindex: uint32(device), MAC: mac}, ""
}
