package e2e

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pelago-net/pelago/test/e2e/walk"
)

// testAPIServerAway: g2's API server becomes unreachable, and then the daemons of both its gateways
// are killed, one after the other; their tunnels end with them. The new daemons start from what is
// saved on their nodes, and packets pass through them again. Then the API server is reachable
// again.
func testAPIServerAway(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	s.needFreshDaemons(t)
	connections := s.hold(t, l.client, 100, l.web.String()+":80")
	datagrams := s.ping(t, l.client, 100, l.sink.String()+":7")
	gateways := []string{"g2-n1", "g2-n2"}
	for _, node := range gateways {
		within(t, func() error { return s.metricIs(t.Context(), node, "pelago_node_from_cache", 0) })
	}
	replicas := len(s.podsOf(t, "app=web"))
	ends := []walk.Pod{l.client, {Cluster: "g2", Namespace: loadNamespace, Name: "sink"}}
	overflowed := s.fullBuffers(t, ends)

	reachable := func() error { // also when it is
		_, err := s.Lab.Exec(context.Background(), "g2", "nft", "add table inet away; delete table inet away")
		return err
	}
	t.Cleanup(func() { must(t, reachable()) })
	s.node(t, "g2", "nft", "add table inet away; add chain inet away in { type filter hook input priority 0; };"+
		"add rule inet away in iif != lo tcp dport 6443 drop")
	const switched = `pelago_packets_total{hook="uplink-in",verdict="switched"}`
	for _, node := range gateways {
		begin := time.Now()
		s.node(t, node, "kill", "-KILL", strconv.Itoa(s.daemon(t, node)))
		within(t, func() error {
			if err := s.metricIs(t.Context(), node, "pelago_node_from_cache", 1); err != nil {
				return err
			}
			if _, err := s.Lab.Exec(t.Context(), node, "curl", "-sf", "http://127.0.0.1:8089/readyz"); err != nil {
				return fmt.Errorf("%s is not ready: %w", node, err)
			}
			return nil
		})
		t.Logf("%s is ready %.1f s after its daemon died, without the API server", node, time.Since(begin).Seconds())
		before := s.metric(t, node, switched)
		within(t, func() error {
			if s.metric(t, node, switched) == before {
				return fmt.Errorf("gateway %s switches nothing", node)
			}
			return nil
		})
	}
	must(t, s.ReachesAll(t.Context(), l.other, l.web.String(), replicas)) // new connections
	// what was done was done without the API server
	for _, node := range gateways {
		must(t, s.metricIs(t.Context(), node, "pelago_node_from_cache", 1))
	}
	onlyBrokenOf(t, connections)
	// The other gateway takes over, the second time one that has its tunnels from what was saved:
	// test/failover measures the gap.
	p := finish[pings](t, datagrams)
	t.Logf("%d datagrams sent, %d lost, longest gap %.0f ms", p.Sent, p.Lost, p.LongestGapMs)

	connections = s.hold(t, l.client, 100, l.web.String()+":80")
	datagrams = s.start(t, l.client, "whereami", "ping", "-rate", "1000", l.sink.String()+":7")
	datagrams.overflowed = func() int { return s.fullBuffers(t, ends) - overflowed }
	must(t, reachable())
	took := within(t, func() error {
		for _, node := range gateways {
			if err := s.metricIs(t.Context(), node, "pelago_node_from_cache", 0); err != nil {
				return err
			}
		}
		return nil
	})
	t.Logf("the gateways work from the API server's objects %.1f s after it is back", took.Seconds())
	s.pass(t, 2000) // under what the API server's return changes
	onlyBrokenOf(t, connections)
	nothingLost(t, datagrams)
	s.kubectl(t, "g2", "-n", loadNamespace, "scale", "deployment/web", fmt.Sprintf("--replicas=%d", replicas+1))
	s.kubectl(t, "g2", "-n", loadNamespace, "rollout", "status", "deployment/web", walk.WaitFlag)
	must(t, s.ReachesAll(t.Context(), l.other, l.web.String(), replicas+1))
	s.kubectl(t, "g2", "-n", loadNamespace, "scale", "deployment/web", fmt.Sprintf("--replicas=%d", replicas))
}

// readMetric reads one sample of a node's metrics.
func (s *clusterset) readMetric(ctx context.Context, node, sample string) (float64, error) {
	page, err := s.Lab.Exec(ctx, node, "curl", "-sf", "-m", "5", "http://127.0.0.1:32780/metrics")
	if err != nil {
		return 0, fmt.Errorf("read the metrics of %s: %w", node, err)
	}
	line := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(sample) + ` .*$`).FindString(page)
	if line == "" {
		return 0, fmt.Errorf("%s has no metric %s", node, sample)
	}
	return strconv.ParseFloat(line[strings.LastIndex(line, " ")+1:], 64)
}

func (s *clusterset) metric(t *testing.T, node, sample string) float64 {
	t.Helper()
	v, err := s.readMetric(t.Context(), node, sample)
	must(t, err)
	return v
}

func (s *clusterset) metricIs(ctx context.Context, node, sample string, want float64) error {
	v, err := s.readMetric(ctx, node, sample)
	if err == nil && v != want {
		err = fmt.Errorf("%s is %v on %s, want %v", sample, v, node, want)
	}
	return err
}
