package loader

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/dump"
	"github.com/pelago-net/pelago/test/bpffs"
)

func TestFlowsFor(t *testing.T) {
	const gib = 1 << 30
	for memory, want := range map[uint64]int{0: 1 << 16, gib / 2: 1 << 16, gib: 1 << 17, 2 * gib: 1 << 18, 4 * gib: 1 << 19, 8 * gib: 1 << 20, 512 * gib: 1 << 20} {
		if got := flowsFor(memory); got != want {
			t.Errorf("%d MiB: %d flows, want %d", memory>>20, got, want)
		}
	}
}

// A pinned table keeps its size, whatever another daemon requests: its flows go on.
func TestFlowTableKeepsItsSize(t *testing.T) {
	path := filepath.Join(bpffs.Mount(t), "pelago")
	sizes := func(l *Loader) []uint32 {
		var count uint32
		if err := l.objs.SlotCount.Get(&count); err != nil {
			t.Fatal(err)
		}
		return []uint32{l.objs.Flows.MaxEntries(), l.objs.Slots.MaxEntries(), count}
	}
	for _, ask := range []int{1 << 10, 1 << 12, 0} {
		l, err := Open(Options{PinPath: path, MaxFlows: ask})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]uint32{2 << 10, 2 << 10, 2 << 10}, sizes(l)); diff != "" {
			t.Errorf("asked for %d flows, -want +got\n%s", ask, diff)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(Options{PinPath: filepath.Join(bpffs.Mount(t), "pelago"), MaxFlows: 1000}); err == nil || !strings.Contains(err.Error(), "no power of two") {
		t.Errorf("1,000 flows: %v", err)
	}
}

// The backends of UDP ports that a former version has exported are listed before the programs are
// attached: their flows go on.
func TestBackendsAreListed(t *testing.T) {
	path := filepath.Join(bpffs.Mount(t), "pelago")
	l := openAt(t, path)
	service := dataplane.Service{Backends: []netip.AddrPort{netip.MustParseAddrPort("10.7.2.10:5353")}}
	key := dataplane.ServiceKey{Address: netip.MustParseAddr("120.1.0.20"), Port: 53, Protocol: dataplane.ProtocolUDP}
	if err := l.Apply(dataplane.State{Services: map[dataplane.ServiceKey]dataplane.Service{
		key: service, {Address: key.Address, Port: 80, Protocol: dataplane.ProtocolTCP}: service,
	}}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := openAt(t, path).Read()
	if err != nil {
		t.Fatal(err)
	}
	want := map[dataplane.VIPPod]uint16{{VIP: key, Pod: netip.MustParseAddr("10.7.2.10")}: 5353}
	if diff := cmp.Diff(want, s.VIPPods, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Maps of a newer layout are refused by the daemon, those of any other by the tools.
func TestLayoutNumber(t *testing.T) {
	path := filepath.Join(bpffs.Mount(t), "pelago")
	l := openAt(t, path)
	for _, c := range []struct {
		number      uint32
		daemon, cli string
	}{
		{abi, "", ""},
		{abi - 1, "", "use the one of pelago-node's version"},
		{abi + 1, "run the newer version, or `pelago-node cleanup`", "use the one of pelago-node's version"},
	} {
		for _, user := range []struct {
			open func() (*Loader, error)
			want string
		}{
			{func() (*Loader, error) { return Open(Options{PinPath: path}) }, c.daemon},
			{func() (*Loader, error) { return OpenMaps(path) }, c.cli},
		} {
			if err := l.objs.Abi.Put(uint32(0), c.number); err != nil {
				t.Fatal(err)
			}
			opened, err := user.open()
			if (err == nil) != (user.want == "") || err != nil && !strings.Contains(err.Error(), user.want) {
				t.Errorf("layout %d: %v, want %q", c.number, err, user.want)
			}
			if err == nil {
				if err := opened.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// The counters of the first layout are added to the present ones, once, and its map is removed.
func TestCountersOfFirstLayout(t *testing.T) {
	path := filepath.Join(bpffs.Mount(t), "pelago")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	old, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 16, MaxEntries: 7 * strideOf1})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	cpus := ebpf.MustPossibleCPU()
	values := make([]bpf.PelagoCounter, cpus)
	values[0], values[cpus-1] = bpf.PelagoCounter{Packets: 3, Bytes: 300}, bpf.PelagoCounter{Packets: 4, Bytes: 400}
	const hook, verdict = uint32(bpf.PelagoHookHOOK_UPLINK_XDP), uint32(bpf.PelagoVerdictVERDICT_DROP_INTERNAL)
	if err := errors.Join(old.Put(hook*strideOf1+verdict, values), old.Pin(filepath.Join(path, counters1))); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		l := openAt(t, path)
		got, err := l.Counters()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]dump.Counter{{Hook: "uplink-xdp", Verdict: "drop-internal", Packets: 7, Bytes: 700}}, got); diff != "" {
			t.Errorf("counters, -want +got\n%s", diff)
		}
		if _, err := os.Stat(filepath.Join(path, counters1)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("stat the former map: %v", err)
		}
	}
}

// A former map of which nothing is taken over is removed.
func TestFragmentsOfFirstLayout(t *testing.T) {
	path := filepath.Join(bpffs.Mount(t), "pelago")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	old, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 12, ValueSize: 4, MaxEntries: 8192})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := old.Pin(filepath.Join(path, fragments1)); err != nil {
		t.Fatal(err)
	}
	openAt(t, path)
	if _, err := os.Stat(filepath.Join(path, fragments1)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat the former map: %v", err)
	}
}

