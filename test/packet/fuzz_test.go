package packet

import (
	"testing"

	"github.com/pelago-net/pelago/bpf"
)

// FuzzUplinkIn has the receiver look at any inner packet, as it comes from a sender that knows the
// token: it ends in one verdict, and what is sent on is an overlay packet again, what is delivered
// an IPv4 packet.
func FuzzUplinkIn(f *testing.F) {
	for _, p := range samples() {
		f.Add(uint8(1), uint8(0), uint16(0), p.with(from("120.2.0.1"), to(global(1, 21))).Encode())
		f.Add(uint8(1), uint8(Fragment), uint16(2), p.with(from("120.2.0.1"), to(global(1, 1))).Encode())
	}
	f.Add(uint8(Probe), uint8(0), uint16(0), make([]byte, probeLength))
	node, gateway := load(f, 1, 2), load(f, 1, 1)
	f.Fuzz(func(t *testing.T, kind, flags uint8, index uint16, inner []byte) {
		if len(inner) > 2000 {
			return // the kernel takes at most a page
		}
		change := func(o *Overlay) { o.Type, o.Flags, o.Node = kind, flags&15, index }
		check(t, node, node.Run(t, node.UplinkIn, overlay(1, 1, 2, inner, change).Encode(), Context{}))
		check(t, gateway, gateway.Run(t, gateway.UplinkIn, overlay(1, 2, 1, inner, change).Encode(), Context{}))
		check(t, gateway, gateway.Run(t, gateway.UplinkIn, cable(2, 1, 1, inner, change).Encode(), Context{}))
	})
}

// FuzzEdgeOut does the same with what a pod sends.
func FuzzEdgeOut(f *testing.F) {
	for _, p := range samples() {
		f.Add(p.Encode())
	}
	k := load(f, 1, 2)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 20 || len(b) > 2000 {
			return
		}
		r := k.Run(t, k.EdgeOut, Frame(b), pod)
		check(t, k, r)
		// The stack has checked a pod's packet before; of a broken one the answer may be broken.
		if _, err := Decode(b); err == nil && r.Action == Redirect && r.Verdict != "edge-out sent" {
			if _, err := Decode(r.Frame[14:]); err != nil {
				t.Fatalf("%s: the answer: %v", r.Verdict, err)
			}
		}
	})
}

func check(t *testing.T, k *Kernel, r Result) {
	t.Helper()
	known := false
	for _, hook := range bpf.Hooks() {
		for _, word := range bpf.Verdicts() {
			known = known || r.Verdict == hook.String()+" "+word.String()
		}
	}
	if !known {
		t.Fatalf("verdict %q, action %d", r.Verdict, r.Action)
	}
	switch r.Action {
	case Drop:
	case Redirect:
		var err error
		switch r.Verdict {
		case "uplink-in delivered":
			_, err = DecodeDelivered(r.Frame)
		case "edge-out drop-no-flow", "edge-out drop-ports-exhausted":
			// a reset or an ICMP error to the pod
			_, err = DecodeDelivered(r.Frame)
		default:
			_, err = DecodeOverlay(r.Frame)
		}
		if err != nil {
			t.Fatalf("%s: %v", r.Verdict, err)
		}
	default:
		t.Fatalf("%s: action %d", r.Verdict, r.Action)
	}
}
