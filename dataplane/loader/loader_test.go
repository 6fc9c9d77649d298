package loader

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/dump"
	"github.com/pelago-net/pelago/dataplane/liveness"
	"github.com/pelago-net/pelago/test/bpffs"
	"github.com/pelago-net/pelago/test/need"
)

func TestMissingFeatures(t *testing.T) {
	cause := errors.New("invalid argument")
	reqs := []requirement{
		{"something old", "4.1", func() error { return nil }},
		{"bpf_new_thing", "6.99", func() error { return cause }},
		{"a thing without a version", "", func() error { return cause }},
	}
	err := checkRequirements(reqs, "5.4.0-test")
	want := "bpf_new_thing needs Linux 6.99 or newer, this is 5.4.0-test: invalid argument\na thing without a version is missing: invalid argument"
	if err == nil || err.Error() != want {
		t.Errorf("error:\n%v\nwant:\n%s", err, want)
	}
	var missing *NotSupported
	if !errors.As(err, &missing) || missing.Feature != "bpf_new_thing" || missing.Since != "6.99" || !errors.Is(err, cause) {
		t.Errorf("error %#v; want the first missing feature and its cause in it", err)
	}
	if err := checkRequirements(reqs[:1], "5.4.0-test"); err != nil {
		t.Errorf("nothing is missing: %v", err)
	}
}

func TestThisKernelHasAllFeatures(t *testing.T) {
	need.Root(t)
	if err := CheckKernel(); err != nil {
		t.Error(err)
	}
}

func TestNotRoot(t *testing.T) {
	if err := checkUser(1000); err == nil || !strings.Contains(err.Error(), "root is needed (in Kubernetes: a privileged pod)") {
		t.Errorf("error %v", err)
	}
}

func TestNoBPFFS(t *testing.T) {
	need.Root(t)
	_, err := Open(Options{PinPath: filepath.Join(t.TempDir(), "pelago")})
	if err == nil || !strings.Contains(err.Error(), "no bpffs is mounted on") || !strings.Contains(err.Error(), "mount -t bpf bpf") {
		t.Errorf("without a bpffs: %v", err)
	}
	_, err = Open(Options{PinPath: "/nowhere/at/all"})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the parent directory: %v", err)
	}
}

func TestOtherLayout(t *testing.T) {
	path := filepath.Join(bpffs.Mount(t), "pelago")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 7, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Pin(filepath.Join(path, bpf.PelagoMapFlows)); err != nil {
		t.Fatal(err)
	}
	_, err = Open(Options{PinPath: path})
	if err == nil || !strings.Contains(err.Error(), "pelago-node cleanup") {
		t.Errorf("over maps of another layout: %v", err)
	}
}

