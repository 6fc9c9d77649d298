package clusters

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/test/packet"
)

// Datagrams of several fragments, both ways, between all kinds of nodes.
func (w *town) largeDatagrams(t *testing.T) {
	for _, from := range []place{w.client[1], w.client[3], w.Clusters[1].Nodes[2]} {
		for n := 1; n <= 3; n++ {
			c, err := dial(from, "udp", netip.AddrPortFrom(w.server[n].Global, 53))
			must(t, err)
			for _, size := range []int{1423, 1472, 1473, 3000, 5000, 8000, 30000} {
				if err := pingPath(c, size); err != nil {
					t.Errorf("%d bytes to server%d: %v", size, n, err)
				}
			}
			must(t, c.Close())
		}
	}
	out, err := w.client[1].Run("busybox", "ping", "-c", "3", "-i", "0.05", "-s", "4000", "-W", "2", w.server[3].Global.String())
	if err != nil {
		t.Errorf("ping of 4,000 bytes: %v\n%s", err, out)
	}
}

// The node's stack reassembles what it forwards, since conntrack is at work: a first fragment that
// comes last costs nothing.
func (w *town) earlyFragments(t *testing.T) {
	for _, pod := range []*Pod{w.client[1], w.client[3]} {
		c, err := dial(pod, "udp", netip.AddrPortFrom(w.server[2].Global, 53))
		must(t, err)
		data := randomBytes(4000, 3)
		pieces := packet.Fragments(packet.Packet{
			Source: pod.Address, Destination: w.server[2].Global, TTL: 64, ID: 4711, Payload: data,
			UDP: &packet.UDP{Source: uint16(c.LocalAddr().(*net.UDPAddr).Port), Destination: 53},
		}.Encode(), 1400)
		slices.Reverse(pieces)
		must(t, sendRaw(pod, w.server[2].Global, pieces))
		must(t, c.SetDeadline(time.Now().Add(10*time.Second)))
		b := make([]byte, 65536)
		if n, err := c.Read(b); err != nil || !bytes.Equal(b[:n], data) {
			t.Errorf("the echo to node %d of a datagram in reverse order has %d bytes, %v; want %d", pod.Node.Index, n, err, len(data))
		}
		must(t, c.Close())
	}
}

// More sockets than the node has ports towards one endpoint: the stack hands the error to those
// that get none, the others work.
func (w *town) exhausted(t *testing.T) {
	pod := w.client[1]
	told, served := 0, 0
	for range 300 {
		c, err := dial(pod, "udp", netip.AddrPortFrom(w.all, 53))
		must(t, err)
		defer c.Close() // at the end, or its port would be used again
		switch err := ping(c, 10); {
		case err == nil:
			served++
		case errors.Is(err, syscall.EHOSTUNREACH):
			told++
		default:
			t.Errorf("after %d sockets with a port and %d without: %v", served, told, err)
		}
		if t.Failed() {
			break
		}
	}
	if told == 0 || served < 200 || served > 256 {
		t.Errorf("%d sockets had a port and %d were told that there is none; want at most 256 with one", served, told)
	}
	must(t, pod.Node.Do(func() error {
		_, err := pod.Node.Loader.PurgeFunc(func(a netip.Addr) bool { return a == pod.Address })
		return err
	}))
}

// A batch of datagrams that leaves the pod as one packet for the kernel to cut (UDP_SEGMENT, as
// QUIC servers send) arrives as the datagrams that it was.
func (w *town) segmentedDatagrams(t *testing.T) { sendSegments(t, w.client[1], w.server[3].Global) }

func sendSegments(t *testing.T, from place, to netip.Addr) {
	t.Helper()
	c, err := dial(from, "udp", netip.AddrPortFrom(to, 53))
	must(t, err)
	defer c.Close()
	must(t, ping(c, 100))
	setOption(t, c, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 1000)
	data := randomBytes(10500, 9)
	_, err = c.Write(data)
	must(t, err)
	must(t, c.SetDeadline(time.Now().Add(2*time.Second)))
	seen := map[string]bool{}
	b := make([]byte, 65536)
	for range 11 {
		n, err := c.Read(b)
		if err != nil {
			t.Fatalf("after %d of 11 datagrams: %v", len(seen), err)
		}
		seen[string(b[:n])] = true
	}
	for at := 0; at < len(data); at += 1000 {
		if !seen[string(data[at:min(at+1000, len(data))])] {
			t.Errorf("the datagram with the bytes from %d on did not come back as it was", at)
		}
	}
}

