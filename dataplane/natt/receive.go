//go:build linux

package natt

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// cookieSlot is the period of our own clock that a cookie is made for; it is valid in the following
// one, too.
const cookieSlot = 10 * time.Second

// packet is a valid message of a peer with the addresses of the packet.
type packet struct {
	message
	peer   string // the sender's name
	socket *socket
	source netip.AddrPort
	dest   netip.AddrPort // zero address if unknown
}

// outcome of a received message, as logged.
type outcome string

const (
	answers       outcome = "answers"  // valid answers
	requests      outcome = "requests" // requests that were answered
	confirmations outcome = "calls"    // valid confirmations
	// dropped: no message, or a kind that is invalid at this port
	malformed    outcome = "malformed"
	otherVersion outcome = "other_version" // dropped
	foreignKey   outcome = "foreign_key"   // dropped: wrong MAC
	notForUs     outcome = "not_for_us"    // dropped: to another gateway
	unknownPeer  outcome = "unknown_peer"  // dropped: from a gateway that is not among the peers
	// dropped: an answer without an outstanding request, or a confirmation without a valid cookie
	replayed outcome = "replayed"
	// dropped: an answer from another address than was probed
	fromElsewhere outcome = "from_elsewhere"
	tooMany       outcome = "too_many" // dropped: rate limit
)

// receive reads packets until the socket is closed.
func (d *Discovery) receive(s *socket, handle func(packet) outcome) {
	b := make([]byte, messageSize+1) // so that a larger packet is not truncated to a valid size
	for {
		n, source, to, err := s.read(b)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			d.log.Error("read from the socket of NAT discovery", "error", err)
			time.Sleep(100 * time.Millisecond) // a permanent error must not become a busy loop
			continue
		}
		d.log.Debug("message of NAT discovery", "source", source, "outcome", d.dispatch(s, b[:n], source, to, handle))
	}
}

// dispatch decodes a packet and handles it if it is a valid message of a peer to this gateway.
func (d *Discovery) dispatch(s *socket, b []byte, source netip.AddrPort, to netip.Addr, handle func(packet) outcome) outcome {
	m, err := d.codec.decode(b)
	switch {
	case errors.Is(err, errMAC):
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, name := range d.byAddr[source.Addr()] {
			d.peers[name].foreignKey(source.Addr())
		}
		return foreignKey
	case errors.Is(err, errVersion):
		return otherVersion
	case err != nil:
		return malformed
	case m.to != d.own: // of another network with the same addresses
		return notForUs
	}
	d.mu.Lock()
	name, known := d.ids[m.from]
	d.mu.Unlock()
	if !known {
		return unknownPeer
	}
	return handle(packet{message: m, peer: name, socket: s, source: source, dest: netip.AddrPortFrom(to, s.port)})
}

// serve handles the messages to the published port.
func (d *Discovery) serve(p packet) outcome {
	slot := 1 + uint64(time.Since(d.start)/cookieSlot) // from 1, so that there is one before
	switch p.kind {
	case request:
		if !d.limits.allow(p.source.Addr()) {
			return tooMany
		}
		d.reply(p, message{
			kind: answer, nonce: cookie(d.cookieKey[:], slot, p.from, p.source), echo: p.nonce,
			source: p.source, destination: p.dest,
		})
		return requests
	case confirmation:
		if p.echo != cookie(d.cookieKey[:], slot, p.from, p.source) && p.echo != cookie(d.cookieKey[:], slot-1, p.from, p.source) {
			return replayed
		}
		r := report{local: p.message.source, seen: p.source, asked: p.destination, arrived: p.dest}
		d.update(p.peer, func(t *track) { t.confirm(time.Now(), p.source, r.rewriting()) })
		return confirmations
	}
	return malformed
}

// handleAnswer handles the messages to the port of our requests.
func (d *Discovery) handleAnswer(p packet) outcome {
	if p.kind != answer {
		return malformed
	}
	// The destination of the answer is the source of our request as selected by the kernel.
	r := report{local: p.dest, seen: p.message.source, asked: p.source, arrived: p.destination}
	o := replayed
	d.update(p.peer, func(t *track) { o = t.answer(time.Now(), p.source, p.echo, r) })
	if o == answers {
		d.reply(p, message{kind: confirmation, echo: p.nonce, source: p.dest, destination: p.source})
	}
	return o
}

