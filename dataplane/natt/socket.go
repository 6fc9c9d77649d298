package natt

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// socket is a UDP socket on all addresses of one family. It tells to which address a packet was sent and sends from the
// address that it is told (ip(7) IP_PKTINFO, ipv6(7) IPV6_PKTINFO): on a host with several addresses the kernel would
// answer from another one than was asked.
type socket struct {
	conn *net.UDPConn
	v6   bool
	port uint16
}

// pktinfoSpace holds one IP_PKTINFO or IPV6_PKTINFO (the larger) control message.
const pktinfoSpace = 64

// listen opens a socket of network "udp4" or "udp6"; port 0 lets the kernel choose one.
func listen(network string, port uint16) (*socket, error) {
	s := &socket{v6: network == "udp6"}
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if e := raw.Control(func(fd uintptr) {
			if s.v6 {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
			} else {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
			}
		}); e != nil {
			return e
		}
		return err
	}}
	conn, err := config.ListenPacket(context.Background(), network, net.JoinHostPort("", strconv.Itoa(int(port))))
	if err != nil {
		return nil, fmt.Errorf("listen on UDP %d (%s): %w", port, network, err)
	}
	s.conn = conn.(*net.UDPConn) // what ListenPacket documents for these networks
	s.port = s.conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	return s, nil
}

// read waits for a packet; to is the address in its header.
func (s *socket) read(b []byte) (n int, from netip.AddrPort, to netip.Addr, err error) {
	control := make([]byte, pktinfoSpace)
	n, got, _, from, err := s.conn.ReadMsgUDPAddrPort(b, control)
	if err != nil {
		return 0, from, to, err
	}
	return n, plain(from), destination(control[:got]), nil
}

// write sends a packet from the given address, or from the kernel's choice if it is zero.
func (s *socket) write(b []byte, to netip.AddrPort, from netip.Addr) error {
	var control []byte
	switch {
	case !from.IsValid():
	case s.v6:
		control = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: from.As16()})
	default:
		control = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: from.As4()})
	}
	_, _, err := s.conn.WriteMsgUDPAddrPort(b, control, to)
	return err
}

// destination finds the address in control messages; zero if there is none. struct in_pktinfo is {ifindex, spec_dst, addr},
// struct in6_pktinfo {addr, ifindex}.
func destination(control []byte) netip.Addr {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return netip.Addr{}
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			return netip.AddrFrom4([4]byte(m.Data[8:12]))
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			return netip.AddrFrom16([16]byte(m.Data[:16])).Unmap()
		}
	}
	return netip.Addr{}
}

// plain takes away what would make equal addresses differ.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