// What the maps before globals2 and vips2 hold is in these before a program is attached, so that an
// upgrade loses no packet until the tables are written.
func TestGrownMaps(t *testing.T) {
	path := filepath.Join(bpffs.Mount(t), "pelago")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	former := func(name string, keySize, valueSize uint32, entries map[string][]byte) {
		t.Helper()
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: keySize, ValueSize: valueSize, MaxEntries: 65536, Flags: unix.BPF_F_NO_PREALLOC})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		for k, v := range entries {
			if err := m.Put([]byte(k), v); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Pin(filepath.Join(path, name)); err != nil {
			t.Fatal(err)
		}
	}
	former(globals1, 4, 8, map[string][]byte{"\x78\x01\x00\x14": {2, 0, 0, 0, 0, 0, 0, 0}, "\x78\x01\x00\x15": {3, 0, 7, 0, 0, 0, 0, 0}})
	// count, affinity, 32 targets, 509 slots and three bytes
	value := binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, 2), 9)
	value = append(value, 120, 2, 0, 20, 2, 0, 0, 0, 120, 3, 0, 20, 3, 0, 0, 0)
	value = append(value, make([]byte, 30*8)...)
	for i := range 512 {
		value = append(value, byte(i%2))
	}
	former(vips1, 8, uint32(len(value)), map[string][]byte{"\xf3\x00\x00\x01\x00\x50\x06\x00": value})
	for range 2 {
		l := openAt(t, path)
		s, err := l.Read()
		if err != nil {
			t.Fatal(err)
		}
		if g := s.Globals[ip("120.1.0.21")]; len(s.Globals) != 2 || g.Kind != dataplane.GlobalPod || g.Node != 7 {
			t.Errorf("globals: %+v", s.Globals)
		}
		v := s.VIPs[dataplane.ServiceKey{Address: ip("243.0.0.1"), Port: 80, Protocol: 6}]
		want := []dataplane.VIPTarget{{Cluster: 2, Address: ip("120.2.0.20")}, {Cluster: 3, Address: ip("120.3.0.20")}}
		if diff := cmp.Diff(want, v.Targets, cmpopts.EquateComparable(netip.Addr{})); diff != "" || v.Affinity != 9 || len(v.Slots) != 509 || v.Slots[508] != 0 || v.Slots[507] != 1 {
			t.Errorf("VIP %+v, targets -want +got\n%s", v, diff)
		}
		for _, name := range []string{globals1, vips1} {
			if _, err := os.Stat(filepath.Join(path, name)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("stat the former map %s: %v", name, err)
			}
		}
	}
}

// The Maglev tables of the former map are in the present one before the programs are attached.
func TestTablesOfFormerLayout(t *testing.T) {
	path := filepath.Join(bpffs.Mount(t), "pelago")
	want := dataplane.State{Services: map[dataplane.ServiceKey]dataplane.Service{}}
	for i, slots := range []int{1, 251, 4093, 0} {
		s := dataplane.Service{}
		for slot := range slots {
			s.Table = append(s.Table, uint16(i+slot+1))
		}
		want.Services[dataplane.ServiceKey{Address: ip("120.1.0.20"), Port: uint16(80 + i), Protocol: 6}] = s
	}
	l := openAt(t, path)
	mustApply(t, l, want)
	inner := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1, Flags: unix.BPF_F_INNER_MAP}
	old, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.HashOfMaps, KeySize: 8, ValueSize: 4, MaxEntries: 65536, Flags: unix.BPF_F_NO_PREALLOC, InnerMap: inner,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	for key, s := range want.Services {
		if len(s.Table) == 0 {
			continue
		}
		spec := inner.Copy()
		spec.MaxEntries = uint32(len(s.Table))
		for slot, node := range s.Table {
			spec.Contents = append(spec.Contents, ebpf.MapKV{Key: uint32(slot), Value: uint32(node)})
		}
		table, err := ebpf.NewMap(spec)
		if err != nil {
			t.Fatal(err)
		}
		defer table.Close()
		if err := old.Put(encodeServiceKey(key), table); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Remove(filepath.Join(path, bpf.PelagoMapTables2)), old.Pin(filepath.Join(path, tables1))); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		l := openAt(t, path)
		if diff := cmp.Diff(want.Services, mustRead(t, l).Services, equal...); diff != "" {
			t.Errorf("services (-want +got):\n%s", diff)
		}
		if _, err := os.Stat(filepath.Join(path, tables1)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("stat the former map: %v", err)
		}
	}
}
