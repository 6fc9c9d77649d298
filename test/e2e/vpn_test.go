package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/netns"
)

// testNodeOfVPN: a node of g2 has no Ethernet device any more: its address is that of a TUN device,
// as of Tailscale, whose other end the router is. Its pods answer g1 in small and large packets and
// reach exports, and the node's daemon finds nothing wrong.
func testNodeOfVPN(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	node, err := s.Lab.Plan().Node(l.sinkNode)
	must(t, err)
	own := walk.Pod{Cluster: "g2", Namespace: loadNamespace, Name: "of-vpn"}
	s.applyQuietly(t, "g2", fmt.Sprintf(loadClient, own.Name, node.Name, false))
	s.kubectl(t, "g2", "-n", loadNamespace, "wait", "--for=condition=Ready", "pod", own.Name, walk.WaitFlag)
	t.Cleanup(func() {
		ctx := context.Background()
		if err := s.Lab.Kill(ctx, node.Name); err != nil {
			t.Error(err)
		}
		if err := s.Lab.Heal(ctx, node.Name); err != nil {
			t.Error(err)
		}
		if _, err := s.Quietly(ctx, s.Lab.Kubectl(), "--context", "g2", "-n", loadNamespace, "delete", "pod", own.Name, "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	var ends [2]netns.End
	for i, member := range []string{node.Name, "router"} {
		ns, err := netns.Visit(s.Lab.Plan().Namespace(member))
		must(t, err)
		t.Cleanup(func() { must(t, ns.Release()) })
		ends[i] = netns.End{NS: ns, Name: "vpn0"}
	}
	run := func(end netns.End, commands string) {
		t.Helper()
		for line := range strings.SplitSeq(commands, "; ") {
			f := strings.Fields(line)
			out, err := end.NS.Run(f[0], f[1:]...)
			if err != nil {
				t.Fatalf("%s: %v: %s", line, err, out)
			}
		}
	}
	// The other nodes find the router behind the node's address.
	must(t, ends[1].NS.Sysctl("net/ipv4/conf/g2/proxy_arp", "1"))
	run(ends[0], "ip addr flush dev eth0; ip link set eth0 down")
	ends[0].Addrs = []netip.Prefix{netip.PrefixFrom(node.Address, 32)}
	end, err := netns.TUN(ends[0], ends[1])
	must(t, err)
	t.Cleanup(func() { must(t, end()) })
	run(ends[0], "ip route add default dev vpn0")
	run(ends[1], fmt.Sprintf("ip route add %s/32 dev vpn0", node.Address))
	for _, other := range append(s.nodes(t, "g2"), "g2") {
		if other != node.Name {
			s.node(t, other, "ip", "neigh", "flush", "to", node.Address.String())
		}
	}
	answers := func() error {
		out, err := s.In(t.Context(), l.client, "whereami", "try", "-patience", "2s", "udp://"+l.sink.String()+":7")
		if o := decode[[]tried](t, out); err == nil && o[0].Outcomes["answered"] != 1 {
			err = fmt.Errorf("%+v", o)
		}
		return err
	}
	t.Logf("a pod of the node answers after %.1f s", within(t, answers).Seconds())
	if _, err := s.In(t.Context(), l.client, "timeout", "60", "iperf3", "--client", l.sink.String(), "--bytes", "20M", "--bidir"); err != nil {
		t.Error(err)
	}
	within(t, func() error { _, err := s.Ask(t.Context(), own, l.web.String()); return err })
	within(t, func() error {
		for _, condition := range []string{"Reconciled", "HostNetwork", "SelfTest"} {
			if c := s.nodeCondition(t, node.Name, condition); !strings.HasPrefix(c, "True") {
				return fmt.Errorf("condition %s of %s is %q", condition, node.Name, c)
			}
		}
		return nil
	})
}
