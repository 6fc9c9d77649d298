package loader

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/test/bpffs"
)

// open loads the programs and maps on a bpffs of the test's own.
func open(t testing.TB) *Loader {
	t.Helper()
	return openAt(t, filepath.Join(bpffs.Mount(t), "pelago"))
}

func openAt(t testing.TB, path string) *Loader {
	t.Helper()
	l, err := Open(Options{PinPath: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func mustApply(t testing.TB, l *Loader, s dataplane.State) {
	t.Helper()
	if err := l.Apply(s); err != nil {
		t.Fatal(err)
	}
}

func mustRead(t testing.TB, l *Loader) dataplane.State {
	t.Helper()
	s, err := l.Read()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Any state that is applied over any other is what the maps hold afterwards, to this process and to
// the next one; a second time there is nothing to do.
func TestApplyAnyState(t *testing.T) {
	l := open(t)
	generation := uint32(0)
	rapid.Check(t, func(rt *rapid.T) {
		want := drawState(rt)
		mustApply(t, l, want)
		got := mustRead(t, l)
		if got.Settings.Generation <= generation {
			rt.Errorf("generation %d after a change; it was %d", got.Settings.Generation, generation)
		}
		generation = got.Settings.Generation
		want.Settings.Generation = generation
		if diff := cmp.Diff(want, got, equal...); diff != "" {
			rt.Fatalf("the maps hold (-want +got):\n%s", diff)
		}
		mustApply(t, l, want)
		l.Refresh()
		mustApply(t, l, want)
		if again := mustRead(t, l).Settings.Generation; again != generation {
			rt.Errorf("applied again, the same state counts as a change: generation %d, was %d", again, generation)
		}
	})
}

// example is a state in which every table has an entry.
func example() dataplane.State {
	hop := dataplane.Hop{Address: ip("172.16.0.2"), Next: ip("172.16.0.2"), Ifindex: 2}
	return dataplane.State{
		Settings: dataplane.Settings{Address: ip("172.16.0.1"), CableAddress: ip("172.16.0.1"), Node: 1, Cluster: 1, Gateway: true, MSS: 1410, Ready: true, CablePort: 4500},
		Routes:   map[netip.Prefix]uint16{netip.MustParsePrefix("120.2.0.0/24"): 2},
		Nodes:    map[uint16]dataplane.Hop{2: hop},
		Gateways: []uint16{1, 2},
		Clusters: map[uint16][]dataplane.RemoteGateway{2: {{Hop: hop, Node: 1, Port: 4500}}},
		Peers:    map[netip.Addr]dataplane.Peer{ip("172.16.0.2"): {Kind: dataplane.PeerNode, Node: 2}},
		Sources:  map[netip.Addr]dataplane.Source{ip("10.7.0.5"): {Egress: ip("120.1.0.1"), Ifindex: 9}},
		Egresses: map[netip.Addr][]uint16{ip("120.1.0.1"): {1024, 1280}},
		Globals:  map[netip.Addr]dataplane.Global{ip("120.1.0.20"): {Kind: dataplane.GlobalService}},
		Blocks:   map[dataplane.BlockKey]uint16{{Address: ip("120.1.0.1"), First: 1024}: 2},
		Services: map[dataplane.ServiceKey]dataplane.Service{
			{Address: ip("120.1.0.20"), Port: 80, Protocol: 6}: {
				Backends: []netip.AddrPort{netip.MustParseAddrPort("10.7.0.5:8080"), netip.MustParseAddrPort("10.7.0.6:8080")},
				Table:    []uint16{1, 2, 1, 2, 2},
			},
		},
	}
}

// What another component removed, changed or added is put right by the next Apply after a Refresh,
// and by a new process.
func TestSelfRepair(t *testing.T) {
	path := filepath.Join(bpffs.Mount(t), "pelago")
	l := openAt(t, path)
	want := example()
	service := bpf.PelagoServiceKey{Address: be32(ip("120.1.0.20")), Port: be16(80), Proto: 6}
	other := bpf.PelagoServiceKey{Address: be32(ip("120.1.0.99")), Port: be16(80), Proto: 6}
	m := &l.objs.PelagoMaps
	del := func(m *ebpf.Map, key any) func() error { return func() error { return m.Delete(key) } }
	set := func(m *ebpf.Map, key, value any) func() error { return func() error { return m.Put(key, value) } }
	damage := map[string]func() error{
		"a node is gone":          set(m.Nodes, uint32(2), bpf.PelagoNode{}),
		"a node is too much":      set(m.Nodes, uint32(3), bpf.PelagoNode{Present: 1}),
		"the settings are zero":   set(m.Settings, uint32(0), bpf.PelagoNodeSettings{}),
		"the gateways are none":   set(m.Gateways, uint32(0), bpf.PelagoGatewaySet{}),
		"a route is gone":         del(m.Routes, encodePrefix(netip.MustParsePrefix("120.2.0.0/24"))),
		"a route is too much":     set(m.Routes, encodePrefix(netip.MustParsePrefix("120.3.0.0/24")), bpf.PelagoRoute{Cluster: 3}),
		"a cluster is gone":       del(m.Clusters, uint32(2)),
		"a peer is too much":      set(m.Peers, be32(ip("192.0.2.1")), bpf.PelagoPeer{Kind: 2}),
		"a source is changed":     set(m.Sources, be32(ip("10.7.0.5")), bpf.PelagoSource{}),
		"an egress is gone":       del(m.Egresses, be32(ip("120.1.0.1"))),
		"a global is too much":    set(m.Globals2, be32(ip("120.1.0.77")), bpf.PelagoGlobal{Kind: 1}),
		"a block is somebody's":   set(m.Blocks, encodeBlockKey(dataplane.BlockKey{Address: ip("120.1.0.1"), First: 1024}), bpf.PelagoBlock{Node: 7}),
		"a service is gone":       del(m.Services, service),
		"a service is too much":   set(m.Services, other, bpf.PelagoService{Backends: 3}),
		"a backend is gone":       del(m.Backends, bpf.PelagoBackendKey{Service: service, Index: 1}),
		"a backend is another":    set(m.Backends, bpf.PelagoBackendKey{Service: service}, bpf.PelagoBackend{Address: 1}),
		"a backend is left over":  set(m.Backends, bpf.PelagoBackendKey{Service: service, Index: 2}, bpf.PelagoBackend{Address: 1}),
		"a backend is of nobody":  set(m.Backends, bpf.PelagoBackendKey{Service: other}, bpf.PelagoBackend{Address: 1}),
		"a table is gone":         del(m.Tables2, service),
		"a table is another":      func() error { return l.putTables(map[bpf.PelagoServiceKey][]uint16{service: []uint16{9, 9, 9, 9, 9}}) },
		"a table has other slots": func() error { return l.putTables(map[bpf.PelagoServiceKey][]uint16{service: []uint16{1, 2, 1}}) },
		"a table is of nobody":    func() error { return l.putTables(map[bpf.PelagoServiceKey][]uint16{other: []uint16{1}}) },
	}
	wantCounts := map[string]int{"backends": 2, "tables": 1}
	for name, break_ := range damage {
		t.Run(name, func(t *testing.T) {
			for _, process := range []string{"this one", "the next one"} {
				mustApply(t, l, want)
				if err := break_(); err != nil {
					t.Fatal(err)
				}
				repairer := l
				if process == "this one" {
					l.Refresh()
				} else {
					next, err := Open(Options{PinPath: path})
					if err != nil {
						t.Fatal(err)
					}
					defer next.Close()
					repairer = next
				}
				mustApply(t, repairer, want)
				got := mustRead(t, l)
				got.Settings.Generation = 0
				if diff := cmp.Diff(want, got, equal...); diff != "" {
					t.Errorf("by %s, the maps hold (-want +got):\n%s", process, diff)
				}
				counts := map[string]int{"backends": entries(t, m.Backends), "tables": entries(t, m.Tables2)}
				if diff := cmp.Diff(wantCounts, counts); diff != "" {
					t.Errorf("by %s, entries (-want +got):\n%s", process, diff)
				}
				l.Refresh()
			}
		})
	}
}

func entries(t testing.TB, m *ebpf.Map) int {
	t.Helper()
	n := 0
	var key, value []byte
	it := m.Iterate()
	for it.Next(&key, &value) {
		n++
	}
	if err := it.Err(); err != nil {
		t.Fatal(err)
	}
	return n
}

// Services that change their sizes take their backends and tables along, and leave none behind.
func TestServiceSizes(t *testing.T) {
	l := open(t)
	key := dataplane.ServiceKey{Address: ip("120.1.0.20"), Port: 80, Protocol: 6}
	for _, n := range []int{0, 5, 2, 300, 1, 0, 7} {
		s := dataplane.Service{}
		for i := range n {
			s.Backends = append(s.Backends, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 7, byte(i >> 8), byte(i)}), 80))
			s.Table = append(s.Table, uint16(i+1))
		}
		want := dataplane.State{Services: map[dataplane.ServiceKey]dataplane.Service{key: s}}
		mustApply(t, l, want)
		if diff := cmp.Diff(want.Services, mustRead(t, l).Services, equal...); diff != "" {
			t.Errorf("%d backends (-want +got):\n%s", n, diff)
		}
		if got := entries(t, l.objs.Backends); got != n {
			t.Errorf("%d backends leave %d entries", n, got)
		}
		if got, tables := entries(t, l.objs.Tables2), min(n, 1); got != tables {
			t.Errorf("%d backends leave %d tables", n, got)
		}
	}
	mustApply(t, l, dataplane.State{})
	if got := entries(t, l.objs.Backends) + entries(t, l.objs.Tables2) + entries(t, l.objs.Services); got != 0 {
		t.Errorf("%d entries are left", got)
	}
}

// A thousand services come and go in one step each way, every one with its own table.
func TestManyServices(t *testing.T) {
	l := open(t)
	want := dataplane.State{Services: map[dataplane.ServiceKey]dataplane.Service{}}
	for i := range 1000 {
		key := dataplane.ServiceKey{Address: netip.AddrFrom4([4]byte{120, 1, byte(i >> 8), byte(i)}), Port: uint16(i), Protocol: 6}
		want.Services[key] = dataplane.Service{Table: []uint16{uint16(i + 1), uint16(i + 2)}}
	}
	mustApply(t, l, want)
	if diff := cmp.Diff(want.Services, mustRead(t, l).Services, equal...); diff != "" {
		t.Errorf("services (-want +got):\n%s", diff)
	}
	mustApply(t, l, dataplane.State{})
	if got := entries(t, l.objs.Tables2) + entries(t, l.objs.Services); got != 0 {
		t.Errorf("%d entries are left", got)
	}
}

// A table that keeps its size is rewritten in place by the process that has created it, and replaced
// by the next one.
func TestTableInPlace(t *testing.T) {
	path := filepath.Join(bpffs.Mount(t), "pelago")
	key := dataplane.ServiceKey{Address: ip("120.1.0.20"), Port: 80, Protocol: 6}
	apply := func(l *Loader, slots int, other ...int) (id uint32) {
		t.Helper()
		s := dataplane.Service{Table: slices.Repeat([]uint16{1}, slots)}
		for _, slot := range other {
			s.Table[slot] = 2
		}
		want := map[dataplane.ServiceKey]dataplane.Service{key: s}
		mustApply(t, l, dataplane.State{Services: want})
		reader, err := OpenMaps(path)
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		if diff := cmp.Diff(want, mustRead(t, reader).Services, equal...); diff != "" {
			t.Errorf("services (-want +got):\n%s", diff)
		}
		if err := l.objs.Tables2.Lookup(encodeServiceKey(key), &id); err != nil {
			t.Fatal(err)
		}
		return id
	}
	l := openAt(t, path)
	first := apply(l, 251)
	for _, other := range [][]int{{0}, {63, 64}, {250}, nil} {
		if id := apply(l, 251, other...); id != first {
			t.Errorf("slots %v are written to a new map", other)
		}
	}
	if id := apply(l, 509); id == first {
		t.Error("a larger table is in the same map")
	}
	first = apply(l, 251)
	mustApply(t, l, dataplane.State{})
	if id := apply(l, 251, 7); id == first {
		t.Error("a new service has the map of one that was removed")
	}
	first = apply(l, 251)
	next := openAt(t, path)
	second := apply(next, 251, 9)
	if second == first {
		t.Error("the next process has written to the map of the first")
	}
	if id := apply(next, 251, 10); id != second {
		t.Error("the next process does not write to its own map")
	}
}

// One table that is too small does not keep the others from being written, and the error reports
// which and how small.
func TestFullMap(t *testing.T) {
	l := open(t)
	s := example()
	for i := range 5000 {
		s.Sources[netip.AddrFrom4([4]byte{10, 8, byte(i >> 8), byte(i)})] = dataplane.Source{Ifindex: 1}
	}
	err := l.Apply(s)
	if err == nil || !strings.Contains(err.Error(), "sources") || !strings.Contains(err.Error(), "full with 4096 entries") {
		t.Fatalf("error %q; want it to say that sources is full at 4,096", fmt.Sprint(err)[:min(200, len(fmt.Sprint(err)))])
	}
	if text := err.Error(); len(text) > 200 || !strings.HasSuffix(text, fmt.Sprintf("(%d times)", len(s.Sources)-4096)) {
		t.Errorf("error of %d bytes: %s; want each message once, with a number", len(text), text[:min(400, len(text))])
	}
	got := mustRead(t, l)
	if len(got.Sources) != 4096 || len(got.Services) != 1 || !got.Settings.Ready {
		t.Errorf("%d sources, %d services, ready %t; want all that fits", len(got.Sources), len(got.Services), got.Settings.Ready)
	}
	mustApply(t, l, example())
	if got := mustRead(t, l); len(got.Sources) != 1 {
		t.Errorf("%d sources after the next state", len(got.Sources))
	}
}

func TestStatesThatAreRefused(t *testing.T) {
	many := make([]uint16, 17)
	blocks := make([]uint16, 253)
	for i := range blocks {
		blocks[i] = 1024
	}
	tests := map[string]struct {
		state dataplane.State
		want  string
	}{
		"too many gateways":         {dataplane.State{Gateways: many}, "17 gateways in this cluster, at most 16"},
		"too many remote gateways":  {dataplane.State{Clusters: map[uint16][]dataplane.RemoteGateway{9: make([]dataplane.RemoteGateway, 17)}}, "17 gateways in cluster 9, at most 16"},
		"too many blocks":           {dataplane.State{Egresses: map[netip.Addr][]uint16{ip("120.1.0.1"): blocks}}, "253 port blocks of egress IP 120.1.0.1, at most 252"},
		"a block of reserved ports": {dataplane.State{Egresses: map[netip.Addr][]uint16{ip("120.1.0.1"): {768}}}, "port block 768 of egress IP 120.1.0.1"},
		"a crooked block":           {dataplane.State{Blocks: map[dataplane.BlockKey]uint16{{Address: ip("120.1.0.1"), First: 1100}: 1}}, "port block 1100 of egress IP 120.1.0.1"},
	}
	l := open(t)
	mustApply(t, l, example())
	before := mustRead(t, l)
	for name, tt := range tests {
		if err := l.Apply(tt.state); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want %q", name, err, tt.want)
		}
	}
	if diff := cmp.Diff(before, mustRead(t, l), equal...); diff != "" {
		t.Errorf("a refused state changed the maps:\n%s", diff)
	}
}

