package collect

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// resources makes a list of "cpu=500m memory=1Gi".
func resources(text string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for _, field := range strings.Fields(text) {
		name, q, _ := strings.Cut(field, "=")
		l[corev1.ResourceName(name)] = resource.MustParse(q)
	}
	return l
}

// show is the reverse.
func show(l corev1.ResourceList) string {
	var fields []string
	for _, name := range slices.Sorted(maps.Keys(l)) {
		q := l[name]
		fields = append(fields, fmt.Sprintf("%s=%s", name, q.String()))
	}
	return strings.Join(fields, " ")
}

func aNode(name string, ready corev1.ConditionStatus, allocatable string) *corev1.Node {
	n := &corev1.Node{}
	n.Name = name
	n.Status.Allocatable = resources(allocatable)
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	return n
}

// aPod requests each of the requests in a container of its own.
func aPod(node string, requests ...string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Spec.NodeName = node
	for _, r := range requests {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Resources: corev1.ResourceRequirements{Requests: resources(r)}})
	}
	return p
}

func counted(nodes []*corev1.Node, pods []*corev1.Pod) (n []node, p []pod) {
	for _, o := range nodes {
		stripNode(o)
		n = append(n, nodeOf(o))
	}
	for _, o := range pods {
		stripPod(o)
		p = append(p, podOf(o))
	}
	return n, p
}

// Karmada, resource summary: allocatable of all nodes, unready and cordoned included;
// allocated = requests of bound pods that have not ended; allocating = requests of pods without a
// node.
func TestResourceSummary(t *testing.T) {
	cordoned := aNode("n2", corev1.ConditionTrue, "cpu=2 memory=4Gi pods=110")
	cordoned.Spec.Unschedulable = true
	sidecar := aPod("n1", "cpu=100m")
	sidecar.Spec.InitContainers = []corev1.Container{
		aPod("", "cpu=50m").Spec.Containers[0],
		aPod("", "memory=1Gi").Spec.Containers[0],
	}
	sidecar.Spec.InitContainers[0].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	overhead := aPod("n1", "cpu=100m")
	overhead.Spec.Overhead = resources("cpu=10m memory=64Mi")
	for name, tt := range map[string]struct {
		nodes                              []*corev1.Node
		pods                               []*corev1.Pod
		allocatable, allocated, allocating string
		total, ready                       int32
	}{
		"nothing": {},
		"nodes in every state": {
			nodes: []*corev1.Node{aNode("n1", corev1.ConditionTrue, "cpu=1930m memory=3500Ki pods=110 nvidia.com/gpu=2"), cordoned,
				aNode("n3", corev1.ConditionUnknown, "cpu=1 ephemeral-storage=10Gi")},
			allocatable: "cpu=4930m ephemeral-storage=10Gi memory=4197804Ki nvidia.com/gpu=2 pods=220", total: 3, ready: 2,
		},
		"pods with and without a node": {
			pods: []*corev1.Pod{
				aPod("n1", "cpu=100m memory=10Mi", "cpu=1"), aPod("n2", "cpu=200m"), aPod("", "cpu=3 memory=1Gi"), aPod(""),
			},
			allocated: "cpu=1300m memory=10Mi pods=2", allocating: "cpu=3 memory=1Gi pods=2",
		},
		"more than a number holds": {
			pods:      []*corev1.Pod{aPod("n1", "cpu=9P"), aPod("n1", "cpu=9P"), aPod("n1", "cpu=9P"), aPod("", "cpu=10P memory=9E", "memory=9E"), aPod("", "cpu=1")},
			allocated: "cpu=9223372036854775807m pods=3", allocating: "cpu=9223372036854775807m memory=9223372036854775807 pods=2",
		},
		"init containers, sidecars, overhead": {
			pods:      []*corev1.Pod{sidecar, overhead},
			allocated: "cpu=260m memory=1088Mi pods=2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			nodes, pods := counted(tt.nodes, tt.pods)
			s, n := resourceSummary(nodes, pods, nil), nodeSummary(nodes)
			for what, pair := range map[string][2]string{
				"allocatable": {show(s.Allocatable), tt.allocatable},
				"allocated":   {show(s.Allocated), tt.allocated},
				"allocating":  {show(s.Allocating), tt.allocating},
			} {
				if pair[0] != pair[1] {
					t.Errorf("%s is %q, want %q", what, pair[0], pair[1])
				}
			}
			if n.TotalNum != tt.total || n.ReadyNum != tt.ready {
				t.Errorf("%d nodes, %d ready, want %d, %d", n.TotalNum, n.ReadyNum, tt.total, tt.ready)
			}
			if s.AllocatableModelings != nil {
				t.Errorf("without models nodes are counted by them: %v", s.AllocatableModelings)
			}
		})
	}
}

