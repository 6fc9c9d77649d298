package packet

import "testing"

// FuzzBothHooks: whatever a gateway receives on its overlay or its cable, broken headers of the
// overlay included, ends in the same bytes and the same verdict with uplink_xdp before uplink_in
// and without.
func FuzzBothHooks(f *testing.F) {
	for _, p := range samples() {
		inner := p.with(from("120.1.0.1"), to(global(2, 20))).Encode()
		f.Add(uint8(2), false, uint8(Forward), uint8(0), uint16(0), uint8(64), uint8(0), uint8(0), uint8(0), inner)
		f.Add(uint8(1), true, uint8(Forward), uint8(0), uint16(0), uint8(64), uint8(0xff), uint8(0), uint8(0), p.with(from("120.2.0.20"), to(global(1, 21))).Encode())
	}
	f.Add(uint8(1), true, uint8(Probe), uint8(0), uint16(0), uint8(255), uint8(0), uint8(0), uint8(0), make([]byte, probeLength))
	f.Add(uint8(9), false, uint8(ProbeReply), uint8(15), uint16(5), uint8(1), uint8(1), uint8(3), uint8(0x80), make([]byte, probeLength))
	withXDP(f)
	k := load(f, 1, 1)
	k.answered(f)
	f.Fuzz(func(t *testing.T, sender uint8, wire bool, kind, flags uint8, node uint16, ttl, tos, at, change uint8, inner []byte) {
		if len(inner) > 2000 {
			return // the kernel takes at most a page
		}
		o := overlay(1, int(sender%10), 1, inner)
		if wire {
			o = cable(2, int(sender%10), 1, inner)
		}
		o.Type, o.Flags, o.Node, o.TTL, o.TOS = kind, flags&15, node, ttl, tos
		frame := o.Encode()
		// One byte after the UDP header: handshakes to other ports are rate limited, so the first
		// run would drain the second's bucket.
		frame[42+int(at)%(len(frame)-42)] ^= change
		var tc Result
		if err := uplink.ns.Do(func() error { tc = k.Run(t, k.UplinkIn, frame, Context{}); return nil }); err != nil {
			t.Fatal(err)
		}
		xdp, _ := k.throughXDP(t, frame)
		if err := differ(tc, xdp); err != nil {
			t.Error(err)
		}
	})
}
