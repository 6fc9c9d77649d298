package collect

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

func TestNodePools(t *testing.T) {
	var nodes []*corev1.Node
	add := func(name, zone string, change ...func(*corev1.Node)) {
		n := aNode(name, corev1.ConditionTrue, "cpu=4 pods=10")
		n.Labels = map[string]string{"os": "linux", "zone": zone, corev1.LabelHostname: name}
		for _, f := range change {
			f(n)
		}
		nodes = append(nodes, n)
	}
	add("a1", "a")
	add("a2", "a", func(n *corev1.Node) { n.Spec.Unschedulable = true })
	add("b1", "b", func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "slow", Effect: corev1.TaintEffectPreferNoSchedule}, {Key: "gpu", Value: "y", Effect: corev1.TaintEffectNoSchedule}}
	})
	show := func(pods []*corev1.Pod) (text string) {
		n, p := counted(nodes, pods)
		common, pools, unpooled := nodePools(n, freeOf(n, p), clusterv1alpha1.ClusterSpec{}.Models())
		text = fmt.Sprintln(common, unpooled)
		for _, p := range pools {
			text += fmt.Sprintln(p.Nodes, p.Labels, p.Taints, show(p.Free), len(p.Modelings))
		}
		return text
	}
	want := `map[os:linux] []
1 map[kubernetes.io/hostname:a1 zone:a] [] cpu=3 pods=9 0
1 map[kubernetes.io/hostname:b1 zone:b] [{gpu y NoSchedule <nil>}] cpu=0 pods=9 0
1 map[kubernetes.io/hostname:a2 zone:a] [{node.kubernetes.io/unschedulable  NoSchedule <nil>}] cpu=4 pods=10 0
`
	pods := []*corev1.Pod{aPod("a1", "cpu=1"), aPod("b1", "cpu=5"), aPod("", "cpu=1")}
	if got := show(pods); got != want {
		t.Errorf("a few nodes:\n%s\nwant\n%s", got, want)
	}
	for i := range clusterv1alpha1.MaxNodePools {
		add(fmt.Sprintf("c%02d", i), "c")
	}
	want = `map[os:linux] [kubernetes.io/hostname]
1 map[zone:a] [] cpu=3 pods=9 0
32 map[zone:c] [] cpu=128 pods=320 9
1 map[zone:b] [{gpu y NoSchedule <nil>}] cpu=0 pods=9 0
1 map[zone:a] [{node.kubernetes.io/unschedulable  NoSchedule <nil>}] cpu=4 pods=10 0
`
	if got := show(pods); got != want {
		t.Errorf("more nodes than pools:\n%s\nwant\n%s", got, want)
	}
	for i, n := range nodes {
		n.Spec.Taints = []corev1.Taint{{Key: "own", Value: fmt.Sprint(i), Effect: corev1.TaintEffectNoExecute}}
	}
	if got, want := show(pods), "map[] []\n"; got != want {
		t.Errorf("more taints than pools:\n%s\nwant\n%s", got, want)
	}
}

func TestQuotaSummaries(t *testing.T) {
	of := func(namespace, name, hard, used string) quota {
		q := &corev1.ResourceQuota{}
		q.Namespace, q.Name = namespace, name
		q.Status.Hard, q.Status.Used = resources(hard), resources(used)
		q.Spec.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}
		q.Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
			{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpIn, Values: []string{"high"}}}}
		stripQuota(q)
		return quotaOf(q)
	}
	out, more := quotaSummaries([]quota{
		of("shop", "b", "pods=4", "pods=7"),
		of("shop", "a", "requests.cpu=2 limits.memory=4Gi requests.storage=1Ti services=3 count/pods=9", "requests.cpu=500m limits.memory=1Gi"),
		of("base", "c", "services=3", ""),
		of("base", "d", "cpu=1 requests.example.com/gpu=2", "cpu=250m"),
	})
	text := ""
	for _, q := range out {
		text += fmt.Sprintln(q.Namespace, show(q.Left), q.Scopes)
	}
	want := `base cpu=750m requests.example.com/gpu=2 [{BestEffort Exists []} {PriorityClass In [high]}]
shop count/pods=9 limits.memory=3Gi requests.cpu=1500m [{BestEffort Exists []} {PriorityClass In [high]}]
shop pods=0 [{BestEffort Exists []} {PriorityClass In [high]}]
`
	if text != want || more != 0 {
		t.Errorf("%s%d more, want\n%s", text, more, want)
	}
	if out, more := quotaSummaries(make([]quota, 3)); len(out) != 0 || more != 0 {
		t.Errorf("quotas that bound no pods: %v, %d more", out, more)
	}
	many := []quota{}
	for i := range clusterv1alpha1.MaxQuotas + 2 {
		many = append(many, of("shop", fmt.Sprint(i), "pods=1", ""))
	}
	if out, more := quotaSummaries(many); len(out) != clusterv1alpha1.MaxQuotas || more != 2 {
		t.Errorf("%d quotas: %d, and %d more", len(many), len(out), more)
	}
}
