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

// testDaemonKilled: the daemon of every node on the path is killed while packets flow. No packet is
// lost, and when the daemons are back the flow maps hold the same flows.
func testDaemonKilled(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	s.needFreshDaemons(t)
	sink := walk.Pod{Cluster: "g2", Namespace: loadNamespace, Name: "sink"}
	s.onePacketPerSegment(t, l)
	tcp := func() endCounters { return endCounters{s.tcpCounters(t, l.client), s.tcpCounters(t, sink)} }
	start, dropped := tcp(), backlogDrops(t)
	datagrams := s.ping(t, l.client, 1000, l.sink.String()+":7")
	stream := s.stream(t, l.client, l.sink)
	within(t, func() error {
		// the echo, iperf3's control and its stream, at both ends
		if n := len(s.live(t, l.sink)); n != 6 {
			return fmt.Errorf("%d live flows to the sink, want 6", n)
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
		within(t, func() error {
			if pid := s.daemon(t, node); pid == 0 || pid == old {
				return fmt.Errorf("pelago-node on %s has not been restarted", node)
			}
			return nil
		})
	}
	for _, cluster := range []string{"g1", "g2"} {
		s.kubectl(t, cluster, "-n", "pelago-system", "wait", "--for=condition=Ready", "pod", "-l", "app=pelago-node", walk.WaitFlag)
	}
	time.Sleep(2 * time.Second) // traffic under the new daemons' first sweep and purge
	within(t, func() error {
		// a flow without packets for seconds is not listed as live
		if diff := cmp.Diff(before, s.live(t, l.sink)); diff != "" {
			return fmt.Errorf("flows to the sink: -before the kill +after it\n%s", diff)
		}
		return nil
	})
	s.checkNoHalfFlows(t, l.sink)

	nothingLost(t, datagrams)
	i := finish[iperf](t, stream)
	t.Logf("iperf3: %.0f Mbit/s, %d segments retransmitted", i.End.SumSent.BitsPerSecond/1e6, i.End.SumSent.Retransmits)
	within(t, func() error { // the last acknowledgements may still be on their way
		during := tcp().since(start)
		backlog := int(backlogDrops(t) - dropped)
		if lost := during.lost(t); lost > backlog*mostSegments {
			return fmt.Errorf("%d TCP segments are lost, want 0; the kernel dropped %d packets at its backlogs and counted at the sender %v, at the receiver %v",
				lost, backlog, nonzero(during.sender), nonzero(during.receiver))
		}
		return nil
	})
}

// endCounters are the kernel's TCP counters in the network namespaces at both ends of a stream.
type endCounters struct{ sender, receiver map[string]int }

func (s *clusterset) tcpCounters(t *testing.T, pod walk.Pod) map[string]int {
	t.Helper()
	out := s.kernelCounters(t, pod, "/proc/net/snmp", "Tcp")
	maps.Copy(out, s.kernelCounters(t, pod, "/proc/net/netstat", "TcpExt"))
	return out
}

// since are the differences.
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

func nonzero(counters map[string]int) map[string]int {
	out := maps.Clone(counters)
	maps.DeleteFunc(out, func(_ string, n int) bool { return n == 0 })
	return out
}

// lost bounds the segments of the stream that did not arrive, by the smaller of two upper bounds:
//
//   - sent, with retransmissions, minus received. Too large if GRO merged segments and a program
//     then pushed a header, which resets the number of segments: the receiver counts one.
//   - retransmitted, minus those that had arrived, and minus those for which the receiver's socket
//     had no room. Too large if an acknowledgement that reports a duplicate was lost.
func (c endCounters) lost(t *testing.T) int {
	t.Helper()
	missing := counter(t, c.sender, "OutSegs") + counter(t, c.sender, "RetransSegs") - counter(t, c.receiver, "InSegs")
	needed := counter(t, c.sender, "RetransSegs") - c.unneeded(t) - c.atFullSocket(t)*mostSegments
	return max(0, min(missing, needed))
}

// unneeded counts the segments that were retransmitted although they had arrived, which the
// receiver reports (duplicate SACK, RFC 2883): on a busy machine an acknowledgement is late.
// Reports that were sent and not received count as well.
func (c endCounters) unneeded(t *testing.T) int {
	t.Helper()
	received := counter(t, c.sender, "TCPDSACKRecv") + counter(t, c.sender, "TCPDSACKOfoRecv")
	sent := counter(t, c.receiver, "TCPDSACKOldSent") + counter(t, c.receiver, "TCPDSACKOfoSent")
	return counter(t, c.sender, "TCPDSACKRecvSegs") + sent - received
}

// atFullSocket counts the packets that arrived when the receiver's socket had no room, because its
// program was not scheduled.
func (c endCounters) atFullSocket(t *testing.T) (packets int) {
	t.Helper()
	for _, name := range []string{"TCPBacklogDrop", "TCPRcvQDrop", "RcvPruned", "OfoPruned"} {
		packets += counter(t, c.receiver, name)
	}
	return packets
}

// onePacketPerSegment makes the client send each TCP segment as a separate packet: the number of
// segments in a larger packet is lost when a program pushes a header.
func (s *clusterset) onePacketPerSegment(t *testing.T, l load) {
	t.Helper()
	address := s.kubectl(t, l.client.Cluster, "-n", l.client.Namespace, "get", "pod", l.client.Name, "-o", "jsonpath={.status.podIP}")
	s.node(t, l.clientNode, "sh", "-c", `for n in /run/netns/*; do
		nsenter --net=$n ip -o address show to `+address+` | grep --quiet . && exec nsenter --net=$n ip link set eth0 gso_max_segs 1
	done
	echo no network namespace with `+address+` >&2
	exit 1`)
}

// needFreshDaemons replaces daemons that were killed by an earlier run with -keep: kubelet would
// wait before it restarts them once more.
func (s *clusterset) needFreshDaemons(t *testing.T) {
	t.Helper()
	for _, cluster := range []string{"g1", "g2"} {
		restarts := s.kubectl(t, cluster, "-n", "pelago-system", "get", "pods", "-l", "app=pelago-node",
			"-o", "jsonpath={.items[*].status.containerStatuses[*].restartCount}")
		if strings.Trim(restarts, "0 ") != "" {
			s.kubectl(t, cluster, "-n", "pelago-system", "delete", "pods", "-l", "app=pelago-node", "--wait")
			s.kubectl(t, cluster, "-n", "pelago-system", "rollout", "status", "daemonset/pelago-node", walk.WaitFlag)
		}
	}
}

// mostSegments is how many segments, of 1,311 bytes or more, a packet of 64 KiB holds that the
// kernel has put together.
const mostSegments = 50

// backlogDrops are the packets, of all namespaces, that the kernel dropped because the backlog of a
// processor was full.
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

// daemon is the process id of pelago-node on a node, in the node's own numbering; 0 if it does not
// run. A command that it runs has its name for a moment, too: the daemon is the oldest.
func (s *clusterset) daemon(t *testing.T, node string) int {
	t.Helper()
	out, err := s.Lab.Exec(t.Context(), node, "pgrep", "--exact", "--oldest", "pelago-node")
	if err != nil {
		return 0 // pgrep fails when none exists
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
		// A flow of UDP is in use while datagrams flow; iperf3's control connection is silent for
		// long.
		if f.State == "established" || f.State == "active" && f.Idle < 5*time.Second {
			out = append(out, f.String())
		}
	}
	return out
}

// checkNoHalfFlows: every flow towards an address has two entries, one for each direction, and no
// entry is without its flow.
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
					// The answer's tuple after translation is the opener's before, turned round,
					// and the other way.
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
