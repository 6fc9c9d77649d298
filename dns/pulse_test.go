package dns

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	miekg "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// fakeConn is a UDP socket whose reads and writes are functions; a read that
// returns no packet and no error is one that waits.
type fakeConn struct {
	deadline time.Time
	closed   <-chan struct{}
	read     func() (packet []byte, err error)
	write    func()
}

func (c *fakeConn) SetReadDeadline(t time.Time) error { c.deadline = t; return nil }

func (c *fakeConn) ReadMsgUDPAddrPort(b, _ []byte) (n, oobn, flags int, from netip.AddrPort, err error) {
	select {
	case <-c.closed:
		return 0, 0, 0, from, net.ErrClosed
	default:
	}
	if !time.Now().Before(c.deadline) { // checked before the read, as package net does
		return 0, 0, 0, from, os.ErrDeadlineExceeded
	}
	packet, err := c.read()
	if packet != nil || err != nil {
		return copy(b, packet), 0, 0, netip.MustParseAddrPort("10.7.0.2:999"), err
	}
	select {
	case <-c.closed:
		return 0, 0, 0, from, net.ErrClosed
	case <-time.After(time.Until(c.deadline)):
		return 0, 0, 0, from, os.ErrDeadlineExceeded
	}
}

func (c *fakeConn) WriteMsgUDPAddrPort(b, _ []byte, _ netip.AddrPort) (n, oobn int, err error) {
	c.write()
	return len(b), 0, nil
}

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
