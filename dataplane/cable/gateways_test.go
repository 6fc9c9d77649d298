//go:build linux

package cable

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pelago-net/pelago/test/netns"
)

// set is some gateways around a router, each in a namespace of its own: gateway i has the underlay
// address 172.16.i.2 and the fabric address 241.0.(64*i).1 (cluster i, node 1).
type set struct {
	number   int32
	router   *netns.NS
	gateways []*gateway
}

type gateway struct {
	number  int
	ns      *netns.NS
	wire    Wire
	local   Local
	address netip.Addr
	// devices as of the last Ensure.
	devices Devices
}

var sets atomic.Int32 // namespaces have unique names

func newSet(t testing.TB, n int) *set {
	t.Helper()
	number := sets.Add(1)
	s := &set{number: number, router: netns.ForTest(t, fmt.Sprintf("wire%d-router", number))}
	must(t, s.router.Sysctl("net/ipv4/ip_forward", "1"))
	for i := 1; i <= n; i++ {
		ns := netns.ForTest(t, fmt.Sprintf("wire%d-g%d", number, i))
		g := &gateway{number: i, ns: ns, address: netip.AddrFrom4([4]byte{172, 16, byte(i), 2})}
		g.local = Local{
			Fabric: netip.AddrFrom4([4]byte{241, 0, byte(64 * i), 1}), Listen: 4500, Tunnels: 1, PSK: []byte("secret of the set"),
		}
		via := netip.AddrFrom4([4]byte{172, 16, byte(i), 1})
		must(t, netns.Veth(
			netns.End{NS: ns, Name: "eth0", Addrs: []netip.Prefix{netip.PrefixFrom(g.address, 24)}},
			netns.End{NS: s.router, Name: fmt.Sprintf("g%d", i), Addrs: []netip.Prefix{netip.PrefixFrom(via, 24)}}))
		must(t, ns.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), via, "eth0"))
		s.gateways = append(s.gateways, g)
	}
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wireguardSet is newSet with the wire wireguard and tunnels per pair.
func wireguardSet(t testing.TB, n, tunnels int) *set {
	t.Helper()
	s := newSet(t, n)
	for _, g := range s.gateways {
		g.local.Tunnels = tunnels
		g.wire = openWireGuard(t, s, g, t.TempDir())
	}
	return s
}

// openWireGuard: device names differ by gateway since the control sockets of all namespaces are in
// one directory.
func openWireGuard(t testing.TB, s *set, g *gateway, dir string) *WireGuard {
	t.Helper()
	return openWireGuardAs(t, s, g, dir, !kernelWireGuard(t))
}

func openWireGuardAs(t testing.TB, s *set, g *gateway, dir string, embedded bool) *WireGuard {
	t.Helper()
	prefix := fmt.Sprintf("p%ds%dg%d", os.Getpid(), s.number, g.number)
	w, err := OpenWireGuard(WireGuardOptions{
		Dir: dir, Prefix: prefix, Embedded: embedded, Settle: 500 * time.Millisecond, Linger: time.Second, Log: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	t.Cleanup(func() { must(t, w.Close()) })
	return w
}

// peer is g as others are notified.
func (g *gateway) peer(t testing.TB) Peer {
	t.Helper()
	id, err := g.wire.Identity()
	must(t, err)
	return Peer{
		Name: fmt.Sprintf("g%d", g.number), Fabric: g.local.Fabric, Address: g.address, Port: g.local.Listen, Identity: id,
		Tunnels: g.local.Tunnels, Keepalive: time.Second,
	}
}

func (g *gateway) tryEnsure(peers ...Peer) error {
	return g.ns.Do(func() (err error) {
		g.devices, err = g.wire.Ensure(g.local, peers)
		return err
	})
}

func (g *gateway) ensure(t testing.TB, peers ...Peer) {
	t.Helper()
	must(t, g.tryEnsure(peers...))
}

// others are all gateways but g.
func (s *set) others(t testing.TB, g *gateway) (peers []Peer) {
	t.Helper()
	for _, o := range s.gateways {
		if o != g {
			peers = append(peers, o.peer(t))
		}
	}
	return peers
}

// join makes all gateways peers of each other and waits until all have sessions.
func (s *set) join(t testing.TB) {
	t.Helper()
	for _, g := range s.gateways {
		g.ensure(t) // makes the keys
	}
	for _, g := range s.gateways {
		g.ensure(t, s.others(t, g)...)
	}
	for _, g := range s.gateways {
		for _, o := range s.gateways {
			if o != g {
				g.await(t, o, func(st Status) bool {
					up := st.Error == "" && st.Tunnels == min(g.local.Tunnels, o.local.Tunnels)
					if !up {
						// those called may not have known the caller yet
						g.ensure(t, s.others(t, g)...)
					}
					return up
				})
			}
		}
	}
	for _, g := range s.gateways {
		g.ensure(t, s.others(t, g)...) // now the tunnels are known to work
	}
}

func (g *gateway) status(t testing.TB, o *gateway) (s Status) {
	t.Helper()
	must(t, g.ns.Do(func() error {
		all, err := g.wire.Status()
		s = all[o.local.Fabric]
		return err
	}))
	return s
}

func (g *gateway) await(t testing.TB, o *gateway, ok func(Status) bool) {
	t.Helper()
	var last Status
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if last = g.status(t, o); ok(last) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the status of g%d at g%d is %+v", o.number, g.number, last)
		}
	}
}

