//go:build linux

package cable

import (
	"context"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// by has a socket send by a device; 0: as routes say.
func by(ifindex int) func(_, _ string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) (err error) {
		if ifindex == 0 {
			return nil
		}
		cerr := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, ifindex)
		})
		if cerr != nil {
			return cerr
		}
		return err
	}
}

// netListenPacket is a UDP socket that sends by the device of that index; 0: as routes say.
func netListenPacket(local netip.AddrPort, ifindex int) (net.PacketConn, error) {
	config := net.ListenConfig{Control: by(ifindex)}
	return config.ListenPacket(context.Background(), "udp4", local.String())
}

func netListenUnix(path string) (*net.UnixListener, error) {
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}
