package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/scheduler"
	"github.com/pelago-net/pelago/test/bench/mixed"
)

var deployment = schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}

// running is how many kinds of bindings there are for each placement: new, or running with another
// number of replicas.
const running = 2

// clusters are members in 20 regions and three tiers, with room for all; one of twenty is tainted.
func clusters(n int) (out []*clusterv1alpha1.Cluster) {
	kinds := []clusterv1alpha1.APIResource{{Kind: "DaemonSet"}, {Kind: "Deployment"}, {Kind: "ReplicaSet"}, {Kind: "StatefulSet"}}
	for i := range n {
		c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{
			Name: nameOf(i), UID: types.UID(nameOf(i)), ResourceVersion: "1",
			Labels: mixed.Labels(i),
		}}
		c.Spec.Region = mixed.Region(i)
		if i%20 == 19 {
			c.Spec.Taints = []clusterv1alpha1.Taint{{Key: "dedicated", Value: "batch", Effect: corev1.TaintEffectNoSchedule}}
		}
		c.Status.Conditions = []metav1.Condition{
			{Type: clusterv1alpha1.ConditionReady, Status: metav1.ConditionTrue},
			{Type: clusterv1alpha1.ConditionCompleteAPIEnablements, Status: metav1.ConditionTrue},
		}
		c.Status.APIEnablements = []clusterv1alpha1.APIEnablement{
			{GroupVersion: "v1", Resources: []clusterv1alpha1.APIResource{{Kind: "Pod"}}}, {GroupVersion: "apps/v1", Resources: kinds},
		}
		amount := func(n int) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }
		c.Status.ResourceSummary = &clusterv1alpha1.ResourceSummary{
			Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: amount(1_000_000 + i%50*10_000), corev1.ResourceMemory: amount((4_000_000 + i%30*10_000) << 30),
				corev1.ResourcePods: amount(8_000_000), corev1.ResourceEphemeralStorage: amount(1 << 50),
			},
			Allocated: corev1.ResourceList{corev1.ResourceCPU: amount(i % 7 * 10_000), corev1.ResourcePods: amount(i % 11 * 10_000)},
		}
		out = append(out, c)
	}
	return out
}

func nameOf(i int) string { return fmt.Sprintf("member-%04d", i) }

// binding is the i-th one, over clusters with these names. Each has its own placement object, as
// when read from the API server.
func binding(i int, names []string) *scheduler.Request {
	p := mixed.Placement(i, names)
	if i%3 == 0 {
		p.ClusterTolerations = []policyv1alpha1.Toleration{
			{Key: "dedicated", Operator: corev1.TolerationOpEqual, Value: "batch", Effect: corev1.TaintEffectNoSchedule},
		}
	}
	r := &scheduler.Request{
		UID: types.UID(fmt.Sprint("uid-", i)), Kind: deployment, Placement: p, Replicas: int32(1 + i%40),
		Requirements: &workv1alpha2.ReplicaRequirements{ResourceRequest: corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewMilliQuantity(int64(100+i%10*50), resource.DecimalSI),
			corev1.ResourceMemory: *resource.NewQuantity(int64(1+i%4)<<28, resource.BinarySI),
		}},
	}
	if i/mixed.Combinations%running == 1 {
		for n := range 3 {
			r.Current = append(r.Current, workv1alpha2.TargetCluster{Name: names[(i+n*7)%len(names)], Replicas: int32(1 + i%5)})
		}
	}
	return r
}
