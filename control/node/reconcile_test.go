package node

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/node/status"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/dataplane/probe"
	"github.com/pelago-net/pelago/test/bpffs"
	"github.com/pelago-net/pelago/test/clusterset"
	"github.com/pelago-net/pelago/test/netns"
)

// kernelNode is the gateway n1 of cluster g1 in a namespace, with a daemon that has not reconciled
// yet.
type kernelNode struct {
	t    *testing.T
	ns   *netns.NS
	d    *Daemon
	objs *tables.Objects
}

func newKernelNode(t *testing.T, objs tables.Objects) *kernelNode {
	t.Helper()
	ns := netns.ForTest(t, "node")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(netns.Veth(netns.End{NS: ns, Name: "un0", Addrs: []netip.Prefix{netip.MustParsePrefix("172.31.1.11/24")}}, netns.End{NS: ns, Name: "peer"}))
	must(ns.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), ip("172.31.1.1"), "un0"))
	d := newNatted(t, ns, 1, "172.31.1.11", config.CableVXLAN).d
	var err error
	d.loader, err = loader.Open(loader.Options{PinPath: filepath.Join(bpffs.Mount(t), "pelago"), MaxFlows: 1024})
	must(err)
	t.Cleanup(func() { must(d.loader.Close()) })
	d.firewall = netdev.Firewall
	d.opts.OverlayTokenDir = t.TempDir()
	must(os.WriteFile(filepath.Join(d.opts.OverlayTokenDir, config.KeyTokenCurrent), []byte("0000a1"), 0o600))
	d.opts.UnreachableClusters = topology.NewUnreachableClustersServer()
	d.prober = probe.New(d.loader, d.kernel.overlay, d.wake, d.log)
	d.tracker, d.swept, d.purgeEnded = status.NewTracker("v3"), make(chan sweep), make(chan purge)
	d.reports = newReports(types.NamespacedName{Name: "n1"}, nil, nil, nil, d.log)
	objs.Config.FabricCIDR = netip.MustParsePrefix("241.0.0.0/8")
	d.objects.saved, d.objects.since = &objs, time.Now()
	return &kernelNode{t: t, ns: ns, d: d, objs: &objs}
}

// openClsact opens maps and programs anew, as before Linux 6.6.
func (n *kernelNode) openClsact() {
	n.t.Helper()
	var err error
	n.d.loader, err = loader.Open(loader.Options{PinPath: filepath.Join(bpffs.Mount(n.t), "pelago"), MaxFlows: 1024, Clsact: true})
	if err != nil {
		n.t.Fatal(err)
	}
	n.d.prober = probe.New(n.d.loader, n.d.kernel.overlay, n.d.wake, n.d.log)
}

// reconcile returns what is reported, with the condition Reconciled.
func (n *kernelNode) reconcile() (index pelagov1alpha1.NodeIndexStatus, reconciled metav1.Condition, err error) {
	n.t.Helper()
	if inside := n.ns.Do(func() error { index, reconciled, err = n.reconcileHere(); return nil }); inside != nil {
		n.t.Fatal(inside)
	}
	return index, reconciled, err
}

// reconcileHere is reconcile on a thread in the node's network.
func (n *kernelNode) reconcileHere() (index pelagov1alpha1.NodeIndexStatus, reconciled metav1.Condition, err error) {
	n.t.Helper()
	err = n.d.reconcileOnce(n.t.Context())
	n.d.endPurge()
	select {
	case r := <-n.d.reports.node.next:
		index = r.index.Status
	default:
		return index, reconciled, fmt.Errorf("nothing is reported: %v", err)
	}
	if c := meta.FindStatusCondition(index.Conditions, pelagov1alpha1.NodeReconciled); c != nil {
		reconciled = *c
	}
	return index, reconciled, err
}

