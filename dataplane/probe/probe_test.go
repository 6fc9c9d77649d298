package probe

import (
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/dataplane/liveness"
	"github.com/pelago-net/pelago/test/packet"
)

// What the program makes of the frame is tested by test/packet (TestProbeIsSent), with a real
// device by test/netns/clusters.
func TestFrame(t *testing.T) {
	peer := netip.MustParseAddr("172.16.1.2")
	frame := Frame(peer, 250*time.Millisecond)
	want := packet.Frame(make([]byte, 336-14))
	clear(want[:12]) // MAC addresses do not matter
	want[14], want[64] = 0x45, 250
	copy(want[14+16:], []byte{172, 16, 1, 2})
	if diff := cmp.Diff(want, frame); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// kernel is a Node with one path.
type kernel struct {
	peer  netip.Addr
	path  liveness.Path
	large liveness.LargeProbe
}

func (k *kernel) Paths() (map[netip.Addr]liveness.Path, error) {
	return map[netip.Addr]liveness.Path{k.peer: k.path}, nil
}

func (k *kernel) LargeProbe(netip.Addr) (liveness.LargeProbe, bool, error) { return k.large, true, nil }

// large is a sender of large probes; GSO probes do not leave.
type large func(peer netip.Addr, frame []byte) error

func (s large) send(peer netip.Addr, frame []byte) error { return s(peer, frame) }
func (s large) sendGSO(netip.Addr) error                 { return nil }

func (k *kernel) Marks() (uint32, uint32, error) { return 1, 2, nil }

// Only the answer to the probe in flight counts, not an answer to an earlier probe of the same
// size; a probe that cannot be sent does not count; the callback is called on a change.
func TestProberTakesLargeAnswers(t *testing.T) {
	k := &kernel{peer: netip.MustParseAddr("172.16.1.2"), path: liveness.Path{Probed: true, Replies: 1, Ready: true, Seen: time.Millisecond}}
	changes := 0
	p := New(k, nil, func() { changes++ }, slog.New(slog.DiscardHandler))
	var sent [][]byte
	var fails error
	now := time.Now()
	look := func(after time.Duration) {
		t.Helper()
		now = now.Add(after)
		if err := p.refresh(now, 1390, large(func(_ netip.Addr, frame []byte) error { sent = append(sent, frame); return fails })); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(what string, frames, calls int, want liveness.Size) {
		t.Helper()
		if got := p.Sizes()[k.peer]; len(sent) != frames || changes != calls || got != want {
			t.Errorf("%s: %d frames, %d changes, %+v; want %d, %d, %+v", what, len(sent), changes, got, frames, calls, want)
		}
	}
	// an earlier daemon's
	k.large = liveness.LargeProbe{Size: 1390, Answered: true, Sent: time.Hour}
	look(0)
	look(Idle)
	expect("the answer to an earlier probe", 1, 0, liveness.Size{})
	if want := LargeFrame(k.peer, Busy, 1390); !cmp.Equal(want, sent[0]) {
		t.Errorf("the frame is %d bytes long; want %d", len(sent[0]), len(want))
	}
	k.large.Sent = 0
	look(Idle)
	expect("its answer", 1, 1, liveness.Size{Full: 1390, Passes: 1390})
	fails = errors.New("no buffer space")
	for range 10 {
		look(LargeEvery + Idle)
	}
	expect("what cannot be sent", 11, 1, liveness.Size{Full: 1390, Passes: 1390})
	k.path.Probed = false
	look(Idle)
	expect("not probed any more", 11, 2, liveness.Size{})
}

func TestEvery(t *testing.T) {
	for _, tt := range []struct {
		path liveness.Path
		want time.Duration
	}{
		{liveness.Path{Used: time.Hour}, Idle},
		{liveness.Path{Used: time.Second}, Busy},
		{liveness.Path{Used: time.Second, SRTT: 79 * time.Millisecond}, Busy},
		{liveness.Path{Used: time.Second, SRTT: 160 * time.Millisecond}, 20 * time.Millisecond},
		{liveness.Path{Used: time.Hour, SRTT: time.Second}, Idle},
	} {
		if got := every(tt.path); got != tt.want {
			t.Errorf("used %s ago, RTT %s: every %s; want %s", tt.path.Used, tt.path.SRTT, got, tt.want)
		}
	}
}

// In a large cluster no path is probed at the full rate: packets trigger the overdue probes.
func TestIntervalsOfACrowd(t *testing.T) {
	nodes := crowd - 1
	p := New(nil, nil, func() {}, slog.New(slog.DiscardHandler))
	p.Nodes = func() int { return nodes }
	peer := netip.MustParseAddr("172.16.0.1")
	paths := map[netip.Addr]liveness.Path{peer: {Probed: true, Used: 50 * time.Millisecond}}
	for _, step := range []struct {
		nodes int
		want  time.Duration
	}{{crowd - 1, Busy}, {crowd, Idle}, {5000, Idle}, {1, Busy}} {
		nodes = step.nodes
		if got := p.intervals(paths, time.Now())[peer]; got != step.want {
			t.Errorf("with %d nodes: every %s, want %s", step.nodes, got, step.want)
		}
	}
}

// healthy are the paths of a node, which answer all probes.
type healthy map[netip.Addr]liveness.Path

func (h healthy) Paths() (map[netip.Addr]liveness.Path, error) { return h, nil }
func (h healthy) LargeProbe(netip.Addr) (liveness.LargeProbe, bool, error) {
	return liveness.LargeProbe{Size: 1390, Answered: true}, true, nil
}
func (h healthy) Marks() (uint32, uint32, error) { return 1, 2, nil }

// sent counts the frames to each peer. GSO probes do not leave the node.
type sent map[netip.Addr]int

func (s sent) send(peer netip.Addr, _ []byte) error { s[peer]++; return nil }
func (s sent) sendGSO(netip.Addr) error             { return nil }

// The probes of 5,000 nodes, each of which probes four gateways, take at most a twentieth of a core
// of each gateway: counted is a minute of one node's prober.
func TestShareOfACrowd(t *testing.T) {
	const (
		reflection = 0.81e-6 // seconds of a core for one probe: docs/measured.md, Probes at a gateway
		bound      = 0.05
	)
	for _, tt := range []struct {
		name  string
		nodes int
		used  time.Duration
	}{
		{"idle paths", 5000, time.Hour},
		{"paths in use", 5000, 50 * time.Millisecond},
		{"paths in use, the largest cluster that is no crowd", crowd - 1, 50 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			paths, frames := healthy{}, sent{}
			for n := range 4 {
				paths[netip.AddrFrom4([4]byte{172, 16, 0, byte(n)})] = liveness.Path{Probed: true, Ready: true, Replies: 1, Used: tt.used}
			}
			p := New(paths, nil, func() {}, slog.New(slog.DiscardHandler))
			p.Nodes = func() int { return tt.nodes }
			start := time.Now().Add(-time.Hour) // the replies to large probes are younger than these
			var refreshed time.Time
			for at := start; at.Sub(start) < time.Minute; at = at.Add(p.rest(at, refreshed.Add(Idle))) {
				if at.Sub(refreshed) >= Idle {
					refreshed = at
					if err := p.refresh(at, 1390, frames); err != nil {
						t.Fatal(err)
					}
				}
				p.probe(at, frames)
			}
			for peer := range paths {
				a := float64(frames[peer]) / 60 * float64(tt.nodes)
				if share := a * reflection; share > bound || frames[peer] < 60 {
					t.Errorf("gateway %s: %.0f probes a second, %.1f %% of a core; want some, and at most %.0f %%", peer, a, 100*share, 100*bound)
				} else {
					t.Logf("gateway %s: %.0f probes a second, %.1f %% of a core", peer, a, 100*share)
				}
			}
		})
	}
}

// Of many paths in use the busiest are probed at the full rate, and the first probes of all are
// spread.
func TestIntervalsOfManyPaths(t *testing.T) {
	p := New(nil, nil, func() {}, slog.New(slog.DiscardHandler))
	peer := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{172, 16, byte(n >> 8), byte(n)}) }
	paths := map[netip.Addr]liveness.Path{peer(5000): {}}
	for n := range 1016 {
		paths[peer(n)] = liveness.Path{Probed: true, Used: 5 * time.Second}
	}
	for n := 500; n < 500+maxBusy; n++ {
		paths[peer(n)] = liveness.Path{Probed: true, Used: 50 * time.Millisecond}
	}
	now := time.Now()
	got := p.intervals(paths, now)
	if len(got) != 1016 {
		t.Errorf("%d paths are probed; want 1016", len(got))
	}
	full := map[netip.Addr]bool{}
	for peer, every := range got {
		if every == Busy {
			full[peer] = true
		}
	}
	want := map[netip.Addr]bool{}
	for n := 500; n < 500+maxBusy; n++ {
		want[peer(n)] = true
	}
	if diff := cmp.Diff(want, full, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("probed at the full rate (-want +got):\n%s", diff)
	}
	early := 0
	for _, s := range p.paths {
		if s.next.Before(now.Add(Idle / 2)) {
			early++
		}
	}
	if early < 400 || early > 650 {
		t.Errorf("of 1016 first probes %d are sent in the first half of an interval", early)
	}
}

func TestLargeFrame(t *testing.T) {
	frame := LargeFrame(netip.MustParseAddr("172.16.1.2"), 250*time.Millisecond, 1390)
	want := packet.Frame(make([]byte, 1390))
	clear(want[:12])
	want[14] = 250
	copy(want[14+16:], []byte{172, 16, 1, 2})
	if diff := cmp.Diff(want, frame); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// The loop rests until something is due, and no shorter than the interval of busy paths.
func TestRest(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		name  string
		paths []time.Duration
		want  time.Duration
	}{
		{"no path: until the next refresh", nil, time.Second},
		{"idle paths", []time.Duration{140 * time.Millisecond, 60 * time.Millisecond}, 60 * time.Millisecond},
		{"later than the refresh", []time.Duration{2 * time.Second}, time.Second},
		{"sooner than the interval", []time.Duration{time.Millisecond, 60 * time.Millisecond}, Busy},
		{"overdue", []time.Duration{-time.Second}, Busy},
	} {
		p := New(nil, nil, nil, nil)
		for i, due := range tt.paths {
			p.paths[netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})] = &schedule{next: now.Add(due)}
		}
		if got := p.rest(now, now.Add(time.Second)); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
