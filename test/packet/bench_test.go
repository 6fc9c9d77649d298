package packet

import (
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
)

// BenchmarkPrograms measures the time in each program that a packet passes, as prog_ns. The system
// call before each run leaves the processor's caches colder than a stream of packets does: compare
// figures of one run.
func BenchmarkPrograms(b *testing.B) {
	na, ga, nb := load(b, 1, 2), load(b, 1, 1), load(b, 2, 2)
	s := state(1, 2)
	for first := blockOf(1); first < 65536-dataplane.BlockPorts; first += dataplane.BlockPorts {
		s.Egresses[global(1, 1)] = append(s.Egresses[global(1, 1)], first)
	}
	na.Apply(b, s)
	for _, k := range []*Kernel{na, ga, nb} {
		k.answered(b)
	}
	known := udpPacket("x")
	na.fromPod(b, known)
	fresh := func(i int) Packet {
		return known.with(from([]string{"10.7.2.10", "10.7.2.11"}[i>>15&1]), ports(uint16(20000+i&0x7fff), uint16(1+i>>16)), to(global(2, 100)))
	}
	out := func(p Packet) []byte { return Frame(p.Encode()) }
	translated := func(p Packet) []byte { return p.with(from("120.1.0.1")).Encode() }
	for _, bench := range []struct {
		name    string
		k       *Kernel
		program string
		frame   func(i int) []byte
		want    string
	}{
		{"edge, known flow", na, bpf.PelagoProgEdgeOut, func(int) []byte { return out(known) }, "edge-out sent"},
		{"edge, new flow", na, bpf.PelagoProgEdgeOut, func(i int) []byte { return out(fresh(i + 1)) }, "edge-out sent"},
		{"gateway, to the cable", ga, bpf.PelagoProgUplinkIn, func(int) []byte { return overlay(1, 2, 1, translated(known)).Encode() }, "uplink-in switched"},
		{"gateway, from the cable", ga, bpf.PelagoProgUplinkIn, func(int) []byte { return cable(2, 1, 1, answerTo(3).Encode()).Encode() }, "uplink-in switched"},
		{"gateway, a node's probe", ga, bpf.PelagoProgUplinkIn, func(int) []byte {
			return overlay(1, 2, 1, body{}.encode(), func(o *Overlay) { o.Type = Probe }).Encode()
		}, "uplink-in probe"},
		{"far edge, new flow", nb, bpf.PelagoProgUplinkIn, func(i int) []byte { return overlay(2, 1, 2, translated(fresh(i+1))).Encode() }, "uplink-in delivered"},
	} {
		b.Run(bench.name, func(b *testing.B) {
			program := bench.k.Loader.Programs()[bench.program]
			context := Context{}
			if bench.k == na {
				context.IngressIfindex = podDevice
			}
			if r := bench.k.Run(b, program, bench.frame(-1), context); r.Verdict != bench.want {
				b.Fatalf("verdict %q; want %q", r.Verdict, bench.want)
			}
			closer, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
			if err != nil {
				b.Fatal(err)
			}
			defer closer.Close()
			before, err := program.Stats()
			if err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			for i := range b.N {
				if _, err := bench.k.TryRun(program, bench.frame(i), context); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			after, err := program.Stats()
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64((after.Runtime-before.Runtime).Nanoseconds())/float64(after.RunCount-before.RunCount), "prog_ns")
			bench.k.Flush(b)
			if bench.k == na {
				bench.k.Apply(b, s)
			} else {
				bench.k.Apply(b, state(map[*Kernel]int{ga: 1, nb: 2}[bench.k], map[*Kernel]uint16{ga: 1, nb: 2}[bench.k]))
			}
			bench.k.answered(b)
		})
	}
}
