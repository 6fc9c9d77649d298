//go:build linux

package cable

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane/netdev"
)

const (
	// ipsecPrefix is the prefix of the names of xfrm interfaces.
	ipsecPrefix = "pelago-ipsec"
	// firstIfID is the if_id of tunnel 0's xfrm interface; as an arbitrary number, the overlay's
	// UDP port.
	firstIfID = 4800
)

// ErrNoXfrmInterface: the kernel has ESP but no xfrm interfaces, hence no device to redirect
// packets into. (Redirected packets bypass policies without such a device: they would leave in the
// clear.)
var ErrNoXfrmInterface = errors.New("the kernel has no xfrm interfaces (CONFIG_XFRM_INTERFACE, Linux 4.19): load the module xfrm_interface, or use the cable driver wireguard")

// ensureDevices makes the xfrm interfaces, or finds the daemon's TUN. Interfaces of retired tunnels
// are removed after Linger.
func (w *IPsec) ensureDevices(local *Local, userspace bool, now time.Time) error {
	if userspace {
		name, err := findTUN()
		if err != nil {
			return err
		}
		link, err := configureTunnel(name, 0, *local)
		if err != nil {
			return err
		}
		w.index, w.retiredIndex = []int{link.Attrs().Index}, nil
		if link.Attrs().TxQLen != tunQueue {
			if err := netlink.LinkSetTxQLen(link, tunQueue); err != nil {
				return fmt.Errorf("set the queue of %s to %d packets: %w", name, tunQueue, err)
			}
		}
		return nil
	}
	_, retiredIndex, err := retireTunnels(w.retired, local.Tunnels, now, w.o.Linger, w.name, w.removeTunnel)
	errs := []error{err}
	var index []int
	for i := range local.Tunnels {
		err := ensureXfrmi(w.name(i), firstIfID+uint32(i))
		var link netlink.Link
		if err == nil {
			link, err = configureTunnel(w.name(i), i, *local)
		}
		if err != nil {
			errs = append(errs, err)
			break
		}
		index = append(index, link.Attrs().Index)
	}
	if local.Tunnels = len(index); local.Tunnels > 0 {
		w.index, w.retiredIndex = index, retiredIndex // else what is published stays
	}
	return errors.Join(errs...)
}

// findTUN returns the name of kernel-libipsec's device: ipsec0, or a higher number if that name was
// in use.
func findTUN() (string, error) {
	links, err := netdev.Dump(netlink.LinkList)
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
	err := ensureLink(&netlink.Xfrmi{LinkAttrs: linkAttrs(name), Ifid: ifID}, func(have netlink.Link) bool {
		x, ok := have.(*netlink.Xfrmi)
		return ok && x.Ifid == ifID
	})
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return fmt.Errorf("make device %s: %w", name, ErrNoXfrmInterface)
	}
	return err
}

// resetTUN removes addresses and our routes from the daemon's device, if there is one.
func resetTUN() error {
	name, err := findTUN()
	if err != nil {
		return nil
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("look up device %s: %w", name, err)
	}
	return errors.Join(ensureRoutes(netip.Addr{}, nil, []int{link.Attrs().Index}), ensureAddresses(link))
}

// KernelESP returns an error with what the kernel lacks for IPsec. It makes an xfrm interface and
// an SA like those of the wire, in a temporary network namespace, which may load kernel modules. It
// needs CAP_SYS_ADMIN.
func KernelESP() error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		host, err := os.Open("/proc/thread-self/ns/net")
		if err == nil {
			defer host.Close()
			err = unix.Unshare(unix.CLONE_NEWNET)
		}
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("make a network namespace to test the kernel's ESP in: %w", err)
			return
		}
		err = tryESP()
		if unix.Setns(int(host.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		} // else the thread ends with this goroutine, so that no other one runs in the wrong namespace
		done <- err
	}()
	return <-done
}

func tryESP() error {
	if err := ensureXfrmi("pelago-try", firstIfID); err != nil {
		return err
	}
	// rfc4106: AES-GCM with 128 bits of key and 32 of salt.
	err := netlink.XfrmStateAdd(&netlink.XfrmState{
		Src: net.IPv4(127, 0, 0, 1), Dst: net.IPv4(127, 0, 0, 2), Proto: netlink.XFRM_PROTO_ESP, Mode: netlink.XFRM_MODE_TUNNEL,
		Spi: 0xc0000001, Ifid: firstIfID, Aead: &netlink.XfrmStateAlgo{Name: "rfc4106(gcm(aes))", Key: make([]byte, 20), ICVLen: 128},
		Encap: &netlink.XfrmStateEncap{Type: netlink.XFRM_ENCAP_ESPINUDP, SrcPort: 4500, DstPort: 4500, OriginalAddress: net.IPv4zero},
	})
	if err != nil {
		return fmt.Errorf("add an SA of ESP in UDP with AES-GCM: %w (CONFIG_INET_ESP, CONFIG_CRYPTO_GCM)", err)
	}
	return nil
}

// removeSAs deletes the SAs and policies of our xfrm interfaces from the kernel, which remain when
// an IKE daemon is killed.
func removeSAs() error {
	ours := func(id int) bool { return id >= firstIfID && id < firstIfID+MaxTunnels }
	states, err := netdev.Dump(func() ([]netlink.XfrmState, error) { return netlink.XfrmStateList(netlink.FAMILY_ALL) })
	if errors.Is(err, syscall.EPROTONOSUPPORT) {
		return nil // a kernel without IPsec
	}
	if err != nil {
		return fmt.Errorf("list the kernel's SAs: %w", err)
	}
	for _, s := range states {
		if ours(s.Ifid) {
			// deleted meanwhile
			if err := netlink.XfrmStateDel(&s); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("remove the SA to %s: %w", s.Dst, err)
			}
		}
	}
	policies, err := netdev.Dump(func() ([]netlink.XfrmPolicy, error) { return netlink.XfrmPolicyList(netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list the kernel's IPsec policies: %w", err)
	}
	for _, p := range policies {
		if ours(p.Ifid) {
			if err := netlink.XfrmPolicyDel(&p); err != nil && !errors.Is(err, syscall.ENOENT) {
				return fmt.Errorf("remove the IPsec policy of %s: %w", p.Dst, err)
			}
		}
	}
	return nil
}
