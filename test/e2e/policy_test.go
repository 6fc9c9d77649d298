package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/test/e2e/walk"
)

// engine is a default-deny policy engine as CNIs bring it: stateful, first in FORWARD. It does not
// filter traffic inside of a cluster. The format argument holds the rules for new connections.
const engine = `set -e
iptables -N E2E-ENGINE
iptables -A E2E-ENGINE -m conntrack --ctstate INVALID -j DROP
iptables -A E2E-ENGINE -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
iptables -A E2E-ENGINE ! -s %[1]s ! -d %[1]s -j RETURN
%[2]s
iptables -A E2E-ENGINE -j DROP
iptables -I FORWARD 1 -j E2E-ENGINE
`

// noEngine removes what exists of the engine.
const noEngine = `
iptables -D FORWARD -j E2E-ENGINE 2>/dev/null; iptables -F E2E-ENGINE 2>/dev/null; iptables -X E2E-ENGINE 2>/dev/null
true`

// policyDrop is what Docker and some distributions do to FORWARD, with what a CNI then adds for the
// inside of its cluster.
const (
	policyDrop = `set -e
iptables -P FORWARD DROP
iptables -A FORWARD -s 10.7.0.0/16 ! -d ` + walk.GlobalRange + ` -m comment --comment e2e -j ACCEPT
iptables -A FORWARD -d 10.7.0.0/16 ! -s ` + walk.GlobalRange + ` -m comment --comment e2e -j ACCEPT
`
	policyAccept = `
iptables -P FORWARD ACCEPT
iptables -D FORWARD -s 10.7.0.0/16 ! -d ` + walk.GlobalRange + ` -m comment --comment e2e -j ACCEPT
iptables -D FORWARD -d 10.7.0.0/16 ! -s ` + walk.GlobalRange + ` -m comment --comment e2e -j ACCEPT
true`
)

// testPolicyEngines: a FORWARD policy of DROP does not affect the clusterset, and a default-deny
// engine that matches conntrack states sees untranslated connections and decides on them.
func testPolicyEngines(t *testing.T, s *clusterset) {
	ctx := t.Context()
	l := s.needLoad(t)
	script := func(node, text string) {
		t.Helper()
		s.node(t, node, "sh", "-c", text)
	}
	servers := s.nodes(t, "g2")
	for _, node := range append([]string{l.clientNode}, servers...) {
		t.Cleanup(func() {
			if _, err := s.Lab.Exec(context.Background(), node, "sh", "-c", noEngine+policyAccept); err != nil {
				t.Error(err)
			}
		})
		script(node, policyDrop)
	}
	for _, from := range []walk.Pod{l.client, l.other, l.host} {
		if err := s.ReachesAll(ctx, from, l.web.String(), 4); err != nil {
			t.Errorf("with a FORWARD policy of DROP, from pod %s: %v", from.Name, err)
		}
	}

	allowed := s.kubectl(t, "g1", "-n", loadNamespace, "get", "pod", l.client.Name, "-o", "jsonpath={.status.podIP}")
	script(l.clientNode, fmt.Sprintf(engine, walk.GlobalRange,
		"iptables -A E2E-ENGINE -s "+allowed+" -d "+walk.GlobalCIDR2+" -m conntrack --ctstate NEW -j ACCEPT"))
	for _, node := range servers {
		script(node, fmt.Sprintf(engine, walk.GlobalRange,
			"iptables -A E2E-ENGINE -s "+walk.GlobalCIDR1+" -d 10.7.0.0/16 -p tcp --dport 80 -m conntrack --ctstate NEW -j ACCEPT"))
	}
	if err := s.ReachesAll(ctx, l.client, l.web.String(), 4); err != nil {
		t.Errorf("a connection that the engines allow: %v", err)
	}
	if !s.refused(ctx, l.other, l.web.String()) {
		t.Error("a pod that the engine of its node does not allow reaches g2")
	}
	if out, err := s.In(ctx, l.client, "whereami", "ping", "-rate", "10", "-duration", "1s", l.sink.String()+":7"); err != nil {
		t.Error(err)
	} else if p := decode[pings](t, out); p.Lost != p.Sent {
		t.Errorf("a port that the engine of the server's node does not allow answers %d of %d datagrams", p.Sent-p.Lost, p.Sent)
	}
	connections := s.hold(t, l.client, 20, l.web.String()+":80")
	listing := func(node string) string { return s.node(t, node, "iptables", "-nvxL", "E2E-ENGINE") }
	within(t, func() error {
		if n := hits(t, listing(l.clientNode), "ESTABLISHED"); n < 100 {
			return fmt.Errorf("%s: %d packets of established connections passed the engine, want 100", l.clientNode, n)
		}
		return nil
	})
	onlyBrokenOf(t, connections)
	for _, node := range append([]string{l.clientNode}, servers...) {
		counts := listing(node)
		invalid := hits(t, counts, "INVALID")
		t.Logf("%s: %d packets established, %d invalid", node, hits(t, counts, "ESTABLISHED"), invalid)
		if invalid > 0 {
			t.Errorf("%s: conntrack classifies %d packets as invalid, want none\n%s", node, invalid, counts)
		}
	}
}

// hits is the packet counter of the first rule of `iptables -nvxL` with a word.
func hits(t *testing.T, listing, word string) (packets int) {
	t.Helper()
	for line := range strings.Lines(listing) {
		if !strings.Contains(line, word) {
			continue
		}
		if _, err := fmt.Sscan(line, &packets); err != nil {
			t.Fatalf("read %q: %v", line, err)
		}
		return packets
	}
	t.Fatalf("no rule with %q in\n%s", word, listing)
	return 0
}
