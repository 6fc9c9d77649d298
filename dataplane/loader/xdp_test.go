package loader

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/test/await"
	"github.com/pelago-net/pelago/test/netns"
)

// passing is another component's XDP program.
func passing(t *testing.T) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// XDP goes onto devices whose driver takes it, in the driver only, and nothing depends on it: where
// it cannot go, tc is.
func TestAttachXDP(t *testing.T) {
	ns := netns.ForTest(t, "xdp")
	edge, bridge := device(t, ns, "edge"), device(t, ns, "br")
	if err := netns.Veth(netns.End{NS: ns, Name: "up1"}, netns.End{NS: ns, Name: "up2"}); err != nil {
		t.Fatal(err)
	}
	up1, err := ns.Index("up1")
	if err != nil {
		t.Fatal(err)
	}
	up2, err := ns.Index("up2")
	if err != nil {
		t.Fatal(err)
	}
	l := open(t)
	attach := func(what string, xdp []int, want map[string][]int, problems ...string) {
		t.Helper()
		var found []error
		err := ns.Do(func() (err error) {
			r, err := l.Attach(Devices{Edge: edge, Uplinks: []int{up1, up2, bridge}, XDP: xdp})
			if found = r.XDP; err != nil {
				return err
			}
			got, err := l.Attached()
			want["edge_in"], want["edge_out"] = []int{edge}, []int{edge}
			slices.Sort(want["uplink_xdp"])
			slices.Sort(got["uplink_xdp"])
			if diff := cmp.Diff(want["uplink_xdp"], got["uplink_xdp"]); diff != "" {
				t.Errorf("%s: XDP is on (-want +got):\n%s", what, diff)
			}
			if len(got["uplink_in"]) != 3 || len(got["uplink_out"]) != 3 {
				t.Errorf("%s: tc is on %v", what, got)
			}
			return err
		})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if len(found) != len(problems) {
			t.Fatalf("%s: problems %v; want %q", what, found, problems)
		}
		for i, p := range problems {
			if got := found[i].Error(); !strings.Contains(got, p) {
				t.Errorf("%s: %q; want %q in it", what, got, p)
			}
		}
		rows := map[uint32]bpf.PelagoUplink{}
		var ifindex uint32
		var row bpf.PelagoUplink
		for it := l.objs.Uplinks.Iterate(); it.Next(&ifindex, &row); {
			rows[ifindex] = row
		}
		wantRows := map[uint32]bpf.PelagoUplink{}
		for _, ifindex := range want["uplink_xdp"] {
			mac, err := ns.MAC(map[int]string{up1: "up1", up2: "up2"}[ifindex])
			if err != nil {
				t.Fatal(err)
			}
			wantRows[uint32(ifindex)] = bpf.PelagoUplink{Mac: [6]byte(mac)}
		}
		if diff := cmp.Diff(wantRows, rows); diff != "" {
			t.Errorf("%s: map uplinks (-want +got):\n%s", what, diff)
		}
	}
	on := func(ifindex ...int) map[string][]int { return map[string][]int{"uplink_xdp": ifindex} }

	attach("none", nil, on())
	attach("both", []int{up1, up2}, on(up1, up2))
	before := xdpLink(t, l, up1)
	attach("again", []int{up1, up2}, on(up1, up2))
	if after := xdpLink(t, l, up1); after != before {
		t.Errorf("the link was made anew (%d, now %d): packets passed without a program", before, after)
	}
	if out, err := ns.Run("ip", "-d", "link", "show", "up1"); err != nil || !strings.Contains(string(out), "prog/xdp") || strings.Contains(string(out), "xdpgeneric") {
		t.Errorf("up1 is to have native XDP: %v\n%s", err, out)
	}
	attach("one", []int{up2}, on(up2))
	attach("a device without native XDP", []int{bridge, up2}, on(up2), "attach XDP to br: its driver does not take the program")
	attach("a device that is not there", []int{4242, up2}, on(up2), "attach XDP: look up device 4242")

	var foreign link.Link
	if err := ns.Do(func() (err error) {
		// The kernel releases a link asynchronously after its last pin is gone.
		for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
			foreign, err = link.AttachXDP(link.XDPOptions{Program: passing(t), Interface: up1, Flags: link.XDPDriverMode})
			if !errors.Is(err, syscall.EBUSY) || time.Now().After(deadline) {
				return err
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	attach("somebody else's program", []int{up1, up2}, on(up2), "attach XDP to up1: a program of somebody else is there")
	if info, err := foreign.Info(); err != nil || info.XDP() == nil || int(info.XDP().Ifindex) != up1 {
		t.Errorf("the foreign program is gone: %+v, %v", info, err)
	}
	if err := foreign.Close(); err != nil {
		t.Fatal(err)
	}
	attach("it has gone", []int{up1, up2}, on(up1, up2))
	if err := ns.Do(func() error { return Remove(l.pinPath) }); err != nil {
		t.Fatal(err)
	}
	await.True(t, "no XDP program after Remove", func() bool {
		out, err := ns.Run("bpftool", "-j", "net", "show")
		if err != nil {
			t.Fatalf("bpftool net show: %v: %s", err, out)
		}
		return strings.Contains(string(out), `"xdp":[]`)
	})
}

func xdpLink(t *testing.T, l *Loader, ifindex int) link.ID {
	t.Helper()
	x, err := link.LoadPinnedLink(l.pinPath+"/"+pinName(xdpHook, ifindex), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	info, err := x.Info()
	if err != nil {
		t.Fatal(err)
	}
	return info.ID
}

func TestGuardTables(t *testing.T) {
	l := open(t)
	guarded := func() (row bpf.PelagoGuard, callers map[netip.Addr]bool) {
		t.Helper()
		if err := l.objs.Guards.Lookup(uint32(0), &row); err != nil {
			t.Fatal(err)
		}
		callers = map[netip.Addr]bool{}
		var key [4]byte
		var nothing uint32
		for it := l.objs.Callers.Iterate(); it.Next(&key, &nothing); {
			callers[netip.AddrFrom4(key)] = true
		}
		return row, callers
	}
	one, two := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for _, step := range []struct {
		ports  []uint16
		known  []netip.Addr
		first  uint16
		number uint16
	}{
		{[]uint16{4504, 4500}, []netip.Addr{one, two, netip.MustParseAddr("2001:db8::1"), {}}, 4500, 5},
		{[]uint16{4500}, []netip.Addr{two}, 4500, 1},
		{nil, nil, 0, 0},
	} {
		if err := l.Guard(step.ports, step.known); err != nil {
			t.Fatal(err)
		}
		row, callers := guarded()
		want := map[netip.Addr]bool{}
		for _, a := range step.known {
			if a.Is4() {
				want[a] = true
			}
		}
		if diff := cmp.Diff(want, callers, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" || row.First != step.first || row.Ports != step.number {
			t.Errorf("guard %v %v: row %+v, callers -want +got\n%s", step.ports, step.known, row, diff)
		}
	}
}
