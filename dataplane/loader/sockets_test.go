package loader

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/test/await"
	"github.com/pelago-net/pelago/test/bpffs"
	"github.com/pelago-net/pelago/test/netns"
)

// pods of TestSockets, each with a server that answers with its own address and the client's port.
var (
	pod1, pod2  = netip.MustParseAddr("10.7.0.2"), netip.MustParseAddr("10.7.0.3")
	vipOwn      = netip.MustParseAddr("243.0.0.1") // of this cluster's pods
	vipRemote   = netip.MustParseAddr("243.0.0.2") // of another cluster
	vipSockPort = uint16(80)
)

// socketState has pods of this cluster serve vipOwn at port 8080, by TCP and UDP.
func socketState(pods ...netip.Addr) dataplane.State {
	s := dataplane.State{
		Settings: dataplane.Settings{Node: 1, Cluster: 1, Address: netip.MustParseAddr("192.168.0.1"), Ready: true},
		VIPRange: netip.MustParsePrefix("243.0.0.0/8"), VIPs: map[dataplane.ServiceKey]dataplane.VIP{},
	}
	for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		own, remote := dataplane.ServiceKey{Address: vipOwn, Port: vipSockPort, Protocol: protocol}, dataplane.ServiceKey{Address: vipRemote, Port: vipSockPort, Protocol: protocol}
		s.VIPs[own] = dataplane.VIP{Targets: []dataplane.VIPTarget{{Cluster: 1, Address: netip.MustParseAddr("10.77.0.5")}}}
		s.VIPs[remote] = dataplane.VIP{Targets: []dataplane.VIPTarget{{Cluster: 2, Address: netip.MustParseAddr("120.2.0.5")}}}
		var v dataplane.Service
		for _, p := range pods {
			v.Backends = append(v.Backends, netip.AddrPortFrom(p, 8080))
		}
		s.ServeVIP(own, v)
	}
	return s
}

// serve answers at a pod's address until the test ends.
func serve(t *testing.T, pod netip.Addr) {
	t.Helper()
	at := netip.AddrPortFrom(pod, 8080).String()
	l, err := net.Listen("tcp4", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the test has ended
			}
			fmt.Fprint(c, pod)
			c.Close()
		}
	}()
	u, err := net.ListenPacket("udp4", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.Close() })
	go func() {
		b := make([]byte, 64)
		for {
			_, from, err := u.ReadFrom(b)
			if err != nil {
				return // the test has ended
			}
			_, _ = u.WriteTo([]byte(pod.String()), from) // a lost answer fails the test by its deadline
		}
	}()
}

