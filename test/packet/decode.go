package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// Decode reads an IPv4 packet and checks its lengths and checksums, the transport's as well where
// the packet is whole.
func Decode(b []byte) (Packet, error) {
	p, rest, err := decodeIPv4(b)
	if err != nil {
		return p, err
	}
	if p.Offset > 0 || p.MoreFragments {
		p.Payload = rest
		return p, nil
	}
	errs := []error{p.decodeTransport(rest)}
	switch {
	case p.TCP != nil, p.UDP != nil && !p.UDP.NoChecksum:
		if got := Checksum(rest, p.pseudo(len(rest))); got != 0 {
			errs = append(errs, fmt.Errorf("wrong checksum of the transport header (off by %#x)", got))
		}
	case p.ICMP != nil:
		if got := Checksum(rest, 0); got != 0 {
			errs = append(errs, fmt.Errorf("wrong ICMP checksum (off by %#x)", got))
		}
	}
	return p, errors.Join(errs...)
}

// Quoted reads the packet that an ICMP error quotes in its payload, of which all but the IPv4
// header and 8 bytes may be missing: only the header's checksum is checked, and the transport's
// fields beyond the quote are 0.
func Quoted(b []byte) (Packet, error) {
	if len(b) < 20 {
		return Packet{}, fmt.Errorf("the quote has %d bytes, less than an IPv4 header", len(b))
	}
	// The quoted length field tells of the whole packet.
	whole := make([]byte, max(len(b), int(binary.BigEndian.Uint16(b[2:]))))
	copy(whole, b)
	p, rest, err := decodeIPv4(whole)
	if err != nil {
		return p, err
	}
	err = p.decodeTransport(append(rest, make([]byte, 20)...))
	p.Payload = nil
	return p, err
}

func decodeIPv4(b []byte) (p Packet, rest []byte, err error) {
	if len(b) < 20 || b[0]>>4 != 4 {
		return p, nil, errors.New("no IPv4 header")
	}
	header, length := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if header < 20 || length < header || length > len(b) {
		return p, nil, fmt.Errorf("IPv4 lengths: header %d, packet %d, present %d", header, length, len(b))
	}
	fragment := binary.BigEndian.Uint16(b[6:])
	p = Packet{
		TOS: b[1], ID: binary.BigEndian.Uint16(b[4:]), TTL: b[8], Protocol: b[9],
		DontFragment: fragment&0x4000 != 0, MoreFragments: fragment&0x2000 != 0, Offset: int(fragment&0x1fff) * 8,
		Source: netip.AddrFrom4([4]byte(b[12:16])), Destination: netip.AddrFrom4([4]byte(b[16:20])),
	}
	if header > 20 {
		p.Options = b[20:header:header]
	}
	if got := Checksum(b[:header], 0); got != 0 {
		return p, nil, fmt.Errorf("wrong IPv4 header checksum (off by %#x)", got)
	}
	return p, b[header:length:length], nil
}

func (p *Packet) decodeTransport(b []byte) error {
	switch {
	case p.Protocol == ProtocolTCP && len(b) >= 20:
		end := int(b[12]>>4) * 4
		if end < 20 || end > len(b) {
			end = 20
		}
		p.TCP = &TCP{
			Source: binary.BigEndian.Uint16(b), Destination: binary.BigEndian.Uint16(b[2:]),
			Sequence: binary.BigEndian.Uint32(b[4:]), Ack: binary.BigEndian.Uint32(b[8:]),
			Flags: b[13], Window: binary.BigEndian.Uint16(b[14:]),
		}
		if end > 20 {
			p.TCP.Options = b[20:end]
		}
		p.Payload = b[end:]
	case p.Protocol == ProtocolUDP && len(b) >= 8:
		p.UDP = &UDP{
			Source: binary.BigEndian.Uint16(b), Destination: binary.BigEndian.Uint16(b[2:]),
			NoChecksum: binary.BigEndian.Uint16(b[6:]) == 0,
		}
		p.Payload = b[8:]
	case p.Protocol == ProtocolICMP && len(b) >= 8:
		p.ICMP = &ICMP{Type: b[0], Code: b[1], Rest: [4]byte(b[4:8])}
		p.Payload = b[8:]
	case p.Protocol == ProtocolTCP || p.Protocol == ProtocolUDP || p.Protocol == ProtocolICMP:
		return fmt.Errorf("%d bytes of transport are too few for protocol %d", len(b), p.Protocol)
	default:
		p.Payload = b
	}
	if len(p.Payload) == 0 {
		p.Payload = nil
	}
	return nil
}
