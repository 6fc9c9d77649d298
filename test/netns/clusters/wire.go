package clusters

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/pelago-net/pelago/test/netns"
)

// likeWire makes the veth between a node and the router behave like network cards with XDP.
// Incoming frames have complete checksums. And the router's end accepts frames that XDP sends back
// (XDP_TX), which a veth does only with an XDP program of its own: with GRO alone they stay in its
// ring until that is full, and then nothing passes any more.
func likeWire(t testing.TB, n *Node, router *netns.NS, port string) {
	t.Helper()
	n.MustRun(t, "ethtool", "-K", "un0", "tx", "off")
	const xdpPass = 2
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()}})
	must(t, err)
	defer program.Close()
	index, err := router.Index(port)
	must(t, err)
	must(t, router.Do(func() error {
		l, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: index, Flags: link.XDPDriverMode})
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	}))
}
