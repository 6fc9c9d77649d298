package packet

import (
	"net/netip"
)

// icmpError is a port unreachable of router about packet p, quoting its header and n bytes behind.
func icmpError(p Packet, router, destination netip.Addr, n int) Packet {
	quote := p.Encode()
	quote = quote[:min(len(quote), 20+len(p.Options)+n)]
	return Packet{Source: router, Destination: destination, TTL: 63, ICMP: &ICMP{Type: Unreachable, Code: 3}, Payload: quote}
}