// Karmada, resource summary, modelling: a node counts in the highest grade whose lower
// bounds all fit its free resources.
func TestModelings(t *testing.T) {
	nodes := []*corev1.Node{
		aNode("small", corev1.ConditionTrue, "cpu=900m memory=64Gi"),
		aNode("even", corev1.ConditionTrue, "cpu=4 memory=32Gi"),
		aNode("used", corev1.ConditionTrue, "cpu=4 memory=32Gi"),
		aNode("little memory", corev1.ConditionFalse, "cpu=64 memory=4Gi"),
		aNode("over-committed", corev1.ConditionTrue, "cpu=1 memory=8Gi"),
		aNode("huge", corev1.ConditionTrue, "cpu=256 memory=2Ti"),
	}
	pods := []*corev1.Pod{aPod("used", "cpu=1m"), aPod("over-committed", "cpu=2"), aPod("gone", "cpu=2"), aPod("", "cpu=2")}
	n, p := counted(nodes, pods)
	got := ""
	for _, m := range modelings(n, freeOf(n, p), clusterv1alpha1.ClusterSpec{}.Models()) {
		got += fmt.Sprintf("%d:%d ", m.Grade, m.Count)
	}
	// grade 0: small, over-committed; 1: little memory (its CPU would be grade 7); 2: used (3999m);
	// 3: even; 8: huge
	if want := "0:2 1:1 2:1 3:1 4:0 5:0 6:0 7:0 8:1 "; got != want {
		t.Errorf("nodes by grade %s, want %s", got, want)
	}
}

// Pods that request more than a number holds leave a node nothing.
func TestModelOfOvercommittedNode(t *testing.T) {
	n, p := counted([]*corev1.Node{aNode("n1", corev1.ConditionTrue, "cpu=64 memory=1Ti")},
		[]*corev1.Pod{aPod("n1", "cpu=9P"), aPod("n1", "cpu=9P"), aPod("n1", "cpu=9P")})
	if m := modelings(n, freeOf(n, p), clusterv1alpha1.ClusterSpec{}.Models()); m[0].Count != 1 {
		t.Errorf("nodes by grade %v, want it in the lowest", m)
	}
}

// Every node is counted once, whatever is on it.
func TestEachNodeHasOneGrade(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cpu, memory := rapid.Int64Range(0, 300_000), rapid.Int64Range(0, 1<<41)
		nodes := make([]node, rapid.IntRange(0, 20).Draw(t, "nodes"))
		for i := range nodes {
			nodes[i] = node{name: fmt.Sprint(i), allocatable: amounts{{"cpu", cpu.Draw(t, "cpu")}, {"memory", memory.Draw(t, "memory")}}}
		}
		pods := make([]pod, rapid.IntRange(0, 20).Draw(t, "pods"))
		for i := range pods {
			pods[i] = pod{node: fmt.Sprint(rapid.IntRange(0, 25).Draw(t, "node")), requests: amounts{{"cpu", cpu.Draw(t, "asks")}}}
		}
		sum := 0
		for _, m := range modelings(nodes, freeOf(nodes, pods), clusterv1alpha1.ClusterSpec{}.Models()) {
			sum += m.Count
		}
		if sum != len(nodes) {
			t.Fatalf("%d nodes are counted as %d", len(nodes), sum)
		}
	})
}
