// Package probe schedules the probes that measure the liveness of paths. The programs do the rest:
// edge_out turns a marked frame into a probe, the far side reflects it, this side receives the
// reply. If the package is late or dead, the programs send overdue probes themselves.
//
// It also sends large probes, which find paths that lose large packets only (black holes; RFC 2923
// 2.1) and the size that passes, as RFC 8899 does for transports.
package probe

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane/liveness"
)

const (
	// Idle and Busy are the probe intervals of a path without and with traffic. Probes of a long
	// path are spread over its round-trip time (bpf/health.h, path_interval).
	Idle = 150 * time.Millisecond
	Busy = time.Duration(bpf.PelagoLivenessLIVENESS_INTERVAL)
	// inUse is how long after its last packet a path is still probed as one that carries traffic.
	inUse = 10 * time.Second
	// maxBusy bounds how many of these are probed at that rate: the busiest. On the others, packets
	// are cloned into overdue probes (bpf/probe.h, path_take), so that the cost of failover follows
	// the traffic, not the number of peers.
	maxBusy = 32
	// crowd is the number of nodes of a cluster from which on no path is probed at that rate: each
	// gateway reflects the probes of all nodes, and those of 600 take 5 % of a core (docs/measured.md,
	// Probes at a gateway). There, packets alone trigger the overdue probes, so that a node that sends
	// now and then costs its gateways no more than an idle one.
	crowd = 600
	// ringHalf is half of the probes that a path remembers.
	ringHalf = time.Duration(len(bpf.PelagoPath{}.Ring) / 2)

	ethernet = 14
)

// Frame returns the frame that edge_out turns into a probe: as long as the probe, with the peer's
// outer address as IPv4 destination and the time until the next probe (struct probe).
func Frame(peer netip.Addr, next time.Duration) []byte {
	b := make([]byte, bpf.PelagoProbeFramePROBE_FRAME)
	b[12], b[13] = 0x08, 0x00
	b[ethernet] = 0x45
	to := peer.As4()
	copy(b[ethernet+16:], to[:])
	binary.NativeEndian.PutUint32(b[bpf.PelagoProbeFramePROBE_BODY:], uint32(next/time.Millisecond))
	return b
}

// LargeFrame returns the frame that edge_out turns into a large probe for packets of size bytes.
func LargeFrame(peer netip.Addr, next time.Duration, size int) []byte {
	b := make([]byte, ethernet+size)
	b[12], b[13] = 0x08, 0x00
	binary.NativeEndian.PutUint32(b[ethernet:], uint32(next/time.Millisecond))
	to := peer.As4()
	copy(b[ethernet+16:], to[:])
	return b
}

// Sender is packet sockets whose frames carry the probe mark.
type Sender struct{ fd, gso int }

// Open makes a sender in the network namespace of the calling thread. mark is that of probes
// (loader.Marks).
func Open(mark uint32) (*Sender, error) {
	fd, err := openSocket(mark, false)
	if err != nil {
		return nil, err
	}
	gso, err := openSocket(mark, true)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &Sender{fd: fd, gso: gso}, nil
}

// Close closes the sockets.
func (s *Sender) Close() error { return errors.Join(unix.Close(s.fd), unix.Close(s.gso)) }

// Send sends a frame for peer on pelago0, whose interface index is edge.
func (s *Sender) Send(edge int, peer netip.Addr, frame []byte) error {
	to := &unix.SockaddrLinklayer{Ifindex: edge, Protocol: 0x0008 /* ETH_P_IP in network order */, Halen: 6}
	if err := unix.Sendto(s.fd, frame, 0, to); err != nil {
		return fmt.Errorf("send a probe to %s: %w", peer, err)
	}
	return nil
}

// Node provides the state of paths (loader.Loader).
type Node interface {
	// Paths reads the state of every path.
	Paths() (map[netip.Addr]liveness.Path, error)
	// LargeProbe reads the newest large probe to a peer, and the counters of GSO probes.
	LargeProbe(peer netip.Addr) (p liveness.LargeProbe, ok bool, err error)
	// Marks returns the mark of probes; 0: there are no tables yet.
	Marks() (own, probe uint32, err error)
}

