package ipam_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/agent/ipam"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

var blockServer = apiserver.NewShared(apiserver.CRDs("nodeindices.pelago.io", "portblocks.pelago.io", "globaladdresses.pelago.io",
	"clusterglobalegressips.submariner.io", "globalegressips.submariner.io", "globalingressips.submariner.io", "routeagents.submariner.io"))

// cluster is an empty API server for one test.
type blockCluster struct {
	*apiserver.Cluster
	clock *testingclock.FakeClock
}

func blockNewCluster(t *testing.T) *blockCluster {
	t.Helper()
	c := &blockCluster{
		Cluster: apiserver.Connect(t, blockServer.Config(t), submarinerv1.AddToScheme, pelagov1alpha1.AddToScheme),
		clock:   testingclock.NewFakeClock(time.Now()),
	}
	c.Empty(
		&submarinerv1.ClusterGlobalEgressIP{}, &submarinerv1.GlobalEgressIP{}, &submarinerv1.GlobalIngressIP{}, &corev1.Pod{},
		&corev1.Node{}, &pelagov1alpha1.PortBlock{}, &pelagov1alpha1.NodeIndex{}, &corev1.Event{},
	)
	return c
}

// agent runs the controller until stop is called or the test ends.
func (c *blockCluster) agent(minimum int, faults *apiserver.Faults) (stop func()) {
	c.Helper()
	return apiserver.Manager{Scheme: c.Scheme(), NewClient: faults.NewClient, Setup: []func(ctrl.Manager) error{func(mgr ctrl.Manager) error {
		return ipam.SetupBlocks(mgr, ipam.BlockOptions{
			GlobalCIDR: []netip.Prefix{netip.MustParsePrefix("120.1.0.0/24")}, Minimum: minimum, Clock: c.clock,
		})
	}}}.Run(c, c.Config)
}

// addNode makes a Node and, as its own controller does, a NodeIndex.
func (c *blockCluster) addNode(name string, index int32, boot string) *corev1.Node {
	c.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Make(node)
	c.Make(&pelagov1alpha1.NodeIndex{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: pelagov1alpha1.NodeIndexSpec{Index: index, NodeUID: string(node.UID)},
	})
	c.report(name, func(s *pelagov1alpha1.NodeIndexStatus) { s.BootID = boot })
	return node
}

