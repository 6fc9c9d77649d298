package cable

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/ipc"
	"golang.zx2c4.com/wireguard/tun"
)

// kernelLink makes the kernel's WireGuard device, or takes the one that is there. A kernel without WireGuard answers
// EOPNOTSUPP, as any kernel does for a type of device that it does not know.
func kernelLink(name string) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		if link.Type() == "wireguard" {
			return nil
		}
		return fmt.Errorf("make device %s: a device of that name and of type %s is there: does another gateway daemon run? else `ip link del %s`", name, link.Type(), name)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("make device %s: %w", name, err)
	}
	return nil
}

func noKernelWireGuard(err error) bool { return errors.Is(err, syscall.EOPNOTSUPP) }

// embedded is a WireGuard device whose packets this process encrypts: a TUN with offloads, wireguard-go behind it, and
// the socket by which wg(8) and wgctrl find it.
type embedded struct {
	device *device.Device
	tun    *os.File
	uapi   net.Listener
	port   uint16
}

// embed makes such a device and binds its UDP port. Its sockets belong to the network namespace of the calling thread.
func embed(name string, port uint16, mtu int, log *slog.Logger) (*embedded, error) {
	t, err := openTUN(name, mtu)
	if err != nil {
		return nil, err
	}
	e := &embedded{tun: t.File(), device: device.NewDevice(t, conn.NewDefaultBind(), wireguardLog(log, name)), port: port}
	// The device is up from the start (see openTUN); setting the port afterwards binds in this thread's namespace, whichever
	// goroutine of the library was first to bring it up.
	if err := e.device.Up(); err != nil {
		e.close()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	if err := e.device.IpcSet(fmt.Sprintf("listen_port=%d\n", port)); err != nil {
		e.close()
		return nil, fmt.Errorf("start %s: %w", name, portTaken(err, port))
	}
	file, err := ipc.UAPIOpen(name) // removes what a killed process left, not the socket of one that lives
	if err != nil {
		e.close()
		return nil, fmt.Errorf("open the control socket of %s: %w", name, err)
	}
	defer file.Close()
	if e.uapi, err = ipc.UAPIListen(name, file); err != nil {
		e.close()
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

// waiting says whether the TUN or a UDP socket holds packets that this process has not read yet.
func (e *embedded) waiting() (bool, error) {
	raw, err := e.tun.SyscallConn()
	if err != nil {
		return false, err
	}
	readable := []unix.PollFd{{Events: unix.POLLIN}}
	ready := 0
	if cerr := raw.Control(func(fd uintptr) {
		readable[0].Fd = int32(fd)
		ready, err = unix.Poll(readable, 0)
	}); cerr != nil || err != nil || ready > 0 {
		return ready > 0, errors.Join(cerr, err)
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
		e.uapi.Close() // removes its socket; one that is left does no harm (UAPIOpen)
	}
	e.device.Close() // the TUN goes with it
}

// tunQueue is how many packets wait in the TUN while this process, or the IKE daemon, is not scheduled; what comes then is lost. The kernel's 500
// are reached within 0.1 s at 5,000 packets/s, which a busy node exceeds.
const tunQueue = 10_000

// openTUN makes the TUN itself and brings it up before wireguard-go sees it: to the library a TUN that is down is a reason
// to close its sockets and to open them again from a goroutine, in whatever namespace that runs.
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
		unix.Close(fd) // nobody else has it
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
		file.Close() // the TUN goes with it
		return nil, err
	}
	return t, nil
}

// wireguardLog passes on what the library says, at debug: a peer that cannot be reached makes it speak every few seconds,
// and Status says the same.
func wireguardLog(log *slog.Logger, name string) *device.Logger {
	say := func(format string, args ...any) {
		if log.Enabled(context.Background(), slog.LevelDebug) {
			log.Debug("wireguard-go", "device", name, "message", fmt.Sprintf(format, args...))
		}
	}
	return &device.Logger{Verbosef: device.DiscardLogf, Errorf: say}
}
