// Package packet tests the eBPF programs on single packets: it builds IPv4 and overlay packets,
// runs a program on them in the kernel (BPF_PROG_TEST_RUN) and decodes the output, verifying every
// checksum. The tests of the programs are in this package; test/netns/clusters uses the encoder to
// forge packets.
package packet

import (
	"encoding/binary"
	"net/netip"
)

// Protocol numbers (IANA).
const (
	ProtocolICMP = 1
	ProtocolTCP  = 6
	ProtocolUDP  = 17
)

// TCP flags.
const (
	FIN = 0x01
	SYN = 0x02
	RST = 0x04
	PSH = 0x08
	ACK = 0x10
)

// ICMP types (RFC 792).
const (
	EchoReply        = 0
	Unreachable      = 3
	Echo             = 8
	TimeExceeded     = 11
	ParameterProblem = 12
)

// Packet is an IPv4 packet. At most one of TCP, UDP and ICMP is set; without one Payload follows
// the IPv4 header, as in later fragments.
type Packet struct {
	Source, Destination netip.Addr
	Protocol            uint8 // taken from the transport header if there is one
	TTL, TOS            uint8
	ID                  uint16
	DontFragment        bool
	MoreFragments       bool
	Offset              int    // of a fragment, bytes
	Options             []byte // of the IPv4 header, padded to a multiple of 4 by the caller
	TCP                 *TCP
	UDP                 *UDP
	ICMP                *ICMP
	Payload             []byte
}

// TCP is a TCP header.
type TCP struct {
	Source, Destination uint16
	Sequence, Ack       uint32
	Flags               uint8
	Window              uint16
	Options             []byte // padded to a multiple of 4 by the caller
}

// UDP is a UDP header.
type UDP struct {
	Source, Destination uint16
	NoChecksum          bool
}

// ICMP is an ICMP header. Rest is the identifier and the sequence number of an echo, or the field
// of an error that its code gives a meaning to.
type ICMP struct {
	Type, Code uint8
	Rest       [4]byte
}

// Identifier and sequence number of an echo.
func (i ICMP) Identifier() uint16 { return binary.BigEndian.Uint16(i.Rest[:2]) }

// EchoHeader is the ICMP header of an echo request or reply.
func EchoHeader(kind uint8, id, seq uint16) *ICMP {
	h := &ICMP{Type: kind}
	binary.BigEndian.PutUint16(h.Rest[:2], id)
	binary.BigEndian.PutUint16(h.Rest[2:], seq)
	return h
}

// Encode writes the packet with right lengths and checksums.
func (p Packet) Encode() []byte {
	header := 20 + len(p.Options)
	transport := p.transport()
	b := make([]byte, header, header+len(transport))
	b[0] = 4<<4 | byte(header/4)
	b[1] = p.TOS
	binary.BigEndian.PutUint16(b[2:], uint16(header+len(transport)))
	binary.BigEndian.PutUint16(b[4:], p.ID)
	fragment := uint16(p.Offset / 8)
	if p.DontFragment {
		fragment |= 0x4000
	}
	if p.MoreFragments {
		fragment |= 0x2000
	}
	binary.BigEndian.PutUint16(b[6:], fragment)
	b[8] = p.TTL
	b[9] = p.protocol()
	copy(b[12:], p.Source.AsSlice())
	copy(b[16:], p.Destination.AsSlice())
	copy(b[20:], p.Options)
	binary.BigEndian.PutUint16(b[10:], Checksum(b, 0))
	return append(b, transport...)
}

func (p Packet) protocol() uint8 {
	switch {
	case p.TCP != nil:
		return ProtocolTCP
	case p.UDP != nil:
		return ProtocolUDP
	case p.ICMP != nil:
		return ProtocolICMP
	}
	return p.Protocol
}

func (p Packet) transport() []byte {
	switch {
	case p.TCP != nil:
		b := make([]byte, 20, 20+len(p.TCP.Options)+len(p.Payload))
		binary.BigEndian.PutUint16(b[0:], p.TCP.Source)
		binary.BigEndian.PutUint16(b[2:], p.TCP.Destination)
		binary.BigEndian.PutUint32(b[4:], p.TCP.Sequence)
		binary.BigEndian.PutUint32(b[8:], p.TCP.Ack)
		b[12] = byte((20+len(p.TCP.Options))/4) << 4
		b[13] = p.TCP.Flags
		binary.BigEndian.PutUint16(b[14:], p.TCP.Window)
		b = append(append(b, p.TCP.Options...), p.Payload...)
		binary.BigEndian.PutUint16(b[16:], Checksum(b, p.pseudo(len(b))))
		return b
	case p.UDP != nil:
		b := make([]byte, 8, 8+len(p.Payload))
		binary.BigEndian.PutUint16(b[0:], p.UDP.Source)
		binary.BigEndian.PutUint16(b[2:], p.UDP.Destination)
		binary.BigEndian.PutUint16(b[4:], uint16(8+len(p.Payload)))
		b = append(b, p.Payload...)
		if !p.UDP.NoChecksum {
			sum := Checksum(b, p.pseudo(len(b)))
			if sum == 0 {
				sum = 0xffff // RFC 768: 0 means that none exists
			}
			binary.BigEndian.PutUint16(b[6:], sum)
		}
		return b
	case p.ICMP != nil:
		b := append([]byte{p.ICMP.Type, p.ICMP.Code, 0, 0}, p.ICMP.Rest[:]...)
		b = append(b, p.Payload...)
		binary.BigEndian.PutUint16(b[2:], Checksum(b, 0))
		return b
	}
	return p.Payload
}

// pseudo is the sum of the pseudo-header over n bytes of transport (RFC 9293 3.1).
func (p Packet) pseudo(n int) uint32 {
	b := append(p.Source.AsSlice(), p.Destination.AsSlice()...)
	return sum(b) + uint32(p.protocol()) + uint32(n)
}

func sum(b []byte) uint32 {
	var s uint32
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(b[i])<<8 | uint32(b[i+1])
	}
	if len(b)%2 == 1 {
		s += uint32(b[len(b)-1]) << 8
	}
	return s
}

// Checksum is the Internet checksum (RFC 1071) of b, continued from the sum start. Over bytes that
// hold their checksum it is 0.
func Checksum(b []byte, start uint32) uint16 {
	s := start + sum(b)
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}

// Frame puts an Ethernet header in front of an IPv4 packet.
func Frame(ip []byte) []byte {
	return append([]byte{0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 2, 0x08, 0x00}, ip...)
}

// Fragments cuts an encoded packet so that no piece is larger than mtu.
func Fragments(ip []byte, mtu int) [][]byte {
	p, err := Decode(ip)
	if err != nil || len(ip) <= mtu {
		return [][]byte{ip}
	}
	body := ip[20+len(p.Options):]
	room := (mtu - 20 - len(p.Options)) &^ 7
	var out [][]byte
	for at := 0; at < len(body); at += room {
		end := min(at+room, len(body))
		piece := Packet{
			Source: p.Source, Destination: p.Destination, Protocol: p.protocol(), TTL: p.TTL, TOS: p.TOS, ID: p.ID,
			Options: p.Options, Offset: at, MoreFragments: end < len(body), Payload: body[at:end],
		}
		out = append(out, piece.Encode())
	}
	return out
}
