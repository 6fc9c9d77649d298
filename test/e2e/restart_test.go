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

	"github.com/pelago-net/pelago/test/e2e/walk"
)

// iperf is what the test reads of `iperf3 --json`.
type iperf struct {
	End struct {
		SumSent struct {
			BitsPerSecond float64 `json:"bits_per_second"`
			Retransmits   int     `json:"retransmits"`
		} `json:"sum_sent"`
	} `json:"end"`
}

// stream starts a TCP stream of 50 Mbit/s: the rate leaves the machine time for everything else.
func (s *clusterset) stream(t *testing.T, from walk.Pod, to netip.Addr) *traffic {
	t.Helper()
	return s.start(t, from, "sh", "-c", "iperf3 --client "+to.String()+
		" --bitrate 50M --time 3600 --json & echo started >&2; read _; kill -INT $!; wait")
}

// testDaemonKilled: the daemon of every node on the path dies without notice while packets flow. None is lost, and when the
// daemons are back the flow maps hold what they held.
func testDaemonKilled(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	s.needFreshDaemons(t)
	datagrams := s.ping(t, l.client, 1000, l.sink.String()+":7")
	sink := walk.Pod{Cluster: "g2", Namespace: loadNamespace, Name: "sink"}
	unneeded := s.unneeded(t, l.client, sink)
	stream := s.stream(t, l.client, l.sink)
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
	i := finish[iperf](t, stream)
	unneeded = s.unneeded(t, l.client, sink) - unneeded
	t.Logf("iperf3: %.0f Mbit/s, %d segments sent again, %d of them had arrived", i.End.SumSent.BitsPerSecond/1e6, i.End.SumSent.Retransmits, unneeded)
	if lost := i.End.SumSent.Retransmits - unneeded; lost > 0 {
		t.Errorf("iperf3: %d segments are lost, want 0", lost)
	}
	// What a machine that stood still has not sent is made up for: the mean is what was asked for, all the same.
	if mbit := i.End.SumSent.BitsPerSecond / 1e6; mbit < 45 {
		t.Errorf("iperf3: %.0f Mbit/s, want the 50 asked for", mbit)
	}
}

// needFreshDaemons replaces daemons that were killed by an earlier run with -keep: kubelet would wait before it restarts
// them once more.
func (s *clusterset) needFreshDaemons(t *testing.T) {
	t.Helper()
	for _, cluster := range []string{"g1", "g2"} {
		restarts := s.kubectl(t, cluster, "-n", "pelago-system", "get", "pods", "-l", "app=pelago-node",
			"-o", "jsonpath={.items[*].status.containerStatuses[*].restartCount}")
		if strings.Trim(restarts, "0 ") != "" {
			s.kubectl(t, cluster, "-n", "pelago-system", "delete", "pods", "-l", "app=pelago-node", "--wait")
			s.kubectl(t, cluster, "-n", "pelago-system", "rollout", "status", "daemonset/pelago-node", "--timeout=60s")
		}
	}
}

// unneeded counts the segments that one pod's network namespace has sent again although they had arrived in the other's: the
// receiver says so (duplicate SACK, RFC 2883; the sink of the load says so of each). On a busy machine an answer that waits for its
// turn makes the sender impatient. Not each of these answers is heard; what was said counts all the same.
func (s *clusterset) unneeded(t *testing.T, sender, receiver walk.Pod) (segments int) {
	t.Helper()
	count := func(pod walk.Pod, name string) int {
		return s.kernelCounter(t, pod, "/proc/net/netstat", "TcpExt", name)
	}
	heard := count(sender, "TCPDSACKRecv") + count(sender, "TCPDSACKOfoRecv")
	said := count(receiver, "TCPDSACKOldSent") + count(receiver, "TCPDSACKOfoSent")
	return count(sender, "TCPDSACKRecvSegs") + said - heard
}

// daemon is the process id of pelago-node on a node, in the node's own numbering; 0 if it does not run. A command that it runs has
// its name for a moment, too: the daemon is the oldest.
func (s *clusterset) daemon(t *testing.T, node string) int {
	t.Helper()
	out, err := s.Lab.Exec(t.Context(), node, "pgrep", "--exact", "--oldest", "pelago-node")
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
