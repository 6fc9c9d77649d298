//go:build linux

package cable

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/ipc"
	"golang.zx2c4.com/wireguard/tun"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/pelago-net/pelago/dataplane/netdev"
)

// open makes missing devices and reads all of them, by tunnel; nil for those that failed.
func (w *WireGuard) open(client *wgctrl.Client, local Local) ([]*wgtypes.Device, error) {
	have := make([]*wgtypes.Device, MaxTunnels+1)
	var errs []error
	for _, i := range w.tunnels {
		err := w.ensureDevice(i, local.Listen+uint16(i), local.MTU)
		if err == nil {
			have[i], err = w.readDevice(client, i)
		}
		errs = append(errs, err)
	}
	return have, errors.Join(errs...)
}

func (w *WireGuard) readDevice(client *wgctrl.Client, i int) (*wgtypes.Device, error) {
	d, err := client.Device(w.name(i))
	if err != nil {
		return nil, fmt.Errorf("read device %s: %w", w.name(i), err)
	}
	return d, nil
}

// ensureDevice makes the device of a tunnel: the kernel's, or an embedded one on a kernel without
// WireGuard, which answers EOPNOTSUPP as for any unknown type of device. Everything else is
// configured through wgctrl for both.
func (w *WireGuard) ensureDevice(i int, port uint16, mtu int) error {
	if e := w.embedded[i]; e != nil {
		select {
		case <-e.device.Wait():
			w.o.Log.Warn("the device of a tunnel is gone, and is made again: it was deleted, or could not be read", "device", w.name(i))
		default:
			if e.port == port {
				return nil
			}
		}
		e.close()
		delete(w.embedded, i)
	}
	if !w.o.Embedded {
		want := &netlink.Wireguard{LinkAttrs: linkAttrs(w.name(i))}
		err := ensureLink(want, func(have netlink.Link) bool { return have.Type() == want.Type() })
		if !errors.Is(err, syscall.EOPNOTSUPP) {
			return err
		}
	}
	e, err := embed(w.name(i), port, mtu, w.o.Log)
	if err != nil {
		return err
	}
	w.embedded[i] = e
	return nil
}

// ensureTunnel configures the device of a tunnel, updates have[i] and returns the device's index.
func (w *WireGuard) ensureTunnel(client *wgctrl.Client, have []*wgtypes.Device, local Local, i int, now time.Time) (int, error) {
	t := tunnel{number: i, key: w.keys[i], port: local.Listen + uint16(i), peers: w.peers, retired: w.lingeringKeys(i, have[i].Peers, now)}
	if c, differs := plan(have[i], t, w.last[i], now); differs {
		err := client.ConfigureDevice(w.name(i), c)
		if err != nil {
			return 0, fmt.Errorf("configure device %s: %w", w.name(i), portInUse(err, t.port))
		}
		if have[i], err = w.readDevice(client, i); err != nil {
			return 0, err
		}
	}
	w.last[i] = endpoints{}
	for _, p := range w.peers {
		w.last[i][p.keys[i]] = p.at(i)
	}
	link, err := configureTunnel(w.name(i), i, local)
	if err != nil {
		return 0, portInUse(err, t.port)
	}
	return link.Attrs().Index, nil
}

func (w *WireGuard) remove(i int) error {
	if e := w.embedded[i]; e != nil {
		e.close()
		delete(w.embedded, i)
	}
	delete(w.last, i)
	return netdev.RemoveLink(w.name(i))
}

// embedded is a WireGuard device whose packets this process encrypts: a TUN with offloads,
// wireguard-go behind it, and the socket by which wg(8) and wgctrl find it.
type embedded struct {
	device *device.Device
	tun    *os.File
	uapi   net.Listener
	port   uint16
}

