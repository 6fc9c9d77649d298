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
// §6.2.3 asks for "a few seconds"). CoreDNS keeps forward connections for 10 s.
const tcpIdle = 10 * time.Second

// Server is a set of open sockets on one address, UDP and TCP.
type Server struct {
	addr   netip.AddrPort
	udp    []*net.UDPConn
	tcp    *miekg.Server
	done   sync.WaitGroup
	failed chan error
}

// Open listens on addr ("host:port"; ":53" is all addresses, both families)
// with one TCP and several UDP sockets, and answers with h. The kernel spreads
// askers over the UDP sockets by their address and port (SO_REUSEPORT); each
// has its own loop, so more sockets than CPUs gain nothing.
func Open(addr string, sockets int, h *Handler) (*Server, error) {
	if sockets < 1 {
		return nil, fmt.Errorf("listen on %s: %d UDP sockets; at least 1 is needed", addr, sockets)
	}
	s := &Server{failed: make(chan error, sockets+1)}
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
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s/tcp: %w", addr, err), s.closeUDP())
	}
	started := make(chan struct{})
	s.tcp = &miekg.Server{
		Listener:          listener,
		Handler:           h,
		MsgAcceptFunc:     h.accept,
		MsgInvalidFunc:    h.invalid,
		MaxTCPQueries:     -1,
		IdleTimeout:       func() time.Duration { return tcpIdle },
		NotifyStartedFunc: func() { close(started) },
	}
	s.done.Go(func() {
		if err := s.tcp.ActivateAndServe(); err != nil {
			s.failed <- fmt.Errorf("serve %s/tcp: %w", addr, err)
		}
	})
	<-started
	for _, conn := range s.udp {
		s.done.Go(func() {
			if err := serveUDP(conn, h); err != nil {
				s.failed <- fmt.Errorf("serve %s/udp: %w", addr, err)
			}
		})
	}
	return s, nil
}

// Addr is the address that the sockets have, also when port 0 was asked for.
func (s *Server) Addr() netip.AddrPort { return s.addr }

// Failed gives the error of a socket that stopped without Close.
func (s *Server) Failed() <-chan error { return s.failed }

// Close stops reading, lets queries under way finish until ctx ends, and
// closes all sockets.
func (s *Server) Close(ctx context.Context) error {
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

// serveUDP reads and answers one packet after the other until the socket is
// closed. The library's server starts a goroutine and unpacks a message for
// each packet; a loop with its own memory costs about half as much per query.
func serveUDP(conn *net.UDPConn, h *Handler) error {
	// Queries are small; one that is longer fails to parse and gets FORMERR.
	in := make([]byte, 4096)
	oob := make([]byte, 128)
	b := &buffer{out: make([]byte, 0, maxUDP)}
	for {
		n, oobn, _, from, err := conn.ReadMsgUDPAddrPort(in, oob)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if !h.packet(b, in[:n]) {
			continue
		}
		// A failed write is the asker's loss alone; it asks again.
		_, _, _ = conn.WriteMsgUDPAddrPort(b.out, answerFrom(oob[:oobn]), from)
	}
}

// invalid counts a message that the library could not unpack; it answers with
// FORMERR itself.
func (h *Handler) invalid([]byte, error) {
	h.metrics.outcome(miekg.RcodeFormatError, miekg.TypeNone).Inc()
}