func (n *kernelNode) tables() dataplane.State {
	n.t.Helper()
	s, err := n.d.loader.Read()
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

// noNft is netdev.Firewall where the table of nftables cannot be written.
func noNft(netdev.Filter) (netdev.Obstacles, error) {
	return netdev.Obstacles{}, errors.New("add table pelago to nftables: not permitted")
}

// A gateway whose firewall rules cannot be repaired keeps its role, and all that does not depend on
// them continues.
func TestFailureAfterSuccess(t *testing.T) {
	objs, _ := clusterset.Globalnet("n1")
	n := newKernelNode(t, objs)
	if index, c, err := n.reconcile(); err != nil || !index.Ready || !index.Gateway || c.Status != metav1.ConditionTrue {
		t.Fatalf("ready %t, gateway %t, condition %+v, error %v; want a gateway", index.Ready, index.Gateway, c, err)
	}
	n.d.firewall = noNft
	n.d.kernel.reapply = true // as every half minute
	block := clusterset.Block("120.1.0.2", 1536, "n2", pelagov1alpha1.BlockPending)
	block.UID = "another-block"
	n.objs.PortBlocks = append(n.objs.PortBlocks, block)
	for _, attempt := range []string{"the first attempt", "the retry"} {
		index, c, err := n.reconcile()
		if err == nil || !strings.Contains(err.Error(), "nftables") {
			t.Fatalf("%s: error %v; want one of nftables", attempt, err)
		}
		if !index.Ready || !index.Gateway || c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "nftables") {
			t.Errorf("%s: ready %t, gateway %t, condition %+v; want a gateway with the error as condition", attempt, index.Ready, index.Gateway, c)
		}
		if !slices.Contains(index.Acks, string(block.UID)) {
			t.Errorf("%s: acks %v; want the block, which is in the tables", attempt, index.Acks)
		}
	}
	if s := n.tables(); s.Blocks[dataplane.BlockKey{Address: ip("120.1.0.2"), First: 1536}] != 2 {
		t.Errorf("blocks %v; want the new one of node 2", s.Blocks)
	}
	if err := n.d.watchPathsOnce(n.d.latest, time.Now()); err != nil || len(n.d.reports.gateway.next) == 0 {
		t.Errorf("the paths are not reported, error %v", err)
	}
	if n.d.beginSweep(); !n.d.flows.sweeping {
		t.Error("the flows are not swept")
	}
	n.d.endSweep()
	n.d.firewall = netdev.Firewall
	if _, c, err := n.reconcile(); err != nil || c.Status != metav1.ConditionTrue || n.d.kernel.reapply {
		t.Errorf("with nftables: error %v, condition %+v, reapply %t", err, c, n.d.kernel.reapply)
	}
}

// Before its first success a node is not ready. Its programs are attached all the same, since
// pelago0 exists; the tables are written unless they rely on rules that are missing.
func TestFailureAtStart(t *testing.T) {
	globalnet, _ := clusterset.Globalnet("n1")
	flat, _ := clusterset.Flat("n1")
	flat.Config.RouteServiceCIDR, flat.Config.ServiceCIDRs = true, []netip.Prefix{netip.MustParsePrefix("10.77.0.0/16")}
	for name, tt := range map[string]struct {
		objs    tables.Objects
		written bool
	}{
		"globalnet":             {globalnet, true},
		"ClusterIPs are routed": {flat, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newKernelNode(t, tt.objs)
			n.d.firewall = noNft
			index, c, err := n.reconcile()
			if err == nil || index.Ready || index.Gateway || c.Status != metav1.ConditionFalse || n.d.Ready() {
				t.Errorf("ready %t, gateway %t, condition %+v, error %v; want neither", index.Ready, index.Gateway, c, err)
			}
			var attached map[string][]int
			if err := n.ns.Do(func() (err error) { attached, err = n.d.loader.Attached(); return err }); err != nil {
				t.Fatal(err)
			}
			if len(attached["edge_in"]) == 0 || len(attached["uplink_in"]) == 0 {
				t.Errorf("attached: %v; want the edge and the uplink", attached)
			}
			if s := n.tables(); s.Settings.Ready != tt.written || tt.written != (len(s.Routes) > 0) {
				t.Errorf("tables %+v; want them written: %t", s, tt.written)
			}
			n.d.firewall = netdev.Firewall
			if index, _, err := n.reconcile(); err != nil || !index.Ready || !index.Gateway || !n.tables().Settings.Ready {
				t.Errorf("with nftables: ready %t, gateway %t, error %v", index.Ready, index.Gateway, err)
			}
		})
	}
}

// Accept rules never decide readiness: not where iptables cannot be run, nor where the kernel lacks
// modules that it needs. The condition Firewall has the reason until they are added.
func TestReadyWithoutAcceptRules(t *testing.T) {
	for name, script := range map[string]string{
		"no iptables":        "",
		"modules of xtables": "#!/bin/sh\ncase \"$*\" in *-V*|*--version*) echo iptables v1.8.9 '(nf_tables)';; *) echo 'Extension udp revision 0 not supported, missing kernel module?' >&2; exit 4;; esac\n",
	} {
		t.Run(name, func(t *testing.T) {
			objs, _ := clusterset.Globalnet("n1")
			n := newKernelNode(t, objs)
			path, dir := os.Getenv("PATH"), t.TempDir()
			if script != "" {
				for _, name := range []string{"iptables", "iptables-nft"} {
					if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
						t.Fatal(err)
					}
				}
			}
			t.Setenv("PATH", dir)
			index, reconciled, err := n.reconcile()
			c := meta.FindStatusCondition(index.Conditions, pelagov1alpha1.NodeFirewall)
			if err != nil || !index.Ready || !index.Gateway || reconciled.Status != metav1.ConditionTrue {
				t.Errorf("ready %t, gateway %t, %+v, error %v; want a gateway", index.Ready, index.Gateway, reconciled, err)
			}
			if c == nil || c.Status != metav1.ConditionFalse || c.Reason != pelagov1alpha1.ReasonFirewallRulesMissing || !strings.Contains(c.Message, "iptables") {
				t.Errorf("condition %+v; want the failure of iptables", c)
			}
			t.Setenv("PATH", path)
			n.d.kernel.reapply = true // as every half minute
			index, _, err = n.reconcile()
			if c := meta.FindStatusCondition(index.Conditions, pelagov1alpha1.NodeFirewall); err != nil || c == nil || c.Status != metav1.ConditionTrue {
				t.Errorf("with iptables: condition %+v, error %v", c, err)
			}
		})
	}
}

