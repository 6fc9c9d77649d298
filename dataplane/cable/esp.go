package cable

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// IdentityESP is the key under which an IPsec gateway says, once its IKE daemon runs, what does ESP there.
const IdentityESP = "esp"

// Values of IdentityESP.
const (
	ESPKernel    = "kernel"
	ESPUserspace = "userspace"
)

// Limit is the MTU for pods' packets, at most mtu, that fit through a gateway with that identity (Wire.Identity). ESP in the
// IKE daemon takes packets of up to 1,400 bytes, whatever the underlay could carry.
func Limit(identity map[string]string, mtu int) int {
	if identity[IdentityESP] == ESPUserspace {
		return min(mtu, tunMTU-header)
	}
	return mtu
}

// KernelESP says what the kernel lacks for IPsec, nil: nothing. It makes an xfrm interface and an SA as the wire needs them, in
// a network namespace of its own, and takes both away again. The kernel may load modules for it. It needs CAP_SYS_ADMIN.
func KernelESP() error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		back, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("open the network namespace: %w", err)
			return
		}
		defer back.Close()
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("make a network namespace to try the kernel's ESP in: %w", err)
			return
		}
		err = tryESP()
		if unix.Setns(int(back.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		} // else the thread ends with this goroutine, and nobody else runs in the wrong namespace
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

// removeSAs takes the keys and policies of our xfrm interfaces from the kernel: those that an IKE daemon left there that was
// killed. The others stay.
func removeSAs() error {
	ours := func(id int) bool { return id >= firstIfID && id < firstIfID+MaxTunnels }
	states, err := netlink.XfrmStateList(netlink.FAMILY_ALL)
	if errors.Is(err, syscall.EPROTONOSUPPORT) {
		return nil // a kernel without IPsec
	}
	if err != nil {
		return fmt.Errorf("list the kernel's SAs: %w", err)
	}
	for _, s := range states {
		if ours(s.Ifid) {
			if err := netlink.XfrmStateDel(&s); err != nil {
				return fmt.Errorf("remove the SA to %s: %w", s.Dst, err)
			}
		}
	}
	policies, err := netlink.XfrmPolicyList(netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list the kernel's IPsec policies: %w", err)
	}
	for _, p := range policies {
		if ours(p.Ifid) {
			if err := netlink.XfrmPolicyDel(&p); err != nil {
				return fmt.Errorf("remove the IPsec policy of %s: %w", p.Dst, err)
			}
		}
	}
	return nil
}
