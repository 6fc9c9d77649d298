package loader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane/netdev"
)

// hook is an attach point of a program on a device.
type hook struct {
	name    string // of the pin: link_<name>_<ifindex>
	program string
	attach  ebpf.AttachType
	l3      bool // for devices whose packets have no Ethernet header
}

var (
	edgeHooks = []hook{
		{"edge_in", bpf.PelagoProgEdgeIn, ebpf.AttachTCXIngress, false},
		{"edge_out", bpf.PelagoProgEdgeOut, ebpf.AttachTCXEgress, false},
	}
	receiverHooks = edgeHooks[:1] // ingress only
	wireHooks     = []hook{
		{"wire_in", bpf.PelagoProgWireIn, ebpf.AttachTCXIngress, true},
		{"wire_out", bpf.PelagoProgWireOut, ebpf.AttachTCXEgress, true},
	}
	podHooks = []hook{
		{"pod_out", bpf.PelagoProgPodOut, ebpf.AttachTCXIngress, false},
		{"pod_in", bpf.PelagoProgPodIn, ebpf.AttachTCXEgress, false},
	}
	uplinkHooks = []hook{
		{"uplink_in", bpf.PelagoProgUplinkIn, ebpf.AttachTCXIngress, false},
		{"uplink_out", bpf.PelagoProgUplinkOut, ebpf.AttachTCXEgress, false},
	}
	l3UplinkHooks = []hook{
		{"uplink_in", bpf.PelagoProgUplinkL3In, ebpf.AttachTCXIngress, true},
		{"uplink_out", bpf.PelagoProgUplinkL3Out, ebpf.AttachTCXEgress, true},
	}
)

// hooks returns all hooks, by name.
func hooks() []hook { return slices.Concat(edgeHooks, uplinkHooks, wireHooks, podHooks) }

// Devices are the devices of the programs, as interface indexes in the network namespace of the
// calling thread.
type Devices struct {
	// Edge is pelago0.
	Edge int
	// Uplinks are the devices over which nodes and gateways are reached.
	Uplinks []int
	// Receivers are the other devices at which the kernel takes overlay packets (netdev.Receivers).
	Receivers []int
	// Wires are the tunnels of an encrypted wire; they have no Ethernet header.
	Wires []int
	// Pods are the devices of the State's Endpoints, PodEnds the other ends of those whose
	// namespace is known.
	Pods    []int
	PodEnds []PodEnd
	// XDP are the uplinks whose driver is to run uplink_xdp; Attach returns why some cannot.
	XDP []int
	// Cgroup is the root of the cgroup2 hierarchy, with Options.Sockets; empty: processes of the
	// node reach ClusterSetIPs by Edge alone.
	Cgroup string
}

// Report is what Attach found that is no error.
type Report struct {
	// XDP is why uplink_xdp could not be attached to some of Devices.XDP, which costs only speed.
	XDP []error
	// Displaced are filters of others that were executed before ours until this call, and those of
	// ours that others had removed.
	Displaced []string
	// PodEnds is why pod_end could not be attached to some of Devices.PodEnds: answers of
	// ClusterSetIPs are then translated at the node's end alone.
	PodEnds error
	// Sockets is why the programs of Devices.Cgroup could not be attached.
	Sockets error
	// Uplinks are those of Devices.Uplinks that lack a program, and why: what they lead to must not
	// be in the tables.
	Uplinks map[int]error
}

// Attach attaches the programs to the devices and detaches them from devices of earlier calls. It
// continues after an error; that of a single uplink is in the Report alone. An attached program is
// replaced atomically. Programs outlive the process: by pinned TCX links, before Linux 6.6 by
// clsact filters, which are moved before foreign filters that were added since: those may end the
// execution, ours return TC_ACT_UNSPEC for other packets.
func (l *Loader) Attach(d Devices) (r Report, err error) {
	wanted, attached := map[string]bool{}, map[string]bool{}
	r.Uplinks = map[int]error{}
	var errs []error
	try := func(ifindex int, hooks []hook) error {
		var errs []error
		for _, h := range hooks {
			pin := pinName(h.name, ifindex)
			wanted[pin] = true
			displaced, err := l.attach(ifindex, h, filepath.Join(l.pinPath, pin))
			errs = append(errs, err)
			attached[pin] = err == nil
			r.Displaced = append(r.Displaced, displaced...)
		}
		return errors.Join(errs...)
	}
	attach := func(ifindex int, hooks []hook) { errs = append(errs, try(ifindex, hooks)) }
	// Uplinks first: replies to what the edge sends need them.
	for _, ifindex := range d.Uplinks {
		hooks, err := hooksOfUplink(ifindex)
		if err == nil {
			err = try(ifindex, hooks)
		}
		if err != nil {
			r.Uplinks[ifindex] = err
		}
	}
	for _, ifindex := range d.Wires {
		attach(ifindex, wireHooks)
	}
	for _, ifindex := range d.Receivers {
		attach(ifindex, receiverHooks)
	}
	attach(d.Edge, edgeHooks)
	for _, ifindex := range d.Pods {
		var gone netlink.LinkNotFoundError
		if _, err := netlink.LinkByIndex(ifindex); errors.As(err, &gone) {
			continue // with its pod
		}
		attach(ifindex, podHooks)
	}
	l.attached = attached
	r.PodEnds = l.attachPodEnds(d.PodEnds)
	r.Sockets = l.attachSockets(d.Cgroup)
	r.XDP = l.attachXDP(d.XDP) // last, since it passes packets to uplink_in

	pins, err := l.linkPins()
	if err != nil {
		return r, errors.Join(append(errs, err)...)
	}
	for _, pin := range pins {
		if !wanted[pin] && !strings.HasPrefix(pin, "link_"+xdpHook+"_") && !strings.HasPrefix(pin, "link_"+podEndHook+"_") {
			if err := os.Remove(filepath.Join(l.pinPath, pin)); err != nil {
				errs = append(errs, fmt.Errorf("detach %s: %w", pin, err))
			}
		}
	}
	if l.clsact.Load() {
		errs = append(errs, detachClsact(hooks(), wanted))
	}
	return r, errors.Join(errs...)
}

