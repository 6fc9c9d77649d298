package loader

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/pelago-net/pelago/bpf"
)

// xdpHook is the name of the pins of XDP links: link_uplink_xdp_<ifindex>.
const xdpHook = "uplink_xdp"

// attachXDP attaches uplink_xdp to the devices, in driver mode only: generic XDP would make the
// kernel copy every packet of the node. It detaches it from all other devices, and returns why
// attaching failed for each device where it did.
func (l *Loader) attachXDP(devices []int) (problems []error) {
	rows := map[uint32]bpf.PelagoUplink{}
	for _, ifindex := range devices {
		device, err := netlink.LinkByIndex(ifindex)
		if err != nil {
			problems = append(problems, fmt.Errorf("attach XDP: look up device %d: %w", ifindex, err))
			continue
		}
		if err := l.attachFrames(device); err != nil {
			problems = append(problems, err)
			continue
		}
		row := bpf.PelagoUplink{}
		copy(row.Mac[:], device.Attrs().HardwareAddr)
		rows[uint32(ifindex)] = row
	}
	// A device gets its map entry after its program and loses it before: frames are redirected only
	// to devices that have the program.
	problems = append(problems, l.writeUplinks(rows))
	pins, err := l.linkPins()
	problems = append(problems, err)
	for _, pin := range pins {
		index, isXDP := strings.CutPrefix(pin, "link_"+xdpHook+"_")
		ifindex, err := strconv.Atoi(index)
		if _, wanted := rows[uint32(ifindex)]; !isXDP || err == nil && wanted {
			continue
		}
		if err := os.Remove(filepath.Join(l.pinPath, pin)); err != nil {
			problems = append(problems, fmt.Errorf("detach %s: %w", pin, err))
		}
	}
	return slices.DeleteFunc(problems, func(err error) bool { return err == nil })
}

// attachFrames puts uplink_xdp on a device, or replaces it in one step.
func (l *Loader) attachFrames(device netlink.Link) error {
	a := device.Attrs()
	if a.EncapType != "ether" {
		return fmt.Errorf("attach XDP to %s: it is no Ethernet device but %q", a.Name, a.EncapType)
	}
	program, err := l.Program(bpf.PelagoProgUplinkXdp)
	if err != nil {
		return fmt.Errorf("attach XDP to %s: %w", a.Name, err)
	}
	pin := filepath.Join(l.pinPath, pinName(xdpHook, a.Index))
	if alive(pin, a.Index) {
		old, err := link.LoadPinnedLink(pin, nil)
		if err != nil {
			return fmt.Errorf("open link %s: %w", pin, err)
		}
		defer old.Close()
		if err := old.Update(program); err != nil {
			return fmt.Errorf("replace XDP on %s: %w", a.Name, err)
		}
		return nil
	}
	if err := os.Remove(pin); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove link %s of a device that is gone: %w", pin, err)
	}
	made, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: a.Index, Flags: link.XDPDriverMode})
	switch {
	case errors.Is(err, syscall.EBUSY), errors.Is(err, syscall.EEXIST):
		return fmt.Errorf("attach XDP to %s: a program of somebody else is there, tc does all the work: %w", a.Name, err)
	case err != nil:
		return fmt.Errorf("attach XDP to %s: its driver does not take the program, tc does all the work: %w", a.Name, err)
	}
	defer made.Close()
	if err := made.Pin(pin); err != nil {
		return fmt.Errorf("pin link %s: %w", pin, err)
	}
	return nil
}

func (l *Loader) writeUplinks(want map[uint32]bpf.PelagoUplink) error {
	var errs []error
	var gone []uint32
	var ifindex uint32
	var row bpf.PelagoUplink
	have := l.objs.Uplinks.Iterate()
	for have.Next(&ifindex, &row) {
		if _, ok := want[ifindex]; !ok {
			gone = append(gone, ifindex)
		}
	}
	errs = append(errs, have.Err())
	for _, ifindex := range gone {
		errs = append(errs, l.objs.Uplinks.Delete(ifindex))
	}
	for ifindex, row := range want {
		errs = append(errs, l.objs.Uplinks.Put(ifindex, row))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("write map uplinks: %w", err)
	}
	return nil
}

// Guard rate-limits WireGuard handshakes from addresses that are not in known. It applies to the
// UDP ports of the wire, from the lowest of ports to the highest. Without ports there is nothing to
// guard.
func (l *Loader) Guard(ports []uint16, known []netip.Addr) error {
	var row bpf.PelagoGuard
	if len(ports) > 0 {
		row.First = slices.Min(ports)
		row.Ports = slices.Max(ports) - row.First + 1
	}
	want := map[[4]byte]bool{}
	for _, a := range known {
		if a.Is4() {
			want[a.As4()] = true
		}
	}
	var errs []error
	var gone [][4]byte
	var key [4]byte
	var nothing uint32
	have := l.objs.Callers.Iterate()
	for have.Next(&key, &nothing) {
		if want[key] {
			delete(want, key)
		} else {
			gone = append(gone, key)
		}
	}
	errs = append(errs, have.Err())
	for key := range maps.Keys(want) {
		errs = append(errs, l.objs.Callers.Update(key, uint32(0), ebpf.UpdateAny))
	}
	errs = append(errs, l.objs.Guards.Put(uint32(0), row))
	for _, key := range gone {
		errs = append(errs, l.objs.Callers.Delete(key))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("write maps guards and callers: %w", err)
	}
	return nil
}
