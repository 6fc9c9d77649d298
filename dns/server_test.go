package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
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

// fakeConn is a UDP socket whose reads and writes are functions; a read that
// returns no packet and no error is one that waits.
type fakeConn struct {
	deadline time.Time
	closed   <-chan struct{}
	read     func() (packet []byte, err error)
	write    func()
}

func (c *fakeConn) SetReadDeadline(t time.Time) error { c.deadline = t; return nil }

func (c *fakeConn) readBatch(b *batch) error {
	b.n = 0
	select {
	case <-c.closed:
		return net.ErrClosed
	default:
	}
	if !time.Now().Before(c.deadline) { // checked before the read, as package net does
		return os.ErrDeadlineExceeded
	}
	packet, err := c.read()
	if packet != nil || err != nil {
		if packet != nil {
			b.n, b.in[0] = 1, packet
		}
		return err
	}
	select {
	case <-c.closed:
		return net.ErrClosed
	case <-time.After(time.Until(c.deadline)):
		return os.ErrDeadlineExceeded
	}
}

func (c *fakeConn) writeBatch(*batch) { c.write() }

// TestLivenessOfASocket: only a socket that fails for long, or a loop that
// hangs, is reported; and an error never ends the loop.
func TestLivenessOfASocket(t *testing.T) {
	packet := pack(t, new(miekg.Msg).SetQuestion("web"+zoneSuffix+".", miekg.TypeA))
	for _, c := range []struct {
		name   string
		read   func(age time.Duration) (packet []byte, err error)
		write  func(stop <-chan struct{})
		want   string // part of Alive's error after an hour; "": none
		errors float64
	}{
		{name: "idle", read: func(time.Duration) ([]byte, error) { return nil, nil }},
		{name: "busy", read: func(time.Duration) ([]byte, error) { time.Sleep(100 * time.Millisecond); return packet, nil }},
		{name: "one error", errors: 1, read: once(syscall.ENOBUFS)},
		{name: "errors for 20 s", errors: -1, read: func(age time.Duration) ([]byte, error) {
			if age < 20*time.Second {
				return nil, syscall.ENOMEM
			}
			return nil, nil
		}},
		{name: "errors among packets", errors: -1, read: alternate(packet, syscall.ENOBUFS)},
		{name: "errors only", errors: -1, want: "a udp socket has failed for 1h", read: func(time.Duration) ([]byte, error) { return nil, syscall.ENOMEM }},
		{name: "hangs in an answer", want: "a udp socket has not been served for 1h",
			read:  func(time.Duration) ([]byte, error) { return packet, nil },
			write: func(stop <-chan struct{}) { <-stop }},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := serving(t, sample(ModeSubmariner, Service{Clusters: []Cluster{in("g2", ready("120.2.0.1"))}}))
			synctest.Test(t, func(t *testing.T) {
				stop, ended := make(chan struct{}), make(chan struct{})
				s := &Server{stop: stop}
				begin, answers := time.Now(), 0
				conn := &fakeConn{closed: stop,
					read: func() ([]byte, error) { return c.read(time.Since(begin)) },
					write: func() {
						answers++
						if c.write != nil {
							c.write(stop)
						}
					}}
				p := s.newPulse("udp", h)
				go func() {
					defer close(ended)
					serveUDP(conn, h, p)
				}()
				for range 60 {
					time.Sleep(time.Minute)
					err := s.Alive()
					if (err != nil) != (c.want != "") {
						t.Fatalf("after %s: %v", time.Since(begin), err)
					}
				}
				if err := s.Alive(); c.want != "" && !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %s", err, c.want)
				}
				select {
				case <-ended:
					t.Error("the loop has ended")
				default:
				}
				if got := testutil.ToFloat64(h.metrics.failures.WithLabelValues("udp")); c.errors >= 0 && got != c.errors || c.errors < 0 && got == 0 {
					t.Errorf("%g errors counted, want %g", got, c.errors)
				}
				close(stop)
				<-ended
			})
		})
	}
}

func once(err error) func(time.Duration) ([]byte, error) {
	return func(time.Duration) (_ []byte, e error) { e, err = err, nil; return nil, e }
}

// alternate gives packets and errors in turn, so that no interval is free of errors.
func alternate(packet []byte, err error) func(time.Duration) ([]byte, error) {
	n := 0
	return func(time.Duration) ([]byte, error) {
		if n++; n%2 == 0 {
			return nil, err
		}
		time.Sleep(time.Second)
		return packet, nil
	}
}

// TestUDPErrorDoesNotEndTheServer: the packet after a failed read is answered.
func TestUDPErrorDoesNotEndTheServer(t *testing.T) {
	packet := pack(t, new(miekg.Msg).SetQuestion("web"+zoneSuffix+".", miekg.TypeA))
	h := serving(t, sample(ModeSubmariner, Service{Clusters: []Cluster{in("g2", ready("120.2.0.1"))}}))
	synctest.Test(t, func(t *testing.T) {
		stop, answered, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
		results := []error{errors.New("out of memory"), nil}
		s := &Server{stop: stop}
		conn := &fakeConn{closed: stop, write: func() { close(answered) }, read: func() ([]byte, error) {
			if len(results) == 0 {
				return nil, nil
			}
			err := results[0]
			results = results[1:]
			if err != nil {
				return nil, err
			}
			return packet, nil
		}}
		p := s.newPulse("udp", h)
		go func() {
			defer close(ended)
			serveUDP(conn, h, p)
		}()
		select {
		case <-answered:
		case <-ended:
			t.Error("the loop has ended")
		}
		close(stop)
		<-ended
	})
}
