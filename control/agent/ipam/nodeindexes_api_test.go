package ipam_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/agent/ipam"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

var nodeIndexServer = apiserver.NewShared(apiserver.CRDs("nodeindices.pelago.io", "portblocks.pelago.io"))

// cluster is an empty API server for one test.
type nodeIndexCluster struct{ *apiserver.Cluster }

func nodeIndexNewCluster(t *testing.T) nodeIndexCluster {
	t.Helper()
	c := nodeIndexCluster{apiserver.Connect(t, nodeIndexServer.Config(t), pelagov1alpha1.AddToScheme)}
	c.Empty(&corev1.Node{}, &corev1.ConfigMap{}, &pelagov1alpha1.NodeIndex{}, &pelagov1alpha1.PortBlock{})
	return c
}

func (c nodeIndexCluster) agent() (stop func()) {
	c.Helper()
	return apiserver.Manager{Scheme: c.Scheme(), Setup: []func(ctrl.Manager) error{func(mgr ctrl.Manager) error {
		return ipam.SetupNodeIndexes(mgr, ipam.NodeIndexOptions{Namespace: "default", Globalnet: true})
	}}}.Run(c, c.Config)
}

func (c nodeIndexCluster) addNode(name string) *corev1.Node {
	c.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Make(node)
	return node
}

// indexes maps nodes to their indexes.
func (c nodeIndexCluster) indexes() map[string]int32 {
	c.Helper()
	var list pelagov1alpha1.NodeIndexList
	if err := c.List(c.Context(), &list); err != nil {
		c.Fatal(err)
	}
	got := map[string]int32{}
	for _, n := range list.Items {
		got[n.Name] = n.Spec.Index
	}
	return got
}

func TestNodesComeAndGo(t *testing.T) {
	c := nodeIndexNewCluster(t)
	n1 := c.addNode("n1")
	stop := c.agent()
	await.Equal(c, map[string]int32{"n1": 1}, c.indexes)
	c.addNode("n2")
	await.Equal(c, map[string]int32{"n1": 1, "n2": 2}, c.indexes)
	c.Remove(n1)
	await.Equal(c, map[string]int32{"n2": 2}, c.indexes)
	c.addNode("n3")
	await.Equal(c, map[string]int32{"n2": 2, "n3": 3}, c.indexes)

	// A node of the same name is another node.
	n1 = c.addNode("n1")
	await.Equal(c, map[string]int32{"n1": 4, "n2": 2, "n3": 3}, c.indexes)
	stop()
	c.Remove(n1)
	c.addNode("n1")
	c.agent()
	await.Equal(c, map[string]int32{"n1": 5, "n2": 2, "n3": 3}, c.indexes)
}

// A node that cannot run the daemon gets no index, and loses one that it had: its pods are no
// backends for other clusters then.
func TestNodesWithoutDatapath(t *testing.T) {
	c := nodeIndexNewCluster(t)
	n1 := c.addNode("n1")
	for name, labels := range map[string]map[string]string{
		"windows": {"kubernetes.io/os": "windows"}, "virtual": {"kubernetes.io/os": "linux", "type": "virtual-kubelet"},
		"fargate": {"kubernetes.io/os": "linux", "eks.amazonaws.com/compute-type": "fargate"},
	} {
		c.Make(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
	}
	c.agent()
	c.addNode("n2")
	await.Equal(c, map[string]int32{"n1": 1, "n2": 2}, func() map[string]int32 {
		got := c.indexes()
		for name := range got { // numbers depend on the order
			if name == "n1" || name == "n2" {
				got[name] = map[string]int32{"n1": 1, "n2": 2}[name]
			}
		}
		return got
	})
	before := n1.DeepCopy()
	n1.Labels = map[string]string{"type": "virtual-kubelet"}
	if err := c.Patch(c.Context(), n1, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	await.Equal(c, []string{"n2"}, func() []string { return slices.Sorted(maps.Keys(c.indexes())) })
}

func TestRecordIsLost(t *testing.T) {
	c := nodeIndexNewCluster(t)
	c.agent()
	c.addNode("n1")
	n2 := c.addNode("n2")
	await.Equal(c, 2, func() int { return len(c.indexes()) })
	c.Remove(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pelago-node-indexes"}})
	c.Remove(n2)
	await.Equal(c, 1, func() int { return len(c.indexes()) })
	c.addNode("n3")
	await.Equal(c, 2, func() int { return len(c.indexes()) })
	if got := c.indexes(); got["n3"] == got["n1"] {
		t.Errorf("two nodes have one index: %v", got)
	}
}

// Blocks of a lost node must have been marked with its boot id before the NodeIndex, which has it,
// goes.
func TestIndexStaysUntilBlocksAreFenced(t *testing.T) {
	c := nodeIndexNewCluster(t)
	c.agent()
	node := c.addNode("n1")
	block := &pelagov1alpha1.PortBlock{
		ObjectMeta: metav1.ObjectMeta{Name: "120-1-0-1-1024"},
		Spec: pelagov1alpha1.PortBlockSpec{
			EgressIP: "120.1.0.1", FirstPort: 1024, Node: "n1", NodeUID: string(node.UID), State: pelagov1alpha1.BlockActive,
			Pool: pelagov1alpha1.EgressPool{Name: "cluster-egress.submariner.io"},
		},
	}
	c.Make(block)
	await.Equal(c, 1, func() int { return len(c.indexes()) })
	c.Remove(node)
	time.Sleep(time.Second) // the NodeIndex may not go, at two looks
	if len(c.indexes()) == 0 {
		t.Error("the NodeIndex is gone before its blocks are marked as orphaned")
	}
	block.Spec.OrphanedAt = &metav1.Time{Time: time.Now()}
	if err := c.Update(t.Context(), block); err != nil {
		t.Fatal(err)
	}
	await.Equal(c, map[string]int32{}, c.indexes)
}

// Two agents that both believe to be the leader give no index twice.
func TestTwoAgents(t *testing.T) {
	c := nodeIndexNewCluster(t)
	c.agent()
	c.agent()
	const nodes = 50
	for i := range nodes {
		c.addNode(fmt.Sprintf("n%d", i))
	}
	await.Equal(c, nodes, func() int { return len(c.indexes()) })
	nodesOf := map[int32]string{}
	for node, index := range c.indexes() {
		if other, twice := nodesOf[index]; twice {
			t.Errorf("%s and %s have index %d", node, other, index)
		}
		nodesOf[index] = node
	}
}
