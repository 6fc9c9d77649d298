package packet

import (
	"bytes"
	"encoding/hex"
	"testing"

	"pgregory.net/rapid"
)

// The encoder against bytes from elsewhere: tests that compare our own arithmetic with itself would
// prove nothing.
func TestChecksumVectors(t *testing.T) {
	for _, v := range []struct{ what, bytes string }{
		{"RFC 1071 section 3, with its sum's complement", "0001f203f4f5f6f7220d"},
		{"an IPv4 header seen on a wire", "45000073000040004011b861c0a80001c0a800c7"},
	} {
		b, err := hex.DecodeString(v.bytes)
		if err != nil {
			t.Fatal(err)
		}
		if got := Checksum(b, 0); got != 0 {
			t.Errorf("%s: off by %#x", v.what, got)
		}
	}
}

func TestEncodeDecode(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := drawPacket(rt, ip("10.7.2.10"), global(2, 20))
		b := p.Encode()
		got, err := Decode(b)
		if err != nil {
			rt.Fatal(err)
		}
		p.Protocol = p.protocol()
		wantEqual(t, "packet", p, got)
		if !bytes.Equal(got.Encode(), b) {
			rt.Error("a decoded packet encodes to other bytes")
		}
		// Any changed bit of a whole packet is found (one bit never cancels out in the sum); a UDP
		// checksum of 0 is none.
		if p.UDP != nil && p.UDP.NoChecksum {
			return
		}
		b[rapid.IntRange(0, len(b)-1).Draw(rt, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
		if q, err := Decode(b); err == nil && (q.UDP == nil || !q.UDP.NoChecksum) && !q.MoreFragments && q.Offset == 0 {
			rt.Errorf("a changed bit was not seen: %+v", q)
		}
	})
}
