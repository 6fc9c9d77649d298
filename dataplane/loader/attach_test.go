package loader

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/test/bpffs"
	"github.com/pelago-net/pelago/test/netns"
)

// device makes a device that carries nothing: a bridge without ports.
func device(t *testing.T, ns *netns.NS, name string) int {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if err := ns.Handle().LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		t.Fatal(err)
	}
	index, err := ns.Index(name)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// Programs follow the devices: they are taken off what is no longer named, outlive the process, and
// get over devices that vanish.
func TestAttach(t *testing.T) {
	for _, clsact := range []bool{false, true} {
		t.Run(map[bool]string{false: "by TCX", true: "by clsact"}[clsact], func(t *testing.T) {
			ns := netns.ForTest(t, "attach")
			edge, cable, up1, up2 := device(t, ns, "edge"), device(t, ns, "cable"), device(t, ns, "up1"), device(t, ns, "up2")
			pod := device(t, ns, "pod")
			path := filepath.Join(bpffs.Mount(t), "pelago")
			pods := []int{pod}
			attach := func(edge int, uplinks []int, receivers ...int) map[string][]int {
				var got map[string][]int
				err := ns.Do(func() error {
					l, err := Open(Options{PinPath: path, Clsact: clsact})
					if err != nil {
						return err
					}
					defer l.Close()
					for range 2 {
						if _, err := l.Attach(Devices{Edge: edge, Uplinks: uplinks, Receivers: receivers, Pods: pods}); err != nil {
							return err
						}
					}
					got, err = l.Attached()
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				return got
			}
			want := map[string][]int{"edge_in": {edge, cable}, "edge_out": {edge}, "uplink_in": {up1, up2}, "uplink_out": {up1, up2}, "pod_in": {pod}, "pod_out": {pod}}
			check := func(what string, got map[string][]int) {
				t.Helper()
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s: attached (-want +got):\n%s", what, diff)
				}
			}
			check("all", attach(edge, []int{up1, up2}, cable))
			pods = nil
			want = map[string][]int{"edge_in": {edge}, "edge_out": {edge}, "uplink_in": {up2}, "uplink_out": {up2}}
			check("fewer", attach(edge, []int{up2}))
			if _, err := ns.Run("ip", "link", "del", "edge"); err != nil {
				t.Fatal(err)
			}
			edge = device(t, ns, "edge")
			want = map[string][]int{"edge_in": {edge}, "edge_out": {edge}, "uplink_in": {up2}, "uplink_out": {up2}}
			check("a new device", attach(edge, []int{up2}))
			if err := ns.Do(func() error { return Remove(path) }); err != nil {
				t.Fatal(err)
			}
			out, err := ns.Run("bpftool", "-j", "net", "show")
			if err != nil || !strings.Contains(string(out), `"tc":[]`) {
				t.Errorf("after Remove: %v %s", err, out)
			}
		})
	}
}

func TestAttachToTunnel(t *testing.T) {
	ns := netns.ForTest(t, "tunnel")
	edge := device(t, ns, "edge")
	// A pair for each link type.
	tun := func(linkType int) int {
		name := fmt.Sprintf("tun%d", linkType)
		end, err := netns.TUN(netns.End{NS: ns, Name: name, LinkType: linkType}, netns.End{NS: ns, Name: name + "-end"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := end(); err != nil {
				t.Error(err)
			}
		})
		index, err := ns.Index(name)
		if err != nil {
			t.Fatal(err)
		}
		return index
	}
	none, ppp, rawIP, gre := tun(0), tun(unix.ARPHRD_PPP), tun(519), tun(unix.ARPHRD_IPGRE)
	l := open(t)
	up := device(t, ns, "up")
	err := ns.Do(func() error {
		r, err := l.Attach(Devices{Edge: edge, Uplinks: []int{none, ppp, rawIP, gre, 4242, up}})
		if err != nil || len(r.Uplinks) != 2 {
			t.Errorf("uplinks without programs: %v, error %v; want two, and none of the others", r.Uplinks, err)
		}
		if err := r.Uplinks[gre]; err == nil || !strings.Contains(err.Error(), `device tun778, which leads to it, has link type "gre"`) {
			t.Errorf("attached to a tunnel of another kind: %v", err)
		}
		if err := r.Uplinks[4242]; err == nil || !strings.Contains(err.Error(), "device 4242") {
			t.Errorf("attached to a device that is not there: %v", err)
		}
		got, err := l.Attached()
		if err != nil {
			return err
		}
		for _, all := range got {
			slices.Sort(all)
		}
		uplinks := []int{none, ppp, rawIP, up}
		slices.Sort(uplinks)
		want := map[string][]int{"edge_in": {edge}, "edge_out": {edge}, "uplink_in": uplinks, "uplink_out": uplinks}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("attached (-want +got):\n%s", diff)
		}
		_, err = l.Attach(Devices{Edge: edge, Uplinks: []int{up}})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A filter of others that ends the execution, added after ours, goes behind it, and stays attached.
func TestAttachGoesFirst(t *testing.T) {
	ns := netns.ForTest(t, "first")
	edge, uplink := device(t, ns, "edge"), device(t, ns, "up")
	l, err := Open(Options{PinPath: filepath.Join(bpffs.Mount(t), "pelago"), Clsact: true})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "cil_from_netdev", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}}) // TC_ACT_OK
	if err != nil {
		t.Fatal(err)
	}
	defer pass.Close()
	attach := func() (displaced []string) {
		t.Helper()
		err := ns.Do(func() error {
			r, err := l.Attach(Devices{Edge: edge, Uplinks: []int{uplink}})
			displaced = r.Displaced
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return displaced
	}
	foreign := func(change func(netlink.Filter) error) {
		t.Helper()
		err := ns.Do(func() error {
			return change(&netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: uplink, Parent: netlink.HANDLE_MIN_INGRESS,
				Handle: 1, Priority: filterPriority, Protocol: unix.ETH_P_ALL}, Fd: pass.FD(), Name: "cil_from_netdev", DirectAction: true})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	names := func() (names []string) {
		t.Helper()
		err := ns.Do(func() error {
			device, err := netlink.LinkByIndex(uplink)
			if err != nil {
				return err
			}
			filters, err := netlink.FilterList(device, netlink.HANDLE_MIN_INGRESS)
			for _, f := range filters {
				names = append(names, strings.TrimPrefix(f.(*netlink.BpfFilter).Name, "pelago_"))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	if displaced := attach(); len(displaced) > 0 {
		t.Errorf("with nothing else attached: %q", displaced)
	}
	for range 3 { // also from the second handle back to the first
		foreign(netlink.FilterAdd)
		if got := names(); got[0] != "cil_from_netdev" {
			t.Fatalf("the foreign program is not first: %q", got)
		}
		if displaced := attach(); len(displaced) != 1 || !strings.Contains(displaced[0], "cil_from_netdev") {
			t.Errorf("displaced %q, want the one of cil_from_netdev", displaced)
		}
		if diff := cmp.Diff([]string{"uplink_in", "cil_from_netdev"}, names()); diff != "" {
			t.Errorf("order -want +got\n%s", diff)
		}
		if displaced := attach(); len(displaced) > 0 {
			t.Errorf("once more: %q", displaced)
		}
		foreign(netlink.FilterDel)
	}
	if _, err := ns.Run("tc", "qdisc", "del", "dev", "up", "clsact"); err != nil {
		t.Fatal(err)
	}
	want := []string{"another program removed filter pelago_uplink_in from up ingress; it is attached again",
		"another program removed filter pelago_uplink_out from up egress; it is attached again"}
	if diff := cmp.Diff(want, attach()); diff != "" {
		t.Errorf("without the qdisc: displaced -want +got\n%s", diff)
	}
	if displaced := attach(); len(displaced) > 0 {
		t.Errorf("with the qdisc again: %q", displaced)
	}
}
