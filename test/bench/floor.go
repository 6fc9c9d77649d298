package main

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/test/netns"
)

const (
	tcxNext    = -1 // TCX_NEXT: leave the packet to the stack
	packetHost = 0  // PACKET_HOST: addressed to this host

	protocolOffset = 16 // struct __sk_buff.protocol, network byte order
)

// floor is the least that this topology can cost: every hop is one bpf_redirect, with neither
// encapsulation nor translation nor the stack of any node.
func floor() Variant {
	return Variant{Name: "floor", Setup: redirectHops, Target: plainB}
}

func redirectHops(t *Topology, _ Scale) (setup, error) {
	var links []link.Link
	detach := func() error {
		var errs []error
		for _, l := range links {
			errs = append(errs, l.Close())
		}
		return errors.Join(errs...)
	}
	un, wan := device(devUn, 1), device(devWAN, 1)
	for _, hop := range []struct {
		ns       *netns.NS
		from, to string
		intoPod  bool
	}{
		{t.NA, devHost, un, false}, {t.GA[0], un, wan, false}, {t.GB[0], wan, un, false}, {t.NB, un, devHost, true},
		{t.NB, devHost, un, false}, {t.GB[0], un, wan, false}, {t.GA[0], wan, un, false}, {t.NA, un, devHost, true},
	} {
		l, err := redirect(hop.ns, hop.from, hop.to, hop.intoPod)
		if err != nil {
			return setup{}, errors.Join(fmt.Errorf("redirect %s of %s to %s: %w", hop.from, hop.ns.Name, hop.to, err), detach())
		}
		links = append(links, l)
	}
	return setup{teardown: detach}, nil
}

// redirect attaches to the ingress of device from a program that sends every IPv4 packet out of
// device to, or, intoPod, into the far end of to.
func redirect(n *netns.NS, from, to string, intoPod bool) (link.Link, error) {
	in, err := n.Index(from)
	if err != nil {
		return nil, err
	}
	out, err := n.Index(to)
	if err != nil {
		return nil, err
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "floor_redirect", Type: ebpf.SchedCLS, License: "Dual BSD/GPL", Instructions: redirectProgram(out, intoPod),
	})
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	defer prog.Close() // the link keeps it
	var l link.Link
	err = n.Do(func() (err error) { // the kernel looks the index up in the caller's namespace
		l, err = link.AttachTCX(link.TCXOptions{Interface: in, Program: prog, Attach: ebpf.AttachTCXIngress})
		return err
	})
	return l, err
}

func redirectProgram(ifindex int, intoPod bool) asm.Instructions {
	// __sk_buff.protocol is big endian; ARP stays with the stack, so that pods find their gateway.
	const ipv4 = unix.ETH_P_IP>>8 | unix.ETH_P_IP&0xff<<8
	prog := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R1, protocolOffset, asm.Word),
		asm.JNE.Imm(asm.R2, ipv4, "pass"),
	}
	helper := asm.FnRedirect
	if intoPod {
		// The frame carries the MAC address of the first hop; the pod must not take it for someone
		// else's.
		helper = asm.FnRedirectPeer
		prog = append(prog,
			asm.Mov.Imm(asm.R2, packetHost),
			asm.FnSkbChangeType.Call())
	}
	return append(prog,
		asm.Mov.Imm(asm.R1, int32(ifindex)),
		asm.Mov.Imm(asm.R2, 0),
		helper.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, tcxNext).WithSymbol("pass"),
		asm.Return())
}
