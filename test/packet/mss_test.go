package packet

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// A SYN's MSS option is lowered to 1,410, wherever it stands; nothing else of any packet changes.
func TestMSSClamp(t *testing.T) {
	k := load(t, 1, 2)
	const hi, lo, newHi, newLo = 0x05, 0xb4, 0x05, 0x82 // 1460, 1410
	tests := []struct {
		name          string
		flags         uint8
		options, want []byte
	}{
		{"first option", SYN, []byte{2, 4, hi, lo}, []byte{2, 4, newHi, newLo}},
		{"at an odd offset", SYN, []byte{1, 2, 4, hi, lo, 1, 1, 1}, []byte{1, 2, 4, newHi, newLo, 1, 1, 1}},
		{"behind window scale, at an odd offset", SYN, []byte{3, 3, 7, 2, 4, hi, lo, 0}, []byte{3, 3, 7, 2, 4, newHi, newLo, 0}},
		{"behind SACK permitted and timestamps", SYN, append([]byte{4, 2, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8}, 2, 4, hi, lo), append([]byte{4, 2, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8}, 2, 4, newHi, newLo)},
		{"at the very end of 40 bytes", SYN, append(bytes.Repeat([]byte{1}, 36), 2, 4, hi, lo), append(bytes.Repeat([]byte{1}, 36), 2, 4, newHi, newLo)},
		{"lower already", SYN, []byte{2, 4, 0x05, 0x00}, []byte{2, 4, 0x05, 0x00}},
		{"equal already", SYN, []byte{2, 4, newHi, newLo}, []byte{2, 4, newHi, newLo}},
		{"the largest", SYN, []byte{2, 4, 0xff, 0xff}, []byte{2, 4, newHi, newLo}},
		{"no options", SYN, nil, nil},
		{"no MSS option", SYN, []byte{4, 2, 1, 1}, []byte{4, 2, 1, 1}},
		{"behind the end of the options", SYN, []byte{0, 0, 0, 0, 2, 4, hi, lo}, []byte{0, 0, 0, 0, 2, 4, hi, lo}},
		{"an option of length 0", SYN, []byte{8, 0, 2, 4, hi, lo, 1, 1}, []byte{8, 0, 2, 4, hi, lo, 1, 1}},
		{"an option of length 1", SYN, []byte{8, 1, 2, 4, hi, lo, 1, 1}, []byte{8, 1, 2, 4, hi, lo, 1, 1}},
		{"an option that reaches beyond the header", SYN, []byte{8, 40, 2, 4, hi, lo, 1, 1}, []byte{8, 40, 2, 4, hi, lo, 1, 1}},
		{"an MSS option of length 3", SYN, []byte{2, 3, hi, lo}, []byte{2, 3, hi, lo}},
		{"an MSS option that is cut off", SYN, []byte{1, 1, 2, 4}, []byte{1, 1, 2, 4}},
		{"bytes of a segment that is no SYN", ACK, []byte{2, 4, hi, lo}, []byte{2, 4, hi, lo}},
	}
	k.sent(t, k.fromPod(t, tcpPacket(SYN)), "edge-out sent") // for the segment that is no SYN
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := tcpPacket(tt.flags, func(p *Packet) { p.TCP.Options, p.Payload = tt.options, []byte("data") })
			o := k.sent(t, k.fromPod(t, p), "edge-out sent")
			got := decode(t, o.Inner)
			want := p.with(from("120.1.0.1"), ports(got.TCP.Source, 80), func(p *Packet) { p.TCP.Options, p.Protocol = tt.want, ProtocolTCP })
			wantEqual(t, "packet", want, got)
		})
	}
}

// The answer's MSS is lowered as well: each edge clamps what it sends.
func TestMSSClampOfAnswers(t *testing.T) {
	k := load(t, 1, 2)
	request := clientTCP(SYN, to(global(1, 21)))
	seen := k.delivered(t, k.arrive(t, overlay(1, 1, 2, request.Encode())))
	answer := seen.answer().with(func(p *Packet) { p.TCP.Options = []byte{2, 4, 0x05, 0xb4} })
	got := decode(t, k.sent(t, k.fromPod(t, answer), "edge-out sent").Inner)
	wantEqual(t, "options", []byte{2, 4, 0x05, 0x82}, got.TCP.Options)
}

// Whatever the options are, the packet passes with right checksums, and at most two bytes of an MSS
// option change.
func TestMSSClampAnyOptions(t *testing.T) {
	k := load(t, 1, 2)
	rapid.Check(t, func(rt *rapid.T) {
		options := rapid.SliceOfN(rapid.ByteRange(0, 12), 0, 40).Draw(rt, "options")
		options = append(options, make([]byte, (4-len(options)%4)%4)...)
		p := tcpPacket(SYN, func(p *Packet) { p.TCP.Options = options })
		r := k.fromPod(t, p)
		o, err := DecodeOverlay(r.Frame)
		if err != nil || r.Verdict != "edge-out sent" {
			rt.Fatalf("%s: %v", r.Verdict, err)
		}
		got, err := Decode(o.Inner)
		if err != nil {
			rt.Fatal(err)
		}
		changed := 0
		for i, b := range got.TCP.Options {
			if b != options[i] {
				changed++
			}
		}
		if changed > 2 {
			rt.Errorf("options % x became % x", options, got.TCP.Options)
		}
	})
}