// update changes the track of a peer, if it still exists, and schedules a step.
func (d *Discovery) update(peer string, change func(*track)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w := d.peers[peer]; w != nil {
		change(w.track)
		w.dirty = true
		d.poke()
	}
}

// reply sends a message to the sender of a packet. A lost one is compensated by the peer's next
// request.
func (d *Discovery) reply(p packet, m message) {
	m.from, m.to = d.own, p.from
	if err := p.socket.write(d.codec.encode(m), p.source, p.dest.Addr()); err != nil && !errors.Is(err, net.ErrClosed) {
		d.log.Debug("send a message of NAT discovery", "to", p.source, "error", err)
	}
}

// Rate limits of answers per second, and bursts: to a source address, and overall. A peer sends
// requests to at most two addresses every two seconds, and several gateways may share a source
// address.
const (
	ratePerSource, burstPerSource = 20, 40
	rateOverall, burstOverall     = 2000, 2000
	maxSources                    = 4096
)

// limits are the token buckets of answers. They apply to authenticated requests, so the table grows
// by peers and, up to maxSources, by replayed requests with spoofed sources.
type limits struct {
	overall *rate.Limiter
	mu      sync.Mutex
	sources map[netip.Addr]*rate.Limiter
}

func newLimits() *limits {
	return &limits{overall: rate.NewLimiter(rateOverall, burstOverall), sources: map[netip.Addr]*rate.Limiter{}}
}

// allow takes a token for an answer to a source.
func (l *limits) allow(source netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sources[source]
	if s == nil {
		if len(l.sources) >= maxSources {
			// idle
			maps.DeleteFunc(l.sources, func(_ netip.Addr, s *rate.Limiter) bool { return s.Tokens() >= burstPerSource })
		}
		if len(l.sources) >= maxSources {
			return false
		}
		s = rate.NewLimiter(ratePerSource, burstPerSource)
		l.sources[source] = s
	}
	return s.Allow() && l.overall.Allow()
}

// socket is a UDP socket on all addresses of one family, with the local address of each packet
// (ip(7) IP_PKTINFO, ipv6(7) IPV6_PKTINFO): on a host with several addresses, the kernel might
// select another source for an answer.
type socket struct {
	conn *net.UDPConn
	v6   bool
	port uint16
}

// pktinfoSpace holds one IP_PKTINFO or IPV6_PKTINFO (the larger) control message.
const pktinfoSpace = 64

// listen opens a socket of network "udp4" or "udp6"; port 0: selected by the kernel.
func listen(network string, port uint16) (*socket, error) {
	s := &socket{v6: network == "udp6"}
	level, option := unix.IPPROTO_IP, unix.IP_PKTINFO
	if s.v6 {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
	}
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) })
		return errors.Join(cerr, err)
	}}
	conn, err := config.ListenPacket(context.Background(), network, net.JoinHostPort("", strconv.Itoa(int(port))))
	if err != nil {
		return nil, fmt.Errorf("listen on UDP %d (%s): %w", port, network, err)
	}
	s.conn = conn.(*net.UDPConn) // as documented for these networks
	s.port = s.conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	return s, nil
}

// read returns the next packet; to is its destination address.
func (s *socket) read(b []byte) (n int, from netip.AddrPort, to netip.Addr, err error) {
	control := make([]byte, pktinfoSpace)
	n, got, _, from, err := s.conn.ReadMsgUDPAddrPort(b, control)
	if err != nil {
		return 0, from, to, err
	}
	from = netip.AddrPortFrom(from.Addr().Unmap().WithZone(""), from.Port()) // comparable
	return n, from, destination(control[:got]), nil
}

// write sends a packet from the given address; if it is zero, the kernel selects one.
func (s *socket) write(b []byte, to netip.AddrPort, from netip.Addr) error {
	var control []byte
	switch {
	case !from.IsValid():
	case s.v6:
		control = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: from.As16()})
	default:
		control = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: from.As4()})
	}
	_, _, err := s.conn.WriteMsgUDPAddrPort(b, control, to)
	return err
}

// destination is the address in control messages; zero if none exists. struct in_pktinfo is
// {ifindex, spec_dst, addr}, struct in6_pktinfo {addr, ifindex}.
func destination(control []byte) netip.Addr {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return netip.Addr{}
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			return netip.AddrFrom4([4]byte(m.Data[8:12]))
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			return netip.AddrFrom16([16]byte(m.Data[:16])).Unmap()
		}
	}
	return netip.Addr{}
}