// Prober probes all paths with Probed set.
type Prober struct {
	// Nodes returns the number of nodes that probe the same gateways; nil: few do.
	Nodes func() int

	node Node
	edge Edge
	// changed is called after a Size changed.
	changed func()
	log     *slog.Logger
	paths   map[netip.Addr]*schedule

	mu    sync.Mutex
	sizes map[netip.Addr]liveness.Size
}

// Edge returns the interface index and the MTU of pelago0; 0: it does not exist yet.
type Edge func() (ifindex, mtu int)

type schedule struct {
	every time.Duration
	next  time.Time
	// traffic is the share of refreshes that found a packet since the one before, averaged.
	traffic float64
	sizing  sizing
	gso     gso
}

// New returns a prober that calls changed after a change of Sizes.
func New(node Node, edge Edge, changed func(), log *slog.Logger) *Prober {
	return &Prober{node: node, edge: edge, changed: changed, log: log, paths: map[netip.Addr]*schedule{}, sizes: map[netip.Addr]liveness.Size{}}
}

// Sizes returns the known sizes by the peer's outer address. It is safe for concurrent use.
func (p *Prober) Sizes() map[netip.Addr]liveness.Size {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.sizes)
}

// Run probes until ctx ends. It must run in the node's network namespace.
func (p *Prober) Run(ctx context.Context) {
	timer := time.NewTimer(Busy)
	defer timer.Stop()
	var sender *Sender
	var refreshed time.Time
	for {
		select {
		case <-ctx.Done():
			if sender != nil {
				_ = sender.Close() // nothing is lost with it
			}
			return
		case <-timer.C:
		}
		now := time.Now()
		timer.Reset(Idle) // if nothing can be sent
		edge, mtu := p.edge()
		if edge == 0 {
			continue
		}
		if sender == nil {
			_, mark, err := p.node.Marks()
			if err == nil && mark != 0 {
				sender, err = Open(mark)
			}
			if err != nil {
				p.log.Error("cannot open the probe socket", "error", err)
			}
			if sender == nil {
				continue
			}
		}
		if now.Sub(refreshed) >= Idle {
			refreshed = now
			if err := p.refresh(now, mtu, edgeSender{sender, edge}); err != nil {
				p.log.Error("cannot read the paths", "error", err)
			}
		}
		p.probe(now, edgeSender{sender, edge})
		timer.Reset(p.rest(now, refreshed.Add(Idle)))
	}
}

// rest is how long nothing is due, at least Busy: what is due until then is sent together.
func (p *Prober) rest(now, refresh time.Time) time.Duration {
	next := refresh
	for _, s := range p.paths {
		if s.next.Before(next) {
			next = s.next
		}
	}
	return max(Busy, next.Sub(now))
}

// sender sends frames into pelago0.
type sender interface {
	send(peer netip.Addr, frame []byte) error
	sendGSO(peer netip.Addr) error
}

type edgeSender struct {
	*Sender
	edge int
}

func (e edgeSender) send(peer netip.Addr, frame []byte) error { return e.Send(e.edge, peer, frame) }
func (e edgeSender) sendGSO(peer netip.Addr) error            { return e.SendGSO(e.edge, peer) }

// probe sends the probes that are due.
func (p *Prober) probe(now time.Time, to sender) {
	for peer, s := range p.paths {
		if now.Before(s.next) {
			continue
		}
		s.next = now.Add(s.every)
		if err := to.send(peer, Frame(peer, s.every)); err != nil {
			p.log.Debug("probe", "error", err) // shows as a loss
		}
	}
}

// refresh updates the schedule from the paths and their use, and sends large and GSO probes that
// are due.
func (p *Prober) refresh(now time.Time, mtu int, to sender) error {
	paths, err := p.node.Paths()
	if err != nil {
		return err
	}
	intervals := p.intervals(paths, now)
	var errs []error
	for peer, every := range intervals {
		s := p.paths[peer]
		if s.every = every; s.next.After(now.Add(every)) {
			s.next = now
		}
		errs = append(errs, p.enlarge(peer, s, paths[peer], now, mtu, to))
	}
	for peer := range p.paths {
		if _, ok := intervals[peer]; !ok {
			delete(p.paths, peer)
		}
	}
	p.publish()
	return errors.Join(errs...)
}

