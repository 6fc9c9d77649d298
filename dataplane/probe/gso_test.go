package probe

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/pelago-net/pelago/dataplane/liveness"
)

// GSO packets count as lost after three probes that entered the stack and did not leave it, and as
// passing after one that did. What did not enter is no evidence.
func TestGSO(t *testing.T) {
	const (
		passes = iota
		lost
		stuck // not handed over
	)
	var g gso
	var counters liveness.LargeProbe
	counters.GSOPassed, counters.GSOHanded = 65535, 65535 // they wrap
	now := time.Unix(1, 0)
	lostBefore := false
	for i, step := range []struct {
		fate int
		lost bool // what is known when the next one is sent
	}{
		{passes, false}, {lost, false}, {lost, false}, {passes, false}, {stuck, false}, {stuck, false}, {stuck, false}, {stuck, false},
		{lost, false}, {lost, false}, {lost, true}, {stuck, true}, {lost, true}, {passes, false}, {passes, false}, {passes, false},
	} {
		began := now
		for !g.waits(now) || !g.observe(counters, now) {
			if now = now.Add(Idle); now.Sub(began) > gsoPatience+gsoEvery+2*Idle {
				t.Fatalf("step %d: no probe for %s", i, now.Sub(began))
			}
		}
		if g.lost != lostBefore {
			t.Errorf("before step %d: lost %t; want %t", i, g.lost, lostBefore)
		}
		lostBefore = step.lost
		if step.fate != stuck {
			counters.GSOHanded++
		}
		if step.fate == passes {
			counters.GSOPassed++
		}
	}
}

// The frame is a TCP packet that the kernel accepts as one of two segments.
func TestGSOFrame(t *testing.T) {
	peer := netip.MustParseAddr("172.16.1.2")
	frame := GSOFrame(peer)
	if len(frame) != 10+14+20+20+1200 {
		t.Fatalf("%d bytes", len(frame))
	}
	header, packet := frame[:10], frame[24:]
	if got := binary.NativeEndian.Uint16(header[4:]); got != 600 || header[1] != 1 {
		t.Errorf("segments of %d bytes, kind %d", got, header[1])
	}
	if got := binary.NativeEndian.Uint16(header[2:]); got != 54 {
		t.Errorf("headers of %d bytes", got)
	}
	if to, _ := netip.AddrFromSlice(packet[16:20]); to != peer || packet[0] != 0x45 || packet[9] != 6 || packet[32] != 0x50 ||
		int(binary.BigEndian.Uint16(packet[2:])) != len(packet) {
		t.Errorf("packet %x", packet[:40])
	}
}