func TestOpenMaps(t *testing.T) {
	path := filepath.Join(bpffs.Mount(t), "pelago")
	if _, err := OpenMaps(path); err == nil || !strings.Contains(err.Error(), "has not run on this node since boot") {
		t.Errorf("before the daemon ran: %v", err)
	}
	mustApply(t, openAt(t, path), example())
	l, err := OpenMaps(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := mustRead(t, l); len(got.Services) != 1 {
		t.Errorf("the tool reads %+v", got)
	}
	if _, err := l.Flows(); err != nil {
		t.Error(err)
	}
	if err := putFlow(l, 1, 0, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := l.PurgeFunc(func(netip.Addr) bool { return true }); err == nil || !strings.Contains(err.Error(), "the program is not loaded") {
		t.Errorf("a tool without the program purges: %v", err)
	}
}

func TestRemove(t *testing.T) {
	path := filepath.Join(bpffs.Mount(t), "pelago")
	l := openAt(t, path)
	mustApply(t, l, example())
	for range 2 { // there may be nothing to remove
		if err := Remove(path); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("stat %s: %v", path, err)
		}
	}
}

// putFlow writes the two entries of a TCP flow of pod 10.7.0.5, port 1000+n, outside port 1024+n.
func putFlow(l *Loader, n uint16, out, in uint8) error {
	now := uint64(bootClock())
	key := bpf.PelagoFlowKey{Saddr: be32(ip("10.7.0.5")), Daddr: be32(ip("120.2.0.20")), Sport: be16(1000 + n), Dport: be16(80), Proto: 6}
	f := bpf.PelagoFlow{
		State: now << 1, Seen: now - uint64(5*time.Second), Saddr: be32(ip("120.1.0.1")), Daddr: key.Daddr, Sport: be16(1024 + n), Dport: key.Dport,
		Node: 4, Cluster: 2, Role: uint8(bpf.PelagoFlowRoleFLOW_CLIENT), Tcp: out, Primary: 1,
	}
	answer := f
	answer.Primary, answer.Tcp, answer.Seen = 0, in, now-uint64(3*time.Second)
	answer.Saddr, answer.Daddr, answer.Sport, answer.Dport = key.Daddr, key.Saddr, key.Dport, key.Sport
	return errors.Join(l.objs.Flows.Put(key, f), l.objs.Flows.Put(answerKey(key, f), answer))
}

func TestFlows(t *testing.T) {
	l := open(t)
	const ack, fin, rst = uint8(bpf.PelagoTcpSeenTCP_SEEN_ACK), uint8(bpf.PelagoTcpSeenTCP_SEEN_FIN), uint8(bpf.PelagoTcpSeenTCP_SEEN_RST)
	states := []struct {
		out, in uint8
		want    string
	}{
		{0, 0, "opening"}, {0, ack, "opening"}, {ack, ack, "established"}, {ack | fin, ack, "established"}, {ack | fin, ack | fin, "closed"},
		{ack, ack | rst, "closed"}, {0, ack | rst, "closed"},
	}
	for i, s := range states {
		if err := putFlow(l, uint16(i), s.out, s.in); err != nil {
			t.Fatal(err)
		}
	}
	flows, err := l.Flows()
	if err != nil || len(flows) != len(states) {
		t.Fatalf("%d flows, %v; want %d", len(flows), err, len(states))
	}
	for _, f := range flows {
		n := f.Opening.Source.Port() - 1000
		if f.Idle < 3*time.Second || f.Idle > 4*time.Second {
			t.Errorf("flow %d is idle for %s; want 3 s, the younger direction's", n, f.Idle)
		}
		f.Idle = 0
		want := dump.Flow{
			Role: dump.RoleClient, Protocol: "tcp", Pod: ip("10.7.0.5"), Cluster: 2, Node: 4, State: states[n].want,
			Opening:    dump.Tuple{Source: netip.AddrPortFrom(ip("10.7.0.5"), 1000+n), Destination: netip.MustParseAddrPort("120.2.0.20:80")},
			Translated: dump.Tuple{Source: netip.AddrPortFrom(ip("120.1.0.1"), 1024+n), Destination: netip.MustParseAddrPort("120.2.0.20:80")},
		}
		if diff := cmp.Diff(want, f, equal...); diff != "" {
			t.Errorf("flow %d (-want +got):\n%s", n, diff)
		}
	}
}

// A sweep counts flows as the list of them shows them, those without an answer's entry too.
func TestSweepCounts(t *testing.T) {
	l := open(t)
	const ack, fin, rst = uint8(bpf.PelagoTcpSeenTCP_SEEN_ACK), uint8(bpf.PelagoTcpSeenTCP_SEEN_FIN), uint8(bpf.PelagoTcpSeenTCP_SEEN_RST)
	for i, s := range [][2]uint8{{0, 0}, {0, ack}, {ack, ack}, {ack, ack | fin}, {ack | fin, ack | fin}, {ack, ack | rst}, {ack | rst, ack}} {
		if err := putFlow(l, uint16(i), s[0], s[1]); err != nil {
			t.Fatal(err)
		}
	}
	// Answers without an opener, and the other way round.
	lone := bpf.PelagoFlow{State: uint64(bootClock()) << 1, Seen: uint64(bootClock()), Tcp: ack, Role: uint8(bpf.PelagoFlowRoleFLOW_SERVER)}
	for i, proto := range []uint8{6, 6, 17, 17, 1} {
		k := bpf.PelagoFlowKey{Saddr: be32(ip("120.2.0.9")), Daddr: be32(ip("120.1.0.9")), Sport: be16(uint16(2000 + i)), Proto: proto}
		v := lone
		v.Primary = uint8(i % 2)
		if err := l.objs.Flows.Put(k, v); err != nil {
			t.Fatal(err)
		}
	}
	want := map[dump.FlowKind]int{}
	flows, err := l.Flows()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range flows {
		want[dump.FlowKind{Role: f.Role, Protocol: f.Protocol, State: f.State}]++
	}
	stats, err := l.Sweep(time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, stats.Kinds); diff != "" {
		t.Errorf("-listed +counted\n%s", diff)
	}
	if n := stats.Kinds[dump.FlowKind{Role: dump.RoleClient, Protocol: "tcp", State: "closed"}]; n != 3 || stats.Kinds[dump.FlowKind{Role: dump.RoleServer, Protocol: "udp", State: "active"}] != 1 {
		t.Errorf("%d closed flows; %v", n, stats.Kinds)
	}
}

// A dump of a table that is much larger than a chunk has every flow once.
func TestManyFlows(t *testing.T) {
	l := open(t)
	const n = 20000
	for i := range uint16(n) {
		if err := putFlow(l, i, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	flows, err := l.Flows()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[netip.AddrPort]bool{}
	for _, f := range flows {
		seen[f.Opening.Source] = true
	}
	if len(flows) != n || len(seen) != n {
		t.Errorf("%d flows, %d different ones; want %d", len(flows), len(seen), n)
	}
	removed, err := l.PurgeFunc(func(netip.Addr) bool { return true })
	if err != nil || removed != n {
		t.Errorf("purge removed %d, %v; want %d", removed, err, n)
	}
	if left := entries(t, l.objs.Flows); left != 0 {
		t.Errorf("%d entries are left", left)
	}
}

// Paths come and go with the tables; what the programs wrote into one that stays is kept.
func TestPaths(t *testing.T) {
	l := open(t)
	mustApply(t, l, example())
	before, err := l.Paths()
	if err != nil || len(before) == 0 {
		t.Fatalf("paths %v, %v; want some", before, err)
	}
	var peer netip.Addr
	for a, p := range before {
		if p.Probed {
			peer = a
		}
	}
	seen := bpf.PelagoPath{Probed: 1, Probes: 5, Replies: 4, Sequence: 5, Answered: 4, Ready: 1}
	seen.Ring[5].Sent = uint64(bootClock())
	if err := l.objs.Paths.Put(be32(peer), seen); err != nil {
		t.Fatal(err)
	}
	mustApply(t, l, example())
	p, ok, err := l.Path(peer)
	if err != nil || !ok || p.Replies != 4 || p.Open != 1 || !p.Ready || p.OldestOpen > time.Minute || p.Suspect() {
		t.Errorf("path %+v, %t, %v; want what was there", p, ok, err)
	}
	to, err := l.PathsTo([]netip.Addr{ip("192.0.2.99"), peer})
	if err != nil || len(to) != 1 || to[peer].Replies != 4 {
		t.Errorf("of one path and one that does not exist: %+v, %v", to, err)
	}
	// What others have removed is back after Refresh.
	if err := l.objs.Paths.Delete(be32(peer)); err != nil {
		t.Fatal(err)
	}
	l.Refresh()
	mustApply(t, l, example())
	if p, ok, err := l.Path(peer); err != nil || !ok || !p.Probed {
		t.Errorf("after Refresh: path %+v, %t, %v", p, ok, err)
	}
	mustApply(t, l, dataplane.State{})
	if paths, err := l.Paths(); err != nil || len(paths) != 0 {
		t.Errorf("paths of an empty state: %v, %v", paths, err)
	}
}

// Counters add up over processors and leave out what never happened.
func TestCounters(t *testing.T) {
	l := open(t)
	perCPU := make([]bpf.PelagoCounter, ebpf.MustPossibleCPU())
	for i := range perCPU {
		perCPU[i] = bpf.PelagoCounter{Packets: 10, Bytes: 1000}
	}
	key := uint32(bpf.PelagoHookHOOK_UPLINK_IN)*uint32(bpf.PelagoCounterLimitCOUNTER_VERDICTS) + uint32(bpf.PelagoVerdictVERDICT_DROP_TTL)
	if err := l.objs.Counters2.Put(key, perCPU); err != nil {
		t.Fatal(err)
	}
	got, err := l.Counters()
	n := uint64(len(perCPU))
	want := []dump.Counter{{Hook: "uplink-in", Verdict: "drop-ttl", Packets: 10 * n, Bytes: 1000 * n}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("counters, %v (-want +got):\n%s", err, diff)
	}
}

// A path in use is probed every 10 ms, so the ring covers 160 ms: the peer is dead although no
// probe in it is older.
func TestDeadWhileInUse(t *testing.T) {
	const now = 100 * time.Second
	for _, tt := range []struct {
		name     string
		silent   time.Duration // since the last reply
		interval time.Duration // of probes
		suspect  bool
		dead     bool
	}{
		{"in use, answered", 5 * time.Millisecond, 10 * time.Millisecond, false, false},
		{"in use, silent for a moment", 100 * time.Millisecond, 10 * time.Millisecond, true, false},
		{"in use, silent for 440 ms", 440 * time.Millisecond, 10 * time.Millisecond, true, false},
		{"in use, silent for 460 ms", 460 * time.Millisecond, 10 * time.Millisecond, true, true},
		{"in use, silent for a minute", time.Minute, 10 * time.Millisecond, true, true},
		{"idle, two probes open", 440 * time.Millisecond, 150 * time.Millisecond, false, false},
		{"idle, three probes open", 590 * time.Millisecond, 150 * time.Millisecond, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := bpf.PelagoPath{Seen: uint64(now - tt.silent), Srtt: uint32(time.Millisecond), Replies: 1, Answered: 1000, Sequence: 1000}
			for sent := now - tt.silent + tt.interval; sent <= now; sent += tt.interval {
				v.Sequence++
				v.Ring[v.Sequence%uint32(len(v.Ring))].Sent = uint64(sent)
			}
			p := liveness.Decode(v, now)
			if p.Suspect() != tt.suspect || p.Dead() != tt.dead {
				t.Errorf("suspect %t, dead %t with %d open for %s; want %t, %t", p.Suspect(), p.Dead(), p.Open, p.OldestOpen, tt.suspect, tt.dead)
			}
		})
	}
}

func TestServices(t *testing.T) {
	l := open(t)
	backend := netip.MustParseAddrPort("10.7.2.10:8080")
	mustApply(t, l, dataplane.State{Services: map[dataplane.ServiceKey]dataplane.Service{
		{Address: ip("120.1.0.20"), Port: 80, Protocol: 6}: {
			Backends: []netip.AddrPort{backend}, Table: []uint16{3, 2, 3, 3}, Affinity: 60,
		},
	}})
	got, err := l.Services()
	if err != nil {
		t.Fatal(err)
	}
	want := []dump.Service{{
		Address: netip.MustParseAddrPort("120.1.0.20:80"), Protocol: "tcp", ClientIP: true, Affinity: 60, Backends: []netip.AddrPort{backend},
		Weights: []dump.NodeWeight{{Node: 2, Share: 0.25}, {Node: 3, Share: 0.75}},
	}}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
		t.Errorf("services (-want +got):\n%s", diff)
	}
}

// A program that the verifier rejects costs no other one, and is verified once.
func TestRejectedProgram(t *testing.T) {
	l := openAt(t, filepath.Join(bpffs.Mount(t), "pelago"))
	l.spec.Programs[bpf.PelagoProgWireOut].Instructions = asm.Instructions{asm.Return()} // R0 is not set
	_, first := l.Program(bpf.PelagoProgWireOut)
	if first == nil || !strings.Contains(first.Error(), "load program wire_out: rejected by the verifier") {
		t.Fatalf("rejected program: %v", first)
	}
	if _, err := l.Program(bpf.PelagoProgWireOut); !errors.Is(err, l.rejected[bpf.PelagoProgWireOut]) {
		t.Errorf("the second time: %v", err)
	}
	if p, err := l.Program(bpf.PelagoProgPodIn); err != nil || p == nil {
		t.Errorf("another program: %v", err)
	}
}
