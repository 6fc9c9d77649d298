// Package probe keeps the probes going whose answers tell whether a path works. It only says when and to whom: the program at
// pelago0 makes the probe of a marked frame, the far side's program reflects it, this node's program takes the answer.
// Where the package is late or dead the programs send overdue probes themselves.
package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane/loader"
)

const (
	// Idle and Busy are the times between two probes of a path that carries no traffic, or does. Probes of a long path are
	// spread over its round-trip time (bpf/probe.h, interval_of).
	Idle = 150 * time.Millisecond
	Busy = 10 * time.Millisecond
	// inUse after a packet the path is probed as one that carries traffic.
	inUse = 10 * time.Second
	// ringHalf is half of the probes that a path remembers (bpf/types.h PROBE_RING).
	ringHalf = 8

	ethernet    = 14
	bodyAt      = 64           // bpf/probe.h PROBE_BODY
	frameLength = bodyAt + 144 // bpf/probe.h PROBE_FRAME
)

// Frame is what makes the program send a probe to a peer: as long as the probe, with the peer's outer address as IPv4
// destination and the promised time until the next probe (struct probe). The program fills in the rest.
func Frame(peer netip.Addr, promised time.Duration) []byte {
	b := make([]byte, frameLength)
	b[12], b[13] = 0x08, 0x00
	b[ethernet] = 0x45
	to := peer.As4()
	copy(b[ethernet+16:], to[:])
	binary.NativeEndian.PutUint32(b[bodyAt:], uint32(promised/time.Millisecond))
	return b
}

// Sender is a packet socket whose frames carry the probe mark.
type Sender struct{ fd int }

// Open makes a sender in the network namespace of the calling thread. mark is that of probes (loader.Marks).
func Open(mark uint32) (*Sender, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a packet socket for probes: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(mark)); err != nil {
		return nil, errors.Join(fmt.Errorf("mark the socket for probes: %w", err), unix.Close(fd))
	}
	return &Sender{fd: fd}, nil
}

// Close closes the socket.
func (s *Sender) Close() error { return unix.Close(s.fd) }

// Send has one probe sent. edge is the interface index of pelago0.
func (s *Sender) Send(edge int, peer netip.Addr, promised time.Duration) error {
	to := &unix.SockaddrLinklayer{Ifindex: edge, Protocol: 0x0008 /* ETH_P_IP in network order */, Halen: 6}
	if err := unix.Sendto(s.fd, Frame(peer, promised), 0, to); err != nil {
		return fmt.Errorf("send a probe to %s: %w", peer, err)
	}
	return nil
}

// Node is what the prober needs to know.
type Node interface {
	// Paths reads the state of every path (loader.Loader).
	Paths() (map[netip.Addr]loader.Path, error)
	// Marks has the mark of probes; 0: there are no tables yet (loader.Loader).
	Marks() (own, probe uint32, err error)
}

// Prober probes every path that is to be probed.
type Prober struct {
	node Node
	// edge tells the interface index of pelago0; 0: there is none yet.
	edge  func() int
	log   *slog.Logger
	paths map[netip.Addr]*schedule
}

type schedule struct {
	every time.Duration
	next  time.Time
}

// New makes a prober.
func New(node Node, edge func() int, log *slog.Logger) *Prober {
	return &Prober{node: node, edge: edge, log: log, paths: map[netip.Addr]*schedule{}}
}

// Run probes until ctx ends. It must run in the node's network namespace.
func (p *Prober) Run(ctx context.Context) {
	tick := time.NewTicker(Busy)
	defer tick.Stop()
	var sender *Sender
	var looked time.Time
	for {
		select {
		case <-ctx.Done():
			if sender != nil {
				_ = sender.Close() // nothing is lost with it
			}
			return
		case <-tick.C:
		}
		now := time.Now()
		edge := p.edge()
		if edge == 0 {
			continue
		}
		if now.Sub(looked) >= Idle {
			looked = now
			if err := p.look(now); err != nil {
				p.log.Error("read the paths", "error", err)
			}
		}
		if sender == nil {
			_, mark, err := p.node.Marks()
			if err == nil && mark != 0 {
				sender, err = Open(mark)
			}
			if err != nil {
				p.log.Error("begin to probe", "error", err)
			}
			if sender == nil {
				continue
			}
		}
		for peer, s := range p.paths {
			if now.Before(s.next) {
				continue
			}
			s.next = now.Add(s.every)
			if err := sender.Send(edge, peer, s.every); err != nil {
				p.log.Debug("probe", "error", err) // shows as a loss
			}
		}
	}
}

// look takes in which paths there are and which of them carry traffic.
func (p *Prober) look(now time.Time) error {
	paths, err := p.node.Paths()
	if err != nil {
		return err
	}
	for peer, path := range paths {
		if !path.Probed {
			delete(p.paths, peer)
			continue
		}
		s := p.paths[peer]
		if s == nil {
			s = &schedule{next: now}
			p.paths[peer] = s
		}
		if s.every = every(path); s.next.After(now.Add(s.every)) {
			s.next = now
		}
	}
	for peer := range p.paths {
		if _, ok := paths[peer]; !ok {
			delete(p.paths, peer)
		}
	}
	return nil
}

// every is how often a path is probed.
func every(p loader.Path) time.Duration {
	if p.Used > inUse {
		return Idle
	}
	return max(Busy, (p.SRTT / ringHalf).Round(time.Millisecond))
}
