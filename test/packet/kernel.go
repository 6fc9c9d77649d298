package packet

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
)

// What a program returns (bpf/ctx.h).
const (
	Next     = -1
	Drop     = 2
	Redirect = 7
)

// maxFlows is the size of the flow table.
const maxFlows = 1 << 18

// Kernel is one node: the programs and maps, attached to nothing.
type Kernel struct {
	Loader *loader.Loader
	pins   string // the directory of the maps

	EdgeOut, EdgeIn, UplinkIn, UplinkOut, UplinkXDP                     *ebpf.Program
	PodOut, PodIn, PodEnd                                               *ebpf.Program
	Flows, Fragments, Slots, Hand, Egresses, Paths, Standings, Counters *ebpf.Map
	Uplinks, Calls, NetworkCalls, Usage, Answers, Refusals              *ebpf.Map
	PathLines, OwnLosses, GatewayLosses, PodEnds                        *ebpf.Map
}

// Open makes a node with its maps in pinPath, a directory on a bpffs.
func Open(pinPath string, timers loader.Timers) (*Kernel, error) {
	k := &Kernel{pins: pinPath}
	var err error
	if k.Loader, err = loader.Open(loader.Options{PinPath: pinPath, Timers: timers, MaxFlows: maxFlows}); err != nil {
		return nil, err
	}
	for name, p := range map[string]**ebpf.Program{
		bpf.PelagoProgEdgeOut: &k.EdgeOut, bpf.PelagoProgEdgeIn: &k.EdgeIn, bpf.PelagoProgPodOut: &k.PodOut, bpf.PelagoProgPodIn: &k.PodIn, bpf.PelagoProgPodEnd: &k.PodEnd,
		bpf.PelagoProgUplinkIn: &k.UplinkIn, bpf.PelagoProgUplinkOut: &k.UplinkOut, bpf.PelagoProgUplinkXdp: &k.UplinkXDP,
	} {
		if *p, err = k.Loader.Program(name); err != nil {
			return nil, errors.Join(err, k.Loader.Close())
		}
	}
	for name, m := range map[string]**ebpf.Map{
		bpf.PelagoMapFlows: &k.Flows, bpf.PelagoMapFragments2: &k.Fragments, bpf.PelagoMapSlots: &k.Slots, bpf.PelagoMapHand: &k.Hand,
		bpf.PelagoMapEgresses: &k.Egresses, bpf.PelagoMapPaths: &k.Paths, bpf.PelagoMapStandings: &k.Standings, bpf.PelagoMapCounters2: &k.Counters,
		bpf.PelagoMapUplinks: &k.Uplinks, bpf.PelagoMapCalls: &k.Calls, bpf.PelagoMapUsage: &k.Usage,
		bpf.PelagoMapPathLines: &k.PathLines, bpf.PelagoMapOwnLosses: &k.OwnLosses, bpf.PelagoMapGatewayLosses: &k.GatewayLosses,
		bpf.PelagoMapNetworkCalls: &k.NetworkCalls, bpf.PelagoMapAnswers: &k.Answers,
		bpf.PelagoMapRefusals: &k.Refusals, bpf.PelagoMapPodEnds: &k.PodEnds,
	} {
		if *m, err = ebpf.LoadPinnedMap(filepath.Join(pinPath, name), nil); err != nil {
			return nil, errors.Join(fmt.Errorf("open map %s: %w", name, err), k.Close())
		}
	}
	return k, nil
}

// Close gives up programs and maps; the maps' pins stay.
func (k *Kernel) Close() error {
	return errors.Join(k.Loader.Close(), k.Flows.Close(), k.Fragments.Close(), k.Slots.Close(), k.Hand.Close(), k.Egresses.Close(), k.Paths.Close(),
		k.Standings.Close(), k.Counters.Close(), k.Uplinks.Close(), k.Calls.Close(), k.NetworkCalls.Close(), k.Usage.Close(), k.Answers.Close(), k.Refusals.Close(),
		k.PathLines.Close(), k.OwnLosses.Close(), k.GatewayLosses.Close(), k.PodEnds.Close())
}

// Apply makes the tables hold s.
func (k *Kernel) Apply(t testing.TB, s dataplane.State) {
	t.Helper()
	if err := k.Loader.Apply(s); err != nil {
		t.Fatal(err)
	}
}

// Flush clears all flows and fragments, the results of probes, and the handshake guard; the next
// Apply recreates the paths.
func (k *Kernel) Flush(t testing.TB) {
	t.Helper()
	for _, m := range []*ebpf.Map{k.Flows, k.Fragments, k.Paths, k.Uplinks, k.Usage, k.GatewayLosses} {
		var keys [][]byte
		var key, value []byte
		for it := m.Iterate(); it.Next(&key, &value); {
			keys = append(keys, append([]byte(nil), key...))
		}
		for _, key := range keys {
			if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				t.Fatal(err)
			}
			if m == k.Paths {
				k.forgetLine(t, [4]byte(key))
			}
		}
	}
	if err := errors.Join(k.Standings.Put(uint32(0), bpf.PelagoAdvertised{}), k.OwnLosses.Put(uint32(0), bpf.PelagoClusterSet{}),
		k.Calls.Put(uint32(0), uint64(0)), k.Answers.Put(uint32(0), uint64(0)), k.Loader.Guard(nil, nil)); err != nil {
		t.Fatal(err)
	}
	for cluster := range k.Refusals.MaxEntries() {
		if err := k.Refusals.Put(cluster, uint64(0)); err != nil {
			t.Fatal(err)
		}
	}
	k.networks(t, 0)
	k.Loader.Refresh() // it has not seen what was cleared
}

