package clusters

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane"
)

const (
	tcp = unix.IPPROTO_TCP
	udp = unix.IPPROTO_UDP
)

// town is the topology that most tests share: three nodes in each cluster, of which the first two
// are gateways, pods on every node, and services of cluster 2 (and one of cluster 1) with servers
// behind them.
type town struct {
	*Set
	// client[n] is a pod on node n of cluster 1.
	client [4]*Pod
	// server[n] is a pod on node n of cluster 2 with a global IP of its own.
	server [4]*Pod
	// all has every server as backend; port 80 tells who serves, 81 exchanges bulk data, 53/UDP
	// echoes.
	all netip.Addr
	// hosts has node 3 of cluster 2 itself as its backend, on port 8080 and 5353/UDP.
	hosts netip.Addr
	// back is a service of cluster 1 with client[3] as its backend: 80, 81, 53/UDP.
	back netip.Addr
}

const bulkSize = 8 << 20

func newTown(t *testing.T, o Options) *town {
	t.Helper()
	o.Nodes, o.Gateways = 3, 2
	w := &town{Set: New(t, o)}
	one, two := w.Clusters[1], w.Clusters[2]
	for n := 1; n <= 3; n++ {
		w.client[n], w.server[n] = one.Nodes[n-1].AddPod(t), two.Nodes[n-1].AddPod(t)
		two.ExposePod(w.server[n])
	}
	one.ExposePod(w.client[3])
	w.all = two.Expose(80, []uint8{tcp}, w.server[1:]...)
	for port, protocol := range map[uint16]uint8{81: tcp, 53: udp} {
		two.also(w.all, port, protocol, w.server[1:]...)
	}
	w.hosts = two.Expose(8080, []uint8{tcp})
	two.also(w.hosts, 5353, udp)
	for key, s := range two.Services {
		if key.Address == w.hosts {
			s.Nodes[two.Nodes[2]] = key.Port
		}
	}
	w.back = one.Expose(80, []uint8{tcp}, w.client[3])
	one.also(w.back, 81, tcp, w.client[3])
	one.also(w.back, 53, udp, w.client[3])
	serve := func(at place, name string, who, bulk, echo uint16) {
		serveTCP(t, at, who, sayWho(name))
		serveTCP(t, at, bulk, exchange(bulkSize))
		echoUDP(t, at, echo)
	}
	for n := 1; n <= 3; n++ {
		serve(w.server[n], fmt.Sprintf("server%d", n), 80, 81, 53)
	}
	serve(w.client[3], "client3", 80, 81, 53)
	serve(two.Nodes[2], "node3", 8080, 8081, 5353)
	w.Apply(t)
	return w
}

// also adds a port to an exposed service.
func (c *Cluster) also(address netip.Addr, port uint16, protocol uint8, pods ...*Pod) {
	s := &Service{Backends: map[*Pod]uint16{}, Nodes: map[*Node]uint16{}}
	for _, p := range pods {
		s.Backends[p] = port
	}
	c.Services[dataplane.ServiceKey{Address: address, Port: port, Protocol: protocol}] = s
}

// useGateways makes these nodes the gateways of both clusters.
func (w *town) useGateways(t testing.TB, one, two []uint16) {
	t.Helper()
	w.Clusters[1].Gateways, w.Clusters[2].Gateways = one, two
	w.Apply(t)
}

