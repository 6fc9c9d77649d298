package cable

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
)

const (
	// ipsecPrefix begins the names of xfrm interfaces.
	ipsecPrefix = "pelago-ipsec"
	// firstIfID is that of tunnel 0's xfrm interface, the overlay's port for want of something better known.
	firstIfID = 4800
	// tunMTU is what kernel-libipsec reads from its TUN at most, whatever the MTU of the device is.
	tunMTU = 1400
)

// ErrNoXfrmInterface: the kernel has ESP but no xfrm interfaces, so that there is no device to redirect packets into.
// (Policies without such a device do not see redirected packets: they would leave in the clear.)
var ErrNoXfrmInterface = errors.New("the kernel has no xfrm interfaces (CONFIG_XFRM_INTERFACE, Linux 4.19): load the module xfrm_interface, or use the cable driver wireguard")

// ensureDevices makes the xfrm interfaces, or finds the daemon's TUN. Those of tunnels that are wanted no longer go after Linger.
func (w *IPsec) ensureDevices(local Local, userspace bool, now time.Time) error {
	var names []string
	w.surplusIndex = nil
	if userspace {
		name, err := findTUN()
		if err != nil {
			return err
		}
		names = []string{name}
	} else {
		for i := range local.Tunnels {
			name := w.o.Prefix + strconv.Itoa(i)
			if err := ensureXfrmi(name, firstIfID+uint32(i)); err != nil {
				return err
			}
			names = append(names, name)
			delete(w.surplus, i)
		}
		for i := local.Tunnels; i < MaxTunnels; i++ {
			n, err := linkIndex(w.o.Prefix + strconv.Itoa(i))
			switch {
			case err != nil:
				return err
			case n == 0:
				delete(w.surplus, i) // somebody else took it away
			case w.surplus.keeps(i, now, w.o.Linger):
				w.surplusIndex = append(w.surplusIndex, n)
			default:
				err = removeLink(w.o.Prefix + strconv.Itoa(i))
			}
			if err != nil {
				return err
			}
		}
	}
	w.index, w.devices = nil, nil
	for i, name := range names {
		link, err := settle(name, local.MTU)
		if err != nil {
			return err
		}
		if i == 0 {
			if err := ensureAddress(link, local.Fabric); err != nil {
				return err
			}
		}
		w.index = append(w.index, link.Attrs().Index)
		if !userspace {
			w.devices = append(w.devices, name)
		} else if link.Attrs().TxQLen != tunQueue {
			if err := netlink.LinkSetTxQLen(link, tunQueue); err != nil {
				return fmt.Errorf("set the queue of %s to %d packets: %w", name, tunQueue, err)
			}
		}
	}
	return nil
}

// findTUN finds the device that kernel-libipsec made: ipsec0, or a higher number where that name was taken.
func findTUN() (string, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return "", fmt.Errorf("list the devices: %w", err)
	}
	for _, l := range links {
		if t, ok := l.(*netlink.Tuntap); ok && t.Mode == netlink.TUNTAP_MODE_TUN && strings.HasPrefix(l.Attrs().Name, "ipsec") {
			return l.Attrs().Name, nil
		}
	}
	return "", errors.New("find the TUN of the IKE daemon: it does ESP itself but there is no device ipsec0: does it run in this network namespace, with /dev/net/tun?")
}

func ensureXfrmi(name string, ifID uint32) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		if x, ok := link.(*netlink.Xfrmi); ok && x.Ifid == ifID {
			return nil
		}
		return fmt.Errorf("make device %s: another device of that name is there: `ip link del %s`", name, name)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	err = netlink.LinkAdd(&netlink.Xfrmi{LinkAttrs: attrs, Ifid: ifID})
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return fmt.Errorf("make device %s: %w", name, ErrNoXfrmInterface)
	}
	if err != nil {
		return fmt.Errorf("make device %s: %w", name, err)
	}
	return nil
}

// strip takes addresses and our routes from a device.
func strip(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("look up device %s: %w", name, err)
	}
	errs := []error{ensureRoutes(netip.Addr{}, nil, []int{link.Attrs().Index})}
	have, err := netlink.AddrList(link, netlink.FAMILY_V4)
	errs = append(errs, err)
	for _, a := range have {
		errs = append(errs, netlink.AddrDel(link, &a))
	}
	return errors.Join(errs...)
}