// networks sets the time at which the bucket of every network is full.
func (k *Kernel) networks(t testing.TB, full uint64) {
	t.Helper()
	for i := range k.NetworkCalls.MaxEntries() {
		if err := k.NetworkCalls.Put(i, full); err != nil {
			t.Fatal(err)
		}
	}
}

// putPath replaces the state of a path, which otherwise only the programs change, and drops its
// cached line.
func (k *Kernel) putPath(t testing.TB, peer [4]byte, p bpf.PelagoPath) {
	t.Helper()
	if err := k.Paths.Put(peer, p); err != nil {
		t.Fatal(err)
	}
	k.forgetLine(t, peer)
}

// forgetLine empties the line of a peer, nodeIP of its cluster and index: path_slot() of
// bpf/health.h.
func (k *Kernel) forgetLine(t testing.TB, peer [4]byte) {
	t.Helper()
	half := k.PathLines.MaxEntries() / 2
	cluster, node := uint32(peer[2]), uint32(peer[3])
	for _, slot := range []uint32{node, half + dataplane.Mix(cluster, node)&(half-1)} {
		if err := k.PathLines.Put(slot, bpf.PelagoPathLine{}); err != nil {
			t.Fatal(err)
		}
	}
}

// Context is what of struct __sk_buff a test may set.
type Context struct {
	Mark           uint32
	IngressIfindex uint32 // of a packet that the node's stack forwards; 0: of a local socket
	GSOSegments    uint32
	GSOSize        uint32
}

// skBuff is struct __sk_buff of linux/bpf.h.
type skBuff struct {
	Len            uint32
	_              uint32
	Mark           uint32
	_              [5]uint32
	Priority       uint32
	IngressIfindex uint32
	Ifindex        uint32
	_              [25]uint32
	_, _           uint64 // flow_keys, tstamp
	_              uint32 // wire_len
	GSOSegments    uint32
	_              uint64 // sk
	GSOSize        uint32
	_              uint32
	_              uint64 // hwtstamp
}

// Result is what a program did.
type Result struct {
	Action  int    // Next, Drop or Redirect
	Verdict string // "hook verdict" as counted, "" if nothing was counted
	Frame   []byte // as it is now
	Mark    uint32

	Priority uint32
}

// Run runs a program on a frame.
func (k *Kernel) Run(t testing.TB, program *ebpf.Program, frame []byte, c Context) Result {
	t.Helper()
	return k.counted(t, func() (Result, error) { return k.TryRun(program, frame, c) })
}

// counted adds to a result what was counted meanwhile.
func (k *Kernel) counted(t testing.TB, run func() (Result, error)) Result {
	t.Helper()
	before := k.counters(t)
	r, err := run()
	if err != nil {
		t.Fatal(err)
	}
	for key, n := range k.counters(t) {
		for range n - before[key] {
			if r.Verdict != "" {
				r.Verdict += " and "
			}
			r.Verdict += key
		}
	}
	return r
}

// TryRun is Run without a look at the counters; it may be called from several goroutines.
func (k *Kernel) TryRun(program *ebpf.Program, frame []byte, c Context) (Result, error) {
	in := skBuff{Mark: c.Mark, IngressIfindex: c.IngressIfindex, GSOSegments: c.GSOSegments, GSOSize: c.GSOSize}
	var out skBuff
	opts := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+512), Context: &in, ContextOut: &out}
	action, err := program.Run(opts)
	if err != nil {
		return Result{}, fmt.Errorf("run %s on %d bytes: %w", program, len(frame), err)
	}
	return Result{Action: int(int32(action)), Frame: opts.DataOut, Mark: out.Mark, Priority: out.Priority}, nil
}

// counters reads them by "hook verdict", in one system call where the loader needs hundreds.
func (k *Kernel) counters(t testing.TB) map[string]uint64 {
	t.Helper()
	n, cpus := int(k.Counters.MaxEntries()), ebpf.MustPossibleCPU()
	keys, values := make([]uint32, n), make([]bpf.PelagoCounter, n*cpus)
	var cursor ebpf.MapBatchCursor
	got, err := k.Counters.BatchLookup(&cursor, keys, values, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) || got != n {
		t.Fatalf("read map counters: %d of %d: %v", got, n, err)
	}
	out := map[string]uint64{}
	for i, key := range keys {
		var packets uint64
		for _, c := range values[i*cpus : (i+1)*cpus] {
			packets += c.Packets
		}
		if packets > 0 {
			const stride = uint32(bpf.PelagoCounterLimitCOUNTER_VERDICTS)
			out[bpf.PelagoHook(key/stride).String()+" "+bpf.PelagoVerdict(key%stride).String()] = packets
		}
	}
	return out
}