func (g *gateway) listen(t testing.TB, port uint16) net.PacketConn {
	t.Helper()
	var c net.PacketConn
	must(t, g.ns.Do(func() (err error) {
		c, err = net.ListenPacket("udp4", netip.AddrPortFrom(g.local.Fabric, port).String())
		return err
	}))
	t.Cleanup(func() { _ = c.Close() }) // once more where a test closed it
	return c
}

// refusesSpoofed fails the test if b can speak for c to a, through the wire.
func refusesSpoofed(t *testing.T, s *set) {
	t.Helper()
	a, b, c := s.gateways[0], s.gateways[1], s.gateways[2]
	server := a.listen(t, 7500)
	must(t, b.ns.AddAddr("eth0", netip.PrefixFrom(c.local.Fabric, 32)))
	must(t, b.ns.Do(func() error {
		spoof, err := netListenPacket(netip.AddrPortFrom(c.local.Fabric, 7501), b.devices.Ifindexes[0])
		if err != nil {
			return err
		}
		defer spoof.Close()
		for range 20 {
			// to refuse it at once is as good
			_, _ = spoof.WriteTo([]byte("spoofed"), server.LocalAddr())
		}
		return nil
	}))
	must(t, server.SetReadDeadline(time.Now().Add(time.Second)))
	if n, from, err := server.ReadFrom(make([]byte, 100)); err == nil {
		t.Errorf("%d bytes came from %s", n, from)
	}
	if !reaches(t, c, a, 5*time.Second) {
		t.Error("the true owner of the address is cut off")
	}
}

// usesTunnels fails the test if b does not get what a sends by each tunnel on the tunnel of that
// number.
func usesTunnels(t *testing.T, a, b *gateway) {
	t.Helper()
	for i, index := range a.devices.Peers[b.local.Fabric] {
		sent(t, a, b, index, uint16(7600+i))
		link, err := b.ns.Handle().LinkByIndex(b.devices.Ifindexes[i])
		must(t, err)
		if link.Attrs().Statistics.RxPackets == 0 {
			t.Errorf("the peer got nothing on its device %s", link.Attrs().Name)
		}
	}
}

// sent fails the test unless a datagram that a sends out of a device comes to a port of b.
func sent(t *testing.T, a, b *gateway, device int, port uint16) {
	t.Helper()
	server := b.listen(t, port)
	defer server.Close()
	must(t, a.ns.Do(func() error {
		client, err := netListenPacket(netip.AddrPortFrom(a.local.Fabric, port+100), device)
		if err != nil {
			return err
		}
		defer client.Close()
		_, err = client.WriteTo(make([]byte, 1000), server.LocalAddr())
		return err
	}))
	must(t, server.SetReadDeadline(time.Now().Add(5*time.Second)))
	if _, _, err := server.ReadFrom(make([]byte, 100)); err != nil {
		t.Errorf("nothing came by device %d: %v", device, err)
	}
}

