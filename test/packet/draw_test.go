package packet

import (
	"net/netip"

	"pgregory.net/rapid"
)

// drawPacket draws a packet that may open a flow.
func drawPacket(t *rapid.T, source, destination netip.Addr) Packet {
	p := Packet{
		Source: source, Destination: destination,
		TTL: rapid.Byte().Draw(t, "ttl"), TOS: rapid.Byte().Draw(t, "tos"), ID: rapid.Uint16().Draw(t, "id"),
		DontFragment: rapid.Bool().Draw(t, "df"),
		Options:      make([]byte, 4*rapid.IntRange(0, 10).Draw(t, "option words")),
		Payload:      rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "payload"),
	}
	for i := range p.Options {
		p.Options[i] = 1 // no operation
	}
	// Few values, so that flows meet; 0 and 65535 among them.
	port := rapid.SampledFrom([]uint16{0, 1, 80, 1023, 1024, 5353, 8080, 40000, 65535})
	s, d := port.Draw(t, "source port"), port.Draw(t, "destination port")
	switch rapid.SampledFrom([]string{"tcp", "udp", "icmp"}).Draw(t, "protocol") {
	case "tcp":
		p.TCP = &TCP{
			Source: s, Destination: d, Sequence: rapid.Uint32().Draw(t, "sequence"), Flags: SYN,
			Window: rapid.Uint16().Draw(t, "window"),
		}
	case "udp":
		p.UDP = &UDP{Source: s, Destination: d, NoChecksum: rapid.Bool().Draw(t, "no checksum")}
	case "icmp":
		p.ICMP = EchoHeader(Echo, s, rapid.Uint16().Draw(t, "sequence"))
	}
	return p
}
