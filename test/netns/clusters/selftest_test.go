package clusters

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/dataplane/observe"
)

// selftest runs the self-test of a node with its pods as the tables have them.
func (n *Node) selftest(t *testing.T) observe.SelftestReport {
	t.Helper()
	var report observe.SelftestReport
	must(t, n.Do(func() error {
		config := n.config()
		edge, err := n.NS.Index(netdev.Overlay)
		if err != nil {
			return err
		}
		var addresses []netip.Addr
		for _, p := range n.Pods {
			addresses = append(addresses, p.Address)
		}
		var finder netdev.PodDevices
		found, err := finder.Find(addresses, nil, netdev.NamespacesDir)
		if err != nil {
			return err
		}
		var pods []observe.SelftestPod
		for _, p := range n.Pods {
			at := found[p.Address]
			pods = append(pods, observe.SelftestPod{
				Name: "default/" + p.host(), Address: p.Address, Source: p.Source, Device: at.Endpoint.Ifindex, MAC: at.Endpoint.MAC, Namespace: at.Namespace,
				Programs: p.Endpoint.Ifindex != 0, Datapath: p.Endpoint.Datapath,
			})
		}
		report, err = observe.Selftest(n.Loader, uint32(edge), pods, []observe.SelftestTarget{{Address: config.Prefixes[0].Addr()}})
		return err
	}))
	return report
}

// expect checks that the only kind of path has an outcome and a message with all the words; none:
// it passes.
func expect(t *testing.T, r observe.SelftestReport, outcome observe.SelftestOutcome, words ...string) {
	t.Helper()
	if len(r.Paths) != 1 || r.Paths[outcome] != 1 || len(r.Findings) != min(1, len(words)) {
		t.Errorf("%+v; want one path %s", r, outcome)
		return
	}
	for _, word := range words {
		if f := r.Findings[0]; f.Outcome != outcome || !strings.Contains(f.Message, word) {
			t.Errorf("%+v; want %s and %q", f, outcome, word)
		}
	}
}

// atPod attaches a program before ours at a pod's device on the node, until the test ends.
func (p *Pod) atPod(t *testing.T, name string, instructions ...asm.Instruction) {
	t.Helper()
	must(t, p.Node.Do(func() error {
		program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.SchedCLS, License: "GPL", Instructions: instructions})
		if err != nil {
			return err
		}
		defer program.Close()
		index, err := p.Node.NS.Index(p.host())
		if err != nil {
			return err
		}
		l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: program, Attach: ebpf.AttachTCXIngress, Anchor: link.Head()})
		if err == nil {
			t.Cleanup(func() { must(t, l.Close()) })
		}
		return err
	}))
}

func verdictOf(action int32) []asm.Instruction {
	return []asm.Instruction{asm.Mov.Imm(asm.R0, action), asm.Return()}
}

// The self-test passes with every CNI and datapath, opens no flow and sends nothing.
func TestSelftest(t *testing.T) {
	for _, tt := range []struct {
		cni      CNI
		datapath dataplane.Datapath
	}{{Bridge, dataplane.Strict}, {Bridge, dataplane.Fast}, {SharedVeth, dataplane.Hybrid}, {Switch, dataplane.Strict}} {
		t.Run(fmt.Sprintf("%s, %s", tt.cni, tt.datapath), func(t *testing.T) {
			w := newTown(t, Options{Datapath: tt.datapath, CNI: tt.cni})
			n := w.Clusters[1].Nodes[2]
			before := n.Counters(t)
			expect(t, n.selftest(t), observe.SelftestPassed)
			after := n.Counters(t)
			if after["edge-out probe"] == before["edge-out probe"] || after["edge-out sent"] != before["edge-out sent"] || after["pod-out sent"] != before["pod-out sent"] {
				t.Errorf("counters before %v, after %v", before, after)
			}
		})
	}
}

