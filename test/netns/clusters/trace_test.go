package clusters

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/observe"
	"github.com/pelago-net/pelago/dataplane/trace"
)

// seen is the way of a probe: where it left a node in the overlay, where it went to a pod, and
// whether its answer came back.
type seen struct {
	hops, pods, entered int
	answered            bool
	text                string
}

// follow sends a probe as client[3] and returns what the nodes saw until enough is true.
func (w *town) follow(t *testing.T, protocol uint8, to netip.AddrPort, marker uint32, enough func(seen) bool) seen {
	t.Helper()
	from := w.client[3]
	p := trace.Probe{Marker: marker, Packet: trace.Packet{Protocol: protocol, Source: netip.AddrPortFrom(from.Address, 33000+uint16(marker%1000)), Destination: to}}
	var s seen
	for attempt := range 3 { // a slow machine may need longer for the answer
		var watching sync.WaitGroup
		done := make(chan struct{})
		var all sync.Mutex
		s = seen{}
		var ended sync.WaitGroup
		for _, n := range w.Nodes() {
			watching.Add(1)
			ended.Go(func() {
				err := n.Do(func() error {
					watched, err := observe.Watch(n.Loader, p, func() error { watching.Done(); return nil }, done)
					all.Lock()
					defer all.Unlock()
					for _, sighting := range watched.Sightings {
						s.add(n == from.Node, n.datapath == dataplane.Fast, p, sighting)
						s.text += fmt.Sprintf("%s: %+v\n", n.Name, sighting)
					}
					return err
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		watching.Wait()
		must(t, from.Node.Do(func() error { return observe.Send(from.Node.Loader, p) }))
		// The window of the capture, longer at each attempt: that no further packet comes shows by
		// time alone.
		time.Sleep(time.Duration(1+4*attempt) * 500 * time.Millisecond)
		close(done)
		if ended.Wait(); enough(s) {
			break
		}
	}
	return s
}

func (s *seen) add(atSource, fast bool, p trace.Probe, sighting trace.Sighting) {
	switch plain := sighting.From == nil; {
	case sighting.Answer && atSource && plain: // not in the datapath fast
		s.answered = s.answered || sighting.Out && sighting.Packet.Destination == p.Packet.Source
	case sighting.Answer:
		s.answered = s.answered || fast && atSource && !sighting.Out
	case sighting.Out && !plain:
		s.hops++
	case sighting.Out && !atSource:
		s.pods++
	case plain && !atSource:
		s.entered++
	}
}

// A real packet of each protocol is seen at every hop, and so is its answer. The node's tables
// foresee it.
func (w *town) followed(t *testing.T) {
	for i, c := range []struct {
		protocol uint8
		to       netip.AddrPort
	}{
		{tcp, netip.AddrPortFrom(w.all, 80)}, {udp, netip.AddrPortFrom(w.all, 53)},
		{unix.IPPROTO_ICMP, netip.AddrPortFrom(w.server[3].Global, 0)},
	} {
		s := w.follow(t, c.protocol, c.to, 0x70617374+uint32(i), func(s seen) bool { return s.answered })
		if !s.answered || s.hops < 2 {
			t.Errorf("protocol %d: left nodes %d times, answered: %t\n%s", c.protocol, s.hops, s.answered, s.text)
		}
		from := w.client[3]
		must(t, from.Node.Do(func() error {
			a, err := observe.Trace(from.Node.Loader, trace.Request{Packet: trace.Packet{
				Protocol: c.protocol, Source: netip.AddrPortFrom(from.Address, 33999), Destination: c.to,
			}})
			if err == nil && (a.Step.Verdict != "sent" || a.Stack == nil || !a.Stack.Overlay) {
				t.Errorf("the node foresees %+v, by the stack %+v", a.Step, a.Stack)
			}
			return err
		}))
	}
}

// A packet that a firewall of the far node drops enters its stack, and does not leave it.
func (w *town) followedToFirewall(t *testing.T) {
	for _, n := range w.Clusters[2].Nodes {
		n.MustRun(t, "iptables", "-I", "FORWARD", "-p", "tcp", "--dport", "80", "-j", "DROP")
		defer n.MustRun(t, "iptables", "-D", "FORWARD", "-p", "tcp", "--dport", "80", "-j", "DROP")
	}
	s := w.follow(t, tcp, netip.AddrPortFrom(w.all, 80), 0x66697265, func(s seen) bool { return s.entered > 0 })
	if s.entered == 0 || s.pods > 0 || s.answered {
		t.Errorf("entered %d stacks, went to %d pods, answered: %t\n%s", s.entered, s.pods, s.answered, s.text)
	}
}
