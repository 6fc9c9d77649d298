package loader

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

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
	if _, err := ns.Run("ip", "tuntap", "add", "dev", "tun0", "mode", "tun"); err != nil {
		t.Fatal(err)
	}
	index, err := ns.Index("tun0")
	if err != nil {
		t.Fatal(err)
	}
	l := open(t)
	attach := func(d Devices) error {
		_, err := l.Attach(d)
		return err
	}
	err = ns.Do(func() error { return attach(Devices{Edge: edge, Uplinks: []int{index}}) })
	if err == nil || !strings.Contains(err.Error(), "device tun0 has link type") {
		t.Errorf("attached to a tunnel: %v", err)
	}
	if err := ns.Do(func() error { return attach(Devices{Edge: edge, Uplinks: []int{4242}}) }); err == nil || !strings.Contains(err.Error(), "device 4242") {
		t.Errorf("attached to a device that is not there: %v", err)
	}
}