// Whatever takes a pod's packets elsewhere is seen, without knowing what it is.
func TestSelftestFinds(t *testing.T) {
	w := newTown(t, Options{Datapath: dataplane.Hybrid})
	n := w.Clusters[1].Nodes[2]
	pod := w.client[3]
	un0, err := n.NS.Index("un0")
	must(t, err)
	n.MustRun(t, "ip", "route", "add", "default", "via", n.Cluster.router().String(), "dev", "un0", "table", "99")
	t.Run("a rule of others", func(t *testing.T) {
		n.MustRun(t, "ip", "rule", "add", "pref", "50", "iif", "cni0", "lookup", "99")
		defer n.MustRun(t, "ip", "rule", "del", "pref", "50")
		before := n.Counters(t)["uplink-out probe"]
		expect(t, n.selftest(t), observe.SelftestDiverted, "default/"+pod.host(), "un0", "ip rule")
		if n.Counters(t)["uplink-out probe"] == before {
			t.Error("the datagram was not stopped at the uplink")
		}
	})
	t.Run("a rule of others without a route", func(t *testing.T) {
		n.MustRun(t, "ip", "rule", "add", "pref", "50", "iif", "cni0", "unreachable")
		defer n.MustRun(t, "ip", "rule", "del", "pref", "50")
		expect(t, n.selftest(t), observe.SelftestDiverted, "default/"+pod.host(), "has no route to pelago0")
	})
	t.Run("a program of others that drops", func(t *testing.T) {
		pod.atPod(t, "others_drop", verdictOf(2)...)
		expect(t, n.selftest(t), observe.SelftestLost, "default/"+pod.host(), pod.host(), "others_drop")
	})
	t.Run("a program of others that redirects", func(t *testing.T) {
		pod.atPod(t, "others_redir", asm.Mov.Imm(asm.R1, int32(un0)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(), asm.Return())
		expect(t, n.selftest(t), observe.SelftestDiverted, "default/"+pod.host(), "leaves by un0", "others_redir")
	})
	t.Run("a program of others that ends the chain", func(t *testing.T) {
		pod.atPod(t, "others_ok", verdictOf(0)...)
		expect(t, n.selftest(t), observe.SelftestBypassed, "default/"+pod.host(), "others_ok")
	})
	t.Run("a masquerading rule", func(t *testing.T) {
		// before the chain by which Pelago exempts what enters pelago0
		n.MustRun(t, "nft", fmt.Sprintf("table ip others { chain post { type nat hook postrouting priority 90; oifname pelago0 snat to %s; }; }", n.Address))
		defer n.MustRun(t, "nft", "delete", "table", "ip", "others")
		expect(t, n.selftest(t), observe.SelftestDiverted, "default/"+pod.host(), n.Address.String(), "masquerading")
	})
	t.Run("another device than in the tables", func(t *testing.T) {
		bridge := pod.Source
		defer func() {
			pod.Source = bridge
			n.Apply(t)
		}()
		pod.Source = pod.Endpoint.Ifindex
		n.Apply(t)
		expect(t, n.selftest(t), observe.SelftestDiverted, "default/"+pod.host(), "by cni0", "have "+pod.host())
	})
	t.Run("a firewall for all pods", func(t *testing.T) {
		n.MustRun(t, "iptables", "-I", "FORWARD", "-i", "cni0", "-j", "DROP")
		defer n.MustRun(t, "iptables", "-D", "FORWARD", "-i", "cni0", "-j", "DROP")
		expect(t, n.selftest(t), observe.SelftestLost, "default/"+pod.host(), "cni0", "NetworkPolicies")
	})
	second := n.AddPod(t)
	n.Apply(t)
	t.Run("a policy for one pod", func(t *testing.T) {
		n.MustRun(t, "iptables", "-I", "FORWARD", "-s", pod.Address.String(), "-j", "DROP")
		defer n.MustRun(t, "iptables", "-D", "FORWARD", "-s", pod.Address.String(), "-j", "DROP")
		expect(t, n.selftest(t), observe.SelftestPassed)
	})
	t.Run("a rule for one pod", func(t *testing.T) {
		n.MustRun(t, "ip", "rule", "add", "pref", "50", "from", second.Address.String(), "lookup", "99")
		defer n.MustRun(t, "ip", "rule", "del", "pref", "50")
		r := n.selftest(t)
		if len(r.Findings) != 1 || r.Paths[observe.SelftestPassed] != 1 || r.Paths[observe.SelftestDiverted] != 1 || r.Findings[0].Pod != "default/"+second.host() {
			t.Errorf("%+v", r)
		}
	})
	t.Run("nothing is left", func(t *testing.T) { expect(t, n.selftest(t), observe.SelftestPassed) })
}
