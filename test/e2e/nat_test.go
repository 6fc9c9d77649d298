package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/lab"
)

// TestBehindNAT: a router begins to masquerade g2 and to block everything inbound from g1, while
// both clusters run.
func TestBehindNAT(t *testing.T) {
	s := newClusterset(t, lab.Options{Name: *labName + "na", Nodes: 3}, walk.Walk{Gateways: 2, Wire: "wireguard"})
	s.run(t, "behind NAT", testBehindNAT)
}

func testBehindNAT(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	s.masquerade(t, 20000)
	router := s.underlay(t, "g1").Addr().Next()
	took := within(t, func() error { return s.waitsFor("g1", "g2", router) })
	t.Logf("g1 is reached by all gateways of g2 through the router after %.1f s", took.Seconds())
	connections := s.hold(t, l.client, 100, l.web.String()+":80")
	datagrams := s.ping(t, l.client, 1000, l.sink.String()+":7")
	for _, base := range []int{22000, 24000, 26000} {
		s.pass(t, 5000) // by the previous mapping
		s.masquerade(t, base)
	}
	s.pass(t, 5000) // by the last mapping
	onlyBrokenOf(t, connections)
	p := finish[pings](t, datagrams)
	t.Logf("3 changes of the mapping: %d of %d datagrams lost, longest gap %.0f ms", p.Lost, p.Sent, p.LongestGapMs)
	took = within(t, func() error { return s.waitsFor("g1", "g2", router) })
	t.Logf("g1 reports all connections under the last mapping %.1f s later", took.Seconds())
}

// masquerade translates UDP from g2 to g1 to the router's address and to the thousand ports from
// base on, blocks UDP from g1 to g2 except replies, and removes the previous mappings.
func (s *clusterset) masquerade(t *testing.T, base int) {
	t.Helper()
	one, two := s.underlay(t, "g1"), s.underlay(t, "g2")
	rules := fmt.Sprintf("table ip behind\ndelete table ip behind\ntable ip behind {\n"+
		"chain post { type nat hook postrouting priority 100; ip saddr %s ip daddr %s meta l4proto udp masquerade to :%d-%d; }\n"+
		"chain pre { type nat hook prerouting priority -100; }\n"+
		"chain forward { type filter hook forward priority 0; ip saddr %s ip daddr %s meta l4proto udp ct state new drop; }\n}\n",
		two, one, base, base+999, one, two)
	s.node(t, "router", "sh", "-c", fmt.Sprintf("printf '%%s' '%s' | nft -f - && conntrack -F 2>&1", rules))
}

// underlay is the network of a cluster's nodes.
func (s *clusterset) underlay(t *testing.T, cluster string) netip.Prefix {
	t.Helper()
	text := s.kubectl(t, cluster, "get", "node", cluster+"-n1", "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`)
	a, err := netip.ParseAddr(text)
	must(t, err)
	return netip.PrefixFrom(a, 24).Masked()
}

// waitsFor reports whether all gateways of a cluster are connected to all of another, whose packets
// come from the router's address.
func (s *clusterset) waitsFor(cluster, other string, router netip.Addr) error {
	out, err := s.Quietly(context.Background(), s.Lab.Kubectl(), "--context", cluster, "-n", "pelago-system", "get", "gateways.submariner.io", "-o",
		`jsonpath={range .items[*].status.connections[*]}{.endpoint.hostname}/{.status}/{.usingIP}{"\n"}{end}`)
	if err != nil {
		return err
	}
	var lines []string
	for line := range strings.Lines(out) {
		lines = append(lines, strings.TrimSpace(line))
		if !strings.HasPrefix(line, other) || !strings.HasSuffix(strings.TrimSpace(line), "/connected/"+router.String()) {
			return fmt.Errorf("the connections of %s are %q", cluster, out)
		}
	}
	if len(lines) != 4 {
		return fmt.Errorf("%s has %d connections, want 4: %q", cluster, len(lines), out)
	}
	return nil
}
