package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	miekg "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"
)

// open serves web.sample and db.sample on a port of the loopback.
func open(t *testing.T, addr string) (*Server, *Handler) {
	t.Helper()
	h := serving(t, sample(ModeSubmariner, Service{Ports: http, Clusters: []Cluster{in("g2", ready("120.2.0.1"))}}, statefulSet()))
	s, err := Open(addr, 2, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s, h
}

// TestBatch: packets that wait for the loop, more than a batch holds and from many sockets, are
// answered each to its sender, with its id and from the address that it was sent to; what gets no
// answer, among them, delays no other.
func TestBatch(t *testing.T) {
	for _, family := range []string{"127.0.0.%d:%d", "[::ffff:127.0.0.%d]:%d"} {
		conn, err := net.ListenPacket("udp", map[bool]string{true: "0.0.0.0:0", false: "[::]:0"}[family[0] == '1'])
		if err != nil {
			t.Fatal(err)
		}
		socket, err := newUDPSocket(conn.(*net.UDPConn))
		if err != nil {
			t.Fatal(err)
		}
		if err := reportDestination(socket.UDPConn); err != nil {
			t.Fatal(err)
		}
		const clients, each = 5, 3 * batchSize / 5
		var sockets []net.Conn
		for c := range clients {
			// connected: other sources are dropped
			udp := dial(t, "udp", fmt.Sprintf(family, c+1, conn.LocalAddr().(*net.UDPAddr).Port))
			sockets = append(sockets, udp)
			for i := range each {
				m := new(miekg.Msg).SetQuestion([]string{"web", "db", "none"}[i%3]+zoneSuffix+".", miekg.TypeA)
				m.Id = uint16(c<<8 | i)
				m.Response = i%7 == 6 // gets no answer
				send(t, udp, pack(t, m))
			}
		}
		h := serving(t, sample(ModeSubmariner, Service{Clusters: []Cluster{in("g2", ready("120.2.0.1"))}}, statefulSet()))
		stop, ended := make(chan struct{}), make(chan struct{})
		p := newPulse("udp", h.metrics.failures.WithLabelValues("udp"), stop)
		go func() {
			defer close(ended)
			serveUDP(socket, h, p)
		}()
		for c, udp := range sockets {
			for i := range each {
				if i%7 == 6 {
					continue
				}
				m := receive(t, udp)
				var got miekg.Msg
				if err := got.Unpack(m); err != nil || got.Id != uint16(c<<8|i) {
					t.Fatalf("%s: client %d got id %#x, %v; want %#x", family, c, got.Id, err, c<<8|i)
				}
				if want := []int{miekg.RcodeSuccess, miekg.RcodeSuccess, miekg.RcodeNameError}[i%3]; got.Rcode != want {
					t.Errorf("%s: query %d got rcode %d, want %d", family, i, got.Rcode, want)
				}
			}
		}
		close(stop)
		if err := socket.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	}
}

// TestTCPFlood: 10,000 connections at once, from 100 addresses and held open by their peers, cost
// the server no more than its limits, and no UDP query its answer.
func TestTCPFlood(t *testing.T) {
	const floods, each = 100, 100
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	if need := uint64(floods*each + 3*maxConns); files.Cur < need {
		raised := unix.Rlimit{Cur: need, Max: max(need, files.Max)}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &raised); err != nil {
			t.Fatalf("%d open files are allowed, %d needed: %v", files.Cur, need, err)
		}
	}
	s, h := open(t, "127.0.0.1:0")
	query := pack(t, new(miekg.Msg).SetQuestion("web"+zoneSuffix+".", miekg.TypeA))
	stop, answered := make(chan struct{}), make(chan int)
	udp := dial(t, "udp", s.Addr().String())
	if err := udp.SetDeadline(time.Now().Add(5 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	go func() {
		n := 0
		defer func() { answered <- n }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := udp.Write(query); err != nil {
				t.Error(err)
				return
			}
			if _, err := udp.Read(make([]byte, maxUDP)); err != nil {
				t.Errorf("answer %d during the flood: %v", n, err)
				return
			}
			n++
		}
	}()
	var group sync.WaitGroup
	var mu sync.Mutex
	var held []net.Conn
	for f := range floods {
		group.Go(func() {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(f+1))}, Timeout: time.Minute}
			for range each {
				c, err := d.Dial("tcp", s.Addr().String())
				if err != nil {
					continue // reset, or the backlog is full: nothing of the server's
				}
				_, _ = c.Write([]byte{0xff}) // half a length; fails if it was reset
				mu.Lock()
				held = append(held, c)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	if open := testutil.ToFloat64(h.metrics.conns); open > maxConns {
		t.Errorf("%g connections are open, at most %d may be", open, maxConns)
	}
	if refused := testutil.ToFloat64(h.metrics.refusedTotal) + testutil.ToFloat64(h.metrics.refusedSource); refused == 0 {
		t.Errorf("of %d connections none was refused", len(held))
	}
	close(stop)
	if n := <-answered; n == 0 {
		t.Error("no UDP query was answered during the flood")
	} else {
		t.Logf("%d UDP queries answered during the flood of %d connections", n, len(held))
	}
	send(t, udp, query)
	receive(t, udp)
	for _, c := range held {
		c.Close()
	}
}

// TestUDPFlood: queries without a waiting client, malformed ones among them, are dropped by the
// kernel when they come too fast; memory is that of the sockets' buffers, and the next query is
// answered.
func TestUDPFlood(t *testing.T) {
	s, h := open(t, "127.0.0.1:0")
	packets := [][]byte{
		pack(t, new(miekg.Msg).SetQuestion("db"+zoneSuffix+".", miekg.TypeA)),
		pack(t, new(miekg.Msg).SetQuestion(`odd\.label`+zoneSuffix+".", miekg.TypeANY)),
		// a name that points to itself
		{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 0x0c, 0, 1, 0, 1},
		make([]byte, 3), make([]byte, maxQuery+1), {},
	}
	var flood sync.WaitGroup
	for range 4 {
		flood.Go(func() {
			c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(s.Addr()))
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close() // its answers are refused by the kernel from now on
			for i := range 20_000 {
				if _, err := c.Write(packets[i%len(packets)]); err != nil && !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOBUFS) {
					t.Error(err)
					return
				}
			}
		})
	}
	flood.Wait()
	query := pack(t, new(miekg.Msg).SetQuestion("web"+zoneSuffix+".", miekg.TypeA))
	client := dial(t, "udp", s.Addr().String())
	for deadline := time.Now().Add(time.Minute); ; {
		if err := client.SetDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Write(query); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, maxUDP)
		n, err := client.Read(answer)
		if err == nil && n > headerLen && binary.BigEndian.Uint16(answer) == binary.BigEndian.Uint16(query) {
			break
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(deadline) {
			t.Fatalf("after the flood: %d octets, %v", n, err)
		}
	}
	if err := s.Alive(); err != nil {
		t.Error(err)
	}
	if n := testutil.ToFloat64(h.metrics.outcome(miekg.RcodeFormatError, miekg.TypeNone)); n == 0 {
		t.Error("no malformed packet was counted")
	}
	if failed := testutil.ToFloat64(h.metrics.failures.WithLabelValues("udp")); failed != 0 {
		t.Errorf("%g reads failed", failed)
	}
}
