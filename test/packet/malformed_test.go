package packet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
)

// samples are one well-formed packet of each kind, from pod 10.7.2.10.
func samples() map[string]Packet {
	return map[string]Packet{
		"tcp":                tcpPacket(SYN, func(p *Packet) { p.TCP.Options = []byte{2, 4, 5, 180}; p.Payload = []byte("hello") }),
		"tcp behind options": tcpPacket(SYN, func(p *Packet) { p.Options = []byte{7, 7, 4, 0, 0, 0, 0, 0} /* record route */ }),
		"udp":                udpPacket("hello"),
		"echo":               echoPacket(Echo),
		"icmp error":         icmpError(answerTo(2, to(ip("10.7.2.10"))), ip("10.7.2.10"), global(2, 20), 8).with(func(p *Packet) { p.Source = ip("10.7.2.10") }),
		"first fragment":     udpPacket("hello", func(p *Packet) { p.MoreFragments = true }),
	}
}

// shortest is the length of an Ethernet and an IPv4 header: the kernel runs no program on a shorter
// frame of IPv4. (In the field such a frame is dropped before our hooks or, if not, packet_at()
// refuses it as it does any other.)
const shortest = 34

// A frame cut anywhere is malformed to the edge, and to the uplink either malformed or, where it is
// too short to be seen as ours, left alone.
func TestCutFrames(t *testing.T) {
	edge, uplink := load(t, 1, 2), load(t, 1, 2)
	for name, p := range samples() {
		whole := Frame(p.Encode())
		for n := shortest; n < len(whole); n++ {
			r := edge.Run(t, edge.EdgeOut, whole[:n], pod)
			if r.Verdict != "edge-out drop-malformed" || r.Action != Drop {
				t.Errorf("%s cut to %d of %d bytes at the edge: %q", name, n, len(whole), r.Verdict)
			}
		}
		whole = overlay(1, 1, 2, p.Encode(), func(o *Overlay) { o.Flags = Fragment }).Encode()
		for n := shortest; n < len(whole); n++ {
			r := uplink.Run(t, uplink.UplinkIn, whole[:n], Context{})
			want, action := "uplink-in drop-malformed", Drop
			if n < 14+28 {
				want, action = "", Next
			}
			if r.Verdict != want || r.Action != action || action == Next && !bytes.Equal(r.Frame, whole[:n]) {
				t.Errorf("%s cut to %d of %d bytes at the uplink: %q, action %d; want %q", name, n, len(whole), r.Verdict, r.Action, want)
			}
			if r := uplink.Run(t, uplink.UplinkOut, whole[:n], Context{}); n < 14+28 && (r.Action != Next || r.Verdict != "") {
				t.Errorf("%s cut to %d of %d bytes at the guard: %q, action %d; want it left alone", name, n, len(whole), r.Verdict, r.Action)
			}
		}
	}
}

// A packet whose length field ends before its transport header does is malformed, whatever follows
// in the frame.
func TestShortTotalLength(t *testing.T) {
	k := load(t, 1, 2)
	for name, p := range samples() {
		whole := p.Encode()
		header := 20 + len(p.Options)
		need := header + map[bool]int{true: 20, false: 8}[p.TCP != nil]
		if p.ICMP != nil && p.ICMP.Type == Unreachable {
			need = len(whole)
		}
		for length := range need {
			b := bytes.Clone(whole)
			binary.BigEndian.PutUint16(b[2:], uint16(length))
			if r := k.Run(t, k.EdgeOut, Frame(b), pod); r.Verdict != "edge-out drop-malformed" {
				t.Errorf("%s with a total length of %d: %q", name, length, r.Verdict)
			}
			if r := k.Run(t, k.UplinkIn, overlay(1, 1, 2, b, func(o *Overlay) { o.Flags = Fragment }).Encode(), Context{}); r.Verdict != "uplink-in drop-malformed" {
				t.Errorf("%s with a total length of %d at the uplink: %q", name, length, r.Verdict)
			}
		}
	}
}

