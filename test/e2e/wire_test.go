package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/lab"
)

// TestWireGuard is the walk of `make test`: the main path with the default wire of join and two
// gateways in each cluster, as `make demo` shows it.
func TestWireGuard(t *testing.T) {
	s := newWire(t, "wg", walk.Walk{Propagation: true})
	testWire(t, s, "WireGuard data packets", "udp[8] = 4")
	s.run(t, "a gateway dies", testGatewayDies)
	s.run(t, "a policy spreads a Deployment", testSpread)
}

// testGatewayDies cuts the power of a gateway under 100 connections, as the demo does.
func testGatewayDies(t *testing.T, s *clusterset) {
	ctx := t.Context()
	must(t, s.Workload(ctx, "g2"))
	client, err := s.Client(ctx, "g1")
	must(t, err)
	must(t, s.Export(ctx, "g2", walk.ServiceName))
	must(t, s.GatewayDies(ctx, client, "g1-n1"))
}

// TestWireGuardLong changes gateways, keys and tunnels under traffic.
func TestWireGuardLong(t *testing.T) {
	s := newWire(t, "wglong", walk.Walk{})
	s.run(t, "a gateway leaves", testGatewayLeaves)
	s.run(t, "an upgrade", testUpgrade)
	s.run(t, "the API server is away", testAPIServerAway)
	s.run(t, "datapaths", testDatapaths)
	s.run(t, "keys are rotated", testKeysRotated)
	s.run(t, "more tunnels and fewer", testTunnels)
	s.run(t, "a cluster is evicted", testEvicted) // the last: g2 is no member any more
}

// TestIPsec is the same with IKE and ESP. Packets of ESP begin with their SPI, 256 or more; IKE has
// zeros there (RFC 3948 2).
func TestIPsec(t *testing.T) {
	s := newWire(t, "ike", walk.Walk{Wire: "ipsec"})
	testWire(t, s, "packets of ESP", "udp[8:4] > 255")
	s.run(t, "a gateway leaves", testGatewayLeaves)
	s.run(t, "the IKE daemons are killed", testIKEDaemonsKilled)
	s.run(t, "an upgrade", testUpgrade)
	s.run(t, "a cluster is evicted", testEvicted) // the last: g2 is no member any more
}

// newWire brings up a clusterset with two gateways a cluster.
func newWire(t *testing.T, suffix string, w walk.Walk) *clusterset {
	w.Gateways, w.Plain = 2, *plain
	return newClusterset(t, lab.Options{Name: *labName + suffix, Nodes: 3}, w)
}

// testWire is the main path; filter is tcpdump's for encrypted packets.
func testWire(t *testing.T, s *clusterset, encrypted, filter string) {
	s.run(t, "the walk-through", testWalkThrough)
	s.run(t, "nothing in the clear", func(t *testing.T, s *clusterset) { testEncrypted(t, s, encrypted, filter) })
	s.run(t, "conntrack translates nothing", testNoTranslationByConntrack)
}

// testEncrypted captures on the cable's port of a gateway's uplink under traffic: there are
// encrypted packets, which filter matches, and none with the overlay's header: flags 8, followed by
// an Ethernet header of type IPv4.
func testEncrypted(t *testing.T, s *clusterset, encrypted, filter string) {
	l := s.needLoad(t)
	connections := s.hold(t, l.client, 20, l.web.String()+":80")
	see := func(filter string, packets int, limit time.Duration) string {
		out := s.node(t, "g1-n1", "sh", "-c", fmt.Sprintf(
			"timeout %.0f tcpdump -ni any -c %d 'udp port 4500 and %s' 2>&1 | grep captured", limit.Seconds(), packets, filter))
		return strings.TrimSpace(out)
	}
	if got := see(filter, 20, walk.Patience); got != "20 packets captured" {
		t.Errorf("%s on the uplink of g1-n1: %s; want 20", encrypted, got)
	}
	if got := see("udp[8] = 8 and udp[28:2] = 0x0800", 1, 3*time.Second); got != "0 packets captured" {
		t.Errorf("overlay packets in the clear on the cable's port of g1-n1: %s", got)
	}
	onlyBrokenOf(t, connections)
}

// testIKEDaemonsKilled: the IKE daemons of all gateways are killed at once; without ESP in the
// kernel their tunnels end with them. They are restarted and negotiate again, and no connection
// breaks. A node that is no gateway runs none.
func testIKEDaemonsKilled(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	if out, err := s.Lab.Exec(t.Context(), "g1-n3", "pgrep", "--exact", "charon"); err == nil {
		t.Errorf("an IKE daemon runs on g1-n3, which is no gateway: process %s", out)
	}
	connections := s.hold(t, l.client, 20, l.web.String()+":80")
	datagrams := s.ping(t, l.client, 100, l.sink.String()+":7")
	gateways := []string{"g1-n1", "g1-n2", "g2-n1", "g2-n2"}
	for _, node := range gateways {
		s.node(t, node, "pkill", "-KILL", "--exact", "charon")
	}
	took := within(t, func() error {
		for _, node := range gateways {
			if _, err := s.Lab.Exec(t.Context(), node, "pgrep", "--exact", "charon"); err != nil {
				return fmt.Errorf("%s: no new IKE daemon: %w", node, err)
			}
		}
		// All tunnels were gone, so a packet that passes shows that the new daemons have
		// negotiated.
		if _, err := s.Ask(t.Context(), l.client, l.web.String()); err != nil {
			return err
		}
		return s.Connected(t.Context())
	})
	t.Logf("all IKE daemons are back, and connected, after %.1f s", took.Seconds())
	onlyBrokenOf(t, connections)
	p := finish[pings](t, datagrams)
	t.Logf("%d datagrams sent, %d lost, longest gap %.0f ms", p.Sent, p.Lost, p.LongestGapMs)
	if p.Lost == 0 {
		t.Error("no datagram is lost: the tunnels were not gone")
	}
}
