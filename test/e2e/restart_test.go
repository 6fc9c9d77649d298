package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// iperf is what the test reads of `iperf3 --json`.
type iperf struct {
	Intervals []struct {
		Sum struct {
			Bytes float64 `json:"bytes"`
		} `json:"sum"`
	} `json:"intervals"`
	End struct {
		SumSent struct {
			Retransmits int `json:"retransmits"`
		} `json:"sum_sent"`
		SumReceived struct {
			BitsPerSecond float64 `json:"bits_per_second"`
		} `json:"sum_received"`
	} `json:"end"`
	Error string `json:"error"`
}

// testDaemonKilled: the daemon of every node on the path dies without notice while packets flow. None is lost, and when the
// daemons are back the flow maps hold what they held.
func testDaemonKilled(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	datagrams := s.ping(t, l.client, 1000, l.sink.String()+":7")
	type streamed struct {
		text string
		err  error
	}
	stream := make(chan streamed, 1)
	go func() {
		// The rate leaves the machine time for everything else; what would be lost is lost at any rate.
		out, err := s.In(t.Context(), l.client, "iperf3", "--client", l.sink.String(), "--bitrate", "50M", "--time", "30", "--json")
		stream <- streamed{out, err}
	}()
	within(t, 20*time.Second, func() error {
		if n := len(s.live(t, l.sink)); n != 6 { // the echo, iperf3's control and its stream, at both ends
			return fmt.Errorf("%d live flows towards the sink, want 6", n)
		}
		return nil
	})
	before := s.live(t, l.sink)

	daemons := map[string]int{}
	for _, cluster := range []string{"g1", "g2"} {
		for _, node := range s.nodes(t, cluster) {
			daemons[node] = s.daemon(t, node)
		}
	}
	for node, pid := range daemons {
		s.node(t, node, "kill", "-KILL", strconv.Itoa(pid))
	}
	t.Logf("killed pelago-node on %d nodes: client, gateways, server", len(daemons))
	for node, old := range daemons {
		within(t, 30*time.Second, func() error {
			if pid := s.daemon(t, node); pid == 0 || pid == old {
				return fmt.Errorf("pelago-node on %s has not been started again", node)
			}
			return nil
		})
	}
	for _, cluster := range []string{"g1", "g2"} {
		s.kubectl(t, cluster, "-n", "pelago-system", "wait", "--for=condition=Ready", "pod", "-l", "app=pelago-node", "--timeout=60s")
	}
	time.Sleep(2 * time.Second) // the new daemons' first sweep and purge are behind them
	after := s.live(t, l.sink)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("flows towards the sink: -before the kill +after it\n%s", diff)
	}
	s.checkNoHalfFlows(t, l.sink)

	nothingLost(t, datagrams)
	result := <-stream
	must(t, result.err)
	i := decode[iperf](t, result.text)
	t.Logf("iperf3: %.0f Mbit/s, %d segments sent again", i.End.SumReceived.BitsPerSecond/1e6, i.End.SumSent.Retransmits)
	if i.Error != "" || i.End.SumSent.Retransmits > 0 {
		t.Errorf("iperf3: %d segments sent again, error %q; want none", i.End.SumSent.Retransmits, i.Error)
	}
	for n, interval := range i.Intervals {
		if interval.Sum.Bytes == 0 {
			t.Errorf("iperf3: nothing arrived in second %d", n)
		}
	}
}

// daemon is the process id of pelago-node on a node, in the node's own numbering; 0 if it does not run.
func (s *clusterset) daemon(t *testing.T, node string) int {
	t.Helper()
	out, err := s.Lab.Exec(t.Context(), node, "pgrep", "--exact", "pelago-node")
	if err != nil {
		return 0 // pgrep fails when there is none
	}
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	must(t, err)
	return pid
}

// live are the flows towards an address that are in use.
func (s *clusterset) live(t *testing.T, address netip.Addr) []string {
	t.Helper()
	var out []string
	for _, f := range s.flowsTowards(t, address) {
		// A flow of UDP is in use while datagrams flow; iperf3's control connection is silent for long.
		if f.State == "established" || f.State == "active" && f.Idle < 5*time.Second {
			out = append(out, f.String())
		}
	}
	return out
}

// checkNoHalfFlows: every flow towards an address has two entries, one for each direction, and no entry is without its flow.
func (s *clusterset) checkNoHalfFlows(t *testing.T, address netip.Addr) {
	t.Helper()
	for _, cluster := range []string{"g1", "g2"} {
		for _, node := range s.nodes(t, cluster) {
			var openers, answers []string
			for _, e := range s.entries(t, node) {
				if !e.touches([]netip.Addr{address}) || e.dying() {
					continue
				}
				if f := e.flow(node); e.Formatted.Value.Primary == 1 {
					openers = append(openers, f.String())
				} else {
					// The answer's tuple after translation is the opener's before, turned round, and the other way.
					f.Opening, f.Translated = f.Translated.turned(), f.Opening.turned()
					answers = append(answers, f.String())
				}
			}
			slices.Sort(openers)
			slices.Sort(answers)
			if diff := cmp.Diff(openers, answers); diff != "" {
				t.Errorf("%s has half flows: -opener's entries +answer's entries\n%s", node, diff)
			}
		}
	}
}
