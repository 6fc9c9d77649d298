package loader

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane/netdev"
)

// Before Linux 6.6 there is no TCX: programs sit in filters of a clsact qdisc. A filter holds a
// reference to its program, so it also outlives the process, and it is replaced atomically. Its
// place and name identify it as ours.
const (
	filterHandle   = 0x50 // 'P'
	filterPriority = 1
)

// attachClsact puts a program into a filter on the device, or replaces the one that is there.
func attachClsact(ifindex int, h hook, program *ebpf.Program) error {
	device, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return fmt.Errorf("look up device %d: %w", ifindex, err)
	}
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("add qdisc clsact to %s: %w", device.Attrs().Name, err)
	}
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: ifindex, Parent: filterParent(h), Handle: filterHandle, Priority: filterPriority, Protocol: unix.ETH_P_ALL,
		},
		Fd: program.FD(), Name: filterName(h), DirectAction: true,
	}
	if err := netlink.FilterReplace(filter); err != nil {
		return fmt.Errorf("attach %s to %s by clsact: %w", h.name, device.Attrs().Name, err)
	}
	return nil
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
