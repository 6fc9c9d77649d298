//go:build linux

package natt

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var (
	privateB = netip.MustParseAddr("10.0.0.2")
	publicB  = netip.MustParseAddr("203.0.113.2")
	ownA     = netip.MustParseAddrPort("192.0.2.1:50000")
	peerB    = Peer{Name: "b", Private: privateB, Public: publicB, Port: DefaultPort}
)

// world is a network in virtual time, for one track.
type world struct {
	t       *track
	now     time.Time
	serial  uint64
	answers map[netip.Addr]func(now time.Time) (delay time.Duration, ok bool)
	report  func(to netip.AddrPort) report
	pending []pending
	asked   map[netip.Addr][]time.Duration // since the start
	steps   int
}

type pending struct {
	at   time.Time
	from netip.AddrPort
	n    nonce
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newWorld(p Peer) *world {
	return &world{
		t: newTrack(p, DefaultTiming, epoch), now: epoch, answers: map[netip.Addr]func(time.Time) (time.Duration, bool){},
		asked:  map[netip.Addr][]time.Duration{},
		report: func(to netip.AddrPort) report { return report{local: ownA, seen: ownA, asked: to, arrived: to} },
	}
}

func (w *world) draw() (n nonce) {
	w.serial++
	binary.BigEndian.PutUint64(n[:], w.serial)
	return n
}

// reach makes an address answer after delay, from the given time on (since the start) until another
// one.
func (w *world) reach(a netip.Addr, delay, from, until time.Duration) {
	w.answers[a] = func(now time.Time) (time.Duration, bool) {
		since := now.Sub(epoch)
		return delay, since >= from && since < until
	}
}

const always = 1000 * time.Hour

// run lets the time go on to since, measured from the start.
func (w *world) run(since time.Duration) {
	end := epoch.Add(since)
	for {
		for i := 0; i < len(w.pending); i++ {
			if p := w.pending[i]; !p.at.After(w.now) {
				w.t.answer(w.now, p.from, p.n, w.report(p.from))
				w.pending = append(w.pending[:i], w.pending[i+1:]...)
				i--
			}
		}
		w.steps++
		for _, p := range w.t.step(w.now, w.draw, func() time.Duration { return w.t.timing.Recheck }) {
			w.asked[p.to.Addr()] = append(w.asked[p.to.Addr()], w.now.Sub(epoch))
			if f := w.answers[p.to.Addr()]; f != nil {
				if delay, ok := f(w.now); ok {
					w.pending = append(w.pending, pending{w.now.Add(delay), p.to, p.nonce})
				}
			}
		}
		next := w.t.due(w.now)
		for _, p := range w.pending {
			if p.at.Before(next) {
				next = p.at
			}
		}
		if next.After(end) {
			w.now = end
			return
		}
		w.now = next
	}
}

func (w *world) reachability() Reachability { return w.t.assess(w.now) }

func TestDecisions(t *testing.T) {
	const ms = time.Millisecond
	caller := netip.MustParseAddrPort("203.0.113.9:31000")
	for name, c := range map[string]struct {
		peer Peer
		play func(w *world)
		want Reachability // without Reason, Seen, Out
		says string       // in Reason
	}{
		"nothing yet":  {peerB, func(w *world) { w.run(5 * time.Second) }, Reachability{State: Probing}, "waiting for the first answer from UDP 10.0.0.2:4490 (private) and 203.0.113.2:4490 (public)"},
		"private only": {peerB, func(w *world) { w.reach(privateB, ms, 0, always); w.run(2 * ms) }, Reachability{State: Confirmed, Address: privateB, Private: true}, "answers at its private address 10.0.0.2"},
		"public only, before the grace is over": {peerB, func(w *world) { w.reach(publicB, ms, 0, always); w.run(900 * ms) },
			Reachability{State: Probing}, "waiting"},
		"public only": {peerB, func(w *world) { w.reach(publicB, ms, 0, always); w.run(1100 * ms) },
			Reachability{State: Confirmed, Address: publicB}, "answers at its public address 203.0.113.2, not at its private one 10.0.0.2"},
		"both": {peerB, func(w *world) { w.reach(publicB, ms, 0, always); w.reach(privateB, ms, 0, always); w.run(2 * ms) },
			Reachability{State: Confirmed, Address: privateB, Private: true}, "private"},
		"private within the grace": {peerB, func(w *world) {
			w.reach(publicB, ms, 0, always)
			w.reach(privateB, 900*ms, 0, always)
			w.run(950 * ms)
		}, Reachability{State: Confirmed, Address: privateB, Private: true}, "private"},
		"private after the grace": {peerB, func(w *world) {
			w.reach(publicB, ms, 0, always)
			w.reach(privateB, 1100*ms, 0, always)
			w.run(5 * time.Second)
		}, Reachability{State: Confirmed, Address: publicB}, "public"},
		"an answer that takes too long is none": {peerB, func(w *world) { w.reach(privateB, 2100*ms, 0, always); w.run(59 * time.Second) },
			Reachability{State: Probing}, "waiting"},
		"one address for both": {Peer{"b", publicB, publicB, DefaultPort, false}, func(w *world) { w.reach(publicB, ms, 0, always); w.run(2 * ms) },
			Reachability{State: Confirmed, Address: publicB, Private: true}, "private"},
		"no public address": {Peer{"b", privateB, netip.Addr{}, DefaultPort, false}, func(w *world) { w.reach(privateB, ms, 0, always); w.run(2 * ms) },
			Reachability{State: Confirmed, Address: privateB, Private: true}, "private"},
		"no private address": {Peer{"b", netip.Addr{}, publicB, DefaultPort, false}, func(w *world) { w.reach(publicB, ms, 0, always); w.run(2 * ms) },
			Reachability{State: Confirmed, Address: publicB}, "answers at its public address 203.0.113.2"},
		"late": {peerB, func(w *world) { w.reach(privateB, ms, 50*time.Second, always); w.run(53 * time.Second) },
			Reachability{State: Confirmed, Address: privateB, Private: true}, "private"},
		"silent": {peerB, func(w *world) { w.run(60 * time.Second) },
			Reachability{State: Unreachable, Address: publicB}, "if both sides are behind NAT, forward these ports on one side"},
		"silent, no public address": {Peer{"b", privateB, netip.Addr{}, DefaultPort, false}, func(w *world) { w.run(60 * time.Second) },
			Reachability{State: Unreachable, Address: privateB, Private: true}, "does not answer at UDP 10.0.0.2:4490 (private) and does not call"},
		"silent behind a load balancer": {Peer{"b", privateB, publicB, DefaultPort, true}, func(w *world) { w.run(6 * time.Second) },
			Reachability{State: Unreachable, Address: publicB}, "203.0.113.2 is used unconfirmed"},
		"a load balancer's server is not waited for though it calls": {Peer{"b", privateB, publicB, DefaultPort, true}, func(w *world) {
			w.t.confirm(w.now, caller, Rewriting{SourceIP: true})
			w.run(7 * time.Second)
		}, Reachability{State: Unreachable, Address: publicB, Source: caller, In: Rewriting{SourceIP: true}}, "unconfirmed"},
		"silent for a while": {peerB, func(w *world) { w.reach(publicB, ms, 90*time.Second, always); w.run(125 * time.Second) },
			Reachability{State: Confirmed, Address: publicB}, "public"},
		"calls only": {peerB, func(w *world) {
			w.run(3 * time.Second)
			w.t.confirm(w.now, caller, Rewriting{SourceIP: true, SourcePort: true})
			w.run(9 * time.Second)
		}, Reachability{State: Waiting, Source: caller, In: Rewriting{SourceIP: true, SourcePort: true}}, "calls from 203.0.113.9:31000"},
		"called once, long ago": {peerB, func(w *world) {
			w.t.confirm(w.now, caller, Rewriting{SourceIP: true})
			w.run(91 * time.Second)
		}, Reachability{State: Unreachable, Address: publicB}, "does not call"},
		"calls after it was given up": {peerB, func(w *world) {
			w.run(100 * time.Second)
			w.t.confirm(w.now, caller, Rewriting{SourceIP: true})
			w.run(106 * time.Second)
		}, Reachability{State: Waiting, Source: caller, In: Rewriting{SourceIP: true}}, "calls"},
		"begins to call, and is asked before it is waited for": {peerB, func(w *world) {
			w.run(100 * time.Second)
			w.reach(publicB, ms, 0, always)
			w.t.confirm(w.now, caller, Rewriting{SourceIP: true})
			w.run(101*time.Second + 2*ms)
		}, Reachability{State: Confirmed, Address: publicB, Source: caller, In: Rewriting{SourceIP: true}}, "answers"},
		"begins to call while a round is about to fail": {peerB, func(w *world) {
			w.run(94500 * ms) // the third probe of the round at 90 s is out
			w.reach(publicB, ms, 0, always)
			w.t.confirm(w.now, caller, Rewriting{SourceIP: true})
			w.run(99*time.Second + 2*ms)
		}, Reachability{State: Confirmed, Address: publicB, Source: caller, In: Rewriting{SourceIP: true}}, "answers"},
		"dies after it called and answered": {peerB, func(w *world) {
			w.reach(privateB, ms, 0, 100*time.Second)
			w.run(95 * time.Second)
			w.t.confirm(w.now, caller, Rewriting{})
			w.run(181 * time.Second)
		}, Reachability{State: Unreachable, Address: privateB, Private: true, Source: caller}, "does not call"},
		"calls and answers": {peerB, func(w *world) {
			w.reach(publicB, ms, 0, always)
			w.run(2 * time.Second)
			w.t.confirm(w.now, caller, Rewriting{Destination: true})
		}, Reachability{State: Confirmed, Address: publicB, Source: caller, In: Rewriting{Destination: true}}, "answers"},
		"publishes nothing": {Peer{Name: "b", Port: 1}, func(w *world) { w.run(time.Second) }, Reachability{State: Unreachable}, "publishes no address and does not call"},
		"publishes nothing and calls": {Peer{Name: "b", Port: 1}, func(w *world) {
			w.run(time.Second)
			w.t.confirm(w.now, caller, Rewriting{})
			w.run(2 * time.Second)
		}, Reachability{State: Waiting, Source: caller}, "publishes no address, but calls"},
		"private appears later": {peerB, func(w *world) {
			w.reach(publicB, ms, 0, always)
			w.reach(privateB, ms, 10*time.Second, always)
			w.run(40 * time.Second)
		}, Reachability{State: Confirmed, Address: privateB, Private: true}, "private"},
		"one lost answer moves nothing": {peerB, func(w *world) {
			w.reach(publicB, ms, 0, always)
			w.answers[privateB] = func(now time.Time) (time.Duration, bool) {
				at := now.Sub(epoch)
				return ms, at < 29*time.Second || at > 33*time.Second
			}
			w.run(33 * time.Second)
		}, Reachability{State: Confirmed, Address: privateB, Private: true}, "private"},
		"private fails, public does not": {peerB, func(w *world) {
			w.reach(publicB, ms, 0, always)
			w.reach(privateB, ms, 0, 20*time.Second)
			w.run(37 * time.Second)
		}, Reachability{State: Confirmed, Address: publicB}, "public"},
		"silence is borne for a minute": {peerB, func(w *world) { w.reach(privateB, ms, 0, 20*time.Second); w.run(85 * time.Second) },
			Reachability{State: Confirmed, Address: privateB, Private: true}, "private"},
		"then the address that worked is kept": {peerB, func(w *world) { w.reach(privateB, ms, 0, 20*time.Second); w.run(95 * time.Second) },
			Reachability{State: Unreachable, Address: privateB, Private: true}, "does not answer"},
		"and found again": {peerB, func(w *world) {
			w.answers[privateB] = func(now time.Time) (time.Duration, bool) {
				at := now.Sub(epoch)
				return ms, at < 20*time.Second || at > 200*time.Second
			}
			w.run(235 * time.Second)
		}, Reachability{State: Confirmed, Address: privateB, Private: true}, "private"},
		"another public address": {peerB, func(w *world) {
			w.reach(publicB, ms, 0, always)
			w.run(2 * time.Second)
			w.t.set(Peer{"b", privateB, netip.MustParseAddr("203.0.113.3"), DefaultPort, false}, w.now)
		}, Reachability{State: Probing, Address: publicB}, "203.0.113.3:4490 (public)"},
		"another public address beside a private one in use": {peerB, func(w *world) {
			w.reach(privateB, ms, 0, always)
			w.run(2 * time.Second)
			w.t.set(Peer{"b", privateB, netip.MustParseAddr("203.0.113.3"), DefaultPort, false}, w.now)
		}, Reachability{State: Confirmed, Address: privateB, Private: true}, "private"},
		"another key": {peerB, func(w *world) { w.run(time.Second); w.t.foreignKey(publicB); w.run(60 * time.Second) },
			Reachability{State: Unreachable, Address: publicB}, "has its cluster the same PSK"},
		"another key from elsewhere": {peerB, func(w *world) { w.run(time.Second); w.t.foreignKey(caller.Addr()); w.run(60 * time.Second) },
			Reachability{State: Unreachable, Address: publicB}, "does not call"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(c.peer)
			c.play(w)
			got := w.reachability()
			if !strings.Contains(got.Reason, c.says) {
				t.Errorf("reason %q does not say %q", got.Reason, c.says)
			}
			got.Reason, got.Seen, got.Out = "", netip.AddrPort{}, Rewriting{}
			if diff := cmp.Diff(c.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
				t.Errorf("reachability (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRewriting(t *testing.T) {
	to := netip.AddrPortFrom(publicB, DefaultPort)
	seen := netip.MustParseAddrPort("198.51.100.9:31000")
	for name, c := range map[string]struct {
		report report
		want   Rewriting
	}{
		"none":        {report{ownA, ownA, to, to}, Rewriting{}},
		"source":      {report{ownA, netip.AddrPortFrom(seen.Addr(), ownA.Port()), to, to}, Rewriting{SourceIP: true}},
		"port":        {report{ownA, netip.AddrPortFrom(ownA.Addr(), 31000), to, to}, Rewriting{SourcePort: true}},
		"masquerade":  {report{ownA, seen, to, to}, Rewriting{SourceIP: true, SourcePort: true}},
		"forwarding":  {report{ownA, ownA, to, netip.AddrPortFrom(privateB, DefaultPort)}, Rewriting{Destination: true}},
		"port only":   {report{ownA, ownA, to, netip.AddrPortFrom(publicB, 1)}, Rewriting{Destination: true}},
		"all of them": {report{ownA, seen, to, netip.AddrPortFrom(privateB, DefaultPort)}, Rewriting{true, true, true}},
	} {
		w := newWorld(peerB)
		w.reach(publicB, time.Millisecond, 0, always)
		w.report = func(netip.AddrPort) report { return c.report }
		w.run(2 * time.Second)
		if got := w.reachability(); got.Out != c.want || got.Seen != c.report.seen || got.NAT() != (c.want != Rewriting{}) {
			t.Errorf("%s: out = %+v, seen %s, NAT %t; want %+v", name, got.Out, got.Seen, got.NAT(), c.want)
		}
	}
}

// An answer counts once, in time, with the nonce that is out, and from the address that was asked.
func TestAnswersThatDoNotCount(t *testing.T) {
	w := newWorld(peerB)
	w.run(0)
	n := w.t.candidates[0].nonce
	at := w.t.candidates[0].at
	for _, c := range []struct {
		name  string
		after time.Duration
		from  netip.AddrPort
		n     nonce
		want  outcome
	}{
		{"unknown nonce", 0, at, nonce{9}, replayed},
		{"zero nonce", 0, at, nonce{}, replayed},
		{"another host", 0, netip.MustParseAddrPort("10.0.0.3:4490"), n, fromElsewhere},
		{"another port", 0, netip.AddrPortFrom(at.Addr(), 4491), n, fromElsewhere},
		{"the other address of the peer", 0, netip.AddrPortFrom(publicB, DefaultPort), n, fromElsewhere},
		{"too late", 2001 * time.Millisecond, at, n, replayed},
		{"right", 10 * time.Millisecond, at, n, answers},
		{"again", 11 * time.Millisecond, at, n, replayed},
	} {
		if got := w.t.answer(epoch.Add(c.after), c.from, c.n, report{}); got != c.want {
			t.Errorf("%s: %s; want %s", c.name, got, c.want)
		}
	}
}

func TestProbesAreSparse(t *testing.T) {
	w := newWorld(peerB)
	w.run(10 * time.Minute)
	// Every 2 s for a minute, then 3 every 30 s (and the 6 s that they take).
	if n := len(w.asked[privateB]); n < 60 || n > 90 {
		t.Errorf("a silent peer was asked %d times at one address in ten minutes", n)
	}
	w = newWorld(peerB)
	w.reach(privateB, time.Millisecond, 0, always)
	w.run(10 * time.Minute)
	if n := len(w.asked[privateB]); n < 20 || n > 21 {
		t.Errorf("a peer that answers was asked %d times at one address in ten minutes; want once every 30 s", n)
	}
}

// Whatever the network does: time continues, an address is never probed too often, an address that
// is confirmed has answered lately, and once the network is steady the reachability is right.
func TestAnyNetwork(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := peerB
		p.BehindLB = rapid.Bool().Draw(t, "behind a load balancer")
		w := newWorld(p)
		steady := time.Duration(rapid.IntRange(0, 600).Draw(t, "steady after (s)")) * time.Second
		final := map[netip.Addr]bool{
			privateB: rapid.Bool().Draw(t, "private in the end"), publicB: rapid.Bool().Draw(t, "public in the end"),
		}
		last := map[netip.Addr]time.Time{}
		for _, a := range []netip.Addr{privateB, publicB} {
			w.answers[a] = func(now time.Time) (time.Duration, bool) {
				delay, ok := 10*time.Millisecond, final[a]
				if now.Sub(epoch) < steady {
					delay = time.Duration(rapid.IntRange(0, 3000).Draw(t, "delay (ms)")) * time.Millisecond
					ok = rapid.Bool().Draw(t, "answers")
				}
				if ok && delay <= DefaultTiming.Probe {
					last[a] = now.Add(delay)
				}
				return delay, ok
			}
		}
		calling := rapid.Bool().Draw(t, "calls in the end")
		end := steady + 5*time.Minute
		caller := netip.MustParseAddrPort("203.0.113.9:1")
		for since := time.Duration(0); since <= end; since += 20 * time.Second {
			if since >= steady && calling || since < steady && rapid.Bool().Draw(t, "calls") {
				w.t.confirm(w.now, netip.AddrPortFrom(caller.Addr(), uint16(rapid.IntRange(1, 3).Draw(t, "port"))), Rewriting{})
			}
			if since < steady && rapid.IntRange(0, 9).Draw(t, "the peer changes") == 0 {
				p.BehindLB = !p.BehindLB
				w.t.set(p, w.now)
				clear(w.asked)
			}
			w.run(since)
			v := w.reachability()
			if v.State == Confirmed && w.now.Sub(last[v.Address]) > DefaultTiming.Total+DefaultTiming.Recheck+2*DefaultTiming.Probe && since >= steady+2*time.Minute {
				t.Fatalf("confirmed %s, which answered last %s ago", v.Address, w.now.Sub(last[v.Address]))
			}
			if v.Address.IsValid() == (v.State == Waiting) && v.State != Probing {
				t.Fatalf("%s with address %s", v.State, v.Address)
			}
		}
		if limit := 100 + 40*int(end/time.Second); w.steps > limit {
			t.Fatalf("%d steps in %s: it runs in circles", w.steps, end)
		}
		for a, times := range w.asked {
			for i := 1; i < len(times); i++ {
				if times[i]-times[i-1] < time.Millisecond {
					t.Fatalf("%s asked twice at %s", a, times[i])
				}
			}
		}
		v := w.reachability()
		want := Reachability{State: Unreachable}
		switch {
		case final[privateB]:
			want = Reachability{State: Confirmed, Address: privateB}
		case final[publicB]:
			want = Reachability{State: Confirmed, Address: publicB}
		case calling && !p.BehindLB:
			want = Reachability{State: Waiting}
		}
		if v.State != want.State || want.Address.IsValid() && v.Address != want.Address {
			t.Fatalf("in the end %+v; want %s %s (private %t, public %t, calls %t)", v, want.State, want.Address, final[privateB], final[publicB], calling)
		}
	})
}
