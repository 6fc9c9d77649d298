// Package probe sends the probes whose answers tell whether a path to a remote gateway works. The far side's program
// reflects them, this node's program takes the answer; the package only puts them on the wire.
package probe

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	headerLength = 8  // UDP
	overlay      = 8  // bpf/types.h struct overlay_header
	payload      = 24 // bpf/types.h struct probe
	packetProbe  = 2
	version      = 1
)

// Sender is a raw UDP socket whose packets carry the mark that the uplink guard lets out.
type Sender struct{ fd int }

// Open makes a sender. mark is the node's cookie (loader.Cookie).
func Open(mark uint32) (*Sender, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return nil, fmt.Errorf("open a raw socket for probes: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(mark)); err != nil {
		_ = unix.Close(fd) // the first error is the one that says what is wrong
		return nil, fmt.Errorf("mark the socket for probes: %w", err)
	}
	return &Sender{fd: fd}, nil
}

// Close closes the socket.
func (s *Sender) Close() error { return unix.Close(s.fd) }

// Send sends one probe to the cable of a remote gateway. token is the wire's secret (24 bits), nonce must be the one
// that stands in the path's map entry.
func (s *Sender) Send(to netip.AddrPort, token uint32, nonce, sent uint64) error {
	if err := unix.Sendto(s.fd, Packet(to.Port(), token, nonce, sent), 0, &unix.SockaddrInet4{Addr: to.Addr().As4()}); err != nil {
		return fmt.Errorf("send a probe to %s: %w", to, err)
	}
	return nil
}

// Packet is a probe from its UDP header on: source and destination port are the cable's, the checksum is 0 (left out).
func Packet(port uint16, token uint32, nonce, sent uint64) []byte {
	b := make([]byte, headerLength+overlay+payload)
	binary.BigEndian.PutUint16(b[0:], port)
	binary.BigEndian.PutUint16(b[2:], port)
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
	h := b[headerLength:]
	h[0] = 0x08
	h[1], h[2], h[3] = byte(token>>16), byte(token>>8), byte(token)
	h[4] = packetProbe
	h[7] = version << 4
	p := h[overlay:]
	binary.NativeEndian.PutUint64(p[0:], nonce)
	binary.NativeEndian.PutUint64(p[8:], sent)
	return b
}
