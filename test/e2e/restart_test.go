package e2e

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
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
	tcp := func() endCounters {
		return endCounters{s.kernelCounters(t, l.client, netstat, "TcpExt"), s.kernelCounters(t, sink, netstat, "TcpExt")}
	}
	start, dropped := tcp(), backlogDrops(t)
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
	during := tcp().since(start)
	unneeded := during.unneeded(t)
	t.Logf("iperf3: %.0f Mbit/s, %d segments sent again, %d of them had arrived", i.End.SumSent.BitsPerSecond/1e6, i.End.SumSent.Retransmits, unneeded)
	full := during.atFullSocket(t)
	if full > 0 {
		t.Logf("iperf3: its server's full socket dropped %d packets of up to 64 KiB", full)
	}
	if lost := i.End.SumSent.Retransmits - unneeded; lost > full*mostSegments {
		t.Errorf("iperf3: %d segments are lost, want 0; meanwhile the kernel counted at the sender %v, at the receiver %v, dropped at its "+
			"backlogs %d", lost, nonzero(during.sender), nonzero(during.receiver), backlogDrops(t)-dropped)
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

const netstat = "/proc/net/netstat"

// endCounters are the kernel's TcpExt counters at both ends of a stream.
type endCounters struct{ sender, receiver map[string]int }

// since are the differences, where there are any.
func (c endCounters) since(before endCounters) endCounters {
	changed := func(now, then map[string]int) map[string]int {
		out := maps.Clone(now)
		for name := range out {
			out[name] -= then[name]
		}
		return out
	}
	return endCounters{changed(c.sender, before.sender), changed(c.receiver, before.receiver)}
}

// mostSegments is how many segments, of 1,311 bytes or more, a packet of 64 KiB holds that has not been cut yet, or was put together.
const mostSegments = 50

// atFullSocket counts the packets that came and for which the receiver's socket had no room, as its program had no turn: nothing that
// the way there could help, as with datagrams.
func (c endCounters) atFullSocket(t *testing.T) (packets int) {
	t.Helper()
	for _, name := range []string{"TCPBacklogDrop", "TCPRcvQDrop", "RcvPruned", "OfoPruned"} {
		packets += counter(t, c.receiver, name)
	}
	return packets
}

func nonzero(counters map[string]int) map[string]int {
	out := maps.Clone(counters)
	maps.DeleteFunc(out, func(_ string, n int) bool { return n == 0 })
	return out
}

// backlogDrops are the packets, of whichever namespace, for which there was no room while they waited for a processor.
func backlogDrops(t *testing.T) (n int64) {
	t.Helper()
	text, err := os.ReadFile("/proc/net/softnet_stat")
	must(t, err)
	for line := range strings.Lines(string(text)) {
		dropped, err := strconv.ParseInt(strings.Fields(line)[1], 16, 64)
		must(t, err)
		n += dropped
	}
	return n
}

// unneeded counts the segments that the sender has sent again although they had arrived: the receiver says so (duplicate SACK, RFC 2883;
// the sink of the load says so of each). On a busy machine an answer that waits for its turn makes the sender impatient. Not each of
// these answers is heard; what was said counts all the same.
func (c endCounters) unneeded(t *testing.T) int {
	t.Helper()
	heard := counter(t, c.sender, "TCPDSACKRecv") + counter(t, c.sender, "TCPDSACKOfoRecv")
	said := counter(t, c.receiver, "TCPDSACKOldSent") + counter(t, c.receiver, "TCPDSACKOfoSent")
	return counter(t, c.sender, "TCPDSACKRecvSegs") + said - heard
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
