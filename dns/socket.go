package dns

import (
	"errors"
	"net"
	"syscall"
	"unsafe"
)

// soReusePort is SO_REUSEPORT of Linux (asm-generic/socket.h), which package
// syscall leaves out.
const soReusePort = 0xf

// reusePort lets several sockets share one address.
func reusePort(_, _ string, c syscall.RawConn) error {
	var set error
	err := c.Control(func(fd uintptr) {
		set = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, soReusePort, 1)
	})
	return errors.Join(err, set)
}

// reportDestination makes the kernel say which of our addresses each packet
// was sent to, so that the answer leaves from the same one. A socket for both
// families reports IPv4 addresses in mapped form.
func reportDestination(conn *net.UDPConn) error {
	level, option := syscall.IPPROTO_IPV6, syscall.IPV6_RECVPKTINFO
	if conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Is4() {
		level, option = syscall.IPPROTO_IP, syscall.IP_PKTINFO
	}
	c, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = c.Control(func(fd uintptr) { set = syscall.SetsockoptInt(int(fd), level, option, 1) })
	return errors.Join(err, set)
}

// answerFrom turns the control message of a received packet, in place, into
// the one for its answer: same local address, but whatever interface the
// routes say (ip(7): in_pktinfo, ipv6(7): in6_pktinfo). A link-local address
// keeps its interface, which the destination's zone names.
func answerFrom(oob []byte) []byte {
	const head = syscall.SizeofCmsghdr
	if len(oob) < head {
		return nil
	}
	h := (*syscall.Cmsghdr)(unsafe.Pointer(&oob[0]))
	var ifindex int
	switch {
	case h.Level == syscall.IPPROTO_IP && h.Type == syscall.IP_PKTINFO:
		ifindex = head
	case h.Level == syscall.IPPROTO_IPV6 && h.Type == syscall.IPV6_PKTINFO:
		ifindex = head + 16
	default:
		return nil
	}
	if len(oob) < ifindex+4 {
		return nil
	}
	clear(oob[ifindex : ifindex+4])
	return oob
}