// reaches reports whether a datagram makes the round trip within wait.
func reaches(t testing.TB, from, to *gateway, wait time.Duration) bool {
	t.Helper()
	server, client := to.listen(t, 7000), from.listen(t, 7001)
	defer server.Close()
	defer client.Close()
	go func() {
		b := make([]byte, 100)
		for {
			n, a, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(b[:n], a) // a lost datagram times out
		}
	}()
	for end := time.Now().Add(wait); time.Now().Before(end); {
		// what does not go out is not answered
		_, _ = client.WriteTo([]byte("there?"), server.LocalAddr())
		must(t, client.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
		if _, _, err := client.ReadFrom(make([]byte, 100)); err == nil {
			return true
		}
	}
	return false
}

// stream sends a thousand numbered datagrams a second from one gateway to another until stop, which
// returns how many were sent and which did not arrive.
func stream(t testing.TB, from, to *gateway) (stop func() (sent int, lost []int)) {
	t.Helper()
	port := uint16(7100 + from.number)
	server, client := to.listen(t, port), from.listen(t, port+100)
	must(t, server.(*net.UDPConn).SetReadBuffer(1<<21))
	done, sent := make(chan struct{}), make(chan int)
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-done:
				sent <- n
				return
			case <-tick.C:
				// what does not go out is lost
				_, _ = client.WriteTo(binary.BigEndian.AppendUint32(nil, uint32(n)), server.LocalAddr())
			}
		}
	}()
	seen, received := map[uint32]bool{}, make(chan struct{})
	var arrived atomic.Int64 // len(seen), while the receiver writes
	go func() {
		defer close(received)
		b := make([]byte, 100)
		for {
			n, _, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			if n == 4 {
				seen[binary.BigEndian.Uint32(b)] = true
				arrived.Store(int64(len(seen)))
			}
		}
	}()
	return func() (int, []int) {
		close(done)
		n := <-sent
		for end := time.Now().Add(time.Second); arrived.Load() < int64(n) && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		}
		must(t, server.Close())
		<-received
		var lost []int
		for i := range n {
			if !seen[uint32(i)] {
				lost = append(lost, i)
			}
		}
		return n, lost
	}
}

// calm stops streams and fails the test if one lost anything.
func calm(t testing.TB, streams ...func() (int, []int)) {
	t.Helper()
	for i, stop := range streams {
		sent, lost := stop()
		t.Logf("stream %d: %d datagrams sent", i, sent)
		if len(lost) > 0 {
			t.Errorf("stream %d: %d of %d datagrams lost: %v", i, len(lost), sent, lost[:min(len(lost), 20)])
		}
		if sent < 100 {
			t.Errorf("stream %d: only %d datagrams were sent", i, sent)
		}
	}
}

// transfer sends size bytes over one TCP connection, by the tunnel of that number.
func transfer(from, to *gateway, size int64, tunnel int) error {
	var l net.Listener
	err := to.ns.Do(func() (err error) {
		config := net.ListenConfig{Control: by(to.devices.Peers[from.local.Fabric][tunnel])}
		l, err = config.Listen(context.Background(), "tcp4", netip.AddrPortFrom(to.local.Fabric, 0).String())
		return err
	})
	if err != nil {
		return err
	}
	defer l.Close()
	received := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			defer c.Close()
			_, err = io.CopyN(io.Discard, c, size)
		}
		if err == nil {
			_, err = c.Write([]byte{1})
		}
		received <- err
	}()
	var c net.Conn
	err = from.ns.Do(func() (err error) {
		device := by(from.devices.Peers[to.local.Fabric][tunnel])
		d := net.Dialer{Timeout: 5 * time.Second, Control: device, LocalAddr: &net.TCPAddr{IP: from.local.Fabric.AsSlice()}}
		c, err = d.Dial("tcp4", l.Addr().String())
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Minute)); err != nil {
		return err
	}
	b := make([]byte, 1<<18)
	for left := size; left > 0; {
		n, err := c.Write(b[:min(left, int64(len(b)))])
		if err != nil {
			return err
		}
		left -= int64(n)
	}
	_, err = c.Read(b[:1])
	return errors.Join(err, <-received)
}
