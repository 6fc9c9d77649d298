package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// Packet types and flags of the overlay header (bpf/overlay.h), spelled out here a second time on
// purpose: they are an ABI.
const (
	Forward    = 1
	Probe      = 2
	ProbeReply = 3

	Bounced  = 1
	Fragment = 2
	Switch   = 4
)

// Overlay is an overlay packet: Ethernet, IPv4, UDP, overlay header, and behind it an inner
// Ethernet header with an IPv4 packet, or the body of a probe.
type Overlay struct {
	Source, Destination netip.Addr // outer
	TTL, TOS            uint8
	SourcePort, Port    uint16
	Token               uint32 // 24 bits
	Type                uint8
	Node                uint16
	Version, Flags      uint8
	InnerSource         [6]byte
	InnerDestination    [6]byte
	Inner               []byte // an IPv4 packet; of a probe its body
}

// Encode writes the frame. The outer UDP checksum is 0, as our programs write it.
func (o Overlay) Encode() []byte {
	b := []byte{
		0x08, byte(o.Token >> 16), byte(o.Token >> 8), byte(o.Token),
		o.Type, byte(o.Node >> 8), byte(o.Node), o.Version<<4 | o.Flags,
	}
	if o.Type != Probe && o.Type != ProbeReply {
		b = append(b, o.InnerDestination[:]...)
		b = append(b, o.InnerSource[:]...)
		b = append(b, 0x08, 0x00)
	}
	return Frame(Packet{
		Source: o.Source, Destination: o.Destination, TTL: o.TTL, TOS: o.TOS, DontFragment: true,
		UDP: &UDP{Source: o.SourcePort, Destination: o.Port, NoChecksum: true}, Payload: append(b, o.Inner...),
	}.Encode())
}

// DecodeOverlay reads a frame that Encode or a program made.
func DecodeOverlay(frame []byte) (Overlay, error) {
	o, err := decodeHeader(frame)
	if err != nil || o.Type == Probe || o.Type == ProbeReply {
		return o, err
	}
	return o, o.decodeInner()
}

// DecodeHandedOver reads a frame that was made ready for the kernel's vxlan receiver: the VNI, part
// of which has the place of the packet type, is a secret of the node.
func DecodeHandedOver(frame []byte) (Overlay, error) {
	o, err := decodeHeader(frame)
	if err != nil {
		return o, err
	}
	return o, o.decodeInner()
}

// client is where the packet names the client, see bpf/overlay.h.
func (o *Overlay) client() []byte {
	if o.Flags&Fragment != 0 {
		return o.InnerDestination[2:]
	}
	return o.InnerSource[2:]
}

// pelagoMAC is the address of every pelago0 (package netdev).
var pelagoMAC = [6]byte{0x02, 0x50, 0x45, 0x4c, 0x00, 0x02}

// DecodeDelivered reads a frame that was made ready for pelago0, and returns its IPv4 packet.
func DecodeDelivered(frame []byte) ([]byte, error) {
	if len(frame) < 14 || [6]byte(frame[:6]) != pelagoMAC || frame[12] != 0x08 || frame[13] != 0 {
		return nil, errors.New("no Ethernet header of IPv4 to pelago0")
	}
	return frame[14:], nil
}

func decodeHeader(frame []byte) (Overlay, error) {
	if len(frame) < 14 {
		return Overlay{}, errors.New("no Ethernet header")
	}
	ip, err := Decode(frame[14:])
	if err != nil {
		return Overlay{}, fmt.Errorf("outer packet: %w", err)
	}
	if ip.UDP == nil || len(ip.Payload) < 8 {
		return Overlay{}, fmt.Errorf("outer packet: no UDP with an overlay header: %+v", ip)
	}
	if !ip.UDP.NoChecksum {
		return Overlay{}, errors.New("outer packet: the UDP checksum is not 0")
	}
	if !ip.DontFragment {
		return Overlay{}, errors.New("outer packet: it may be fragmented")
	}
	h := ip.Payload
	o := Overlay{
		Source: ip.Source, Destination: ip.Destination, TTL: ip.TTL, TOS: ip.TOS,
		SourcePort: ip.UDP.Source, Port: ip.UDP.Destination,
		Token: binary.BigEndian.Uint32(h) & 0xffffff, Type: h[4], Node: binary.BigEndian.Uint16(h[5:]),
		Version: h[7] >> 4, Flags: h[7] & 15, Inner: h[8:],
	}
	if h[0] != 0x08 {
		return o, fmt.Errorf("VXLAN flags are %#x", h[0])
	}
	return o, nil
}

func (o *Overlay) decodeInner() error {
	if len(o.Inner) < 14 || o.Inner[12] != 0x08 || o.Inner[13] != 0 {
		return errors.New("no inner Ethernet header of IPv4")
	}
	o.InnerDestination, o.InnerSource = [6]byte(o.Inner[:6]), [6]byte(o.Inner[6:12])
	o.Inner = o.Inner[14:]
	return nil
}
