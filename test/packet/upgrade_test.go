package packet

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/test/need"
)

// layout1 is the object of 2c18591, bpf/pelago_bpfel.o there. Embedded, as test/vm runs the binary
// without files next to it.
//
//go:embed testdata/layout1.o.gz
var layout1 []byte

// upgradeFlows is the number of flows under way during an upgrade.
const upgradeFlows = 100_000

// upgradeFlow is the n-th of them: a SYN or, later, an ACK of a pod with a global IP of its own or
// behind the egress IP.
func upgradeFlow(n int, flags uint8) Packet {
	const perPort = 50_000
	p := tcpPacket(flags, from("10.7.2.11"), ports(uint16(10_000+n%perPort), uint16(80+n/perPort)))
	if n%1000 == 0 { // its port is one of 256 towards this destination
		p = tcpPacket(flags, ports(uint16(10_000+n/1000), 80))
	}
	return p
}

// mapping is what a flow's packets show to the far side.
type mapping struct {
	source netip.Addr
	port   uint16
}

// TestUpgrade: the programs of the first layout (2c18591) open 100,000 flows; this version takes
// over the pinned maps, and gives them back, without a flow that is broken, left over or opened
// twice.
func TestUpgrade(t *testing.T) {
	need.Root(t)
	path := filepath.Join(pool.dir, "upgrade")
	k, err := Open(path, loader.Timers{})
	if err != nil {
		t.Fatal(err)
	}
	k.Apply(t, state(1, 2))
	// The tables have kept their layouts. Without these two maps the directory is one of the first
	// layout.
	for _, name := range []string{bpf.PelagoMapCounters2, bpf.PelagoMapAbi} {
		if err := os.Remove(filepath.Join(path, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}

	flows := make([]mapping, upgradeFlows)
	former(t, path, func(edgeOut, _ *ebpf.Program) {
		for n := range flows {
			flows[n] = mapped(t, k, edgeOut, n, SYN)
		}
	})
	for round := range 2 {
		if k, err = Open(path, loader.Timers{}); err != nil {
			t.Fatal(err)
		}
		k.Apply(t, state(1, 2))
		if got := k.counters(t)["edge-out sent"]; got != uint64(upgradeFlows*(1+2*round)) {
			t.Errorf("round %d: %d packets counted; want those of the former version as well", round, got)
		}
		check := func(edgeOut, uplinkIn *ebpf.Program) {
			for n, want := range flows {
				if got := mapped(t, k, edgeOut, n, ACK); got != want {
					t.Fatalf("round %d: flow %d is shown as %v, before as %v", round, n, got, want)
				}
				if n%10 == 0 {
					answered(t, k, uplinkIn, n, want)
				}
			}
		}
		check(k.EdgeOut, k.UplinkIn)
		if got := k.checkTable(t); got != upgradeFlows {
			t.Errorf("round %d: %d flows, want %d", round, got, upgradeFlows)
		}
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
		if round > 0 {
			break
		}
		former(t, path, check)
	}
}

// former loads the programs of the first layout over the pinned maps, as its daemon did.
func former(t *testing.T, path string, use func(edgeOut, uplinkIn *ebpf.Program)) {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(layout1))
	if err != nil {
		t.Fatal(err)
	}
	object, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		t.Fatal(err)
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: path}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	use(c.Programs["edge_out"], c.Programs["uplink_in"])
}

// mapped sends a packet of a flow and reads how the overlay shows it.
func mapped(t *testing.T, k *Kernel, edgeOut *ebpf.Program, n int, flags uint8) mapping {
	t.Helper()
	r, err := k.TryRun(edgeOut, Frame(upgradeFlow(n, flags).Encode()), Context{IngressIfindex: podDevice})
	if err == nil && r.Action != Redirect {
		err = fmt.Errorf("action %d", r.Action)
	}
	o, decodeErr := DecodeOverlay(r.Frame)
	if err := errors.Join(err, decodeErr); err != nil {
		t.Fatalf("flow %d: %v", n, err)
	}
	p := decode(t, o.Inner)
	return mapping{p.Source, p.TCP.Source}
}

// answered sends an answer to what the far side sees and checks that it is translated back.
func answered(t *testing.T, k *Kernel, uplinkIn *ebpf.Program, n int, m mapping) {
	t.Helper()
	p := upgradeFlow(n, ACK)
	answer := p.with(func(p *Packet) { p.Source, p.TCP.Source = m.source, m.port }).answer()
	r, err := k.TryRun(uplinkIn, overlay(1, 1, 2, answer.Encode()).Encode(), Context{})
	if err != nil || r.Action == Drop {
		t.Fatalf("answer of flow %d: action %d, %v", n, r.Action, err)
	}
	inner, err := DecodeDelivered(r.Frame)
	if r.Action == Next { // as the first layout's programs deliver
		var o Overlay
		o, err = DecodeHandedOver(r.Frame)
		inner = o.Inner
	}
	if err != nil {
		t.Fatalf("answer of flow %d: %v", n, err)
	}
	if got := decode(t, inner); got.Destination != p.Source || got.TCP.Destination != p.TCP.Source {
		t.Fatalf("answer of flow %d goes to %s:%d, want %s:%d", n, got.Destination, got.TCP.Destination, p.Source, p.TCP.Source)
	}
}
