package clusters

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/test/netns"
)

// place is where a socket can be: a pod or a node.
type place interface {
	Do(func() error) error
}

// dial opens a connection from a place; network is tcp or udp.
func dial(from place, network string, to netip.AddrPort, local ...netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{Timeout: 3 * time.Second}
	if len(local) > 0 {
		// Two connections may go out from one port, if to different places. Where the kernel
		// chooses the port, this option would let it give two UDP sockets the same one, also to the
		// same place, and one of them would get the replies of both.
		d.Control = func(_, _ string, c syscall.RawConn) error {
			var optErr error
			err := c.Control(func(fd uintptr) { optErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
			return errors.Join(err, optErr)
		}
		if network == "tcp" {
			d.LocalAddr = net.TCPAddrFromAddrPort(local[0])
		} else {
			d.LocalAddr = net.UDPAddrFromAddrPort(local[0])
		}
	}
	var c net.Conn
	err := from.Do(func() (err error) {
		c, err = d.DialContext(context.Background(), network, to.String())
		return err
	})
	return c, err
}

// serveTCP runs handle on every connection to a port, until the test ends.
func serveTCP(t testing.TB, at place, port uint16, handle func(net.Conn)) {
	t.Helper()
	var l net.Listener
	must(t, at.Do(func() (err error) {
		l, err = net.Listen("tcp4", fmt.Sprintf(":%d", port))
		return err
	}))
	t.Cleanup(func() { must(t, l.Close()) })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				handle(c)
			}()
		}
	}()
}

// sayWho answers a connection with the server's name and the source that it sees, then echoes until
// the end.
func sayWho(name string) func(net.Conn) {
	return func(c net.Conn) {
		if _, err := fmt.Fprintf(c, "%s %s\n", name, c.RemoteAddr()); err == nil {
			_, _ = io.Copy(c, c) // until the other side ends or breaks it
		}
	}
}

// ask connects and returns who answered and the source that it saw.
func ask(from place, to netip.AddrPort) (who string, source netip.AddrPort, err error) {
	c, err := dial(from, "tcp", to)
	if err != nil {
		return "", netip.AddrPort{}, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
		return "", netip.AddrPort{}, err
	}
	var address string
	if _, err := fmt.Fscanf(c, "%s %s\n", &who, &address); err != nil {
		return "", netip.AddrPort{}, fmt.Errorf("read the greeting: %w", err)
	}
	source, err = netip.ParseAddrPort(address)
	return who, source, err
}

// exchange is the server of bulk: it reads to the end, answers with the digest, then sends as much
// of its own with the digest behind.
func exchange(size int) func(net.Conn) {
	return func(c net.Conn) {
		h := sha256.New()
		if _, err := io.Copy(h, c); err != nil {
			return
		}
		data := randomBytes(size, 2)
		digest := sha256.Sum256(data)
		for _, b := range [][]byte{h.Sum(nil), data, digest[:]} {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}
}

func randomBytes(n int, seed byte) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // never fails
	return b
}

// bulk sends and receives size bytes of TCP and compares both.
func bulk(from place, to netip.AddrPort, size int) error {
	return bulkWithin(from, to, size, 60*time.Second)
}

func bulkWithin(from place, to netip.AddrPort, size int, patience time.Duration) error {
	c, err := dial(from, "tcp", to)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	data := randomBytes(size, 1)
	if _, err := c.Write(data); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	all, err := io.ReadAll(c)
	if err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	if len(all) != 32+size+32 {
		return fmt.Errorf("received %d bytes; want %d", len(all), 32+size+32)
	}
	sent, got := sha256.Sum256(data), sha256.Sum256(all[32:32+size])
	if !bytes.Equal(all[:32], sent[:]) {
		return errors.New("what the server got is not what was sent")
	}
	if !bytes.Equal(all[32+size:], got[:]) {
		return errors.New("what the client got is not what was sent")
	}
	return nil
}

// echoUDP sends every datagram back, until the test ends.
func echoUDP(t testing.TB, at place, port uint16) {
	t.Helper()
	var c *net.UDPConn
	must(t, at.Do(func() (err error) {
		c, err = net.ListenUDP("udp4", &net.UDPAddr{Port: int(port)})
		return err
	}))
	must(t, c.SetReadBuffer(4<<20))
	t.Cleanup(func() { must(t, c.Close()) })
	go func() {
		b := make([]byte, 65536)
		for {
			n, peer, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(b[:n], peer) // what gets lost is seen by the sender
		}
	}()
}

// pingPath is ping for sizes that may be new to the path: the first large packet that may not be
// fragmented is lost each way, and its sender gets an ICMP error.
func pingPath(c net.Conn, n int) error {
	var err error
	for range 4 {
		if err = pingWithin(c, n, 200*time.Millisecond); err == nil {
			return nil
		}
	}
	return err
}

