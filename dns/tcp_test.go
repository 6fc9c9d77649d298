package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	miekg "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// connect opens a TCP connection from a loopback address and sends a query. It
// reports whether the query was answered or the connection was closed instead.
func connect(t *testing.T, server netip.AddrPort, source string) (net.Conn, bool) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: time.Minute}
	c, err := d.Dial("tcp", server.String())
	if errors.Is(err, syscall.ECONNRESET) {
		return nil, false
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	query := pack(t, new(miekg.Msg).SetQuestion("web"+zoneSuffix+".", miekg.TypeA))
	framed := append([]byte{byte(len(query) >> 8), byte(len(query))}, query...)
	if _, err := c.Write(framed); err != nil {
		return c, false // closed before the query came
	}
	id := make([]byte, 4)
	if n, err := c.Read(id); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("neither an answer nor a closed connection within a minute")
	} else if err != nil {
		return c, false
	} else if n == 4 && !slices.Equal(id[2:], query[:2]) {
		t.Fatalf("answer has id %x, want %x", id[2:], query[:2])
	}
	return c, true
}

func TestTCPLimits(t *testing.T) {
	h := serving(t, sample(ModeSubmariner, Service{Clusters: []Cluster{in("g2", ready("120.2.0.1"))}}))
	s, err := Open("127.0.0.1:0", 1, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if open := testutil.ToFloat64(h.metrics.conns); open != 0 {
			t.Errorf("%g connections after Close", open)
		}
	})
	counted := func(want float64, limit string) {
		t.Helper()
		if got := testutil.ToFloat64(h.metrics.refused.WithLabelValues(limit)); got != want {
			t.Errorf("%g connections refused by limit %s, want %g", got, limit, want)
		}
	}
	var first net.Conn
	for i := range maxConnsPerSource {
		c, ok := connect(t, s.Addr(), "127.0.0.1")
		if !ok {
			t.Fatalf("connection %d of an address refused", i)
		}
		if first == nil {
			first = c
		}
	}
	if _, ok := connect(t, s.Addr(), "127.0.0.1"); ok {
		t.Error("one address has one connection too many")
	}
	counted(1, "source")
	for n := 2; n*maxConnsPerSource <= maxConns; n++ {
		for range maxConnsPerSource {
			if _, ok := connect(t, s.Addr(), fmt.Sprintf("127.0.0.%d", n)); !ok {
				t.Fatalf("another address refused with %g connections", testutil.ToFloat64(h.metrics.conns))
			}
		}
	}
	if open := testutil.ToFloat64(h.metrics.conns); open != maxConns {
		t.Errorf("%g connections open, want %d", open, maxConns)
	}
	if _, ok := connect(t, s.Addr(), "127.0.1.1"); ok {
		t.Error("one connection too many in all")
	}
	counted(1, "source")
	counted(1, "total")

	// UDP is served all the time, and a closed connection makes room.
	udp := dial(t, "udp", s.Addr().String())
	send(t, udp, pack(t, new(miekg.Msg).SetQuestion("web"+zoneSuffix+".", miekg.TypeA)))
	receive(t, udp)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		if _, ok := connect(t, s.Addr(), "127.0.0.1"); ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("refused a minute after a connection was closed")
		}
	}
}

// TestPeerThatDoesNotRead: a peer that reads no answers loses its connection,
// instead of holding it for ever.
func TestPeerThatDoesNotRead(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	peer := dial(t, "tcp", l.Addr().String())
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	released := 0
	c := &conn{TCPConn: accepted.(*net.TCPConn), release: func() { released++ }}
	for err == nil {
		_, err = c.Write(make([]byte, maxTCP))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) || released != 1 {
		t.Errorf("write: %v, released %d times", err, released)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read after the failed write: %v", err)
	}
	peer.Close()
}
