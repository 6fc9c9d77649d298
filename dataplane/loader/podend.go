package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/pelago-net/pelago/bpf"
)

// podEndHook names the links of pod_end, with the interface index of the node's end.
const podEndHook = "pod_end"

// PodEnd is the pod's own end of its device, in the pod's network namespace.
type PodEnd struct {
	Device    int    // the node's end: one of Devices.Pods
	Namespace string // file
	Index     int    // of the end, in Namespace
}

// attachPodEnds attaches pod_end to the pods' own ends, and then has pod_in leave the answers of
// ClusterSetIPs to it; it detaches pod_end from all others. Without TCX (before Linux 6.6) it
// attaches nothing: a filter in a pod's namespace would outlive Remove.
func (l *Loader) attachPodEnds(ends []PodEnd) error {
	var errs []error
	attached := map[uint32]bool{}
	for _, end := range ends {
		if l.clsact.Load() {
			break
		}
		ok, err := l.attachPodEnd(end)
		errs = append(errs, err)
		if ok {
			attached[uint32(end.Device)] = true
		}
	}
	known, err := readMap(l.objs.PodEnds, func(k uint32) uint32 { return k }, func(v uint32) uint32 { return v })
	errs = append(errs, err)
	for device := range attached {
		if known[device] == 0 {
			errs = append(errs, put(l.objs.PodEnds, device, uint32(1)))
		}
	}
	for device := range known {
		if !attached[device] {
			errs = append(errs, remove(l.objs.PodEnds, device))
		}
	}
	pins, err := l.linkPins()
	errs = append(errs, err)
	for _, pin := range pins {
		index, ours := strings.CutPrefix(pin, "link_"+podEndHook+"_")
		device, err := strconv.Atoi(index)
		if ours && (err != nil || !attached[uint32(device)]) {
			if err := os.Remove(filepath.Join(l.pinPath, pin)); err != nil {
				errs = append(errs, fmt.Errorf("detach %s: %w", pin, err))
			}
		}
	}
	return errors.Join(errs...)
}

// attachPodEnd reports whether pod_end is attached to an end; without an error it is not where the
// pod has gone, or before Linux 6.6.
func (l *Loader) attachPodEnd(end PodEnd) (bool, error) {
	program, err := l.Program(bpf.PelagoProgPodEnd)
	if err != nil {
		return false, err
	}
	pin := filepath.Join(l.pinPath, pinName(podEndHook, end.Device))
	if alive(pin, end.Index) {
		old, err := link.LoadPinnedLink(pin, nil)
		if err != nil {
			return false, fmt.Errorf("open link %s: %w", pin, err)
		}
		defer old.Close()
		if err := old.Update(program); err != nil {
			return false, fmt.Errorf("replace %s of device %d: %w", podEndHook, end.Device, err)
		}
		return true, nil
	}
	if err := os.Remove(pin); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("remove link %s of a deleted device: %w", pin, err)
	}
	var made link.Link
	err = inNamespace(end.Namespace, func() (err error) {
		own, err := netlink.LinkByIndex(end.Index)
		var gone netlink.LinkNotFoundError
		if errors.As(err, &gone) || err == nil && own.Attrs().ParentIndex != end.Device {
			return fs.ErrNotExist
		}
		if err == nil {
			made, err = link.AttachTCX(link.TCXOptions{
				Interface: end.Index, Program: program, Attach: ebpf.AttachTCXIngress, Anchor: link.Head(),
			})
		}
		return err
	})
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, ebpf.ErrNotSupported):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("attach %s to the pod's end of device %d: %w", podEndHook, end.Device, err)
	}
	defer made.Close()
	if err := made.Pin(pin); err != nil {
		return false, fmt.Errorf("pin link %s: %w", pin, err)
	}
	return true, nil
}

// inNamespace calls f on a thread in a network namespace. A thread that cannot return to its own
// stays locked, and ends with its goroutine.
func inNamespace(path string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- func() error {
			own, err := netns.Get()
			if err != nil {
				return err
			}
			defer own.Close()
			target, err := netns.GetFromPath(path)
			if err != nil {
				return err
			}
			defer target.Close()
			if err := netns.Set(target); err != nil {
				return fmt.Errorf("enter network namespace %s: %w", path, err)
			}
			err = f()
			if netns.Set(own) == nil {
				runtime.UnlockOSThread()
			}
			return err
		}()
	}()
	return <-done
}