// What is not ours continues to the next program and the stack, bit for bit and uncounted.
func TestForeignPackets(t *testing.T) {
	k := load(t, 1, 1)
	ours := cable(2, 1, 1, clientTCP(SYN).Encode())
	change := func(f func(*Overlay)) []byte {
		o := ours
		f(&o)
		return o.Encode()
	}
	elsewhere := func(o *Overlay) { o.Port = 53 }
	through := func(o *Overlay) { o.Destination = ip("192.0.2.9") }
	pieces := func(frame []byte) [][]byte { return Fragments(frame[14:], 1400) }
	long := make([]byte, 2000)
	frames := map[string][]byte{
		"TCP to the overlay port":               Frame(Packet{Source: nodeIP(1, 2), Destination: nodeIP(1, 1), TTL: 64, TCP: &TCP{Destination: overlayPort}}.Encode()),
		"UDP to another port":                   change(elsewhere),
		"UDP 4500 through this node":            change(through),
		"options, to another port":              withOptions(t, cable(2, 1, 1, nil, elsewhere)),
		"options, through this node":            withOptions(t, cable(2, 1, 1, nil, through)),
		"a first fragment, to another port":     Frame(pieces(cable(2, 1, 1, long, elsewhere).Encode())[0]),
		"a first fragment, through this node":   Frame(pieces(cable(2, 1, 1, long, through).Encode())[0]),
		"a later fragment":                      Frame(pieces(cable(2, 1, 1, long).Encode())[1]),
		"a later fragment with options":         Frame(pieces(withOptions(t, cable(2, 1, 1, long)))[1]),
		"ARP":                                   append(patch(Frame(nil), 12, 0x08, 0x06), make([]byte, 46)...),
		"IPv6":                                  append(patch(Frame(nil), 12, 0x86, 0xdd), make([]byte, 60)...),
		"a packet to a pod":                     Frame(tcpPacket(ACK, to(ip("10.7.1.10"))).Encode()),
		"a packet to a global address in clear": Frame(clientTCP(SYN).Encode()),
	}
	for name, frame := range frames {
		for hook, mark := range map[string]uint32{"uplink-in": 0x1234, "uplink-out": 0x1234} {
			r := k.Run(t, k.program(hook), frame, Context{Mark: mark})
			if r.Action != Next || r.Verdict != "" || !bytes.Equal(r.Frame, frame) || r.Mark != mark {
				t.Errorf("%s at %s: action %d, verdict %q, mark %#x; want it untouched", name, hook, r.Action, r.Verdict, r.Mark)
			}
		}
	}
	// The guard is about our ports at our peers only: pods may run tunnels of their own to the rest
	// of the world.
	for name, frame := range map[string][]byte{
		"UDP 4500 to the Internet": change(func(o *Overlay) { o.Destination = ip("192.0.2.9") }),
		"UDP 4800 to a pod":        change(func(o *Overlay) { o.Destination, o.Port = ip("10.7.3.10"), overlayPort }),
	} {
		if r := k.Run(t, k.UplinkOut, frame, Context{}); r.Action != Next || r.Verdict != "" || !bytes.Equal(r.Frame, frame) {
			t.Errorf("%s at the guard: action %d, verdict %q; want it let through", name, r.Action, r.Verdict)
		}
	}
	// Our own packets are marked, and nobody sees the mark.
	cookie, _, err := k.Loader.Marks()
	if err != nil {
		t.Fatal(err)
	}
	own := overlay(1, 1, 2, nil).Encode()
	if r := k.Run(t, k.UplinkOut, own, Context{Mark: cookie}); r.Action != Next || r.Mark != 0 || !bytes.Equal(r.Frame, own) {
		t.Errorf("our own packet at the guard: %s", fmt.Sprint(r.Action, r.Verdict, r.Mark))
	}
}
