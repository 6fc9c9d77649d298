//go:build linux

package cable

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"
)

// A gateway that leaves checks whether packets wait in its process: in the TUN, which takes them
// until they are read, or at the socket.
func TestEmbeddedWaiting(t *testing.T) {
	ns := newSet(t, 1).gateways[0].ns
	must(t, ns.Sysctl("net/ipv6/conf/default/disable_ipv6", "1")) // it would greet its neighbours
	must(t, ns.Do(func() error {
		device, err := openTUN("pelago-wg9", 1400)
		must(t, err)
		t.Cleanup(func() { must(t, device.Close()) })
		run(t, ns, "ip", "address", "add", "10.9.0.1/24", "dev", "pelago-wg9")
		wire := &WireGuard{embedded: map[int]*embedded{0: {tun: device.File(), port: 4509}}}
		waits := func(what string, want bool) {
			t.Helper()
			if got, err := wire.Waiting(); err != nil || got != want {
				t.Errorf("%s: waiting %v, %v; want %v", what, got, err, want)
			}
		}
		waits("at first", false)

		out, err := net.ListenPacket("udp4", ":0")
		must(t, err)
		defer out.Close()
		_, err = out.WriteTo([]byte("out"), &net.UDPAddr{IP: net.IPv4(10, 9, 0, 2), Port: 9})
		must(t, err)
		waits("a packet in the TUN", true)
		b := [][]byte{make([]byte, 2000)}
		_, err = device.Read(b, []int{0}, 16)
		must(t, err)
		waits("it was read", false)

		in, err := net.ListenPacket("udp", ":4509")
		must(t, err)
		defer in.Close()
		_, err = out.WriteTo([]byte("in"), &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4509})
		must(t, err)
		waits("a packet at the socket", true)
		_, _, err = in.ReadFrom(b[0])
		must(t, err)
		waits("that was read too", false)
		return nil
	}))
}

// packets is a TUN whose queue is a socket.
type packets struct {
	tun.Device
	file *os.File
}

func (p packets) File() *os.File { return p.file }

func (p packets) Read(bufs [][]byte, sizes []int, offset int) (n int, err error) {
	if sizes[0], err = p.file.Read(bufs[0][offset:]); err != nil {
		return 0, err
	}
	return 1, nil
}

// A Read returns what is queued, in order, up to half a batch and one packet; it waits only if
// there is nothing.
func TestBatchedRead(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	in, out := os.NewFile(uintptr(ends[0]), "in"), os.NewFile(uintptr(ends[1]), "out")
	defer out.Close()
	b := batched{packets{file: out}}
	bufs, sizes := make([][]byte, 16), make([]int, 16)
	for i := range bufs {
		bufs[i] = make([]byte, 8)
	}
	number := byte(0)
	send := func(n int) {
		for range n {
			if _, err := in.Write([]byte{number}); err != nil {
				t.Error(err)
			}
			number++
		}
	}
	send(12)
	next := byte(0)
	for _, want := range []int{9, 3} {
		n, err := b.Read(bufs, sizes, 4)
		if err != nil || n != want {
			t.Fatalf("a Read returns %d packets, %v; want %d", n, err, want)
		}
		for i := range n {
			if sizes[i] != 1 || bufs[i][4] != next {
				t.Errorf("packet %d has %d bytes and number %d, want one byte, number %d", i, sizes[i], bufs[i][4], next)
			}
			next++
		}
	}
	var sender sync.WaitGroup
	sender.Go(func() { send(1) })
	if n, err := b.Read(bufs, sizes, 4); n != 1 || err != nil {
		t.Errorf("a Read that waits returns %d packets, %v", n, err)
	}
	sender.Wait()
	send(2)
	in.Close()
	n, err := b.Read(bufs, sizes, 4)
	if n != 2 || !errors.Is(err, io.EOF) {
		t.Errorf("a Read at the end returns %d packets, %v; want both, and EOF", n, err)
	}
}

// Signals, such as those by which the runtime preempts goroutines on a busy node, are no errors:
// wireguard-go closes a device whose TUN cannot be read.
func TestReadableIsNotInterrupted(t *testing.T) {
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	defer w.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, thread := os.Getpid(), unix.Gettid()
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
				if err := unix.Tgkill(pid, thread, unix.SIGURG); err != nil {
					done <- err
					return
				}
			}
		}
	}()
	for range 20_000 {
		if ready, err := readable(r); ready || err != nil {
			t.Errorf("an empty pipe: readable %t, %v", ready, err)
			break
		}
	}
	close(stop)
	must(t, <-done)
	_, err = w.Write([]byte{1})
	must(t, err)
	if ready, err := readable(r); !ready || err != nil {
		t.Errorf("a pipe with a byte: readable %t, %v", ready, err)
	}
}
