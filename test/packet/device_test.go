package packet

import (
	"testing"
)

// A flow follows its source to another device, as where a bridge or veth pair was recreated; until
// the tables know the new device, and from any other, its packets are dropped.
func TestFlowFollowsDevice(t *testing.T) {
	k := load(t, 1, 2)
	k.Apply(t, state(1, 2))
	k.answered(t)
	p := tcpPacket(SYN)
	k.sent(t, k.fromPod(t, p), "edge-out sent")
	ack := Frame(tcpPacket(ACK).Encode())
	const device = podDevice + 7
	moved := Context{IngressIfindex: device}
	if r := k.Run(t, k.EdgeOut, ack, moved); r.Verdict != "edge-out drop-unknown-source" {
		t.Errorf("before the tables know the device: %s", r.Verdict)
	}
	s := state(1, 2)
	src := s.Sources[p.Source]
	src.Ifindex = device
	s.Sources[p.Source] = src
	k.Apply(t, s)
	k.sent(t, k.Run(t, k.EdgeOut, ack, moved), "edge-out sent")
	if r := k.Run(t, k.EdgeOut, ack, pod); r.Verdict != "edge-out drop-unknown-source" {
		t.Errorf("from the device of before: %s", r.Verdict)
	}
	k.sent(t, k.Run(t, k.EdgeOut, ack, moved), "edge-out sent")
}
