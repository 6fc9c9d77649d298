package packet

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"testing"

	"github.com/pelago-net/pelago/dataplane"
)

const protocolSCTP = 132

// sctpPacket is one of pod 10.7.2.10 to service 120.2.0.20, unless changed, with a DATA chunk and a
// right checksum.
func sctpPacket(source, destination uint16, change ...func(*Packet)) Packet {
	b := binary.BigEndian.AppendUint16(nil, source)
	b = binary.BigEndian.AppendUint16(b, destination)
	b = append(b, 1, 2, 3, 4, 0, 0, 0, 0) // verification tag, checksum
	b = append(b, 0, 3, 0, 20, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 'd', 'a', 't', 'a')
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return Packet{Source: ip("10.7.2.10"), Destination: global(2, 20), TTL: 63, ID: 4711, DontFragment: true, Protocol: protocolSCTP, Payload: b}.with(change...)
}

// sctpService gives service 120.1.0.20 the port 5000/SCTP, with a backend on node 2.
func sctpService(target uint16) func(*dataplane.State) {
	return func(s *dataplane.State) {
		s.Services[dataplane.ServiceKey{Address: global(1, 20), Port: 5000, Protocol: protocolSCTP}] = dataplane.Service{
			Backends: []netip.AddrPort{netip.AddrPortFrom(ip("10.7.2.10"), target)},
		}
	}
}

// Between pods with addresses of their own SCTP is carried both ways: addresses change, ports and
// checksum, which covers no address, do not.
func TestSCTP(t *testing.T) { bothHooks(t, throughSCTP) }

func throughSCTP(t *testing.T) {
	f := newFleet(t, 2)
	request := sctpPacket(40000, 5000, from("10.7.2.11"), to(global(2, 100)))
	_, seen := f.there(t, request)
	wantEqual(t, "what the server sees", request.with(from("120.1.0.100"), to(ip("10.7.2.11"))), seen)
	answer := sctpPacket(5000, 40000, from("10.7.2.11"), to(global(1, 100)))
	_, back := f.back(t, answer)
	wantEqual(t, "what the client sees", answer.with(from("120.2.0.100"), to(ip("10.7.2.11"))), back)

	// An error about the request quotes it as the client has sent it.
	_, got := f.back(t, icmpError(seen, seen.Destination, seen.Source, 8))
	wantQuote(t, request, got, 8)

	// A second address that leads to the same port of the pod cannot be told apart by another
	// source port.
	s := oneGateway(2, 2)
	s.Services[dataplane.ServiceKey{Address: global(2, 20), Port: 5000, Protocol: protocolSCTP}] = dataplane.Service{Backends: []netip.AddrPort{addrPort("10.7.2.11:5000")}}
	f.nb.Apply(t, s)
	clash := sctpPacket(40000, 5000, from("120.1.0.100"), to(global(2, 20)))
	if r := f.nb.arrive(t, overlay(2, 1, 2, clash.Encode())); r.Verdict != "uplink-in drop-tuple-clash" {
		t.Errorf("the same tuple by a service: %q", r.Verdict)
	}
}
