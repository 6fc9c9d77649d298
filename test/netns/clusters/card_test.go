package clusters

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/pelago-net/pelago/test/netns"
)

// TestSecondCard has packets arrive at each node by a second card, while they leave by the first:
// the kernel may select either for a multipath route.
func TestSecondCard(t *testing.T) {
	t.Parallel()
	w := newTown(t, Options{})
	for _, n := range w.Nodes() {
		w.addCard(t, n)
	}
	w.Apply(t)
	for _, n := range w.Nodes() {
		mac, err := n.MAC("un1")
		must(t, err)
		for _, other := range append(w.Nodes(), nil) {
			switch {
			case other == nil:
				if out, err := w.Router.Run("ip", "neigh", "replace", n.Address.String(), "lladdr", mac.String(), "dev", fmt.Sprintf("br%d", n.Cluster.Index), "nud", "permanent"); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			case other != n && other.Cluster == n.Cluster:
				other.MustRun(t, "ip", "neigh", "replace", n.Address.String(), "lladdr", mac.String(), "dev", "un0", "nud", "permanent")
			}
		}
	}
	before := map[*Node]uint64{}
	for _, n := range w.Nodes() {
		before[n] = received(t, n)
	}
	t.Run("every combination of gateway and pod", w.combinations)
	t.Run("all backends are reached", w.backends)
	t.Run("host network", w.hostNetwork)
	for _, n := range w.Nodes() {
		if received(t, n) == before[n] {
			t.Errorf("%s: no packet has arrived by its second card", n.Name)
		}
		if c := n.Counters(t); c["edge-in drop-unverified"] > 0 {
			t.Errorf("%s: packets reached pelago0 without our checks: %v", n.Name, c)
		}
	}
}

// addCard adds un1 to the network of the node's cluster, and to the node's routes.
func (s *Set) addCard(t testing.TB, n *Node) {
	t.Helper()
	port := fmt.Sprintf("c%dn%dcard", n.Cluster.Index, n.Index)
	must(t, netns.Veth(netns.End{NS: n.NS, Name: "un1"}, netns.End{NS: s.Router, Name: port}))
	br, err := s.Router.Handle().LinkByName(fmt.Sprintf("br%d", n.Cluster.Index))
	must(t, err)
	link, err := s.Router.Handle().LinkByName(port)
	must(t, err)
	must(t, s.Router.Handle().LinkSetMaster(link, br))
	network := netip.PrefixFrom(n.Address, 24).Masked().String()
	n.MustRun(t, "ip", "route", "replace", network, "src", n.Address.String(), "nexthop", "dev", "un0", "weight", "100", "nexthop", "dev", "un1")
	router := n.Cluster.router().String()
	n.MustRun(t, "ip", "route", "replace", "default", "nexthop", "via", router, "dev", "un0", "weight", "100", "onlink", "nexthop", "via", router, "dev", "un1", "onlink")
	n.uplinks = append(n.uplinks, "un1")
}

func received(t testing.TB, n *Node) uint64 {
	t.Helper()
	l, err := n.Handle().LinkByName("un1")
	must(t, err)
	if l.Attrs().Statistics == nil {
		l.Attrs().Statistics = &netlink.LinkStatistics{}
	}
	return l.Attrs().Statistics.RxPackets
}
