package packet

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
)

const selftestMarker = 0x6d61726b // "mark"

// The datagram of a self-test ends in edge_out, which records where it came from, also if that is no
// device of the pod or its source was translated; it opens no flow. On the pod's device it passes to
// the stack in every datapath, and no uplink lets it leave.
func TestSelftest(t *testing.T) {
	probe := udpPacket("mark....", ports(9, 9))
	for name, tt := range map[string]struct {
		datapath dataplane.Datapath
		marker   uint32
		program  func(*Kernel) *ebpf.Program
		packet   Packet
		context  Context
		verdict  string
		want     loader.Selftest
	}{
		"edge": {marker: selftestMarker, program: edgeOut, packet: probe, context: pod, verdict: "edge-out probe",
			want: loader.Selftest{Edge: true, Ingress: podDevice, Source: ip("10.7.2.10")}},
		"edge, another device": {marker: selftestMarker, program: edgeOut, packet: probe, context: Context{IngressIfindex: 77}, verdict: "edge-out probe",
			want: loader.Selftest{Edge: true, Ingress: 77, Source: ip("10.7.2.10")}},
		"edge, masqueraded": {marker: selftestMarker, program: edgeOut, packet: probe.with(from("172.16.1.2"), ports(300, 9)), context: pod, verdict: "edge-out probe",
			want: loader.Selftest{Edge: true, Ingress: podDevice, Source: ip("172.16.1.2")}},
		"pod, strict": {marker: selftestMarker, program: podOut, packet: probe, verdict: ""},
		"pod, hybrid": {datapath: dataplane.Hybrid, marker: selftestMarker, program: podOut, packet: probe, verdict: "", want: loader.Selftest{Pod: loopback}},
		"pod, fast":   {datapath: dataplane.Fast, marker: selftestMarker, program: podOut, packet: probe, verdict: "", want: loader.Selftest{Pod: loopback}},
		"uplink":      {marker: selftestMarker, program: uplinkOut, packet: probe, verdict: "uplink-out probe", want: loader.Selftest{Uplink: loopback}},

		"no marker":               {marker: selftestMarker, program: edgeOut, packet: udpPacket("another", ports(9, 9)), context: pod, verdict: "edge-out sent"},
		"no payload":              {marker: selftestMarker, program: edgeOut, packet: udpPacket("", ports(9, 9)), context: pod, verdict: "edge-out sent"},
		"another port":            {marker: selftestMarker, program: edgeOut, packet: udpPacket("mark", ports(9, 10)), context: pod, verdict: "edge-out sent"},
		"none is under way":       {marker: 0, program: edgeOut, packet: udpPacket("\x00\x00\x00\x00", ports(9, 9)), context: pod, verdict: "edge-out sent"},
		"uplink, not its marker":  {marker: selftestMarker, program: uplinkOut, packet: udpPacket("another", ports(9, 9)), verdict: ""},
		"uplink, none under way":  {marker: 0, program: uplinkOut, packet: udpPacket("\x00\x00\x00\x00", ports(9, 9)), verdict: ""},
		"pod, fast, not a marker": {datapath: dataplane.Fast, marker: selftestMarker, program: podOut, packet: udpPacket("another", ports(9, 9)), verdict: "pod-out sent"},
	} {
		t.Run(name, func(t *testing.T) {
			k := bypassing(t, tt.datapath)
			k.answered(t)
			if err := k.Loader.BeginSelftest(tt.marker); err != nil {
				t.Fatal(err)
			}
			r := k.Run(t, tt.program(k), Frame(tt.packet.Encode()), tt.context)
			if r.Verdict != tt.verdict {
				t.Errorf("verdict %q, want %q", r.Verdict, tt.verdict)
			}
			if got, err := k.Loader.Selftest(); err != nil || got != tt.want {
				t.Errorf("recorded %+v (%v), want %+v", got, err, tt.want)
			}
			if n := k.flows(t); tt.verdict != "edge-out sent" && tt.verdict != "pod-out sent" && n != 0 {
				t.Errorf("%d flows were opened", n)
			}
		})
	}
}

func edgeOut(k *Kernel) *ebpf.Program   { return k.EdgeOut }
func podOut(k *Kernel) *ebpf.Program    { return k.PodOut }
func uplinkOut(k *Kernel) *ebpf.Program { return k.UplinkOut }