func TestTown(t *testing.T) {
	t.Parallel()
	w := newTown(t, Options{})
	t.Run("the reverse path filter is strict", w.strictFilter)
	t.Run("every combination of gateway and pod", w.combinations)
	t.Run("all backends are reached", w.backends)
	t.Run("host network", w.hostNetwork)
	t.Run("unresolved neighbours", w.neighbours)
	t.Run("headless pods", w.headless)
	t.Run("a packet is followed", w.followed)
	t.Run("a packet that a firewall drops is followed", w.followedToFirewall)
	t.Run("large datagrams", w.largeDatagrams)
	t.Run("fragments out of order", w.earlyFragments)
	t.Run("segmented datagrams", w.segmentedDatagrams)
	t.Run("path MTU", w.pathMTU)
	t.Run("segment sizes", w.segmentSizes)
	t.Run("packets over 64 KiB", w.bigTCP)
	t.Run("ICMP errors", w.icmpErrors)
	t.Run("a pod without a port is told", w.exhausted)
	t.Run("conntrack translates nothing", w.conntrack)
	t.Run("default deny", w.defaultDeny)
	t.Run("forged overlay packets", w.forged)
	t.Run("injection with the secrets known", w.injected)
	t.Run("marks of other programs", w.foreignMarks)
	t.Run("pods' own tunnels", w.ownTunnels)
	t.Run("foreign programs", w.foreignPrograms)
	t.Run("gateways share the load", w.gatewaysShare)
	t.Run("a gateway is drained", w.drain)
	t.Run("a gateway is taken away", w.takeAway)
	t.Run("backends come and go", w.backendsChange)
	t.Run("datagrams leave a backend and a dead node", w.datagramsMove)
	t.Run("the daemon dies and comes back", w.daemonDies)
	t.Run("a service of the other direction", w.otherDirection)
	t.Run("own global addresses", w.hairpin)
	t.Run("endpoint-independent mappings", w.mappings)
	t.Run("hosts outside the cluster", w.externalHosts)
	t.Run("without pelago0 nothing leaks", w.noLeak)
	t.Run("rule and routes are removed", w.rulesRemoved)
	t.Run("failover without user space", w.failover)
	t.Run("a cable loses packets", w.lossyCable)
	t.Run("tables stay sound", w.tablesSound)
}

func (w *town) strictFilter(t *testing.T) {
	for _, n := range w.Nodes() {
		must(t, n.Do(func() error {
			b, err := os.ReadFile("/proc/sys/net/ipv4/conf/all/rp_filter")
			if err == nil && strings.TrimSpace(string(b)) != "1" {
				t.Errorf("%s has rp_filter %s; the tests are to run with the strict one", n.Name, b)
			}
			return err
		}))
	}
}

// TCP in bulk both ways, datagrams and pings, from a pod on the gateway or not to a pod on the
// gateway or not.
func (w *town) combinations(t *testing.T) {
	w.useGateways(t, []uint16{1}, []uint16{1})
	defer w.useGateways(t, []uint16{1, 2}, []uint16{1, 2})
	for _, from := range []int{1, 3} {
		for _, to := range []int{1, 3} {
			client, vip := w.client[from], w.server[to].Global
			name := fmt.Sprintf("from node %d to node %d, gateways are the nodes 1", from, to)
			before := client.Node.Counters(t)["edge-out sent"]
			if err := bulk(client, netip.AddrPortFrom(vip, 81), bulkSize); err != nil {
				t.Errorf("TCP %s: %v", name, err)
			}
			if packets := client.Node.Counters(t)["edge-out sent"] - before; packets > bulkSize/1400 {
				t.Errorf("TCP %s: %d packets for %d bytes: nothing was sent in large segments", name, packets, bulkSize)
			}
			c, err := dial(client, "udp", netip.AddrPortFrom(vip, 53))
			must(t, err)
			for _, size := range []int{1, 100, 1000, 1422} {
				if err := ping(c, size); err != nil {
					t.Errorf("UDP of %d bytes %s: %v", size, name, err)
				}
			}
			must(t, c.Close())
			out, err := client.Run("busybox", "ping", "-c", "3", "-i", "0.05", "-W", "2", vip.String())
			if err != nil || !strings.Contains(string(out), "ttl=62") {
				t.Errorf("ping %s: %v\n%s", name, err, out)
			}
		}
	}
}

// Connections to a service reach every backend on every node, from an egress IP, and nothing else.
func (w *town) backends(t *testing.T) {
	w.spread(t, func(who string, source netip.AddrPort) {
		if want := w.client[3].Global; source.Addr() != want {
			t.Errorf("%s sees the source %s; want %s", who, source, want)
		}
	})
	// A pod without an address of its own is behind an egress IP, on a port of its node's block.
	_, source, err := ask(w.client[1], netip.AddrPortFrom(w.all, 80))
	must(t, err)
	block := w.Clusters[1].Nodes[0].Blocks[0]
	if source.Addr().As4()[3] > 8 || source.Port()&^255 != block {
		t.Errorf("pod of node 1 is seen as %s; want an egress IP and a port of block %d", source, block)
	}
}