// ping sends one datagram of n bytes and waits for its echo.
func ping(c net.Conn, n int) error { return pingWithin(c, n, 2*time.Second) }

func pingWithin(c net.Conn, n int, patience time.Duration) error {
	data := randomBytes(n, byte(n))
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.Write(data); err != nil {
		return err
	}
	b := make([]byte, 65536)
	got, err := c.Read(b)
	if err != nil {
		return err
	}
	if !bytes.Equal(b[:got], data) {
		return fmt.Errorf("the echo of %d bytes has %d, or other ones", n, got)
	}
	return nil
}

// stream sends numbered datagrams at 1 kHz to an echo server until stop is called, which returns
// how many were sent and the numbers of those that never came back.
func stream(t testing.TB, from place, to netip.AddrPort) (stop func() (sent int, lost []uint64)) {
	t.Helper()
	c, err := dial(from, "udp", to)
	must(t, err)
	must(t, c.(*net.UDPConn).SetReadBuffer(4<<20))
	seen := map[uint64]bool{}
	var mu sync.Mutex
	end := make(chan struct{})
	go func() {
		b := make([]byte, 64)
		for {
			n, err := c.Read(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil && n == 8 {
				mu.Lock()
				seen[binary.BigEndian.Uint64(b)] = true
				mu.Unlock()
			}
		}
	}()
	done := make(chan uint64)
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for i := uint64(0); ; i++ {
			select {
			case <-end:
				done <- i
				return
			case <-tick.C:
			}
			// an error of an earlier datagram may show up here
			_, _ = c.Write(binary.BigEndian.AppendUint64(nil, i))
		}
	}()
	return func() (int, []uint64) {
		close(end)
		sent := <-done
		deadline := time.Now().Add(2 * time.Second)
		for {
			mu.Lock()
			complete := uint64(len(seen)) == sent
			mu.Unlock()
			if complete || time.Now().After(deadline) {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		var lost []uint64
		for i := range sent {
			if !seen[i] {
				lost = append(lost, i)
			}
		}
		return int(sent), lost
	}
}

// connections are long-lived TCP connections that talk ten times a second.
type connections struct {
	mu     sync.Mutex
	broken map[string]int // who served → how many broke
	served map[string]int
	stop   chan struct{}
	wg     sync.WaitGroup
}

// connect opens n connections to a sayWho server.
func connect(t testing.TB, from place, to netip.AddrPort, n int) *connections {
	t.Helper()
	cs := &connections{broken: map[string]int{}, served: map[string]int{}, stop: make(chan struct{})}
	for range n {
		c, err := dial(from, "tcp", to)
		must(t, err)
		must(t, c.SetDeadline(time.Now().Add(10*time.Second)))
		var who, source string
		if _, err := fmt.Fscanf(c, "%s %s\n", &who, &source); err != nil {
			t.Fatalf("read the greeting: %v", err)
		}
		cs.served[who]++
		cs.wg.Go(func() { cs.talk(c, who) })
	}
	return cs
}

func (cs *connections) talk(c net.Conn, who string) {
	defer c.Close()
	b := make([]byte, 5)
	for {
		select {
		case <-cs.stop:
			return
		case <-time.After(100 * time.Millisecond):
		}
		err := c.SetDeadline(time.Now().Add(10 * time.Second))
		if err == nil {
			_, err = c.Write([]byte("hello"))
		}
		if err == nil {
			_, err = io.ReadFull(c, b)
		}
		if err != nil {
			cs.mu.Lock()
			cs.broken[who]++
			cs.mu.Unlock()
			return
		}
	}
}

// end ends the connections and returns how many had broken, by who served them.
func (cs *connections) end() map[string]int {
	close(cs.stop)
	cs.wg.Wait()
	return cs.broken
}

// option reads an integer socket option.
func option(t testing.TB, c net.Conn, level, name int) int {
	t.Helper()
	rc, err := c.(syscall.Conn).SyscallConn()
	must(t, err)
	var value int
	var optErr error
	must(t, rc.Control(func(fd uintptr) { value, optErr = unix.GetsockoptInt(int(fd), level, name) }))
	must(t, optErr)
	return value
}

func setOption(t testing.TB, c net.Conn, level, name, value int) {
	t.Helper()
	rc, err := c.(syscall.Conn).SyscallConn()
	must(t, err)
	var optErr error
	must(t, rc.Control(func(fd uintptr) { optErr = unix.SetsockoptInt(int(fd), level, name, value) }))
	must(t, optErr)
}

var (
	_ place = (*netns.NS)(nil)
	_ place = (*Node)(nil)
	_ place = (*Pod)(nil)
)
