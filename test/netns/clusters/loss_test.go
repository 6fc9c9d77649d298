package clusters

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/pelago-net/pelago/dataplane/trace"
	"github.com/pelago-net/pelago/test/await"
)

// lossyCable has one of two gateways lose packets to the other cluster, and to it alone, so that
// only that gateway sees the loss. Of 5 percent nothing changes; with 30 all nodes of its cluster
// leave it for that cluster, and come back when it is over.
func (w *town) lossyCable(t *testing.T) {
	w.useGateways(t, []uint16{1, 2}, []uint16{1, 2})
	one := w.Clusters[1]
	lossy := one.Nodes[0]
	stop := probing(t, w.Nodes()...)
	defer stop()
	lose := func(percent int) func() {
		t.Helper()
		rule := func(change string) {
			if _, err := w.Router.Run("iptables", change, "FORWARD", "-s", lossy.Address.String(), "-d", w.Clusters[2].Nodes[0].Address.String()+"/24", "-m", "statistic", "--mode", "random",
				"--probability", fmt.Sprintf("0.%02d", percent), "-j", "DROP"); err != nil {
				t.Fatal(err)
			}
		}
		rule("-I")
		return func() { rule("-D") }
	}
	// share is the part of 100 flows from the node's pod that leave by the gateway.
	share := func(n *Node) (flows int) {
		t.Helper()
		tables, err := n.Loader.Tables()
		must(t, err)
		pod := w.client[n.Index]
		for i := range uint16(100) {
			step := tables.Leave(trace.Packet{Protocol: udp, Source: netip.AddrPortFrom(pod.Address, 20000), Destination: netip.AddrPortFrom(w.server[3].Global, 1000+i)}, 0)
			switch {
			case step.Header == nil:
				t.Fatalf("%s: %+v", n.Name, step)
			case n == lossy && step.Header.Cable, step.Header.Destination == lossy.Address:
				flows++
			}
		}
		return flows
	}
	// Paths in use are probed every 10 ms, and packets have the gateway advertise its loss.
	for _, pod := range w.client[1:] {
		for range 4 {
			end := stream(t, pod, netip.AddrPortFrom(w.server[3].Global, 53))
			defer end()
		}
	}
	shared := func() bool {
		for _, n := range one.Nodes {
			if s := share(n); s < 20 || s > 80 {
				return false
			}
		}
		return true
	}
	await.True(t, "flows leave by both gateways", shared)
	heal := lose(5)
	await.Never(t, 5*time.Second, "a node has left a gateway that loses 5 percent", func() bool {
		for _, n := range one.Nodes {
			if share(n) == 0 {
				return true
			}
		}
		return false
	})
	heal()
	heal = lose(30)
	await.True(t, "all nodes have left the gateway that loses 30 percent", func() bool {
		for _, n := range one.Nodes {
			if share(n) > 0 {
				return false
			}
		}
		return true
	})
	heal()
	await.True(t, "all nodes are back", shared)
}