// spread makes connections to the service that all nodes have backends of; seen gets what each
// learns. A backend has a third of them, and by chance less than half of that once in 10⁸ runs.
func (w *town) spread(t *testing.T, seen func(who string, source netip.AddrPort)) {
	t.Helper()
	const connections = 240
	count := map[string]int{}
	for range connections {
		who, source, err := ask(w.client[3], netip.AddrPortFrom(w.all, 80))
		must(t, err)
		count[who]++
		seen(who, source)
	}
	for n := 1; n <= 3; n++ {
		if got := count[fmt.Sprintf("server%d", n)]; got < connections/6 {
			t.Errorf("server%d got %d of %d connections: %v", n, got, connections, count)
		}
	}
}

// The node itself as client and as backend.
func (w *town) hostNetwork(t *testing.T) {
	node := w.Clusters[1].Nodes[2]
	who, source, err := ask(node, netip.AddrPortFrom(w.all, 80))
	if err != nil || source.Addr() != node.shown() {
		t.Errorf("from node 3: %s sees %s, %v; want %s", who, source, err, node.shown())
	}
	for _, from := range []place{node, w.client[1]} {
		who, _, err := ask(from, netip.AddrPortFrom(w.hosts, 8080))
		if err != nil || who != "node3" {
			t.Errorf("to a backend in the host's network: %s, %v", who, err)
		}
		c, err := dial(from, "udp", netip.AddrPortFrom(w.hosts, 5353))
		must(t, err)
		if err := ping(c, 1000); err != nil {
			t.Errorf("UDP to a backend in the host's network: %v", err)
		}
		must(t, c.Close())
	}
	if err := bulk(node, netip.AddrPortFrom(w.all, 81), bulkSize); err != nil {
		t.Errorf("bulk from the node: %v", err)
	}
}

// The first packet waits until the next hop is resolved, and then leaves with the right address.
func (w *town) neighbours(t *testing.T) {
	for n := 1; n <= 3; n++ {
		c, err := dial(w.client[n], "udp", netip.AddrPortFrom(w.all, 53))
		must(t, err)
		for range 3 {
			for _, cluster := range w.Clusters[1:] {
				for _, node := range cluster.Nodes {
					if out, err := node.Run("ip", "neigh", "flush", "dev", "un0"); err != nil {
						t.Fatalf("%v: %s", err, out)
					}
				}
			}
			if err := ping(c, 100); err != nil {
				t.Errorf("from node %d: %v", n, err)
			}
		}
		must(t, c.Close())
	}
}

// A headless pod is reached and answers under its own address, opens connections from it, and
// serves a service as well.
func (w *town) headless(t *testing.T) {
	for n := 1; n <= 3; n++ {
		who, _, err := ask(w.client[1], netip.AddrPortFrom(w.server[n].Global, 80))
		if err != nil || who != fmt.Sprintf("server%d", n) {
			t.Errorf("server%d under its own address: %s, %v", n, who, err)
		}
	}
	// client3 is a pod of cluster 1 with an address of its own: it keeps address and port.
	c, err := dial(w.client[3], "tcp", netip.AddrPortFrom(w.server[2].Global, 80), netip.AddrPortFrom(w.client[3].Address, 13333))
	must(t, err)
	defer c.Close()
	var who, source string
	if _, err := fmt.Fscanf(c, "%s %s\n", &who, &source); err != nil || source != netip.AddrPortFrom(w.client[3].Global, 13333).String() {
		t.Errorf("%s sees %s, %v; want %s:13333", who, source, err, w.client[3].Global)
	}
	// One outside port to the same pod port by its own address and by the service at once: two
	// connections.
	single := w.Clusters[2].Expose(80, []uint8{tcp}, w.server[2])
	w.Apply(t)
	local := netip.AddrPortFrom(w.client[3].Address, 13334)
	var conns []net.Conn
	for _, vip := range []netip.Addr{w.server[2].Global, single} {
		c, err := dial(w.client[3], "tcp", netip.AddrPortFrom(vip, 80), local)
		if err != nil {
			t.Errorf("from one port to %s: %v", vip, err)
			continue
		}
		defer c.Close()
		conns = append(conns, c)
	}
	for i, c := range conns {
		var who, source string
		if _, err := fmt.Fscanf(c, "%s %s\n", &who, &source); err != nil || who != "server2" {
			t.Errorf("connection %d: %s, %v", i, who, err)
		}
		echo(t, c, fmt.Sprintf("this is connection %d", i))
	}
}

