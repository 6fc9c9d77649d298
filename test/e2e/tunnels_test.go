package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// testKeysRotated: both gateways of g1 get new keys by the command, while connections run; nothing
// is lost.
func testKeysRotated(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	keys := func(node string) string {
		return s.kubectl(t, node[:2], "get", "nodeindex", node, "-o", "jsonpath={.status.wire.publicKey} {.status.wire.publicKeyStandby}")
	}
	gateways := []string{"g1-n1", "g1-n2", "g2-n1", "g2-n2"}
	before := map[string]string{}
	for _, node := range gateways {
		before[node] = keys(node)
	}
	connections := s.hold(t, l.client, 100, l.web.String()+":80")
	datagrams := s.ping(t, l.client, 1000, l.sink.String()+":7")
	_, err := s.Pelago(t.Context(), "gateway", "rotate-keys", "--all", "--context", "g1")
	must(t, err)
	s.pass(t, 2000) // under the new keys
	onlyBrokenOf(t, connections)
	nothingLost(t, datagrams)
	for _, node := range gateways {
		now := strings.Fields(keys(node))
		if len(now) != 2 {
			t.Errorf("keys of %s: %q, want that of its tunnel and that of the standby", node, now)
		}
		for _, key := range now {
			if kept := strings.Contains(before[node], key); kept != strings.HasPrefix(node, "g2") {
				t.Errorf("%s has key %s, before %s; want new keys at the gateways of g1 only", node, key, before[node])
			}
		}
	}
	must(t, s.Connected(t.Context()))
}

// testTunnels: both clusters join again with more tunnels, g1 with three and g2 with two, and once
// more with one, while connections run. Two are used, and nothing is lost.
func testTunnels(t *testing.T, s *clusterset) {
	ctx := t.Context()
	l := s.needLoad(t)
	// devices are the wire's on a node, with the packets that came in by each.
	devices := func(node string) string {
		return s.node(t, node, "sh", "-c", "for d in /sys/class/net/pelago-wg?; do echo ${d##*/} $(cat $d/statistics/rx_packets); done")
	}
	has := func(names ...string) func() error {
		return func() error {
			for _, node := range []string{"g1-n1", "g1-n2"} {
				out := devices(node)
				var got []string
				for line := range strings.Lines(out) {
					name, _, _ := strings.Cut(line, " ")
					got = append(got, name)
				}
				if fmt.Sprint(got) != fmt.Sprint(names) {
					return fmt.Errorf("%s has the devices %q, want %q", node, got, names)
				}
			}
			return nil
		}
	}
	connections := s.hold(t, l.client, 100, l.web.String()+":80")
	datagrams := s.ping(t, l.client, 1000, l.sink.String()+":7")
	must(t, s.Join(ctx, "g1", "--cable-tunnels", "3"))
	must(t, s.Join(ctx, "g2", "--cable-tunnels", "2"))
	within(t, has("pelago-wg0", "pelago-wg1", "pelago-wg2", "pelago-wg4"))
	within(t, func() error { // 100 connections are spread over two gateways and two tunnels
		for _, node := range []string{"g1-n1", "g1-n2"} {
			for line := range strings.Lines(devices(node)) {
				f := strings.Fields(line)
				if used := f[1] != "0"; !used && f[0] == "pelago-wg1" || used && f[0] == "pelago-wg2" {
					return fmt.Errorf("%s: packets by device %s: %s; want some by the second tunnel and none by the third, which g2 has not", node, f[0], f[1])
				}
			}
		}
		return nil
	})
	must(t, s.Connected(ctx))
	for _, cluster := range []string{"g1", "g2"} {
		must(t, s.Join(ctx, cluster, "--cable-tunnels", "1"))
	}
	within(t, has("pelago-wg0", "pelago-wg4"))
	onlyBrokenOf(t, connections)
	nothingLost(t, datagrams)
}
