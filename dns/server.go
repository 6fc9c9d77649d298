//go:build linux

package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	miekg "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

const (
	// beatInterval is the read deadline of every socket.
	beatInterval = 5 * time.Second
	// beatTimeout is the age of the last beat above which a socket is reported
	// as not served.
	beatTimeout = 30 * time.Second
	// maxBackoff bounds the backoff between failing reads of one socket.
	maxBackoff = time.Second
	// tcpIdle bounds the time until the next query of a TCP connection (RFC 7766
	// §6.2.3: "a few seconds"). CoreDNS keeps forward connections for 10 s.
	tcpIdle = 10 * time.Second
	// tcpWrite bounds the time in which a peer receives one answer. The library
	// sets no write deadline.
	tcpWrite = 5 * time.Second
	// maxConns bounds the open TCP connections. Each costs a goroutine and up to
	// 64 KiB, the longest message that a peer can announce.
	maxConns = 1024
	// maxConnsPerSource bounds those of one address. CoreDNS, which forwards the
	// queries of a whole cluster, reuses its connections and stays below.
	maxConnsPerSource = 128
	// bindTries bounds the ports that are tried for port 0.
	bindTries = 32
)

// Server is a set of open sockets on one address, UDP and TCP.
type Server struct {
	addr   netip.AddrPort
	udp    []*udpSocket
	tcp    *miekg.Server
	pulses []*pulse
	done   sync.WaitGroup
	stop   chan struct{}
}

// Open listens on addr ("host:port"; ":53" is all addresses, both families; port 0 is one
// that is free for both protocols) with one TCP and several UDP sockets, and answers with h.
// The kernel spreads clients over the UDP sockets by address and port (SO_REUSEPORT); each
// socket has its own loop, so more sockets than CPUs gain nothing.
func Open(addr string, sockets int, h *Handler) (*Server, error) {
	if sockets < 1 {
		return nil, fmt.Errorf("listen on %s: %d UDP sockets; at least 1 is needed", addr, sockets)
	}
	s := &Server{stop: make(chan struct{})}
	tcp, err := s.bind(addr, sockets)
	// the kernel chooses a port for UDP that a TCP connection may have
	for try := 1; try < bindTries && errors.Is(err, unix.EADDRINUSE) && strings.HasSuffix(addr, ":0"); try++ {
		tcp, err = s.bind(addr, sockets)
	}
	if err != nil {
		return nil, err
	}
	started := make(chan struct{})
	s.tcp = &miekg.Server{
		Listener:          newListener(tcp, h.metrics, s.newPulse("tcp", h)),
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

// bind opens the UDP sockets and returns the TCP one. After an error none is open.
func (s *Server) bind(addr string, sockets int) (*net.TCPListener, error) {
	config := net.ListenConfig{Control: reusePort}
	for range sockets {
		conn, err := config.ListenPacket(context.Background(), "udp", addr)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("listen on %s/udp: %w", addr, err), s.closeUDP())
		}
		udp, err := newUDPSocket(conn.(*net.UDPConn))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("listen on %s/udp: %w", addr, err), conn.Close(), s.closeUDP())
		}
		s.udp = append(s.udp, udp)
		if err := reportDestination(udp.UDPConn); err != nil {
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
	return tcp.(*net.TCPListener), nil
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

// Close stops reading, waits for queries in flight until ctx is done, and
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
		return errors.Join(err, fmt.Errorf("close %s: queries still in flight: %w", s.addr, ctx.Err()))
	}
}

func (s *Server) closeUDP() error {
	var errs []error
	for _, conn := range s.udp {
		errs = append(errs, conn.Close())
	}
	s.udp = nil
	return errors.Join(errs...)
}

// batchConn is what serveUDP needs of a socket.
type batchConn interface {
	readBatch(b *batch) error
	writeBatch(b *batch)
	SetReadDeadline(t time.Time) error
}

// serveUDP reads and answers packets until the socket is closed, as many at a
// time as are there. The library's server starts a goroutine and unpacks a
// message for each packet; a loop with its own memory costs a fraction of it.
func serveUDP(conn batchConn, h *Handler, p *pulse) {
	in := newBatch()
	buffers := new([batchSize]buffer)
	for i := range buffers {
		buffers[i].out = make([]byte, 0, maxUDP)
	}
	// It fails on a closed socket only, and so does the next read.
	_ = conn.SetReadDeadline(time.Now().Add(beatInterval))
	for {
		if err := conn.readBatch(in); err != nil {
			if !p.failed(err, conn.SetReadDeadline) {
				return
			}
			continue
		}
		p.succeeded = true
		for i := range in.n {
			in.answer[i] = nil
			if b := &buffers[i]; h.packet(b, in.in[i]) {
				in.answer[i] = b.out
			}
		}
		conn.writeBatch(in)
	}
}

// invalid counts a message that the library could not unpack; it answers with
// FORMERR itself.
func (h *Handler) invalid([]byte, error) {
	h.metrics.outcome(miekg.RcodeFormatError, miekg.TypeNone).Inc()
}

// listener accepts TCP connections within the limits; those above are reset.
type listener struct {
	*net.TCPListener
	pulse   *pulse
	metrics *metrics

	mu       sync.Mutex
	total    int
	bySource map[netip.Addr]int
}

