package packet

import (
	"net/netip"
	"testing"
)

// A gateway advertises a cluster as lossy while it reaches it by paths that lose packets only, and
// no longer once one of them is good.
func TestLossesAreAdvertised(t *testing.T) { bothHooks(t, throughLossesAreAdvertised) }

func throughLossesAreAdvertised(t *testing.T) {
	ga := load(t, 1, 1)
	remote := []netip.Addr{nodeIP(2, 1), nodeIP(2, 4)}
	lose := func(peer netip.Addr) {
		t.Helper()
		for i := range 120 {
			if o := ga.sendProbe(t, peer, 0); i%4 > 0 {
				ga.arrive(t, answer(t, o, nil))
			}
		}
		if p := ga.path(t, peer); !p.Lossy || p.Suspect() {
			t.Fatalf("a path that loses a quarter of its probes: %+v", p)
		}
	}
	advertised := func() uint64 {
		t.Helper()
		for i := range 20 {
			p := udpPacket("x", from("120.1.0.1"), func(p *Packet) { p.UDP.Source = blockOf(2) + uint16(i) })
			ga.sent(t, ga.arrive(t, overlay(1, 2, 1, p.Encode())), "uplink-in switched")
		}
		b := bodyOf(t, ga.sent(t, ga.arrive(t, overlay(1, 2, 1, body{Nonce: 1}.encode(), func(o *Overlay) { o.Type = Probe })), "uplink-in probe"))
		if b.Unreachable[0] != 0 {
			t.Errorf("clusters %b are advertised as not reached", b.Unreachable[0])
		}
		return b.Lossy[0]
	}
	for _, peer := range remote {
		ga.arrive(t, answer(t, ga.sendProbe(t, peer, 0), nil))
	}
	lose(remote[0])
	if got := advertised(); got != 0 {
		t.Errorf("one of two paths loses packets: clusters %b are advertised as lossy", got)
	}
	lose(remote[1])
	if got := advertised(); got != 1<<2 {
		t.Errorf("both paths lose packets: clusters %b are advertised as lossy; want %b", got, 1<<2)
	}
	ga.Flush(t)
	ga.Apply(t, state(1, 1))
	for _, peer := range remote {
		ga.arrive(t, answer(t, ga.sendProbe(t, peer, 0), nil))
	}
	if got := advertised(); got != 0 {
		t.Errorf("both paths are good: clusters %b are advertised as lossy", got)
	}
}

// A reply of a path that loses packets leaves what is advertised, one of a good path clears it:
// without packets for the cluster the programs learn of its recovery by probes.
func TestRepliesClearLosses(t *testing.T) {
	ga := load(t, 1, 1)
	if err := ga.Loader.Reach(nil, map[uint16]bool{2: true}); err != nil {
		t.Fatal(err)
	}
	advertised := func() uint64 {
		t.Helper()
		return bodyOf(t, ga.sent(t, ga.arrive(t, probeOf(Probe, 2, 4, body{Nonce: 1})), "uplink-in probe")).Lossy[0]
	}
	if got := advertised(); got != 1<<2 {
		t.Fatalf("clusters %b are advertised as lossy; want %b", got, 1<<2)
	}
	ga.arrive(t, answer(t, ga.sendProbe(t, nodeIP(2, 1), 0), nil))
	if got := advertised(); got != 0 {
		t.Errorf("after a reply by a good path: clusters %b", got)
	}
}

// Probes of the former version end where the losses begin: they are reflected as they are, and a
// reply of a reflector that does not know the losses reports none.
func TestProbesWithoutLosses(t *testing.T) { bothHooks(t, throughProbesWithoutLosses) }

func throughProbesWithoutLosses(t *testing.T) {
	ga, na := load(t, 1, 1), load(t, 1, 2)
	if err := ga.Loader.Reach(map[uint16]bool{2: true}, map[uint16]bool{2: true}); err != nil {
		t.Fatal(err)
	}
	old := overlay(1, 2, 1, body{Nonce: 1, Sequence: 1}.encode()[:oldProbe], func(o *Overlay) { o.Type = Probe })
	back := ga.sent(t, ga.arrive(t, old), "uplink-in probe")
	if len(back.Inner) != oldProbe || back.Inner[14+16] != 1<<2 {
		t.Errorf("an old probe came back with %d bytes: %x; want %d, and cluster 2 not reached", len(back.Inner), back.Inner, oldProbe)
	}
	for _, g := range gatewayNodes {
		na.arrive(t, answer(t, na.sendProbe(t, nodeIP(1, int(g)), 0), nil))
	}
	shared := na.exits(t)
	if n := shared[nodeIP(1, 1)]; n < 60 || n > 140 {
		t.Errorf("replies without losses: flows leave by %v; want them shared", shared)
	}
}
