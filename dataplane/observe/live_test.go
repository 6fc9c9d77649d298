package observe

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane/trace"
)

var opener = trace.Packet{
	Source: netip.MustParseAddrPort("10.7.2.10:40000"), Destination: netip.MustParseAddrPort("120.2.0.21:80"),
}

// A probe is recognised before and after translation, plain and inside the headers of the overlay;
// other packets are not.
func TestSighting(t *testing.T) {
	for name, protocol := range map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "icmp": unix.IPPROTO_ICMP} {
		p := trace.Probe{Packet: opener, Marker: 0xdeadbeef}
		p.Packet.Protocol = protocol
		if protocol == unix.IPPROTO_ICMP {
			p.Packet.Destination = netip.AddrPortFrom(p.Packet.Destination.Addr(), 0)
		}
		plain := packetOf(p, ttl)
		if sum := checksum(plain[:ipv4Len], 0); sum != 0 {
			t.Errorf("%s: the header's checksum is wrong by %#x", name, sum)
		}
		l4 := uint32(0)
		if protocol != unix.IPPROTO_ICMP {
			l4 = pseudo(p.Packet, len(plain)-ipv4Len)
		}
		if sum := checksum(plain[ipv4Len:], l4); sum != 0 {
			t.Errorf("%s: the checksum is wrong by %#x", name, sum)
		}
		s, ok := sighting(p, plain, &unix.SockaddrLinklayer{Pkttype: unix.PACKET_OUTGOING})
		if !ok || s.Answer || !s.Out || s.From != nil || s.Packet != p.Packet {
			t.Errorf("%s: plain: %+v, %t", name, s, ok)
		}
		outer := make([]byte, innerAt)
		outer[0], outer[9], outer[typeAt] = 0x45, unix.IPPROTO_UDP, byte(bpf.PelagoPacketTypePACKET_FORWARD)
		copy(outer[12:], []byte{172, 28, 1, 13, 172, 28, 1, 11})
		s, ok = sighting(p, append(outer, plain...), &unix.SockaddrLinklayer{})
		if !ok || s.Out || s.From == nil || s.From.String() != "172.28.1.13" || s.To.String() != "172.28.1.11" || s.Packet != p.Packet {
			t.Errorf("%s: in the overlay: %+v, %t", name, s, ok)
		}
		outer[typeAt]++
		if _, ok := sighting(p, append(outer, plain...), nil); ok {
			t.Errorf("%s: a probe of the path, made of a clone, is taken for the packet", name)
		}
		other := trace.Probe{Packet: p.Packet, Marker: p.Marker + 7}
		if s, ok := sighting(other, plain, nil); ok {
			t.Errorf("%s: the packet of another trace is taken for the own one: %+v", name, s)
		}
		if _, ok := sighting(p, plain[:30], nil); ok {
			t.Errorf("%s: a cut packet is recognised", name)
		}
	}
}

func TestAnswer(t *testing.T) {
	p := trace.Probe{Packet: opener, Marker: 0xdeadbeef}
	p.Packet.Protocol = unix.IPPROTO_TCP
	answer := packetOf(p, ttl)
	binary.BigEndian.PutUint32(answer[seqAt:], 77)
	binary.BigEndian.PutUint32(answer[ackAt:], p.Marker+1)
	if s, ok := sighting(p, answer, nil); !ok || !s.Answer {
		t.Errorf("SYN-ACK: %+v, %t", s, ok)
	}
	p.Packet.Protocol = unix.IPPROTO_ICMP
	answer = packetOf(p, ttl)
	answer[ipv4Len] = 0
	if s, ok := sighting(p, answer, nil); !ok || !s.Answer {
		t.Errorf("echo reply: %+v, %t", s, ok)
	}
	p.Packet.Protocol = unix.IPPROTO_UDP
	answer = packetOf(p, ttl)
	binary.BigEndian.PutUint16(answer[4:], 0)
	if s, ok := sighting(p, answer, nil); !ok || !s.Answer {
		t.Errorf("echoed datagram: %+v, %t", s, ok)
	}
}