// report changes what a node's daemon says.
func (c *blockCluster) report(name string, change func(*pelagov1alpha1.NodeIndexStatus)) {
	c.Helper()
	n := &pelagov1alpha1.NodeIndex{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := c.Get(c.Context(), client.ObjectKeyFromObject(n), n); err != nil {
		c.Fatal(err)
	}
	change(&n.Status)
	if n.Status.Gateway {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := c.Patch(c.Context(), node, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"submariner.io/gateway":"true"}}}`))); err != nil {
			c.Fatal(err)
		}
	}
	if err := c.Status().Update(c.Context(), n); err != nil {
		c.Fatal(err)
	}
}

// addPool makes an egress object (the cluster's if namespace is empty) with these addresses
// allocated.
func (c *blockCluster) addPool(namespace, name string, selector map[string]string, ips ...string) client.Object {
	c.Helper()
	var o client.Object
	if namespace == "" {
		g := &submarinerv1.ClusterGlobalEgressIP{ObjectMeta: metav1.ObjectMeta{Name: name}}
		c.Make(g)
		g.Status.AllocatedIPs = ips
		o = g
	} else {
		g := &submarinerv1.GlobalEgressIP{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		if selector != nil {
			g.Spec.PodSelector = &metav1.LabelSelector{MatchLabels: selector}
		}
		c.Make(g)
		g.Status.AllocatedIPs = ips
		o = g
	}
	if err := c.Status().Update(c.Context(), o); err != nil {
		c.Fatal(err)
	}
	return o
}

func (c *blockCluster) addPod(name, node string, labels map[string]string) *corev1.Pod {
	c.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: labels},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	c.Make(pod)
	return pod
}

func (c *blockCluster) list() []pelagov1alpha1.PortBlock {
	c.Helper()
	var list pelagov1alpha1.PortBlockList
	if err := c.List(c.Context(), &list); err != nil {
		c.Fatal(err)
	}
	return list.Items
}

// leases lists the blocks: name → node, pool (if not the cluster's), state, in short.
func (c *blockCluster) leases() map[string]string {
	c.Helper()
	got := map[string]string{}
	for _, b := range c.list() {
		words := []string{b.Spec.Node, string(b.Spec.State)}
		if b.Spec.Pool != topology.ClusterPool {
			words = append(words, "of "+b.Spec.Pool.Name)
		}
		if b.Spec.OrphanedAt != nil {
			words = append(words, "orphaned "+b.Annotations[pelagov1alpha1.AnnotationOrphanBootID])
		}
		got[b.Name] = strings.Join(words, " ")
	}
	return got
}

// perNode counts the blocks of the nodes.
func (c *blockCluster) perNode() map[string]int {
	c.Helper()
	n := map[string]int{}
	for _, b := range c.list() {
		n[b.Spec.Node]++
	}
	return n
}

func (c *blockCluster) release(name string) {
	c.Helper()
	patch := client.RawPatch(types.MergePatchType, []byte(`{"status":{"released":true}}`))
	if err := c.Status().Patch(c.Context(), &pelagov1alpha1.PortBlock{ObjectMeta: metav1.ObjectMeta{Name: name}}, patch); err != nil {
		c.Fatal(err)
	}
}

const clusterPool = submarinerv1.ClusterGlobalEgressIPName

func TestBlocksWaitForAllReadyGateways(t *testing.T) {
	c := blockNewCluster(t)
	c.agent(2, nil)
	c.addPool("", clusterPool, nil, "120.1.0.1", "120.1.0.2")
	// One after the other: nodes that a starting controller lists are reconciled after those that
	// it watches.
	c.addNode("n1", 1, "b1")
	await.Equal(c, map[string]int{"n1": 2}, c.perNode)
	c.addNode("n2", 2, "b1")
	await.Equal(c, map[string]int{"n1": 2, "n2": 2}, c.perNode)
	c.addNode("n3", 3, "b1")
	pendingAll := map[string]string{
		"120-1-0-1-1024": "n1 Pending", "120-1-0-1-1280": "n1 Pending", "120-1-0-2-1024": "n2 Pending", "120-1-0-2-1280": "n2 Pending",
		"120-1-0-1-1536": "n3 Pending", "120-1-0-1-1792": "n3 Pending",
	}
	await.Equal(c, pendingAll, c.leases)
	var uids []string
	for _, b := range c.list() {
		uids = append(uids, string(b.UID))
	}
	for _, gateway := range []string{"n1", "n2"} {
		c.report(gateway, func(s *pelagov1alpha1.NodeIndexStatus) { s.Ready, s.Gateway = true, true })
	}
	c.report("n3", func(s *pelagov1alpha1.NodeIndexStatus) { s.Ready, s.Acks = true, uids })
	c.report("n1", func(s *pelagov1alpha1.NodeIndexStatus) { s.Acks = uids })
	time.Sleep(300 * time.Millisecond) // no block may get active
	if diff := cmp.Diff(pendingAll, c.leases()); diff != "" {
		t.Errorf("with one of two gateways: %s", diff)
	}
	c.report("n2", func(s *pelagov1alpha1.NodeIndexStatus) { s.Acks = uids[:5] })
	await.Equal(c, 5, func() int {
		return len(slices.DeleteFunc(c.list(), func(b pelagov1alpha1.PortBlock) bool { return b.Spec.State != pelagov1alpha1.BlockActive }))
	})
	// a gateway that is not ready does not count
	c.report("n2", func(s *pelagov1alpha1.NodeIndexStatus) { s.Ready, s.Acks = false, nil })
	active := map[string]string{}
	for name, lease := range pendingAll {
		active[name] = strings.Replace(lease, "Pending", "Active", 1)
	}
	await.Equal(c, active, c.leases)
}

func TestPoolsOfPods(t *testing.T) {
	c := blockNewCluster(t)
	c.agent(1, nil)
	c.addNode("n1", 1, "b1")
	c.addNode("n2", 2, "b1")
	c.addPool("default", "db-pods", map[string]string{"role": "db"}, "120.1.0.9")
	c.addPool("default", "all", nil, "120.1.0.10")
	web := c.addPod("web-0", "n1", map[string]string{"role": "web"})
	await.Equal(c, map[string]string{"120-1-0-10-1024": "n1 Pending of all"}, c.leases)
	db := c.addPod("db-0", "n2", map[string]string{"role": "db"})
	await.Equal(c, map[string]string{"120-1-0-10-1024": "n1 Pending of all", "120-1-0-9-1024": "n2 Pending of db-pods"}, c.leases)

	// A pod with an address of its own needs no block of its namespace.
	own := &submarinerv1.GlobalIngressIP{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod-web-0"},
		Spec: submarinerv1.GlobalIngressIPSpec{
			Target: submarinerv1.HeadlessServicePod, PodRef: &corev1.LocalObjectReference{Name: "web-0"},
		},
	}
	c.Make(own)
	own.Status.AllocatedIP = "120.1.0.11"
	meta.SetStatusCondition(&own.Status.Conditions, metav1.Condition{
		Type: submarinerv1.ConditionAllocated, Status: metav1.ConditionTrue, Reason: submarinerv1.ReasonSuccess,
	})
	if err := c.Status().Update(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	await.Equal(c, map[string]string{"120-1-0-9-1024": "n2 Pending of db-pods"}, c.leases)
	c.Remove(own)
	await.Equal(c, map[string]string{"120-1-0-10-1024": "n1 Pending of all", "120-1-0-9-1024": "n2 Pending of db-pods"}, c.leases)
	c.Remove(web)
	c.Remove(db)
	await.Equal(c, map[string]string{}, c.leases)
}

func TestDemandAndRelease(t *testing.T) {
	c := blockNewCluster(t)
	c.agent(2, nil)
	pool := c.addPool("", clusterPool, nil, "120.1.0.1", "120.1.0.2").(*submarinerv1.ClusterGlobalEgressIP)
	c.addNode("n1", 1, "b1")
	c.report("n1", func(s *pelagov1alpha1.NodeIndexStatus) { s.Ready, s.Gateway = true, true })
	acknowledge := func() {
		var uids []string
		for _, b := range c.list() {
			uids = append(uids, string(b.UID))
		}
		c.report("n1", func(s *pelagov1alpha1.NodeIndexStatus) { s.Acks = uids })
	}
	demand := func(n int32) {
		c.report("n1", func(s *pelagov1alpha1.NodeIndexStatus) {
			s.Demand = []pelagov1alpha1.BlockDemand{{Pool: topology.ClusterPool, Blocks: n}}
		})
	}
	await.Equal(c, 2, func() int { return len(c.list()) })
	demand(4)
	await.Equal(c, 4, func() int { return len(c.list()) })
	acknowledge()
	await.Equal(c, map[string]string{
		"120-1-0-1-1024": "n1 Active", "120-1-0-1-1280": "n1 Active", "120-1-0-1-1536": "n1 Active", "120-1-0-1-1792": "n1 Active",
	}, c.leases)
	demand(3)
	await.Equal(c, "n1 Releasing", func() string { return c.leases()["120-1-0-1-1792"] })
	c.release("120-1-0-1-1792")
	await.Equal(c, 3, func() int { return len(c.list()) })

	// The pool loses the address: the node gets blocks of the other one and gives these back.
	pool.Status.AllocatedIPs = []string{"120.1.0.2"}
	if err := c.Status().Update(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	await.Equal(c, map[string]string{
		"120-1-0-1-1024": "n1 Releasing", "120-1-0-1-1280": "n1 Releasing", "120-1-0-1-1536": "n1 Releasing",
		"120-1-0-2-1024": "n1 Pending", "120-1-0-2-1280": "n1 Pending", "120-1-0-2-1536": "n1 Pending",
	}, c.leases)
	c.Remove(pool)
	await.Equal(c, map[string]string{
		"120-1-0-1-1024": "n1 Releasing", "120-1-0-1-1280": "n1 Releasing", "120-1-0-1-1536": "n1 Releasing",
	}, c.leases)
}

func TestOrphansAreFenced(t *testing.T) {
	c := blockNewCluster(t)
	c.addPool("", clusterPool, nil, "120.1.0.1")
	c.addNode("g", 9, "b0")
	dead, back := c.addNode("dead", 1, "b1"), c.addNode("back", 2, "b1")
	c.report("g", func(s *pelagov1alpha1.NodeIndexStatus) { s.Ready, s.Gateway = true, true })
	stop := c.agent(1, nil)
	await.Equal(c, 3, func() int { return len(c.list()) })
	var uids []string
	byNode := map[string]string{}
	for _, b := range c.list() {
		uids = append(uids, string(b.UID))
		byNode[b.Spec.Node] = b.Name
	}
	c.report("g", func(s *pelagov1alpha1.NodeIndexStatus) { s.Acks = uids })
	lease := func(node string) func() string { return func() string { return c.leases()[byNode[node]] } }
	await.Equal(c, "dead Active", lease("dead"))
	await.Equal(c, "back Active", lease("back"))

	stop() // the nodes go while no agent runs
	c.Remove(dead)
	c.Remove(back)
	c.agent(1, nil)
	await.Equal(c, "dead Active orphaned b1", lease("dead"))
	await.Equal(c, "back Active orphaned b1", lease("back"))

	// A node of the name comes back. As long as its boot is the old one, or not known, its old
	// block stays.
	c.Remove(&pelagov1alpha1.NodeIndex{ObjectMeta: metav1.ObjectMeta{Name: "dead"}})
	c.Remove(&pelagov1alpha1.NodeIndex{ObjectMeta: metav1.ObjectMeta{Name: "back"}})
	c.addNode("back", 3, "b1")
	await.Equal(c, 2, func() int { return c.perNode()["back"] }) // it has a block of its own now
	c.Nudge(&pelagov1alpha1.PortBlock{ObjectMeta: metav1.ObjectMeta{Name: byNode["back"]}})
	time.Sleep(300 * time.Millisecond) // the block may not be freed
	if got := lease("back")(); got != "back Active orphaned b1" {
		t.Errorf("back without a reboot: %q", got)
	}
	c.report("back", func(s *pelagov1alpha1.NodeIndexStatus) { s.BootID = "b2" })
	await.Equal(c, "", lease("back"))

	orphan := &pelagov1alpha1.PortBlock{ObjectMeta: metav1.ObjectMeta{Name: byNode["dead"]}}
	c.release(byNode["dead"]) // whoever reports it is not the node that the block was leased to
	c.clock.Step(ipam.Established - 2*time.Second)
	c.Nudge(orphan)
	time.Sleep(300 * time.Millisecond) // the block may not be freed
	if got := lease("dead")(); got != "dead Active orphaned b1" {
		t.Errorf("before the timer has run out: %q", got)
	}
	c.clock.Step(4 * time.Second)
	c.Nudge(orphan)
	await.Equal(c, "", lease("dead"))
}

func TestBlockExhaustedPool(t *testing.T) {
	c := blockNewCluster(t)
	c.agent(100, nil)
	pool := c.addPool("", clusterPool, nil, "120.1.0.1") // 252 blocks
	n1 := c.addNode("n1", 1, "b1")
	c.addNode("n2", 2, "b1")
	await.Equal(c, map[string]int{"n1": 100, "n2": 100}, c.perNode)
	c.addNode("n3", 3, "b1")
	await.Equal(c, map[string]int{"n1": 100, "n2": 100, "n3": 52}, c.perNode)
	condition := func() string {
		g := &submarinerv1.ClusterGlobalEgressIP{}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(pool), g); err != nil {
			t.Fatal(err)
		}
		found := meta.FindStatusCondition(g.Status.Conditions, submarinerv1.ConditionPortBlocksExhausted)
		if found == nil {
			return ""
		}
		return string(found.Status) + " " + found.Reason
	}
	await.Equal(c, "True AllBlocksLeased", condition)
	await.Equal(c, []string{"ClusterGlobalEgressIP", "Node"}, func() []string {
		var events corev1.EventList
		if err := c.List(t.Context(), &events); err != nil {
			t.Fatal(err)
		}
		var kinds []string
		for _, e := range events.Items {
			if e.Reason == submarinerv1.ReasonAllBlocksLeased && strings.Contains(e.Message, "raise") {
				kinds = append(kinds, e.InvolvedObject.Kind)
			}
		}
		slices.Sort(kinds)
		return slices.Compact(kinds)
	})
	c.Remove(n1) // its blocks are pending, nobody has used them
	await.Equal(c, map[string]int{"n2": 100, "n3": 100}, c.perNode)
	await.Equal(c, "False BlocksAvailable", condition)
}

// Agents that die between two writes, and two that run at once, lease no ports twice and leave no
// node without.
func TestKilledAgentsNeverLeaseTwice(t *testing.T) {
	c := blockNewCluster(t)
	c.addPool("", clusterPool, nil, "120.1.0.1", "120.1.0.2", "120.1.0.3")
	const nodes = 100 // work for more writes than twenty agents live to do
	want := map[string]int{}
	for i := range int32(nodes) {
		name := fmt.Sprintf("n%d", i)
		c.addNode(name, i+1, "b1")
		want[name] = 2
	}
	check := func() {
		t.Helper()
		ports := map[ipam.PortSpace]string{}
		for _, b := range c.list() {
			p := ipam.PortSpace{IP: netip.MustParseAddr(b.Spec.EgressIP), First: b.Spec.FirstPort}
			if other, twice := ports[p]; twice {
				t.Errorf("%v are leased to %s and %s", p, other, b.Spec.Node)
			}
			ports[p] = b.Spec.Node
		}
	}
	for range 20 {
		faults := &apiserver.Faults{Every: 8, Fatal: true}
		stop := c.agent(2, faults)
		faults.AwaitDeath()
		stop()
		check()
	}
	c.agent(2, &apiserver.Faults{Every: 20})
	c.agent(2, &apiserver.Faults{Every: 20})
	await.Equal(c, want, c.perNode)
	check()
}

// Without demand nodes divide a quarter of the pool; a further node changes their share.
func TestNodesShareThePool(t *testing.T) {
	c := blockNewCluster(t)
	c.agent(0, nil)
	c.addPool("", clusterPool, nil, "120.1.0.1")
	usable := func() map[string]int {
		n := map[string]int{}
		for _, b := range c.list() {
			if b.Spec.State != pelagov1alpha1.BlockReleasing {
				n[b.Spec.Node]++
			}
		}
		return n
	}
	c.addNode("n1", 1, "b1")
	c.addNode("n2", 2, "b1")
	await.Equal(c, map[string]int{"n1": 31, "n2": 31}, usable)
	c.addNode("n3", 3, "b1")
	await.Equal(c, map[string]int{"n1": 15, "n2": 15, "n3": 15}, usable)

	// One that demands all ports leaves a later one its minimum.
	c.report("n1", func(s *pelagov1alpha1.NodeIndexStatus) {
		s.Demand = []pelagov1alpha1.BlockDemand{{Pool: topology.ClusterPool, Blocks: 252}}
	})
	await.Equal(c, map[string]int{"n1": 252 - 63 - 30, "n2": 15, "n3": 15}, usable)
	c.addNode("n4", 4, "b1")
	await.Equal(c, map[string]int{"n1": 252 - 63 - 30, "n2": 15, "n3": 15, "n4": 15}, usable)
}
