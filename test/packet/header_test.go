package packet

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/bpf"
)

// The overlay header on the wire, bit by bit. Version N must understand what N-1 sends: these bytes
// may gain a sibling for a new version, they never change. Versions before session affinity by pod
// send 0 for the client, and ignore it.
func TestHeaderBytes(t *testing.T) {
	na := load(t, 1, 2)
	na.Apply(t, oneGateway(1, 2))
	// A 1-to-1 address, so that nothing is left to chance.
	frame := func(p Packet) string {
		r := na.fromPod(t, p)
		na.sent(t, r, "edge-out sent")
		b := r.Frame
		b[34], b[35] = 0xc0, 0 // the outer source port is entropy
		return hex.EncodeToString(b[:64])
	}
	const (
		ethernet = "000000000000000000000000" + "0800"
		client   = "cef40790" // a hash of 10.7.2.11
	)
	whole := strings.Join([]string{
		ethernet,
		// IPv4, TOS copied, DF, TTL 64, UDP, 172.16.1.2 > 172.16.1.1
		"45b900530000400040" + "11" + "dfbd" + "ac100102" + "ac100101",
		"c000" + "12c0" + "003f" + "0000", // UDP to 4800, no checksum
		// VXLAN with a VNI, token, type forward, no node, version 1, no flags
		"08" + "a0b0c1" + "01" + "0000" + "10",
		"0250454c0002" + "0200" + client + "0800",
	}, "")
	first := strings.Join([]string{
		ethernet,
		"450000560000400040" + "11" + "e073" + "ac100102" + "ac100101",
		"c000" + "12c0" + "0042" + "0000",
		"08" + "a0b0c1" + "01" + "0000" + "12", // flag fragment: the inner source holds the ports
		"0250" + client + "0200" + "9c40" + "0035" + "0800",
	}, "")
	got := frame(udpPacket("hello", from("10.7.2.11"), func(p *Packet) { p.TOS = 0xb9 }))
	if got != whole {
		t.Errorf("header of a whole packet:\n got %s\nwant %s", got, whole)
	}
	got = frame(udpPacket(string(make([]byte, 8)), from("10.7.2.11"), func(p *Packet) { p.MoreFragments = true }))
	if got != first {
		t.Errorf("header of a fragment:\n got %s\nwant %s", got, first)
	}
}

// vxlanFlagsAt is the offset of the header in a frame.
const vxlanFlagsAt = 14 + 20 + 8

// Version 2 is accepted before it is sent, with all that its sender may add. An edge delivers it as
// a packet of version 1, a gateway forwards it as one.
func TestHeaderVersion2(t *testing.T) {
	inner := clientUDP()
	plain := overlay(1, 1, 2, inner.Encode())
	extended := func(o *Overlay) []byte {
		o.Version, o.Flags = 2, o.Flags|8
		o.InnerDestination, o.InnerSource = [6]byte{0x11, 1, 2, 3, 4, 5}, [6]byte{0x13, 6, 7, 8, 9, 10}
		o.Inner = append(o.Inner, "an extension"...)
		return patch(o.Encode(), vxlanFlagsAt, 0x0c)
	}
	edge := load(t, 1, 2)
	edge.Apply(t, state(1, 2))
	for name, frame := range map[string][]byte{
		"1": plain.Encode(), "2": overlay(1, 1, 2, inner.Encode(), func(o *Overlay) { o.Version = 2 }).Encode(),
		"2, extended": extended(new(overlay(1, 1, 2, inner.Encode()))),
	} {
		got := edge.delivered(t, edge.comeIn(t, frame))
		if got.Source != inner.Source || string(got.Payload) != string(inner.Payload) {
			t.Errorf("version %s: delivered %+v", name, got)
		}
	}
	gateway := load(t, 1, 1)
	gateway.Apply(t, state(1, 1))
	r := gateway.comeIn(t, extended(new(cable(2, 1, 1, clientTCP(SYN).Encode()))))
	o := gateway.sent(t, r, "uplink-in switched")
	if o.Version != 1 {
		t.Errorf("a gateway sends version %d", o.Version)
	}
	// A reply has the version of its probe.
	probe := probeOf(Probe, 2, 1, body{Nonce: 1})
	probe.Version = 2
	if reply := gateway.sent(t, gateway.comeIn(t, probe.Encode()), "uplink-in probe"); reply.Type != ProbeReply || reply.Version != 2 {
		t.Errorf("the reply to a probe of version 2: %+v", reply)
	}
}

// The numbers of the header's enums are part of it.
func TestHeaderNumbers(t *testing.T) {
	got := map[string]uint64{
		"forward": uint64(bpf.PelagoPacketTypePACKET_FORWARD), "probe": uint64(bpf.PelagoPacketTypePACKET_PROBE),
		"probe reply": uint64(bpf.PelagoPacketTypePACKET_PROBE_REPLY), "bounced": uint64(bpf.PelagoOverlayFlagOVERLAY_BOUNCED),
		"fragment": uint64(bpf.PelagoOverlayFlagOVERLAY_FRAGMENT), "switch": uint64(bpf.PelagoOverlayFlagOVERLAY_SWITCH),
	}
	want := map[string]uint64{"forward": Forward, "probe": Probe, "probe reply": ProbeReply, "bounced": Bounced, "fragment": Fragment, "switch": Switch}
	wantEqual(t, "numbers", want, got)
}
