package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	miekg "github.com/miekg/dns"
)

// tcpIdle is how long a TCP connection may wait for its next query (RFC 7766
// §6.2.3: "a few seconds"). CoreDNS keeps forward connections for 10 s.
const tcpIdle = 10 * time.Second

// Server is a set of open sockets on one address, UDP and TCP.
type Server struct {
	addr   netip.AddrPort
	udp    []*net.UDPConn
	tcp    *miekg.Server
	pulses []*pulse
	done   sync.WaitGroup
	stop   chan struct{}
}

// Open listens on addr ("host:port"; ":53" is all addresses, both families)
// with one TCP and several UDP sockets, and answers with h. The kernel spreads
// clients over the UDP sockets by address and port (SO_REUSEPORT); each socket
// has its own loop, so more sockets than CPUs gain nothing.
func Open(addr string, sockets int, h *Handler) (*Server, error) {
	if sockets < 1 {
		return nil, fmt.Errorf("listen on %s: %d UDP sockets; at least 1 is needed", addr, sockets)
	}
	s := &Server{stop: make(chan struct{})}
	config := net.ListenConfig{Control: reusePort}
	for range sockets {
		conn, err := config.ListenPacket(context.Background(), "udp", addr)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("listen on %s/udp: %w", addr, err), s.closeUDP())
		}
		udp := conn.(*net.UDPConn)
		s.udp = append(s.udp, udp)
		if err := reportDestination(udp); err != nil {
			return nil, errors.Join(fmt.Errorf("listen on %s/udp: %w", addr, err), s.closeUDP())
		}
		s.addr = udp.LocalAddr().(*net.UDPAddr).AddrPort()
		if host, port, err := net.SplitHostPort(addr); err == nil && port == "0" {
			addr = net.JoinHostPort(host, fmt.Sprint(s.addr.Port()))
		}
	}
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s/tcp: %w", addr, err), s.closeUDP())
	}
	started := make(chan struct{})
	s.tcp = &miekg.Server{
		Listener:          newListener(tcp.(*net.TCPListener), h.metrics, s.newPulse("tcp", h)),
		Handler:           h,
		MsgAcceptFunc:     h.accept,
		MsgInvalidFunc:    h.invalid,
		MaxTCPQueries:     -1,
		IdleTimeout:       func() time.Duration { return tcpIdle },
		NotifyStartedFunc: func() { close(started) },
	}
	s.done.Go(func() {
		// The listener fails only after Close. If this ended for any other reason
		// the pulse would stop, which Alive reports.
		_ = s.tcp.ActivateAndServe()
	})
	<-started
	for _, conn := range s.udp {
		p := s.newPulse("udp", h)
		s.done.Go(func() { serveUDP(conn, h, p) })
	}
	return s, nil
}

func (s *Server) newPulse(transport string, h *Handler) *pulse {
	p := newPulse(transport, h.metrics.failures.WithLabelValues(transport), s.stop)
	s.pulses = append(s.pulses, p)
	return p
}

// Addr is the address that the sockets have, also when port 0 was requested.
func (s *Server) Addr() netip.AddrPort { return s.addr }

// Alive returns an error if a socket has not been served for beatTimeout: its
// loop hangs, or all its reads fail. Only a restart helps then.
func (s *Server) Alive() error {
	var errs []error
	for _, p := range s.pulses {
		errs = append(errs, p.alive())
	}
	return errors.Join(errs...)
}

// Close stops reading, lets queries under way finish until ctx ends, and
// closes all sockets. It may be called once.
func (s *Server) Close(ctx context.Context) error {
	close(s.stop)
	err := s.closeUDP()
	if e := s.tcp.ShutdownContext(ctx); e != nil {
		err = errors.Join(err, fmt.Errorf("close %s/tcp: %w", s.addr, e))
	}
	finished := make(chan struct{})
	go func() {
		s.done.Wait()
		close(finished)
	}()
	select {
	case <-finished:
		return err
	case <-ctx.Done():
		return errors.Join(err, fmt.Errorf("close %s: queries still under way: %w", s.addr, ctx.Err()))
	}
}

func (s *Server) closeUDP() error {
	var errs []error
	for _, conn := range s.udp {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

// packetConn is what serveUDP needs of a *net.UDPConn.
type packetConn interface {
	ReadMsgUDPAddrPort(b, oob []byte) (n, oobn, flags int, from netip.AddrPort, err error)
	WriteMsgUDPAddrPort(b, oob []byte, to netip.AddrPort) (n, oobn int, err error)
	SetReadDeadline(t time.Time) error
}

// serveUDP reads and answers one packet after the other until the socket is
// closed. The library's server starts a goroutine and unpacks a message for
// each packet; a loop with its own memory costs about half as much per query.
func serveUDP(conn packetConn, h *Handler, p *pulse) {
	// Queries are small; one that is longer fails to parse and gets FORMERR.
	in := make([]byte, 4096)
	oob := make([]byte, 128)
	b := &buffer{out: make([]byte, 0, maxUDP)}
	// Like every other it fails on a closed socket only, and so does the read.
	_ = conn.SetReadDeadline(time.Now().Add(beatInterval))
	for {
		n, oobn, _, from, err := conn.ReadMsgUDPAddrPort(in, oob)
		if err != nil {
			if !p.failed(err, conn.SetReadDeadline) {
				return
			}
			continue
		}
		p.succeeded = true
		if !h.packet(b, in[:n]) {
			continue
		}
		// A failed write loses one answer; the client repeats its query.
		_, _, _ = conn.WriteMsgUDPAddrPort(b.out, answerFrom(oob[:oobn]), from)
	}
}

// invalid counts a message that the library could not unpack; it answers with
// FORMERR itself.
func (h *Handler) invalid([]byte, error) {
	h.metrics.outcome(miekg.RcodeFormatError, miekg.TypeNone).Inc()
}
