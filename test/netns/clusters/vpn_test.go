package clusters

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/pelago-net/pelago/dataplane"
)

// TestVPNTown is the town with a node that all others reach by a device without Ethernet header:
// the third, which is no gateway, or the first, a gateway whose cable uses the device too; that one
// also has an uplink with Ethernet headers.
func TestVPNTown(t *testing.T) {
	t.Parallel()
	for vpn, datapath := range map[uint16]dataplane.Datapath{1: dataplane.Fast, 3: dataplane.Strict} {
		t.Run(fmt.Sprintf("node %d, %s", vpn, datapath), func(t *testing.T) {
			t.Parallel()
			w := newTown(t, Options{VPN: vpn, Datapath: datapath})
			t.Run("probes", func(t *testing.T) { probing(t, w.Nodes()...)() })
			t.Run("every way", w.byVPN)
			t.Run("headless pods", w.headless)
			t.Run("host network", w.hostNetwork)
			t.Run("own global addresses", w.hairpin)
			t.Run("segment sizes", w.segmentSizes)
			t.Run("forged overlay packets", w.forged)
		})
	}
}

// byVPN connects pods of all nodes, by each gateway.
func (w *town) byVPN(t *testing.T) {
	for _, gateway := range []uint16{1, 2} {
		w.useGateways(t, []uint16{gateway}, []uint16{gateway})
		for from := 1; from <= 3; from++ {
			for to := 1; to <= 3; to++ {
				client, server := w.client[from], w.server[to].Global
				name := fmt.Sprintf("from node %d to node %d by gateway %d", from, to, gateway)
				if err := bulk(client, netip.AddrPortFrom(server, 81), bulkSize); err != nil {
					t.Errorf("TCP %s: %v", name, err)
				}
				c, err := dial(client, "udp", netip.AddrPortFrom(server, 53))
				must(t, err)
				for _, size := range []int{1, 1000, 1422} {
					if err := ping(c, size); err != nil {
						t.Errorf("UDP of %d bytes %s: %v", size, name, err)
					}
				}
				must(t, c.Close())
			}
		}
	}
	w.useGateways(t, []uint16{1, 2}, []uint16{1, 2})
}