func newListener(l *net.TCPListener, m *metrics, p *pulse) *listener {
	// It fails on a closed socket only, and so does the next Accept.
	_ = l.SetDeadline(time.Now().Add(beatInterval))
	return &listener{TCPListener: l, pulse: p, metrics: m, bySource: map[netip.Addr]int{}}
}

// Accept returns the next connection within the limits. It fails only after
// Close.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			if l.pulse.failed(err, l.SetDeadline) {
				continue
			}
			return nil, err
		}
		l.pulse.succeeded = true
		source := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		if refused := l.reserve(source); refused != nil {
			refused.Inc()
			// Both fail only if the peer has closed the connection already.
			_ = c.SetLinger(0) // close with RST: the peer learns at once
			_ = c.Close()
			continue
		}
		return &conn{TCPConn: c, release: sync.OnceFunc(func() { l.release(source) })}, nil
	}
}

// reserve counts a connection from source, or returns the counter of the limit
// that it exceeds.
func (l *listener) reserve(source netip.Addr) (refused prometheus.Counter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.total >= maxConns:
		return l.metrics.refusedTotal
	case l.bySource[source] >= maxConnsPerSource:
		return l.metrics.refusedSource
	}
	l.total++
	l.bySource[source]++
	l.metrics.conns.Set(float64(l.total))
	return nil
}

func (l *listener) release(source netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.bySource[source]--; l.bySource[source] == 0 {
		delete(l.bySource, source)
	}
	l.metrics.conns.Set(float64(l.total))
}

// conn is an accepted connection that holds a reservation until it is closed.
type conn struct {
	*net.TCPConn
	release func()
}

func (c *conn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(tcpWrite)); err != nil {
		return 0, err
	}
	n, err := c.TCPConn.Write(b)
	if err != nil {
		_ = c.Close() // the peer may have received a part of the message
	}
	return n, err
}

func (c *conn) Close() error {
	defer c.release()
	return c.TCPConn.Close()
}

// pulse is the heartbeat of one loop that reads or accepts. The loop sets a
// deadline on its socket and passes every error to failed. The deadline expires
// once per interval whether the socket is busy or idle, at no cost per query.
type pulse struct {
	socket string // "udp" or "tcp"
	errors prometheus.Counter
	stop   <-chan struct{} // closed by Server.Close

	// Owned by the loop.
	succeeded bool // since the last deadline
	failures  int  // in a row, since the last deadline

	mu    sync.Mutex
	beat  time.Time
	cause error // of the last failure since that beat
}

func newPulse(socket string, errors prometheus.Counter, stop <-chan struct{}) *pulse {
	return &pulse{socket: socket, errors: errors, stop: stop, beat: time.Now()}
}

// failed handles the error of a read or an accept: it renews an expired
// deadline and backs off after anything else. It reports whether the loop
// continues; only a closed socket ends it.
func (p *pulse) failed(err error, setDeadline func(time.Time) error) bool {
	if errors.Is(err, net.ErrClosed) {
		return false
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		p.mu.Lock()
		// A socket that only fails does not beat: the deadline expires there too.
		if p.succeeded || p.failures == 0 {
			p.beat, p.cause = time.Now(), nil
		}
		p.mu.Unlock()
		p.succeeded, p.failures = false, 0
		// It fails on a closed socket only, and so does the next read.
		_ = setDeadline(time.Now().Add(beatInterval))
		return true
	}
	p.errors.Inc()
	p.mu.Lock()
	p.cause = err
	p.mu.Unlock()
	backoff := time.NewTimer(min(time.Millisecond<<min(p.failures, 10), maxBackoff))
	defer backoff.Stop()
	p.failures++
	select {
	case <-p.stop:
	case <-backoff.C:
	}
	return true
}

// alive returns an error if the loop has not beaten within beatTimeout.
func (p *pulse) alive() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	age := time.Since(p.beat)
	switch {
	case age <= beatTimeout:
		return nil
	case p.cause != nil:
		return fmt.Errorf("a %s socket has failed for %s: %w", p.socket, age.Round(time.Second), p.cause)
	default:
		return fmt.Errorf("a %s socket has not been served for %s", p.socket, age.Round(time.Second))
	}
}

// reusePort lets several sockets share one address.
func reusePort(_, _ string, c syscall.RawConn) error {
	var set error
	err := c.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
	return errors.Join(err, set)
}

// reportDestination makes the kernel report the destination address of each
// packet, which becomes the source of the answer. A socket for both families
// reports IPv4 addresses in mapped form.
func reportDestination(conn *net.UDPConn) error {
	level, option := unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
	if conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Is4() {
		level, option = unix.IPPROTO_IP, unix.IP_PKTINFO
	}
	c, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = c.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), level, option, 1) })
	return errors.Join(err, set)
}

// answerFrom turns the control message of a received packet, in place, into
// the one for its answer: the same local address, the interface by the routes
// (ip(7): in_pktinfo, ipv6(7): in6_pktinfo). A link-local address keeps its
// interface, which is the destination's zone.
func answerFrom(oob []byte) []byte {
	const head = unix.SizeofCmsghdr
	if len(oob) < head {
		return nil
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&oob[0]))
	var ifindex int
	switch {
	case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO:
		ifindex = head
	case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO:
		ifindex = head + 16
	default:
		return nil
	}
	if len(oob) < ifindex+4 {
		return nil
	}
	clear(oob[ifindex : ifindex+4])
	return oob
}
