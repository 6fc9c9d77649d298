package loader

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane/netdev"
)

// Before Linux 6.6 there is no TCX: programs sit in filters of a clsact qdisc. A filter holds a
// reference to its program, so it also outlives the process, and it is replaced atomically. Its
// handle and name identify it as ours.
const filterPriority = 1

// filterHandles are those of our filters: the second one while the first goes behind a filter of
// others, and the other way round.
var filterHandles = [...]uint32{0x50, 0x51} // 'P'

// attachClsact puts a program into a filter on the device, or replaces the one that is there, and
// describes what others did to it: filters that were executed before it until now, and its removal
// if it was attached. Filters of one priority are executed from the youngest to the oldest
// (cls_bpf_change adds at the head of the list), and a program that returns anything but
// TC_ACT_UNSPEC ends the execution: Cilium's do.
func attachClsact(ifindex int, h hook, program *ebpf.Program, attached bool) (displaced []string, err error) {
	device, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return nil, fmt.Errorf("look up device %d: %w", ifindex, err)
	}
	name := device.Attrs().Name
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, syscall.EEXIST) {
		return nil, fmt.Errorf("add qdisc clsact to %s: %w", name, err)
	}
	filters, err := netdev.Dump(func() ([]netlink.Filter, error) { return netlink.FilterList(device, filterParent(h)) })
	if err != nil {
		return nil, fmt.Errorf("list the filters of %s: %w", name, err)
	}
	ours, before := order(filters, filterName(h))
	handle := filterHandles[0]
	if len(ours) > 0 {
		handle = ours[0].Handle
		if len(before) > 0 && handle == filterHandles[0] {
			handle = filterHandles[1]
		} else if len(before) > 0 {
			handle = filterHandles[0]
		}
	}
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: ifindex, Parent: filterParent(h), Handle: handle, Priority: filterPriority, Protocol: unix.ETH_P_ALL,
		},
		Fd: program.FD(), Name: filterName(h), DirectAction: true,
	}
	if err := netlink.FilterReplace(filter); err != nil {
		if errors.Is(err, syscall.EINVAL) { // all filters of a priority have one protocol
			err = fmt.Errorf("%w: remove filters of priority %d and another protocol than all (tc filter show dev %s %s)", err, filterPriority, name, direction(h))
		}
		return nil, fmt.Errorf("attach %s to %s by clsact: %w", h.name, name, err)
	}
	var errs []error
	for _, old := range ours {
		if old.Handle != handle {
			if err := netlink.FilterDel(old); err != nil {
				errs = append(errs, fmt.Errorf("detach the former %s from %s: %w", h.name, name, err))
			}
		}
	}
	if attached && len(ours) == 0 {
		displaced = append(displaced, fmt.Sprintf("another program removed filter %s from %s %s; it is attached again", filterName(h), name, direction(h)))
	}
	for _, f := range before {
		displaced = append(displaced, foreign(f, name, h))
	}
	return displaced, errors.Join(errs...)
}

// order returns our filters of that name, and the foreign ones that are executed before the first of
// them. filters are in the order of execution.
func order(filters []netlink.Filter, name string) (ours []*netlink.BpfFilter, before []netlink.Filter) {
	for _, f := range filters {
		if b, ok := f.(*netlink.BpfFilter); ok && b.Name == name {
			ours = append(ours, b)
		} else if len(ours) == 0 {
			before = append(before, f)
		}
	}
	if len(ours) == 0 {
		before = nil // ours is added at the head
	}
	return ours, before
}

// foreign describes a program of others on a hook.
func foreign(f netlink.Filter, device string, h hook) string {
	name := f.Type()
	if b, ok := f.(*netlink.BpfFilter); ok {
		name = b.Name
	}
	return fmt.Sprintf("filter %s was executed before %s on %s %s; it is behind it now", name, filterName(h), device, direction(h))
}

func direction(h hook) string {
	if h.attach == ebpf.AttachTCXIngress {
		return "ingress"
	}
	return "egress"
}

// detachClsact takes the filters of these hooks off every device but those to keep. The qdisc
// stays: others may use it.
func detachClsact(hooks []hook, keep map[string]bool) error {
	var errs []error
	err := eachFilter(hooks, func(ifindex int, h hook, f *netlink.BpfFilter) {
		if keep[pinName(h.name, ifindex)] {
			return
		}
		if err := netlink.FilterDel(f); err != nil {
			errs = append(errs, fmt.Errorf("detach %s from device %d: %w", h.name, ifindex, err))
		}
	})
	return errors.Join(append(errs, err)...)
}

// eachFilter calls f for every filter of ours in the network namespace.
func eachFilter(hooks []hook, f func(ifindex int, h hook, filter *netlink.BpfFilter)) error {
	devices, err := netdev.Dump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	for _, d := range devices {
		for _, h := range hooks {
			filters, err := netdev.Dump(func() ([]netlink.Filter, error) { return netlink.FilterList(d, filterParent(h)) })
			if errors.Is(err, netlink.ErrDumpInterrupted) {
				return fmt.Errorf("list the filters of device %s: %w", d.Attrs().Name, err)
			}
			if err != nil {
				continue // no clsact on this device
			}
			for _, filter := range filters {
				if b, ok := filter.(*netlink.BpfFilter); ok && b.Name == filterName(h) {
					f(d.Attrs().Index, h, b)
				}
			}
		}
	}
	return nil
}

func filterParent(h hook) uint32 {
	if h.attach == ebpf.AttachTCXIngress {
		return netlink.HANDLE_MIN_INGRESS
	}
	return netlink.HANDLE_MIN_EGRESS
}

func filterName(h hook) string { return "pelago_" + h.name }

// Displaced reports whether a change of filters may have removed one of ours, or put one before it.
// Of kernels with TCX none can.
func (l *Loader) Displaced(u netdev.FilterUpdate) bool {
	return l.clsact.Load() && (u.Type != unix.RTM_NEWTFILTER || !slices.Contains(filterHandles[:], u.Handle))
}
