package clusters

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/pelago-net/pelago/test/netns"
)

// CNI is how a CNI attaches pods to their node.
type CNI string

// Kinds of CNI.
const (
	// Bridge: the pods of a node are ports of bridge cni0, which has the node's address towards
	// them.
	Bridge CNI = ""
	// SharedVeth, as Cilium: all pods are routed to a veth device without ARP whose other end is on
	// the node as well, and each sends by its own. What Cilium's programs deliver, rules do here.
	SharedVeth CNI = "shared veth"
	// Switch, as CNIs on Open vSwitch: pods are ports of a switch, and the node's stack is behind
	// another port, to which all pods are routed. The switch is a bridge here.
	Switch CNI = "switch"
)

// redirect delivers packets from all devices of the pod's node to the pod past the node's end of its
// device, as Cilium does with BPF host routing. Programs that precede are executed.
func (p *Pod) redirect(t testing.TB) {
	t.Helper()
	a := p.Address.As4()
	mac := append(p.Endpoint.MAC[:], 0, 0)
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Dual BSD/GPL", Instructions: asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadAbs(12, asm.Half), asm.JNE.Imm(asm.R0, 0x0800, "next"),
		asm.LoadAbs(14+16, asm.Word), asm.LoadImm(asm.R1, int64(binary.BigEndian.Uint32(a[:])), asm.DWord), asm.JNE.Reg(asm.R0, asm.R1, "next"),
		asm.LoadImm(asm.R1, int64(binary.NativeEndian.Uint64(mac)), asm.DWord), asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord),
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, 0), asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -8), asm.Mov.Imm(asm.R4, 6),
		asm.Mov.Imm(asm.R5, 0), asm.FnSkbStoreBytes.Call(),
		asm.Mov.Imm(asm.R1, int32(p.Endpoint.Ifindex)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirectPeer.Call(), asm.Return(),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("next"), asm.Return(),
	}})
	must(t, err)
	t.Cleanup(func() { must(t, program.Close()) })
	devices := slices.Clone(p.Node.uplinks)
	for _, other := range p.Node.Pods {
		devices = append(devices, other.host())
	}
	for _, name := range devices {
		must(t, p.Node.Do(func() error {
			index, err := p.Node.NS.Index(name)
			if err != nil {
				return err
			}
			l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: program, Attach: ebpf.AttachTCXIngress, Anchor: link.Tail()})
			if err == nil {
				t.Cleanup(func() { must(t, l.Close()) })
			}
			return err
		}))
	}
}

// deliveryTable has the routes by which SharedVeth delivers.
const deliveryTable = "77"

// addNetwork makes what the pods are attached to; pods is the node's address in their network.
func (n *Node) addNetwork(t testing.TB, pods netip.Prefix) {
	t.Helper()
	bridge := "cni0"
	switch n.cni {
	case SharedVeth:
		must(t, n.Sysctl("net/ipv4/conf/all/rp_filter", "0"))
		n.MustRun(t, "ip", "link", "add", "shared0", "type", "veth", "peer", "name", "shared1")
		n.MustRun(t, "ip", "link", "set", "shared0", "arp", "off", "up")
		n.MustRun(t, "ip", "link", "set", "shared1", "arp", "off", "up")
		must(t, n.AddAddr("shared0", netip.PrefixFrom(pods.Addr(), 32)))
		n.MustRun(t, "ip", "route", "add", pods.Masked().String(), "dev", "shared0")
		n.MustRun(t, "ip", "rule", "add", "pref", "50", "iif", "pelago0", "lookup", deliveryTable)
		return
	case Switch:
		bridge = "switch0"
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = bridge
	must(t, n.Handle().LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	n.MustRun(t, "ip", "link", "set", bridge, "up")
	if n.cni == Switch {
		// The node's iptables do not see the packets of Open vSwitch.
		must(t, n.Sysctl("net/bridge/bridge-nf-call-iptables", "0"))
		n.MustRun(t, "ip", "link", "add", "gw0", "type", "veth", "peer", "name", "gw0-port")
		n.MustRun(t, "ip", "link", "set", "gw0-port", "master", bridge, "up")
		n.MustRun(t, "ip", "link", "set", "gw0", "up")
		bridge = "gw0"
	}
	must(t, n.AddAddr(bridge, pods))
}

// attach connects the pod with its node.
func (p *Pod) attach(t testing.TB) {
	t.Helper()
	n, bits := p.Node, 24
	if n.cni == SharedVeth {
		bits = 32
	}
	must(t, netns.Veth(netns.End{NS: p.NS, Name: "eth0", Addrs: []netip.Prefix{netip.PrefixFrom(p.Address, bits)}}, netns.End{NS: n.NS, Name: p.host()}))
	switch n.cni {
	case Bridge:
		n.MustRun(t, "ip", "link", "set", p.host(), "master", "cni0")
		link, err := n.Handle().LinkByName(p.host())
		must(t, err)
		must(t, n.Handle().LinkSetHairpin(link, true))
	case Switch:
		n.MustRun(t, "ip", "link", "set", p.host(), "master", "switch0")
	case SharedVeth:
		n.MustRun(t, "ip", "rule", "add", "pref", "51", "iif", p.host(), "lookup", deliveryTable)
		n.MustRun(t, "ip", "route", "add", fmt.Sprintf("%s/32", p.Address), "dev", p.host(), "table", deliveryTable)
	}
	must(t, p.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), n.podAddress(1), "eth0"))
}
