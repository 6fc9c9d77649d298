package packet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/pelago-net/pelago/dataplane/liveness"
	"github.com/pelago-net/pelago/dataplane/probe"
)

const probeLarge = 2

// sendLarge has the node send a large probe to a peer and returns it, with the beginning of its
// body.
func (k *Kernel) sendLarge(t testing.TB, peer netip.Addr, size int) (Overlay, body) {
	t.Helper()
	_, mark, err := k.Loader.Marks()
	if err != nil {
		t.Fatal(err)
	}
	o := k.sent(t, k.Run(t, k.EdgeOut, probe.LargeFrame(peer, 150*time.Millisecond, size), Context{Mark: mark}), "edge-out probe")
	return o, beginning(t, o)
}

func beginning(t testing.TB, o Overlay) (b body) {
	t.Helper()
	if err := binary.Read(bytes.NewReader(o.Inner), binary.NativeEndian, &b); err != nil {
		t.Fatal(err)
	}
	return b
}

func (k *Kernel) largeProbe(t testing.TB, peer netip.Addr) liveness.LargeProbe {
	t.Helper()
	p, ok, err := k.Loader.LargeProbe(peer)
	if err != nil || !ok {
		t.Fatalf("large probe to %s: %t, %v", peer, ok, err)
	}
	return p
}

// A large probe is as long on the way as the packet whose place it takes, on the overlay and on the
// cable, and may not be fragmented. It comes back as long, by a peer that knows nothing of large
// probes, and leaves liveness as it is.
func TestLargeProbe(t *testing.T) { bothHooks(t, throughLargeProbe) }

func throughLargeProbe(t *testing.T) {
	ga, gb := load(t, 1, 1), load(t, 2, 4)
	sibling := load(t, 1, 4)
	for _, size := range []int{400, 1390, 1450} {
		for name, far := range map[string]*Kernel{"overlay": sibling, "cable": gb} {
			want := map[string]Overlay{
				"overlay": {Destination: nodeIP(1, 4), SourcePort: overlayPort, Port: overlayPort, Token: overlayToken + 1},
				"cable":   {Destination: nodeIP(2, 4), SourcePort: cablePort, Port: cablePort, Token: cableToken},
			}[name]
			before := ga.path(t, want.Destination)
			got, b := ga.sendLarge(t, want.Destination, size)
			if len(got.Inner) != size+14 || b.Nonce == 0 || b.Sequence != uint32(size) || b.NextProbe != 150 {
				t.Errorf("%s: %d bytes, %+v; want those of a packet of %d bytes with its MAC addresses, a nonce, the size and the promise of 150 ms", name, len(got.Inner), b, size)
			}
			want.Source, want.TTL, want.Type, want.Version, want.Flags, want.Inner = nodeIP(1, 1), 64, Probe, 1, probeLarge, got.Inner
			wantEqual(t, name, want, got) // Encode, and so DecodeOverlay, have DF set
			if p := ga.largeProbe(t, want.Destination); p.Answered || p.Size != size || p.Sent > time.Minute {
				t.Errorf("%s: %+v; want one of %d bytes under way", name, p, size)
			}
			back := far.sent(t, far.arrive(t, got), "uplink-in probe")
			if back.Type != ProbeReply || back.Flags != probeLarge || len(back.Inner) != len(got.Inner) {
				t.Errorf("%s: came back as %d, flags %d, %d bytes", name, back.Type, back.Flags, len(back.Inner))
			}
			if r := ga.arrive(t, back); r.Action != Drop || r.Verdict != "uplink-in probe" {
				t.Errorf("%s: the answer: %d, %q", name, r.Action, r.Verdict)
			}
			if p := ga.largeProbe(t, want.Destination); !p.Answered || p.Size != size {
				t.Errorf("%s: %+v; want it answered", name, p)
			}
			after := ga.path(t, want.Destination)
			if after.Probes != before.Probes || after.Replies != before.Replies || after.Open != before.Open || after.Ready || after.Loss != before.Loss {
				t.Errorf("%s: the path was %+v, is %+v; want it untouched", name, before, after)
			}
		}
	}
}

// Lost ones make no path suspect.
func TestLostLargeProbes(t *testing.T) {
	ga := load(t, 1, 1)
	peer := nodeIP(2, 1)
	ga.arrive(t, answer(t, ga.sendProbe(t, peer, 0), nil))
	for range 8 {
		ga.sendLarge(t, peer, 1390)
		time.Sleep(10 * time.Millisecond) // longer in all than a path is waited for
	}
	if p := ga.path(t, peer); p.Suspect() || p.Open != 0 || p.Loss != 0 {
		t.Errorf("path %+v; want it as before", p)
	}
}

// Only the answer to the newest one counts, as long as it was sent, once.
func TestLargeAnswer(t *testing.T) {
	ga := load(t, 1, 1)
	peer := nodeIP(2, 1)
	old, _ := ga.sendLarge(t, peer, 1390)
	sent, _ := ga.sendLarge(t, peer, 1390)
	reply := func(o Overlay, change func(*Overlay)) Overlay {
		o.Source, o.Destination, o.Type, o.Inner = o.Destination, o.Source, ProbeReply, bytes.Clone(o.Inner)
		if change != nil {
			change(&o)
		}
		return o
	}
	for what, o := range map[string]Overlay{
		"to an older one":        reply(old, nil),
		"of another nonce":       reply(sent, func(o *Overlay) { o.Inner[0] ^= 2 }),
		"of another nonce's end": reply(sent, func(o *Overlay) { o.Inner[7]++ }),
		"without a nonce":        reply(sent, func(o *Overlay) { clear(o.Inner[:8]) }),
		"of another size":        reply(sent, func(o *Overlay) { o.Inner[8]++ }),
		"that is shorter":        reply(sent, func(o *Overlay) { o.Inner = o.Inner[:len(o.Inner)-1] }),
		"from another gateway":   reply(sent, func(o *Overlay) { o.Source = nodeIP(2, 4) }),
		"as to a full probe":     reply(sent, func(o *Overlay) { o.Flags = 0 }),
	} {
		if r := ga.arrive(t, o); r.Action != Drop || r.Verdict != "uplink-in drop-stale-probe" {
			t.Errorf("an answer %s: %d, %q", what, r.Action, r.Verdict)
		}
	}
	if p := ga.largeProbe(t, peer); p.Answered {
		t.Fatal("a forged answer was taken")
	}
	if r := ga.arrive(t, reply(sent, nil)); r.Verdict != "uplink-in probe" || !ga.largeProbe(t, peer).Answered {
		t.Errorf("the answer: %q", r.Verdict)
	}
	if r := ga.arrive(t, reply(sent, nil)); r.Verdict != "uplink-in drop-stale-probe" {
		t.Errorf("the answer again: %q", r.Verdict)
	}
}