// A node whose uplink does not support the programs, or fails to attach them, is omitted with a
// message. The other tables are written, also by the first reconcile.
func TestUnusableUplink(t *testing.T) {
	for name, tt := range map[string]struct {
		edge1   string // its address
		prepare func(*testing.T, *kernelNode)
		want    string
	}{
		"another link type": {"100.64.0.9", func(t *testing.T, n *kernelNode) {
			close, err := netns.TUN(netns.End{NS: n.ns, Name: "gre7", LinkType: unix.ARPHRD_IPGRE}, netns.End{NS: n.ns, Name: "end"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := close(); err != nil {
					t.Error(err)
				}
			})
			n.run(t, "ip route add 100.64.0.9/32 dev gre7")
		}, `node n1 leaves out node edge1 at 100.64.0.9: device gre7, which leads to it, has link type "gre"`},
		"an address of this node": {"100.64.0.9", func(t *testing.T, n *kernelNode) {
			n.run(t, "ip addr add 100.64.0.9/32 dev un0")
		}, "its address is one of this node itself (device lo)"},
		"no program can be attached": {"172.31.1.77", func(t *testing.T, n *kernelNode) {
			n.run(t, "ip link add odd type bridge && ip link set odd up && ip route add 172.31.1.77/32 dev odd && tc qdisc add dev odd clsact && "+
				"tc filter add dev odd ingress protocol ip prio 1 u32 match u32 0 0")
			n.openClsact()
		}, "tc filter show dev odd ingress"},
	} {
		t.Run(name, func(t *testing.T) {
			objs, _ := clusterset.Globalnet("n1")
			objs.Nodes = append(objs.Nodes, clusterset.Node("edge1", tt.edge1, false))
			edge1 := pelagov1alpha1.NodeIndex{ObjectMeta: metav1.ObjectMeta{Name: "edge1"}, Spec: pelagov1alpha1.NodeIndexSpec{Index: 3}}
			objs.NodeIndexes = append(objs.NodeIndexes, edge1)
			n := newKernelNode(t, objs)
			tt.prepare(t, n)
			for _, attempt := range []string{"the first time", "again", "with everything reapplied"} {
				n.d.kernel.reapply = n.d.kernel.reapply || attempt == "with everything reapplied"
				index, _, err := n.reconcile()
				if err != nil || !index.Ready || !index.Gateway || !slices.Contains(index.Acks, "block-Pending") {
					t.Fatalf("%s: ready %t, gateway %t, acks %v, error %v; want a gateway with all tables", attempt, index.Ready, index.Gateway, index.Acks, err)
				}
				s := n.tables()
				if _, ok := s.Nodes[3]; ok || len(s.Nodes) != 1 || len(s.Peers) != 2 {
					t.Errorf("%s: nodes %v, peers %v; want them without edge1", attempt, s.Nodes, s.Peers)
				}
				c := meta.FindStatusCondition(index.Conditions, pelagov1alpha1.NodeHost)
				if c == nil || c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, tt.want) || !strings.Contains(c.Message, "edge1") {
					t.Errorf("%s: condition %+v; want one with %q", attempt, c, tt.want)
				}
			}
			if name == "no program can be attached" { // the same objects and host: nothing is computed again
				before := &n.d.usable.result.State.Gateways[0]
				if _, _, err := n.reconcile(); err != nil || before != &n.d.usable.result.State.Gateways[0] {
					t.Errorf("the tables were computed again without a change, error %v", err)
				}
			}
			n.objs.Nodes, n.objs.NodeIndexes = n.objs.Nodes[:2], n.objs.NodeIndexes[:2]
			if index, _, err := n.reconcile(); err != nil || !meta.IsStatusConditionTrue(index.Conditions, pelagov1alpha1.NodeHost) {
				t.Errorf("without edge1: conditions %+v, error %v", index.Conditions, err)
			}
		})
	}
}

