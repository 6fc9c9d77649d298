package loader

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/test/bpffs"
	"github.com/pelago-net/pelago/test/netns"
)

// pod_end follows the pods: it outlives the process, and is taken off what is no longer named; pod_in
// is given its work back, also where the pod or its namespace has gone.
func TestAttachPodEnds(t *testing.T) {
	node, pod := netns.ForTest(t, "node"), netns.ForTest(t, "pod")
	if err := netns.Veth(netns.End{NS: node, Name: "veth1"}, netns.End{NS: pod, Name: "eth0"}); err != nil {
		t.Fatal(err)
	}
	edge, device, path := device(t, node, "edge"), index(t, node, "veth1"), filepath.Join(bpffs.Mount(t), "pelago")
	end := PodEnd{Device: device, Namespace: filepath.Join(netdev.NamespacesDir, pod.Name), Index: index(t, pod, "eth0")}
	var l *Loader
	open := func() {
		t.Helper()
		if err := node.Do(func() (err error) {
			l, err = Open(Options{PinPath: path})
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, want bool, ends ...PodEnd) {
		t.Helper()
		var attached map[string][]int
		var known map[uint32]uint32
		if err := node.Do(func() error {
			found, err := l.Attach(Devices{Edge: edge, Pods: []int{device}, PodEnds: ends})
			if err != nil {
				return err
			}
			if found.PodEnds != nil {
				return found.PodEnds
			}
			if attached, err = l.Attached(); err != nil {
				return err
			}
			known, err = readMap(l.objs.PodEnds, func(k uint32) uint32 { return k }, func(v uint32) uint32 { return v })
			return err
		}); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		wantAttached, wantKnown := []int(nil), map[uint32]uint32{}
		if want {
			wantAttached, wantKnown[uint32(device)] = []int{device}, 1
		}
		if diff := cmp.Diff(wantAttached, attached[podEndHook]); diff != "" {
			t.Errorf("%s: attached (-want +got):\n%s", what, diff)
		}
		if diff := cmp.Diff(wantKnown, known); diff != "" {
			t.Errorf("%s: known to pod_in (-want +got):\n%s", what, diff)
		}
	}
	// The kernel frees a link some time after its last reference has gone.
	has := func(what string, want int) {
		t.Helper()
		var found *link.QueryResult
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if err := pod.Do(func() (err error) {
				found, err = link.QueryPrograms(link.QueryOptions{Target: end.Index, Attach: ebpf.AttachTCXIngress})
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if len(found.Programs) == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: the pod's end has %d programs; want %d", what, len(found.Programs), want)
			}
		}
	}
	open()
	check("a pod", true, end)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	open()
	check("the next process", true, end)
	has("attached", 1)
	other := end
	other.Index++
	check("an end that is not there", false, other)
	has("another end", 0)
	check("the pod again", true, end)
	check("no pod", false)
	has("detached", 0)
	gone := end
	gone.Namespace += "-gone"
	check("a namespace that is gone", false, gone)
	check("the pod once more", true, end)
	if err := errors.Join(node.Do(func() error { return Remove(path) }), l.Close()); err != nil {
		t.Fatal(err)
	}
	has("after Remove", 0)
}

func index(t *testing.T, ns *netns.NS, name string) int {
	t.Helper()
	i, err := ns.Index(name)
	if err != nil {
		t.Fatal(err)
	}
	return i
}
