package clusters

import (
	"net/netip"
	"testing"
	"time"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/test/await"
)

// TestHybridTown is the town where established connections bypass the nodes' stacks.
func TestHybridTown(t *testing.T) {
	t.Parallel()
	w := newTown(t, Options{Datapath: dataplane.Hybrid})
	t.Run("established connections bypass the stack", w.bypassed)
	t.Run("a policy ends an established connection", w.policyEnds)
	t.Run("conntrack translates nothing", w.conntrack)
	t.Run("default deny", w.defaultDeny)
	w.bothBypasses(t)
}

// TestFastTown is the town where nothing that can bypass the nodes' stacks takes them.
func TestFastTown(t *testing.T) {
	t.Parallel()
	w := newTown(t, Options{Datapath: dataplane.Fast})
	t.Run("connections bypass the stack", w.bypassed)
	w.bothBypasses(t)
}

func (w *town) bothBypasses(t *testing.T) {
	t.Run("every combination of gateway and pod", w.combinations)
	t.Run("all backends are reached", w.backends)
	t.Run("host network", w.hostNetwork)
	t.Run("headless pods", w.headless)
	t.Run("a packet is followed", w.followed)
	t.Run("large datagrams", w.largeDatagrams)
	t.Run("segmented datagrams", w.segmentedDatagrams)
	t.Run("path MTU", w.pathMTU)
	t.Run("segment sizes", w.segmentSizes)
	t.Run("packets over 64 KiB", w.bigTCP)
	t.Run("ICMP errors", w.icmpErrors)
	t.Run("forged overlay packets", w.forged)
	t.Run("injection with the secrets known", w.injected)
	t.Run("gateways share the load", w.gatewaysShare)
	t.Run("a gateway is drained", w.drain)
	t.Run("a gateway is taken away", w.takeAway)
	t.Run("backends come and go", w.backendsChange)
	t.Run("datagrams leave a backend and a dead node", w.datagramsMove)
	t.Run("the daemon dies and comes back", w.daemonDies)
	t.Run("a service of the other direction", w.otherDirection)
	t.Run("own global addresses", w.hairpin)
	t.Run("endpoint-independent mappings", w.mappings)
	t.Run("failover without user space", w.failover)
	t.Run("tables stay sound", w.tablesSound)
}

// Bulk data, both ways: of the packets that both pods' nodes send and deliver, few take the stack.
func (w *town) bypassed(t *testing.T) {
	count := func() (bypassed, stack uint64) {
		for _, n := range w.Nodes() {
			c := n.Counters(t)
			bypassed += c["pod-out sent"] + c["pod-in delivered"]
			stack += c["edge-out sent"] + c["edge-in delivered"]
		}
		return bypassed, stack
	}
	before, beforeStack := count()
	for range 3 {
		if err := bulk(w.client[3], netip.AddrPortFrom(w.server[3].Global, 81), bulkSize); err != nil {
			t.Fatal(err)
		}
	}
	bypassed, stack := count()
	bypassed, stack = bypassed-before, stack-beforeStack
	t.Logf("%d packets bypassed the stack, %d took it", bypassed, stack)
	if bypassed < 4*stack {
		t.Errorf("%d packets bypassed the stack, %d took it; want 4 in 5 to bypass it", bypassed, stack)
	}
}

// A rule that forbids an established connection, at either end and in either direction, stops it,
// and it continues when the rule is removed.
func (w *town) policyEnds(t *testing.T) {
	const port = "53"
	target := netip.AddrPortFrom(w.server[3].Global, 53)
	for name, on := range map[string]*Node{"at the client's node": w.client[3].Node, "at the server's node": w.server[3].Node} {
		for direction, match := range map[string]string{"requests": "--dport", "replies": "--sport"} {
			t.Run(name+", "+direction, func(t *testing.T) {
				c, err := dial(w.client[3], "udp", target)
				must(t, err)
				defer c.Close()
				exchange := func() bool { // one datagram and its echo
					must(t, c.SetDeadline(time.Now().Add(200*time.Millisecond)))
					_, err := c.Write([]byte("x"))
					must(t, err)
					_, err = c.Read(make([]byte, 10))
					return err == nil
				}
				await.True(t, "datagrams bypass the stack", func() bool {
					before := w.client[3].Node.Counters(t)["pod-out sent"]
					return exchange() && w.client[3].Node.Counters(t)["pod-out sent"] > before
				})
				on.MustRun(t, "iptables", "-I", "FORWARD", "1", "-p", "udp", match, port, "-j", "DROP")
				start, last := time.Now(), time.Now()
				await.True(t, "the rule stops the datagrams", func() bool {
					if exchange() {
						last = time.Now()
					}
					return time.Since(last) > 3*time.Second
				})
				t.Logf("the last reply came %s after the rule", last.Sub(start))
				if last.Sub(start) > 2*time.Second {
					t.Errorf("packets passed for %s after they were forbidden; want about one second", last.Sub(start))
				}
				on.MustRun(t, "iptables", "-D", "FORWARD", "1")
				await.True(t, "datagrams pass again", exchange)
			})
		}
	}
}