// Attached returns the devices that have our programs, by hook: {"edge_out": [7], …}.
func (l *Loader) Attached() (map[string][]int, error) {
	pins, err := l.linkPins()
	if err != nil {
		return nil, err
	}
	out := map[string][]int{}
	for _, pin := range pins {
		name := strings.TrimPrefix(pin, "link_")
		i := strings.LastIndexByte(name, '_')
		ifindex, err := strconv.Atoi(name[i+1:])
		if err != nil {
			return nil, fmt.Errorf("read pin %s: %w", pin, err)
		}
		// The link of a pod's end has its interface index in the pod's namespace.
		if name[:i] == podEndHook || alive(filepath.Join(l.pinPath, pin), ifindex) {
			out[name[:i]] = append(out[name[:i]], ifindex)
		}
	}
	return out, eachFilter(hooks(), func(ifindex int, h hook, _ *netlink.BpfFilter) {
		out[h.name] = append(out[h.name], ifindex)
	})
}

func (l *Loader) attach(ifindex int, h hook, pin string) (displaced []string, err error) {
	if err := checkDevice(ifindex, h); err != nil {
		return nil, fmt.Errorf("attach %s: %w", h.name, err)
	}
	program, err := l.Program(h.program)
	if err != nil {
		return nil, err
	}
	if l.clsact.Load() {
		return attachClsact(ifindex, h, program, l.attached[filepath.Base(pin)])
	}
	if alive(pin, ifindex) {
		old, err := link.LoadPinnedLink(pin, nil)
		if err != nil {
			return nil, fmt.Errorf("open link %s: %w", pin, err)
		}
		defer old.Close()
		if err := old.Update(program); err != nil {
			return nil, fmt.Errorf("replace %s on device %d: %w", h.name, ifindex, err)
		}
		return nil, nil
	}
	if err := os.Remove(pin); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove link %s of a deleted device: %w", pin, err)
	}
	// Head: a foreign program may end the execution. One that puts itself before ours later did so
	// on purpose, as tools that trace packets do; CNIs attach at the tail.
	made, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: program, Attach: h.attach, Anchor: link.Head()})
	if errors.Is(err, ebpf.ErrNotSupported) {
		l.clsact.Store(true)
		return attachClsact(ifindex, h, program, false)
	}
	if err != nil {
		return nil, fmt.Errorf("attach %s to device %d: %w", h.name, ifindex, err)
	}
	defer made.Close()
	if err := made.Pin(pin); err != nil {
		return nil, fmt.Errorf("pin link %s: %w", pin, err)
	}
	return nil, nil
}

// hooksOfUplink returns those for the link type of an uplink.
func hooksOfUplink(ifindex int) ([]hook, error) {
	u, ok, err := netdev.ReadUplink(uint32(ifindex))
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, fmt.Errorf("look up device %d: it is gone", ifindex)
	case u.Problem != "":
		return nil, errors.New(u.Problem)
	case u.L3:
		return l3UplinkHooks, nil
	}
	return uplinkHooks, nil
}

// checkDevice checks that a device carries what the program of a hook expects: Ethernet frames, or
// IP packets.
func checkDevice(ifindex int, h hook) error {
	device, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return fmt.Errorf("look up device %d: %w", ifindex, err)
	}
	a := device.Attrs()
	ether := a.EncapType == "ether"
	if h.l3 && ether {
		return fmt.Errorf("device %s is an Ethernet device: use a tunnel of IP packets", a.Name)
	}
	if !h.l3 && !ether {
		return fmt.Errorf("device %s has link type %q, not ether", a.Name, a.EncapType)
	}
	return nil
}

// alive reports whether pin is a link to the device. The link of a deleted device has index 0.
func alive(pin string, ifindex int) bool {
	l, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		return false
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return false
	}
	if tcx := info.TCX(); tcx != nil {
		return int(tcx.Ifindex) == ifindex
	}
	xdp := info.XDP()
	return xdp != nil && int(xdp.Ifindex) == ifindex
}

func (l *Loader) linkPins() ([]string, error) {
	entries, err := os.ReadDir(l.pinPath)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", l.pinPath, err)
	}
	var pins []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "link_") {
			pins = append(pins, e.Name())
		}
	}
	return pins, nil
}

func pinName(hook string, ifindex int) string { return fmt.Sprintf("link_%s_%d", hook, ifindex) }