// A node reached by a device without an Ethernet header is in the tables; the programs are attached
// to the device.
func TestUplinkWithoutEthernet(t *testing.T) {
	objs, _ := clusterset.Globalnet("n1")
	objs.Nodes[1] = clusterset.Node("n2", "100.64.0.9", false)
	n := newKernelNode(t, objs)
	close, err := netns.TUN(netns.End{NS: n.ns, Name: "ts0", MTU: 1280}, netns.End{NS: n.ns, Name: "end"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := close(); err != nil {
			t.Error(err)
		}
	})
	n.run(t, "ip route add 100.64.0.9/32 dev ts0")
	ts0, err := n.ns.Index("ts0")
	if err != nil {
		t.Fatal(err)
	}
	index, _, err := n.reconcile()
	if err != nil || !index.Ready || !meta.IsStatusConditionTrue(index.Conditions, pelagov1alpha1.NodeHost) {
		t.Fatalf("ready %t, conditions %+v, error %v", index.Ready, index.Conditions, err)
	}
	s := n.tables()
	if got, want := s.Nodes[2], (dataplane.Hop{Address: ip("100.64.0.9"), Ifindex: uint32(ts0)}); got != want {
		t.Errorf("node n2 by %+v, want %+v", got, want)
	}
	if want := uint16(1280 - 50 - 40); s.Settings.MSS != want {
		t.Errorf("MSS %d, want %d of the smaller uplink", s.Settings.MSS, want)
	}
	var attached map[string][]int
	if err := n.ns.Do(func() (err error) { attached, err = n.d.loader.Attached(); return err }); err != nil {
		t.Fatal(err)
	}
	for _, hook := range []string{"uplink_in", "uplink_out"} {
		if !slices.Contains(attached[hook], ts0) || len(attached[hook]) != 2 {
			t.Errorf("%s is on %v, want ts0 (%d) and un0", hook, attached[hook], ts0)
		}
	}
}

// The programs are attached to all devices of a multipath route, whose minimum MTU is used, and to
// those with the node's address.
func TestSeveralUplinks(t *testing.T) {
	objs, _ := clusterset.Globalnet("n1")
	n := newKernelNode(t, objs)
	for i, command := range []string{
		"ip addr add 172.31.5.2/24 dev un1 && ip link set un1 mtu 1400 && " +
			"ip route add 172.31.1.12/32 nexthop via 172.31.1.1 dev un0 nexthop via 172.31.5.1 dev un1",
		"ip addr add 172.31.1.11/32 dev un2 && ip link set un2 mtu 1300",
		"ip addr add 172.31.9.1/24 dev un3", // not used by a route
	} {
		name := fmt.Sprintf("un%d", i+1)
		if err := netns.Veth(netns.End{NS: n.ns, Name: name}, netns.End{NS: n.ns, Name: name + "-peer"}); err != nil {
			t.Fatal(err)
		}
		n.run(t, command)
	}
	want := []int{}
	for _, name := range []string{"un0", "un1", "un2"} {
		index, err := n.ns.Index(name)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, index)
	}
	if _, _, err := n.reconcile(); err != nil {
		t.Fatal(err)
	}
	var attached map[string][]int
	if err := n.ns.Do(func() (err error) { attached, err = n.d.loader.Attached(); return err }); err != nil {
		t.Fatal(err)
	}
	for _, hook := range []string{"uplink_in", "uplink_out"} {
		if slices.Sort(attached[hook]); !slices.Equal(attached[hook], want) {
			t.Errorf("%s is on %v, want un0, un1, un2: %v", hook, attached[hook], want)
		}
	}
	if got := n.tables().Settings.MSS; got != 1400-50-40 {
		t.Errorf("MSS %d, want that of un1", got)
	}
}

func (n *kernelNode) run(t *testing.T, command string) {
	t.Helper()
	if out, err := n.ns.Run("sh", "-c", command); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// A node that becomes a gateway is not one for others until its tables are those of a gateway.
func TestFailureBeforeRole(t *testing.T) {
	node := tables.Result{State: dataplane.State{Settings: dataplane.Settings{Ready: true}}}
	gateway := node
	gateway.Gateway = true
	var d Daemon
	for i, step := range []struct {
		r              tables.Result
		succeeded      bool
		ready, gateway bool
	}{
		{gateway, false, false, false}, {node, true, true, false}, {gateway, false, true, false}, {gateway, true, true, true},
		{gateway, false, true, true}, {node, false, true, false}, {gateway, false, true, false},
		{tables.Result{}, false, false, false}, {gateway, false, false, false}, {gateway, true, true, true},
	} {
		if d.latch(step.r, step.succeeded); d.ready.Load() != step.ready || d.kernel.gateway != step.gateway {
			t.Errorf("step %d: ready %t, gateway %t; want %t, %t", i, d.ready.Load(), d.kernel.gateway, step.ready, step.gateway)
		}
	}
}
