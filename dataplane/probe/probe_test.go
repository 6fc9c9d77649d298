package probe

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/test/packet"
)

// A probe is the overlay packet that the far side's program reflects; that it does is tested by test/packet
// (TestProbeReflection) and, with a real sender, by test/netns/clusters.
func TestPacket(t *testing.T) {
	body := binary.NativeEndian.AppendUint64(nil, 0x1122334455667788)
	body = binary.NativeEndian.AppendUint64(body, 42)
	any4 := netip.IPv4Unspecified()
	frame := packet.Overlay{
		Source: any4, Destination: any4, SourcePort: 4500, Port: 4500, Token: 0xcab1e5, Type: packet.Probe, Version: 1,
		Inner: append(body, make([]byte, 8)...),
	}.Encode()
	if diff := cmp.Diff(frame[34:], Packet(4500, 0xcab1e5, 0x1122334455667788, 42)); diff != "" {
		t.Errorf("probe from its UDP header on (-want +got):\n%s", diff)
	}
}