// A pod that requests it is notified how large a packet may be: by its own node where the overlay
// is narrower than its device, and by the far node, across the translation, where the far pod's
// device is.
func (w *town) pathMTU(t *testing.T) {
	vip := w.server[3].Global
	probe := func(size, want int) {
		t.Helper()
		c, err := dial(w.client[1], "udp", netip.AddrPortFrom(vip, 53))
		must(t, err)
		defer c.Close()
		setOption(t, c, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		var sendErr error
		for range 20 { // for 0.4 s: the first ones are sent; the ICMP error comes a little later
			if _, sendErr = c.Write(make([]byte, size)); sendErr != nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if !errors.Is(sendErr, syscall.EMSGSIZE) {
			t.Errorf("datagrams of %d bytes that may not be fragmented: %v; want message too long", size, sendErr)
		}
		if got := option(t, c, unix.IPPROTO_IP, unix.IP_MTU); got != want {
			t.Errorf("the pod was told MTU %d; want %d", got, want)
		}
		if err := pingPath(c, want-28); err != nil {
			t.Errorf("a datagram that just fits: %v", err)
		}
	}
	probe(1472, 1450)
	widen := narrow(t, w.server[3], "1300")
	defer func() {
		widen()
		w.client[1].MustRun(t, "ip", "route", "flush", "cache")
	}()
	probe(1400, 1300)
}

// narrow gives a pod's device a smaller MTU until widen is called.
func narrow(t *testing.T, p *Pod, mtu string) (widen func()) {
	t.Helper()
	p.MustRun(t, "ip", "link", "set", "eth0", "mtu", mtu)
	p.Node.MustRun(t, "ip", "link", "set", p.host(), "mtu", mtu)
	// A bridge forwards no fragments of its own: the node's route to the pod gives how large a
	// packet may be.
	p.Node.MustRun(t, "ip", "route", "add", p.Address.String(), "dev", "cni0", "mtu", mtu)
	return func() {
		p.Node.MustRun(t, "ip", "route", "del", p.Address.String(), "dev", "cni0")
		p.Node.MustRun(t, "ip", "link", "set", p.host(), "mtu", "1500")
		p.MustRun(t, "ip", "link", "set", "eth0", "mtu", "1500")
	}
}

// A TCP connection between devices of 1,500 bytes uses segments that fit into the overlay from the
// start.
func (w *town) segmentSizes(t *testing.T) {
	for _, from := range []place{w.client[1], w.client[3], w.Clusters[1].Nodes[2]} {
		c, err := dial(from, "tcp", netip.AddrPortFrom(w.all, 80))
		must(t, err)
		if got := option(t, c, unix.IPPROTO_TCP, unix.TCP_MAXSEG); got > 1410 || got < 1390 {
			t.Errorf("segments of up to %d bytes; want at most 1,410 and hardly less", got)
		}
		must(t, c.Close())
	}
}

// A port that nobody listens on, and a time to live that ends on the way.
func (w *town) icmpErrors(t *testing.T) {
	for name, from := range map[string]place{"pod": w.client[1], "node": w.Clusters[1].Nodes[2]} {
		// The far pod refuses a datagram; the client's socket knows whose.
		c, err := dial(from, "udp", netip.AddrPortFrom(w.server[3].Global, 9))
		must(t, err)
		must(t, c.SetDeadline(time.Now().Add(2*time.Second)))
		_, err = c.Write([]byte("is there anybody?"))
		must(t, err)
		if _, err := c.Read(make([]byte, 10)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("from a %s to a closed port: %v; want connection refused", name, err)
		}
		must(t, c.Close())
		// So does a far node.
		c, err = dial(from, "tcp", netip.AddrPortFrom(w.server[3].Global, 9))
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("TCP from a %s to a closed port: %v; want connection refused", name, err)
			must(t, c.Close())
		}
	}
	// A trace to the pod: its node, then the pod, each under the address that was asked for.
	out, err := w.client[1].Run("busybox", "traceroute", "-n", "-q", "1", "-w", "1", "-m", "5", w.server[3].Global.String())
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err != nil || len(lines) != 4 || !strings.Contains(lines[1], " 10.7.1.1 ") ||
		!strings.Contains(lines[2], w.server[3].Global.String()) || !strings.Contains(lines[3], w.server[3].Global.String()) {
		t.Errorf("trace: %v\n%s", err, out)
	}
	// The client's complaint about an answer reaches the server: it answers a socket that is gone.
	var server *net.UDPConn
	must(t, w.server[2].Do(func() (err error) {
		server, err = net.ListenUDP("udp4", &net.UDPAddr{Port: 54})
		return err
	}))
	defer server.Close()
	c, err := dial(w.client[3], "udp", netip.AddrPortFrom(w.server[2].Global, 54))
	must(t, err)
	_, err = c.Write([]byte("call me back"))
	must(t, err)
	must(t, server.SetDeadline(time.Now().Add(2*time.Second)))
	_, peer, err := server.ReadFromUDPAddrPort(make([]byte, 100))
	must(t, err)
	must(t, c.Close())
	setOption(t, server, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
	// ICMP errors are limited in rate, and not sent while the processor sends another one (icmp(7)).
	for deadline := time.Now().Add(5 * time.Second); ; {
		must(t, server.SetDeadline(time.Now().Add(200*time.Millisecond)))
		_, err := server.WriteToUDPAddrPort([]byte("hello?"), peer)
		if err == nil {
			_, _, err = server.ReadFromUDPAddrPort(make([]byte, 100))
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			return
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(deadline) {
			t.Fatalf("the server's answer to a socket that is gone: %v; want connection refused", err)
		}
	}
}

// MustRun runs a command in the pod.
func (p *Pod) MustRun(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := p.Run(name, args...)
	must(t, err)
	return string(out)
}
