package packet

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/pelago-net/pelago/bpf"
)

// Where a probe is overdue, a packet takes one along as a clone: a small one at once, a large one when it is overdue for long.
func TestClonesAreSmall(t *testing.T) {
	withXDP(t)
	ga := load(t, 1, 1)
	s := state(1, 1)
	s.Settings.Edge = uint32(uplink.index) // where edge_out turns clones into probes
	ga.Apply(t, s)
	// The path has a round-trip time of 4 s, so that its interval is half a second: a probe is overdue after 0.75 s.
	const second = 1e9
	overdue := func(by uint64) func(*bpf.PelagoPath) {
		return func(p *bpf.PelagoPath) {
			p.Srtt = 4e9
			p.Ring[p.Sequence%16].Sent = uint64(nanotime(t)) - 3*second/4 - by
		}
	}
	var out link.Link
	if err := uplink.ns.Do(func() (err error) {
		out, err = link.AttachTCX(link.TCXOptions{Interface: uplink.index, Program: ga.EdgeOut, Attach: ebpf.AttachTCXEgress})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	for _, tt := range []struct {
		name    string
		size    int
		overdue uint64
		want    uint64
	}{
		{"none is overdue", 100, 0, 0},
		{"a small packet", 100, second / 4, 1},
		{"a large packet", 1000, second / 4, 0},
		{"a large packet, overdue for long", 1000, 10 * second, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.overdue == 0 {
				ga.answered(t) // in an hour
			} else {
				ga.answered(t, overdue(tt.overdue))
			}
			before := ga.counters(t)["edge-out probe"]
			frame := overlay(1, 2, 1, udpPacket(strings.Repeat("x", tt.size), from("120.1.0.1")).Encode()).Encode()
			err := uplink.ns.Do(func() error {
				r, err := ga.TryRun(ga.UplinkIn, frame, Context{})
				if err == nil && r.Action != Redirect {
					t.Errorf("action %d; want the packet sent", r.Action)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := ga.counters(t)["edge-out probe"] - before; got != tt.want {
				t.Errorf("%d clones; want %d", got, tt.want)
			}
		})
	}
}