// enlarge evaluates the large probe and the GSO probe in flight, and sends the next ones that are
// due.
func (p *Prober) enlarge(peer netip.Addr, s *schedule, path liveness.Path, now time.Time, mtu int, to sender) error {
	if s.sizing.out != 0 || s.gso.waits(now) {
		large, ok, err := p.node.LargeProbe(peer)
		if err != nil || !ok {
			return err
		}
		if s.gso.observe(large, now) {
			if err := to.sendGSO(peer); err != nil {
				p.log.Debug("GSO probe", "error", err)
			}
		}
		switch {
		case s.sizing.out == 0:
		case large.Answered && large.Size == s.sizing.out && large.Sent <= time.Since(s.sizing.sent):
			// it is this one
			s.sizing.answered(now)
		case s.sizing.waited(path, now):
			s.sizing.missed(path, now)
		}
	}
	if size := s.sizing.due(mtu, path, now); size > 0 {
		s.sizing.began(size, now)
		if err := to.send(peer, LargeFrame(peer, s.every, size)); err != nil {
			s.sizing.void(now)
			p.log.Debug("large probe", "error", err)
		}
	}
	return nil
}

// publish replaces Sizes and logs black holes that appear or disappear.
func (p *Prober) publish() {
	now := map[netip.Addr]liveness.Size{}
	for peer, s := range p.paths {
		if size := s.sizing.size; size.Full > 0 {
			size.GSOLost = s.gso.lost
			now[peer] = size
		}
	}
	p.mu.Lock()
	before := p.sizes
	p.sizes = now
	p.mu.Unlock()
	if maps.Equal(before, now) {
		return
	}
	for peer, size := range now {
		switch old := before[peer]; {
		case size.GSOLost && !old.GSOLost:
			p.log.Warn("GSO packets are dropped between uplink and pelago0: see the node's firewall rules", "peer", peer)
		case !size.GSOLost && old.GSOLost:
			p.log.Info("GSO packets pass again", "peer", peer)
		case size.BlackHole() && size != old:
			p.log.Warn("path loses large packets", "peer", peer, "passes", size.Passes, "mtu", size.Full)
		case !size.BlackHole() && old.BlackHole():
			p.log.Info("path passes large packets again", "peer", peer, "mtu", size.Full)
		}
	}
	p.changed()
}

// intervals returns the probe interval of each path that is probed, and makes schedules for new
// ones. Where there are many, their first probes are spread over an interval.
func (p *Prober) intervals(paths map[netip.Addr]liveness.Path, now time.Time) map[netip.Addr]time.Duration {
	out := map[netip.Addr]time.Duration{}
	var busy []netip.Addr
	for peer, path := range paths {
		if !path.Probed {
			continue
		}
		s := p.paths[peer]
		if s == nil {
			s = &schedule{next: now}
			if n := len(out); n >= maxBusy {
				s.next = now.Add(Idle * time.Duration(n) / time.Duration(len(paths)))
			}
			p.paths[peer] = s
		}
		var packet float64
		if path.Used < 2*Idle { // the programs record it every 100 ms
			packet = 1
		}
		s.traffic += (packet - s.traffic) / 8
		if out[peer] = every(path); out[peer] < Idle {
			busy = append(busy, peer)
		}
	}
	most := maxBusy
	if p.Nodes != nil && p.Nodes() >= crowd {
		most = 0
	}
	if len(busy) <= most {
		return out
	}
	slices.SortFunc(busy, func(a, b netip.Addr) int {
		return cmp.Or(cmp.Compare(p.paths[b].traffic, p.paths[a].traffic), a.Compare(b))
	})
	for _, peer := range busy[most:] {
		out[peer] = Idle
	}
	return out
}

// every returns the probe interval of a path, regardless of other paths.
func every(p liveness.Path) time.Duration {
	if p.Used > inUse {
		return Idle
	}
	return max(Busy, (p.SRTT / ringHalf).Round(time.Millisecond))
}