func echo(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		t.Error(err)
		return
	}
	b := make([]byte, len(text))
	if n, err := c.Read(b); err != nil || string(b[:n]) != text {
		t.Errorf("echo of %q: %q, %v", text, b[:n], err)
	}
}

// The other cluster's pods are clients just as well.
func (w *town) otherDirection(t *testing.T) {
	for n := 1; n <= 3; n++ {
		who, _, err := ask(w.server[n], netip.AddrPortFrom(w.back, 80))
		if err != nil || who != "client3" {
			t.Errorf("from cluster 2, node %d: %s, %v", n, who, err)
		}
	}
	if err := bulk(w.server[2], netip.AddrPortFrom(w.back, 81), bulkSize); err != nil {
		t.Errorf("bulk: %v", err)
	}
	c, err := dial(w.server[1], "udp", netip.AddrPortFrom(w.back, 53))
	must(t, err)
	defer c.Close()
	if err := pingPath(c, 5000); err != nil {
		t.Errorf("UDP of 5,000 bytes: %v", err)
	}
}

// Pods and nodes reach the global IPs of their own cluster, their own pod's included (RFC 4787
// REQ-9): as from another cluster, the server sees an egress IP.
func (w *town) hairpin(t *testing.T) {
	for n := 1; n <= 3; n++ {
		node := w.Clusters[2].Nodes[n-1]
		for m := 1; m <= 3; m++ {
			who, source, err := ask(w.server[n], netip.AddrPortFrom(w.server[m].Global, 80))
			if err != nil || who != fmt.Sprintf("server%d", m) || source.Addr() != w.server[n].Global {
				t.Errorf("server%d to server%d: %s sees %s, %v; want the source %s", n, m, who, source, err, w.server[n].Global)
			}
			if err := bulk(w.server[n], netip.AddrPortFrom(w.server[m].Global, 81), bulkSize); err != nil {
				t.Errorf("bulk from server%d to server%d: %v", n, m, err)
			}
		}
		for _, from := range []place{w.server[n], node} {
			who, source, err := ask(from, netip.AddrPortFrom(w.all, 80))
			if err != nil || !w.Clusters[2].GlobalCIDR().Contains(source.Addr()) {
				t.Errorf("from node %d to the service: %s sees %s, %v", n, who, source, err)
			}
		}
		if who, source, err := ask(node, netip.AddrPortFrom(w.all, 80)); err != nil || source.Addr() != node.shown() || source.Port()&^255 != node.Blocks[0] {
			t.Errorf("from node %d itself: %s sees %s, %v; want %s and a port of block %d", n, who, source, err, node.shown(), node.Blocks[0])
		}
		c, err := dial(w.server[n], "udp", netip.AddrPortFrom(w.all, 53))
		must(t, err)
		for _, size := range []int{1, 1422, 5000} {
			if err := pingPath(c, size); err != nil {
				t.Errorf("UDP of %d bytes from node %d: %v", size, n, err)
			}
		}
		must(t, c.Close())
	}
	// Segments keep their size on the way through a gateway's own pelago0, also to a pod whose
	// device is as narrow as that.
	defer narrow(t, w.server[1], "1450")()
	if err := bulk(w.server[1], netip.AddrPortFrom(w.server[1].Global, 81), bulkSize); err != nil {
		t.Errorf("bulk from server1 to itself over an MTU of 1,450: %v", err)
	}
	sendSegments(t, w.server[1], w.server[1].Global)
}

// tablesSound: after all that every flow has its two entries.
func (w *town) tablesSound(t *testing.T) {
	for _, n := range w.Nodes() {
		flows, err := n.Loader.Flows()
		must(t, err)
		stats, err := n.Loader.Sweep(0)
		must(t, err)
		if stats.Flows != len(flows) {
			t.Errorf("%s: %d flows listed, %d swept over", n.Name, len(flows), stats.Flows)
		}
	}
}
