package clusters

import (
	"net/netip"
	"testing"

	"github.com/pelago-net/pelago/test/await"
)

// TestXDPTown is the town with native XDP on the uplinks of all gateways, and probers everywhere:
// only where a probe came lately does XDP switch.
func TestXDPTown(t *testing.T) {
	t.Parallel()
	w := newTown(t, Options{XDP: true})
	stop := probing(t, w.Nodes()...)
	t.Run("XDP does the work", w.xdpWorks)
	// before probes meet nodes that are no gateways any more
	t.Run("conntrack translates nothing", w.conntrack)
	t.Run("every combination of gateway and pod", w.combinations)
	t.Run("all backends are reached", w.backends)
	t.Run("host network", w.hostNetwork)
	t.Run("unresolved neighbours", w.neighbours)
	t.Run("headless pods", w.headless)
	t.Run("large datagrams", w.largeDatagrams)
	t.Run("segmented datagrams", w.segmentedDatagrams)
	t.Run("path MTU", w.pathMTU)
	t.Run("segment sizes", w.segmentSizes)
	t.Run("ICMP errors", w.icmpErrors)
	t.Run("forged overlay packets", w.forged)
	t.Run("injection with the secrets known", w.injected)
	t.Run("marks of other programs", w.foreignMarks)
	t.Run("gateways share the load", w.gatewaysShare)
	t.Run("a gateway is drained", w.drain)
	t.Run("a gateway is taken away", w.takeAway)
	t.Run("backends come and go", w.backendsChange)
	t.Run("the daemon dies and comes back", w.daemonDies)
	t.Run("a service of the other direction", w.otherDirection)
	t.Run("without XDP tc does it", w.withoutXDP)
	stop()
	t.Run("failover without user space", w.failover)
	t.Run("tables stay sound", w.tablesSound)
}

// byXDP is how many of the packets and probes that the gateways dealt with were dealt with by XDP.
func (w *town) byXDP(t *testing.T, verdict string) (xdp, all uint64) {
	t.Helper()
	for _, c := range w.Clusters[1:] {
		for _, index := range c.Gateways {
			counters := c.Nodes[index-1].Counters(t)
			xdp += counters["uplink-xdp "+verdict]
			all += counters["uplink-in "+verdict]
		}
	}
	return xdp, all
}

// Probes come back by XDP; so do the packets of a connection go on, but for those that tc is to
// send a probe next to.
func (w *town) xdpWorks(t *testing.T) {
	switched, all := w.byXDP(t, "switched")
	_, probes := w.byXDP(t, "probe")
	c, err := dial(w.client[3], "udp", netip.AddrPortFrom(w.server[3].Global, 53))
	must(t, err)
	defer c.Close()
	for range 500 {
		if err := ping(c, 500); err != nil {
			t.Fatal(err)
		}
	}
	if err := bulk(w.client[3], netip.AddrPortFrom(w.server[3].Global, 81), bulkSize); err != nil {
		t.Error(err)
	}
	await.True(t, "gateways answer 20 more probes, which tc and XDP count by the same name", func() bool {
		_, now := w.byXDP(t, "probe")
		return now >= probes+20
	})
	switchedNow, allNow := w.byXDP(t, "switched")
	if n, of := switchedNow-switched, allNow-all; of < 2000 || n < of*3/4 {
		t.Errorf("XDP switched %d of %d packets; want most of them", n, of)
	} else {
		t.Logf("XDP switched %d of %d packets", n, of)
	}
	byXDP, now := w.byXDP(t, "probe")
	// answers to the gateways' own probes are counted by the same name, by tc
	if now == probes || byXDP < (now-probes)/4 {
		t.Errorf("XDP reflected %d of %d probes", byXDP, now-probes)
	}
	for _, c := range w.Clusters[1:] {
		for _, index := range c.Gateways {
			n := c.Nodes[index-1]
			must(t, n.Do(func() error {
				attached, err := n.Loader.Attached()
				if len(attached["uplink_xdp"]) != 1 {
					t.Errorf("%s: attached %v", n.Name, attached)
				}
				return err
			}))
		}
	}
}

// XDP is taken away and put back under traffic.
func (w *town) withoutXDP(t *testing.T) {
	set := func(on bool) {
		for _, n := range w.Nodes() {
			n.xdp = on
		}
		w.Apply(t)
	}
	defer set(true)
	conns := connect(t, w.client[3], netip.AddrPortFrom(w.all, 80), 40)
	set(false)
	before, _ := w.byXDP(t, "switched")
	if err := bulk(w.client[3], netip.AddrPortFrom(w.server[3].Global, 81), bulkSize); err != nil {
		t.Error(err)
	}
	if after, _ := w.byXDP(t, "switched"); after != before {
		t.Errorf("XDP is gone and switched %d packets", after-before)
	}
	set(true)
	if err := bulk(w.client[3], netip.AddrPortFrom(w.server[3].Global, 81), bulkSize); err != nil {
		t.Error(err)
	}
	if broken := conns.end(); len(broken) > 0 {
		t.Errorf("connections broke: %v", broken)
	}
}
