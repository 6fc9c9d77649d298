//go:build linux

package cable

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/pelago-net/pelago/test/netns"
)

var wires = flag.String("wires", "", "kernel: fail where the kernel has no WireGuard, ESP or xfrm interfaces; userspace: do not use them; default: use them where they are")

// kernelWireGuard reports whether this run tests the kernel's WireGuard; if not, the embedded one.
func kernelWireGuard(t testing.TB) bool {
	return fromKernel(t, hasWireGuard)
}

// kernelESP reports whether this run tests the kernel's ESP; if not, kernel-libipsec.
func kernelESP(t testing.TB) bool {
	return fromKernel(t, hasXfrmi)
}

func fromKernel(t testing.TB, has func() error) bool {
	t.Helper()
	netns.Require(t)
	if *wires == "userspace" {
		return false
	}
	err := has()
	if err != nil && (*wires == "kernel" || !errors.Is(err, syscall.EOPNOTSUPP)) {
		t.Fatal(err)
	}
	return err == nil
}

var (
	hasWireGuard = sync.OnceValue(func() error { return tryLink(&netlink.Wireguard{LinkAttrs: called("probe")}) })
	hasXfrmi     = sync.OnceValue(func() error { return tryLink(&netlink.Xfrmi{LinkAttrs: called("probe"), Ifid: 1}) })
)

func called(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

// tryLink makes the device in a namespace that goes with it.
func tryLink(link netlink.Link) error {
	ns, err := netns.Create(fmt.Sprintf("t%d-probe-%s", os.Getpid(), link.Type()))
	if err != nil {
		return err
	}
	if err := ns.Handle().LinkAdd(link); err != nil {
		return errors.Join(fmt.Errorf("make a device of type %s: %w", link.Type(), err), ns.Close())
	}
	return ns.Close()
}
