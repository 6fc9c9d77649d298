package natt

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func testCodec(t interface{ Fatal(...any) }, psk string) codec {
	c, err := newCodec([]byte(psk))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func drawAddrPort(t *rapid.T, label string) netip.AddrPort {
	switch rapid.IntRange(0, 2).Draw(t, label+" family") {
	case 0:
		return netip.AddrPort{}
	case 1:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, label))), rapid.Uint16().Draw(t, label+" port"))
	}
	b := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, label)
	b[0] = 0x20
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)), rapid.Uint16().Draw(t, label+" port"))
}

func drawMessage(t *rapid.T) message {
	id16 := func(label string) [16]byte { return [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, label)) }
	return message{
		kind: kind(rapid.IntRange(1, 3).Draw(t, "kind")), nonce: id16("nonce"), echo: id16("echo"), from: id16("from"), to: id16("to"),
		source: drawAddrPort(t, "source"), destination: drawAddrPort(t, "destination"),
	}
}

func TestMessageThereAndBack(t *testing.T) {
	c := testCodec(t, "a key")
	rapid.Check(t, func(t *rapid.T) {
		m := drawMessage(t)
		b := c.encode(m)
		if len(b) != messageSize {
			t.Fatalf("%d bytes; want %d whatever the kind, so that nothing is amplified", len(b), messageSize)
		}
		got, err := c.decode(b)
		if err != nil || got != m {
			t.Fatalf("decode = %+v, %v; want %+v", got, err, m)
		}
	})
}

// Every bit is protected, and another key or length is seen.
func TestMessageTampered(t *testing.T) {
	c, other := testCodec(t, "a key"), testCodec(t, "b key")
	rapid.Check(t, func(t *rapid.T) {
		b := c.encode(drawMessage(t))
		if _, err := other.decode(b); err != errMAC {
			t.Fatalf("with another key: %v; want %v", err, errMAC)
		}
		if _, err := c.decode(b[:rapid.IntRange(0, len(b)-1).Draw(t, "length")]); err != errFormat {
			t.Fatalf("shortened: %v; want %v", err, errFormat)
		}
		if _, err := c.decode(append(append([]byte(nil), b...), 0)); err != errFormat {
			t.Fatalf("lengthened: %v; want %v", err, errFormat)
		}
		bit := rapid.IntRange(0, len(b)*8-1).Draw(t, "bit")
		b[bit/8] ^= 1 << (bit % 8)
		if m, err := c.decode(b); err == nil {
			t.Fatalf("bit %d changed and taken: %+v", bit, m)
		}
	})
}

func TestMessageRefused(t *testing.T) {
	c := testCodec(t, "a key")
	mac := func(b []byte) []byte { return append(b[:macOffset:macOffset], sum(c.mac, b[:macOffset])...) }
	for _, k := range []kind{0, 4, 255} {
		if _, err := c.decode(c.encode(message{kind: k})); err != errFormat {
			t.Errorf("kind %d: %v; want %v", k, err, errFormat)
		}
	}
	b := c.encode(message{kind: request})
	b[4] = 2
	if _, err := c.decode(mac(b)); err != errVersion {
		t.Errorf("version 2: %v; want %v", err, errVersion)
	}
	if _, err := newCodec(nil); err == nil || !strings.Contains(err.Error(), "submariner-ipsec-psk") {
		t.Errorf("no key: %v; want an error that says where to take it", err)
	}
}

// The layout and the derivation of keys are an interface between versions.
func TestMessageGolden(t *testing.T) {
	c := testCodec(t, "golden")
	m := message{
		kind: answer, nonce: nonce{1, 2}, echo: nonce{3}, from: c.id("a"), to: c.id("b"),
		source: netip.MustParseAddrPort("192.0.2.1:50000"), destination: netip.MustParseAddrPort("[2001:db8::1]:4490"),
	}
	const want = "704e415401020000" +
		"0102000000000000000000000000000003000000000000000000000000000000" +
		"786931d7301610aa69c566c7f0edd882a8fd8edfb2ca87cb27cc7008d65383ff" +
		"00000000000000000000ffffc0000201c350" +
		"20010db8000000000000000000000001118a" +
		"f2056e8f59dc535e25fc4266e07c47bf954f33a02bc302fa63103cfd7793b9df"
	if got := hex.EncodeToString(c.encode(m)); got != want {
		t.Errorf("message:\n%s\nwant:\n%s", got, want)
	}
}

func FuzzDecode(f *testing.F) {
	c := testCodec(f, "a key")
	f.Add(c.encode(message{kind: request}))
	f.Add([]byte("pNAT"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := c.decode(b); err == nil && string(c.encode(m)) != string(b) && b[6] == 0 && b[7] == 0 {
			t.Errorf("decode(%x) = %+v, which is another message", b, m)
		}
	})
}

func TestCookie(t *testing.T) {
	key, src := []byte("key"), netip.MustParseAddrPort("192.0.2.1:1")
	base := cookie(key, 7, id{1}, src)
	for name, other := range map[string]nonce{
		"slot":    cookie(key, 8, id{1}, src),
		"peer":    cookie(key, 7, id{2}, src),
		"address": cookie(key, 7, id{1}, netip.MustParseAddrPort("192.0.2.2:1")),
		"port":    cookie(key, 7, id{1}, netip.MustParseAddrPort("192.0.2.1:2")),
		"process": cookie([]byte("yek"), 7, id{1}, src),
	} {
		if base == other {
			t.Errorf("a cookie of another %s is the same", name)
		}
	}
}

func TestLimits(t *testing.T) {
	l := newLimits()
	allowed := 0
	for range 1000 {
		if l.allow(privateB) {
			allowed++
		}
	}
	if allowed < burstPerSource || allowed > burstPerSource+ratePerSource {
		t.Errorf("%d of 1000 answers at once to one source; want about %d", allowed, burstPerSource)
	}
	if !l.allow(publicB) {
		t.Error("another source suffers from the first one")
	}
	for i := range 3 * maxSources {
		l.allow(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}))
	}
	if len(l.sources) > maxSources {
		t.Errorf("%d sources are kept; want at most %d", len(l.sources), maxSources)
	}
}
