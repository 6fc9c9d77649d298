//go:build vm

package clusters

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/pelago-net/pelago/test/await"
)

// TestFar has 80 ms of round-trip time between the clusters, and then loss as well: a long or lossy
// way must not make paths suspect that work, and a dead gateway must still be steered around. It
// needs the kernel's netem, so it runs in the VM (test/vm).
func TestFar(t *testing.T) {
	t.Parallel()
	w := newTown(t, Options{})
	stop := probing(t, w.Nodes()...)
	defer stop()
	one := w.Clusters[1]
	w.between(t, "delay", "40ms")
	t.Run("80 ms", func(t *testing.T) {
		w.settled(t, 80*time.Millisecond)
		w.survives(t, one.Nodes[0].cut, one.Nodes[0].mend)
	})
	t.Run("80 ms and 20 percent loss", func(t *testing.T) {
		w.between(t, "delay", "40ms", "loss", "20%")
		await.True(t, "every path between the clusters is known to lose packets", func() bool {
			for _, n := range w.Nodes() {
				paths, err := n.Loader.Paths()
				must(t, err)
				for a, p := range paths {
					if p.Probed && a.As4()[2] != byte(n.Cluster.Index) && p.Loss < 0.1 {
						return false
					}
				}
			}
			return true
		})
		w.survivesLoss(t, one.Nodes[1].cut, one.Nodes[1].mend)
	})
}

// between has netem treat what passes from one cluster to the other, each way. Inside a cluster
// nothing changes.
func (w *town) between(t *testing.T, netem ...string) {
	t.Helper()
	for _, c := range w.Clusters[1:] {
		args := append([]string{"qdisc", "replace", "dev", fmt.Sprintf("br%d", c.Index), "root", "netem", "limit", "100000"}, netem...)
		if _, err := w.Router.Run("tc", args...); err != nil {
			t.Fatal(err)
		}
	}
}

// settled waits until gateways know how long the way to the other cluster is, then watches that no
// path is taken for bad.
func (w *town) settled(t *testing.T, rtt time.Duration) {
	t.Helper()
	far := func(check func(n *Node, a netip.Addr, srtt time.Duration, suspect bool) bool) bool {
		for _, n := range w.Nodes() {
			paths, err := n.Loader.Paths()
			must(t, err)
			for a, p := range paths {
				if p.Probed && a.As4()[2] != byte(n.Cluster.Index) && !check(n, a, p.SRTT, p.Suspect()) {
					return false
				}
			}
		}
		return true
	}
	known := func(_ *Node, _ netip.Addr, srtt time.Duration, suspect bool) bool {
		return srtt >= rtt*9/10 && !suspect
	}
	for deadline := time.Now().Add(20 * time.Second); !far(known); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the gateways do not see %s of round-trip time", rtt)
		}
	}
	suspects := 0
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		far(func(n *Node, a netip.Addr, srtt time.Duration, suspect bool) bool {
			if suspect {
				suspects++
				t.Logf("%s: the path to %s is suspect, with a round-trip time of %s", n.Name, a, srtt)
			}
			return true
		})
	}
	if suspects > 0 {
		t.Errorf("%d times a path was taken for bad, and all work", suspects)
	}
}

// survivesLoss is survives where a third of the echoes is lost anyhow: every stream must go on
// after the fault.
func (w *town) survivesLoss(t *testing.T, fault, heal func(*testing.T)) {
	client := w.client[3]
	var stops []func() (int, []uint64)
	for range 8 {
		stops = append(stops, stream(t, client, netip.AddrPortFrom(w.server[3].Global, 53)))
	}
	time.Sleep(300 * time.Millisecond) // traffic before the fault
	fault(t)
	time.Sleep(3 * time.Second) // and under it
	for i, stop := range stops {
		sent, lost := stop()
		from := uint64(sent / 2) // long after the fault
		late := 0
		for _, n := range lost {
			if n >= from {
				late++
			}
		}
		share := float64(late) / float64(uint64(sent)-from)
		t.Logf("stream %d: %.0f %% of the second half lost", i, 100*share)
		if share > 0.7 {
			t.Errorf("stream %d: %.0f %% of the second half lost, 36 %% would be the way's: the fault was not steered around", i, 100*share)
		}
	}
	heal(t)
}
