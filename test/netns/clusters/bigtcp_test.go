package clusters

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/test/netns"
)

// bigGSO is the size of packets with BIG TCP, as a CNI sets it.
const bigGSO = 200000

// setGSO sets the size of IPv4 packets that a device passes without segmenting them, as with
// Cilium's enableIPv4BIGTCP.
func setGSO(t *testing.T, n *netns.NS, dev string, size int) {
	t.Helper()
	link, err := n.Handle().LinkByName(dev)
	must(t, err)
	must(t, n.Handle().LinkSetGSOIPv4MaxSize(link, size))
	must(t, n.Handle().LinkSetGROIPv4MaxSize(link, size))
}

// bigTCP: where pods send packets over 64 KiB (IPv4 BIG TCP) bulk data passes in both directions,
// whether or not the nodes' uplinks segment such packets.
func (w *town) bigTCP(t *testing.T) {
	pods := []*Pod{w.client[1], w.client[3], w.server[1], w.server[3]}
	set := func(t *testing.T, size int, uplinks bool) {
		t.Helper()
		for _, p := range pods {
			setGSO(t, p.NS, "eth0", size)
			setGSO(t, p.Node.NS, p.host(), size)
		}
		for _, n := range w.Nodes() {
			if uplinks {
				setGSO(t, n.NS, "un0", size)
			}
		}
		for _, name := range []string{"br1", "br2", "c1n1", "c1n2", "c1n3", "c2n1", "c2n2", "c2n3"} {
			if uplinks {
				setGSO(t, w.Router, name, size)
			}
		}
	}
	for name, uplinks := range map[string]bool{"uplinks segment": false, "uplinks do not segment": true} {
		t.Run(name, func(t *testing.T) {
			set(t, bigGSO, uplinks)
			defer set(t, 65536, uplinks)
			for _, p := range pods {
				for _, command := range []string{
					"add table ip big", "add chain ip big out { type filter hook output priority 0; }",
					"add rule ip big out meta length > 65535 counter",
				} {
					_, err := p.Run("nft", command)
					must(t, err)
				}
			}
			before := w.dropped(t)
			for _, client := range []*Pod{w.client[1], w.client[3]} {
				for _, server := range []*Pod{w.server[1], w.server[3]} {
					if err := bulk(client, netip.AddrPortFrom(server.Global, 81), bulkSize); err != nil {
						t.Errorf("from %s to %s: %v", client.Name, server.Name, err)
					}
				}
			}
			if n := w.dropped(t) - before; n > 0 {
				t.Errorf("%d packets were too big or malformed", n)
			}
			for _, p := range pods {
				out, err := p.Run("nft", "list", "table", "ip", "big")
				must(t, err)
				if strings.Contains(string(out), "counter packets 0 bytes 0") {
					t.Errorf("%s has sent no packet over 64 KiB: the test shows nothing", p.Name)
				}
				_, err = p.Run("nft", "delete", "table", "ip", "big")
				must(t, err)
			}
		})
	}
}

// dropped counts the packets that were dropped for their length.
func (w *town) dropped(t *testing.T) (sum uint64) {
	t.Helper()
	for _, n := range w.Nodes() {
		for key, packets := range n.Counters(t) {
			if strings.HasSuffix(key, "drop-too-big") || strings.HasSuffix(key, "drop-malformed") || strings.HasSuffix(key, "drop-internal") {
				sum += packets
			}
		}
	}
	return sum
}