// Sockets of the node reach a ClusterSetIP at this cluster's pods, and see the ClusterSetIP only.
// Those of other namespaces, and other clusters' services, are left alone.
func TestSockets(t *testing.T) {
	const cgroups = "/sys/fs/cgroup"
	if CgroupRoot(cgroups) == "" {
		t.Fatalf("no cgroup2 hierarchy is mounted at %s or %s/unified: mount one", cgroups, cgroups)
	}
	ns, other := netns.ForTest(t, "sockets"), netns.ForTest(t, "pod")
	path := filepath.Join(bpffs.Mount(t), "pelago")
	edge := device(t, ns, "edge")
	for _, p := range []netip.Addr{pod1, pod2} {
		if err := ns.AddAddr("lo", netip.PrefixFrom(p, 32)); err != nil {
			t.Fatal(err)
		}
	}
	l := func() (l *Loader) {
		if err := ns.Do(func() (err error) {
			l, err = Open(Options{PinPath: path, Sockets: true})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
		return l
	}()
	attach := func(cgroup string) {
		t.Helper()
		if err := ns.Do(func() error {
			r, err := l.Attach(Devices{Edge: edge, Cgroup: cgroup})
			if err != nil {
				return err
			}
			return r.Sockets
		}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second replaces the programs
		attach(CgroupRoot(cgroups))
	}
	mustApply(t, l, socketState(pod1, pod2))

	in := func(ns *netns.NS, f func(t *testing.T)) func(*testing.T) {
		return func(t *testing.T) {
			if err := ns.Do(func() error { f(t); return nil }); err != nil {
				t.Fatal(err)
			}
		}
	}
	in(ns, func(t *testing.T) { serve(t, pod1); serve(t, pod2) })(t)
	vip := net.JoinHostPort(vipOwn.String(), "80")
	// dialled returns the answer of a new connection, and the peer that its socket sees.
	dialled := func(t *testing.T, network, address string) (answer, peer string) {
		t.Helper()
		c, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(t.Context(), network, address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if network == "udp" {
			if _, err := c.Write([]byte("?")); err != nil {
				t.Fatal(err)
			}
		}
		b := make([]byte, 64)
		if err := c.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		n, err := c.Read(b)
		if err != nil && err != io.EOF {
			t.Fatal(err)
		}
		return string(b[:n]), c.RemoteAddr().String()
	}
	for _, network := range []string{"tcp", "udp"} {
		t.Run(network, in(ns, func(t *testing.T) {
			seen := map[string]bool{}
			for range 64 {
				answer, peer := dialled(t, network, vip)
				seen[answer] = true
				if peer != vip {
					t.Fatalf("the socket's peer is %s, want %s", peer, vip)
				}
			}
			if !seen[pod1.String()] || !seen[pod2.String()] || len(seen) != 2 {
				t.Errorf("64 connections were answered by %v, want both pods", seen)
			}
		}))
	}
	t.Run("IPv6 socket", in(ns, func(t *testing.T) {
		s, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(s), "socket")
		defer f.Close()
		to := &unix.SockaddrInet6{Port: int(vipSockPort), Addr: netip.AddrFrom16(vipOwn.As16()).As16()}
		if err := unix.Connect(s, to); err != nil {
			t.Fatal(err)
		}
		got, err := unix.Getpeername(s)
		if err != nil {
			t.Fatal(err)
		}
		if a := got.(*unix.SockaddrInet6); a.Addr != to.Addr || a.Port != to.Port {
			t.Errorf("the socket's peer is %v, want %v", a, to)
		}
		answer, err := io.ReadAll(f)
		if err != nil || !strings.HasPrefix(string(answer), "10.7.0.") {
			t.Errorf("answer %q, %v", answer, err)
		}
	}))
	t.Run("a socket keeps its pod until that is gone", in(ns, func(t *testing.T) {
		c, err := net.ListenPacket("udp4", "10.7.0.3:0")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ask := func() string {
			t.Helper()
			if _, err := c.WriteTo([]byte("?"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(vipOwn, vipSockPort))); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 64)
			if err := c.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
				t.Fatal(err)
			}
			n, from, err := c.ReadFrom(b)
			if err != nil {
				t.Fatal(err)
			}
			if from.String() != vip {
				t.Errorf("an answer from %s, want %s", from, vip)
			}
			return string(b[:n])
		}
		first := ask()
		for range 32 {
			if next := ask(); next != first {
				t.Fatalf("the socket changes from pod %s to %s", first, next)
			}
		}
		left := pod1
		if first == pod1.String() {
			left = pod2
		}
		mustApply(t, l, socketState(left))
		if next := ask(); next != left.String() {
			t.Errorf("pod %s answers after it has left the service", next)
		}
		mustApply(t, l, socketState(pod1, pod2))
	}))
	// without a route, a ClusterSetIP that is left alone is unreachable
	refused := func(t *testing.T, address string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address); err == nil {
			t.Errorf("a connection to %s reaches %s", address, c.RemoteAddr())
			c.Close()
		}
	}
	t.Run("another cluster's service", in(ns, func(t *testing.T) { refused(t, net.JoinHostPort(vipRemote.String(), "80")) }))
	t.Run("another port", in(ns, func(t *testing.T) { refused(t, net.JoinHostPort(vipOwn.String(), "81")) }))
	t.Run("a pod's namespace", in(other, func(t *testing.T) { refused(t, vip) }))
	t.Run("detached", in(ns, func(t *testing.T) {
		attach("")
		await.True(t, "the programs are detached: the kernel frees links a little after their pins", func() bool {
			c, err := net.DialTimeout("tcp", vip, 5*time.Second)
			if err == nil {
				c.Close()
			}
			return err != nil
		})
	}))
}
