package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/lab"
)

// TestBehindNAT: g2 is put behind a router that masquerades and lets nothing in from g1, under both clusters' feet.
func TestBehindNAT(t *testing.T) {
	s := newClusterset(t, lab.Options{Name: *labName + "na", Nodes: 3}, walk.Walk{Gateways: 2, Wire: "wireguard"})
	s.run(t, "behind NAT", testBehindNAT)
}

func testBehindNAT(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	s.masquerade(t, 20000)
	router := s.underlay(t, "g1").Addr().Next()
	took := within(t, 3*time.Minute, func() error { return s.waitsFor("g1", "g2", router) })
	t.Logf("g1 waits for the calls of g2 after %.1f s", took.Seconds())
	connections := s.hold(t, l.client, 100, l.web.String()+":80")
	datagrams := s.ping(t, l.client, 1000, l.sink.String()+":7")
	for _, base := range []int{22000, 24000, 26000} {
		time.Sleep(5 * time.Second) // traffic by the mapping of before
		s.masquerade(t, base)
	}
	time.Sleep(5 * time.Second) // and by the last one
	onlyBrokenOf(t, connections)
	p := finish[pings](t, datagrams)
	t.Logf("3 changes of the mapping: %d of %d datagrams lost, longest gap %.0f ms", p.Lost, p.Sent, p.LongestGapMs)
	if p.LongestGapMs > 1000 { // the hidden gateways' probes leave every 10 ms
		t.Errorf("nothing came for %.0f ms", p.LongestGapMs)
	}
	took = within(t, time.Minute, func() error { return s.waitsFor("g1", "g2", router) })
	t.Logf("g1 says so of all connections %.1f s later", took.Seconds())
}

// masquerade gives UDP of g2 to g1 the router's address and ports of the thousand from base on, lets no UDP of g1 to g2 in that
// g2 has not asked for, and forgets the mappings of before.
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

// waitsFor says whether all gateways of a cluster are connected to all of another, whose calls come from the router's address.
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
			return fmt.Errorf("%s says of its connections %q", cluster, out)
		}
	}
	if len(lines) != 4 {
		return fmt.Errorf("%s has %d connections, want 4: %q", cluster, len(lines), out)
	}
	return nil
}
