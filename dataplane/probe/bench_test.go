package probe

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/test/await"
	"github.com/pelago-net/pelago/test/bpffs"
	"github.com/pelago-net/pelago/test/netns"
)

const (
	farClusters, farGateways = 254, 4
	benchMTU                 = 1500 - netdev.Overhead
)

// BenchmarkProber is the cost of liveness at a gateway with 1,016 remote gateways, all of whose
// paths are in use or idle, as the share of a core: the prober, the programs that send its probes
// and take their replies, and the veth pair between. A program at the far end replies for all of
// them. An operation is a second of probing.
func BenchmarkProber(b *testing.B) {
	for _, used := range []bool{false, true} {
		b.Run(fmt.Sprintf("used=%t", used), func(b *testing.B) {
			ns, far := netns.ForTest(b, "gw"), netns.ForTest(b, "far")
			l, edge := gateway(b, ns, far, used)
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan error)
			go func() {
				p := New(l, func() (int, int) { return edge, benchMTU }, func() {}, slog.New(slog.DiscardHandler))
				done <- ns.Do(func() error { p.Run(ctx); return nil })
			}()
			defer func() {
				cancel()
				if err := <-done; err != nil {
					b.Error(err)
				}
			}()
			probes := func() (sent, open uint64) {
				paths, err := l.Paths()
				if err != nil {
					b.Fatal(err)
				}
				for _, p := range paths {
					sent += p.Probes
					if !p.Ready || p.Suspect() {
						open++
					}
				}
				return sent, open
			}
			await.True(b, "all peers have answered", func() bool { _, open := probes(); return open == 0 })
			before, _ := probes()
			cpu := processorTime(b)
			b.ResetTimer()
			start := time.Now()
			time.Sleep(time.Duration(b.N) * time.Second)
			elapsed := time.Since(start)
			cpu = processorTime(b) - cpu
			after, open := probes()
			b.ReportMetric(100*cpu.Seconds()/elapsed.Seconds(), "core_%")
			b.ReportMetric(float64(after-before)/elapsed.Seconds(), "probes/s")
			b.ReportMetric(float64(open), "suspect")
		})
	}
}

// processorTime is that of this process, softirqs in its context included.
func processorTime(b *testing.B) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// gateway sets up the gateway in ns and its peers in far. Returns the interface index of pelago0 as
// well.
func gateway(b *testing.B, ns, far *netns.NS, used bool) (l *loader.Loader, edge int) {
	b.Helper()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	must(netns.Veth(netns.End{NS: ns, Name: "un0"}, netns.End{NS: far, Name: "un0"}))
	own, next := netip.MustParseAddr("172.30.0.1"), netip.MustParseAddr("172.30.0.2")
	must(ns.AddAddr("un0", netip.PrefixFrom(own, 24)))
	mac, err := far.MAC("un0")
	must(err)
	_, err = ns.Run("ip", "neigh", "add", next.String(), "lladdr", mac.String(), "dev", "un0", "nud", "permanent")
	must(err)
	uplink, err := ns.Index("un0")
	must(err)
	peer, err := far.Index("un0")
	must(err)
	reflector, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "reflect", Type: ebpf.SchedCLS, License: "Dual BSD/GPL", Instructions: reflect(peer)})
	must(err)
	b.Cleanup(func() { reflector.Close() })
	must(far.Do(func() error {
		at, err := link.AttachTCX(link.TCXOptions{Interface: peer, Program: reflector, Attach: ebpf.AttachTCXIngress})
		if err == nil {
			b.Cleanup(func() { at.Close() })
		}
		return err
	}))
	s := dataplane.State{
		Settings: dataplane.Settings{
			Address: own, CableAddress: own, Node: 1, Cluster: 1, Gateway: true, CablePort: 4500, Ready: true,
			Overlay: dataplane.Tokens{Current: 1}, Cable: dataplane.Tokens{Current: 2},
		},
		Gateways: []uint16{1}, Clusters: map[uint16][]dataplane.RemoteGateway{}, Peers: map[netip.Addr]dataplane.Peer{},
	}
	for c := range uint16(farClusters) {
		for g := range uint16(farGateways) {
			a := netip.AddrFrom4([4]byte{172, 31, byte(c), byte(g + 1)})
			hop := dataplane.Hop{Address: a, Next: next, Ifindex: uint32(uplink)}
			s.Clusters[c+2] = append(s.Clusters[c+2], dataplane.RemoteGateway{Hop: hop, Node: g + 1, Port: 4500})
			s.Peers[a] = dataplane.Peer{Kind: dataplane.PeerGateway, Cluster: c + 2, Node: g + 1}
		}
	}
	pins := filepath.Join(bpffs.Mount(b), "gw")
	must(ns.Do(func() (err error) {
		if edge, err = netdev.EnsureOverlay(benchMTU); err != nil {
			return err
		}
		s.Settings.Edge = uint32(edge)
		if l, err = loader.Open(loader.Options{PinPath: pins}); err != nil {
			return err
		}
		if _, err := l.Attach(loader.Devices{Edge: edge, Uplinks: []int{uplink}}); err != nil {
			return err
		}
		return l.Apply(s)
	}))
	b.Cleanup(func() { l.Close() })
	if !used {
		return l, edge
	}
	paths, err := ebpf.LoadPinnedMap(filepath.Join(pins, bpf.PelagoMapPaths), nil)
	must(err)
	defer paths.Close()
	for a := range s.Peers {
		must(paths.Put(a.As4(), bpf.PelagoPath{Probed: 1, Used: 1 << 62})) // for ever
	}
	return l, edge
}