// embed makes such a device and binds its UDP port, in the network namespace of the calling thread.
func embed(name string, port uint16, mtu int, log *slog.Logger) (_ *embedded, err error) {
	t, err := openTUN(name, mtu)
	if err != nil {
		return nil, err
	}
	e := &embedded{tun: t.File(), device: device.NewDevice(batched{t}, conn.NewDefaultBind(), wireguardLog(log, name)), port: port}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	// The device is up from the start (see openTUN). Setting the port rebinds the sockets in this
	// thread's namespace, whichever goroutine of the library opened them first.
	if err = e.device.Up(); err == nil {
		err = e.device.IpcSet(fmt.Sprintf("listen_port=%d\n", port))
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, portInUse(err, port))
	}
	// removes the socket of a killed process, not that of a live one
	file, err := ipc.UAPIOpen(name)
	if err != nil {
		return nil, fmt.Errorf("open the control socket of %s: %w", name, err)
	}
	defer file.Close()
	if e.uapi, err = ipc.UAPIListen(name, file); err != nil {
		return nil, fmt.Errorf("listen on the control socket of %s: %w", name, err)
	}
	go func(l net.Listener) {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			go e.device.IpcHandle(c)
		}
	}(e.uapi)
	return e, nil
}

// readable reports whether a file holds something to read now.
func readable(file *os.File) (bool, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return false, err
	}
	poll := []unix.PollFd{{Events: unix.POLLIN}}
	ready := 0
	cerr := raw.Control(func(fd uintptr) {
		poll[0].Fd = int32(fd)
		// It also fails while a signal is pending, such as one by which the runtime preempts this
		// goroutine.
		for ready, err = unix.Poll(poll, 0); errors.Is(err, unix.EINTR); {
			ready, err = unix.Poll(poll, 0)
		}
	})
	return ready > 0, errors.Join(cerr, err)
}

// batched is a TUN whose Read returns all packets that it holds. By itself the library reads one at
// a time, unless the kernel leaves segmentation to it, which it does not for packets with our
// overlay header; but the library encrypts, sends and delivers in batches.
type batched struct{ tun.Device }

// Read implements tun.Device. Half of a batch stays free for the segments of the last packet.
func (b batched) Read(bufs [][]byte, sizes []int, offset int) (n int, err error) {
	for more := true; err == nil && more && n <= len(bufs)/2; {
		var m int
		m, err = b.Device.Read(bufs[n:], sizes[n:], offset)
		if n += m; err == nil {
			more, err = readable(b.File())
		}
	}
	return n, err
}

// waiting reports whether the TUN or a UDP socket holds packets that this process has not read yet.
func (e *embedded) waiting() (bool, error) {
	if ready, err := readable(e.tun); ready || err != nil {
		return ready, err
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		sockets, err := netlink.SocketDiagUDP(family)
		if err != nil {
			return false, fmt.Errorf("list UDP sockets: %w", err)
		}
		for _, s := range sockets {
			if s.ID.SourcePort == e.port && s.RQueue > 0 {
				return true, nil
			}
		}
	}
	return false, nil
}

func (e *embedded) close() {
	if e.uapi != nil {
		e.uapi.Close() // removes its socket; UAPIOpen replaces a stale one
	}
	e.device.Close() // closes the TUN as well
}

// tunQueue bounds the packets queued in the TUN while this process, or the IKE daemon, is not
// scheduled; more are dropped. The kernel's default of 500 is reached within 0.1 s at 5,000
// packets/s, which a busy node exceeds.
const tunQueue = 10_000

// openTUN makes the TUN and brings it up before wireguard-go opens it: when a TUN is down, the
// library closes its sockets and opens them again from a goroutine, in the network namespace of an
// arbitrary thread.
func openTUN(name string, mtu int) (t tun.Device, err error) {
	defer func() {
		if errors.Is(err, syscall.EBUSY) {
			err = fmt.Errorf("make device %s: %w: another gateway daemon runs on this node", name, err)
		} else if err != nil {
			err = fmt.Errorf("make device %s: %w", name, err)
		}
	}()
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		unix.Close(fd)
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "/dev/net/tun")
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetTxQLen(link, tunQueue)
	}
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err == nil {
		t, err = tun.CreateTUNFromFile(file, mtu)
	}
	if err != nil {
		file.Close() // deletes the TUN
		return nil, err
	}
	return t, nil
}

// wireguardLog forwards the library's errors at debug: it logs every few seconds for an unreachable
// peer, and Status reports the same.
func wireguardLog(log *slog.Logger, name string) *device.Logger {
	errorf := func(format string, args ...any) {
		if log.Enabled(context.Background(), slog.LevelDebug) {
			log.Debug("wireguard-go", "device", name, "message", fmt.Sprintf(format, args...))
		}
	}
	return &device.Logger{Verbosef: device.DiscardLogf, Errorf: errorf}
}
