package dns

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// maxConns bounds the open TCP connections. Each costs a goroutine and up to
	// 64 KiB, the longest message that a peer can announce.
	maxConns = 1024
	// maxConnsPerSource bounds those of one address. CoreDNS, which forwards the
	// queries of a whole cluster, reuses its connections and stays below.
	maxConnsPerSource = 128
	// tcpWrite bounds the time a peer may take to receive one answer. The
	// library sets no write deadline.
	tcpWrite = 5 * time.Second
)

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
		_ = c.Close() // the peer has got a part of a message; nothing may follow it
	}
	return n, err
}

func (c *conn) Close() error {
	defer c.release()
	return c.TCPConn.Close()
}