func cookieOf(l *Loader) (uint32, error) {
	cookie, _, err := l.Marks()
	return cookie, err
}

// The cookie marks packets that are on their way: it stays over changes and restarts, and is never
// that of no program.
func TestCookie(t *testing.T) {
	path := filepath.Join(bpffs.Mount(t), "pelago")
	l := openAt(t, path)
	if c, err := cookieOf(l); err != nil || c != 0 {
		t.Errorf("before the first Apply: %#x, %v; want 0", c, err)
	}
	mustApply(t, l, example())
	first, err := cookieOf(l)
	if err != nil || first&0xffffff == 0 {
		t.Errorf("cookie %#x, %v; want its low 24 bits set", first, err)
	}
	changed := example()
	changed.Settings.MSS = 1300
	mustApply(t, l, changed)
	next := openAt(t, path)
	mustApply(t, next, example())
	if c, err := cookieOf(next); err != nil || c != first {
		t.Errorf("after a change and a restart: %#x, %v; want %#x", c, err, first)
	}
}

// More addresses than the former size of the map, up to the present one; the condition Reconciled of
// a node has the error of one too many.
func TestFullGlobals(t *testing.T) {
	l := open(t)
	s := example()
	mustApply(t, l, s)
	limit := int(l.objs.Globals2.MaxEntries())
	if limit != 1<<19 {
		t.Errorf("%d entries; docs/reference.md has %d", limit, 1<<19)
	}
	var keys []uint32
	var values []bpf.PelagoGlobal
	for i := range limit - len(s.Globals) {
		keys = append(keys, be32(netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)})))
		values = append(values, bpf.PelagoGlobal{Kind: uint8(bpf.PelagoGlobalKindGLOBAL_POD), Node: 2})
	}
	if n, err := l.objs.Globals2.BatchUpdate(keys, values, nil); err != nil || n != len(keys) {
		t.Fatalf("%d of %d entries: %v", n, len(keys), err)
	}
	s = example()
	s.Globals[ip("12.0.0.1")] = dataplane.Global{Kind: dataplane.GlobalPod, Node: 2}
	if err := l.Apply(s); err == nil || !strings.Contains(err.Error(), "globals2") || !strings.Contains(err.Error(), "full with 524288 entries") {
		t.Errorf("error %v; want it to say that globals2 is full", err)
	}
}