// reflect is a program that sends probes back as the replies of a gateway that is ready.
func reflect(ifindex int) asm.Instructions {
	const (
		source, destination = 14 + 12, 14 + 16 // IPv4
		kind                = 14 + 20 + 8 + 4  // type in the overlay header
		ready               = bpf.PelagoProbeFramePROBE_BODY + 4
	)
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R7, asm.R6, 76, asm.Word), // __sk_buff.data
		asm.LoadMem(asm.R8, asm.R6, 80, asm.Word), // data_end
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.Add.Imm(asm.R1, int32(bpf.PelagoProbeFramePROBE_FRAME)),
		asm.JGT.Reg(asm.R1, asm.R8, "pass"),
		asm.LoadMem(asm.R1, asm.R7, kind, asm.Byte),
		asm.JNE.Imm(asm.R1, int32(bpf.PelagoPacketTypePACKET_PROBE), "pass"),
		asm.StoreImm(asm.R7, kind, int64(bpf.PelagoPacketTypePACKET_PROBE_REPLY), asm.Byte),
		asm.StoreImm(asm.R7, int16(ready), 1, asm.Word),
		asm.LoadMem(asm.R1, asm.R7, source, asm.Word),
		asm.LoadMem(asm.R2, asm.R7, destination, asm.Word),
		asm.StoreMem(asm.R7, source, asm.R2, asm.Word),
		asm.StoreMem(asm.R7, destination, asm.R1, asm.Word),
		asm.LoadMem(asm.R1, asm.R7, 0, asm.Word),
		asm.LoadMem(asm.R2, asm.R7, 4, asm.Half),
		asm.LoadMem(asm.R3, asm.R7, 6, asm.Word),
		asm.LoadMem(asm.R4, asm.R7, 10, asm.Half),
		asm.StoreMem(asm.R7, 0, asm.R3, asm.Word),
		asm.StoreMem(asm.R7, 4, asm.R4, asm.Half),
		asm.StoreMem(asm.R7, 6, asm.R1, asm.Word),
		asm.StoreMem(asm.R7, 10, asm.R2, asm.Half),
		asm.Mov.Imm(asm.R1, int32(ifindex)),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("pass"), // TCX_NEXT
		asm.Return(),
	}
}
