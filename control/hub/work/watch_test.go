package work

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/event"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// Conditions change taints, and must not render all Works again.
func TestClusterChanged(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*clusterv1alpha1.Cluster)
		want   bool
	}{
		"nothing": {func(*clusterv1alpha1.Cluster) {}, false},
		"a taint": {func(c *clusterv1alpha1.Cluster) {
			c.Spec.Taints = []clusterv1alpha1.Taint{{Key: "a", Effect: corev1.TaintEffectNoExecute}}
		}, false},
		"unapproved": {func(c *clusterv1alpha1.Cluster) {
			c.Spec.Taints = []clusterv1alpha1.Taint{{Key: clusterv1alpha1.TaintUnapproved, Effect: corev1.TaintEffectNoSchedule}}
		}, true},
		"refused": {func(c *clusterv1alpha1.Cluster) {
			c.Status.Conditions = []metav1.Condition{{Type: clusterv1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: clusterv1alpha1.ReasonClusterIsHub}}
		}, true},
		"no taint":  {func(c *clusterv1alpha1.Cluster) { c.Spec.Taints = nil }, false},
		"status":    {func(c *clusterv1alpha1.Cluster) { c.Status.KubernetesVersion = "v1" }, false},
		"a label":   {func(c *clusterv1alpha1.Cluster) { c.Labels = map[string]string{"a": "b"} }, true},
		"provider":  {func(c *clusterv1alpha1.Cluster) { c.Spec.Provider = "p" }, true},
		"region":    {func(c *clusterv1alpha1.Cluster) { c.Spec.Region = "r" }, true},
		"zones":     {func(c *clusterv1alpha1.Cluster) { c.Spec.Zones = []string{"z"} }, true},
		"sync mode": {func(c *clusterv1alpha1.Cluster) { c.Spec.SyncMode = clusterv1alpha1.Pull }, true},
		"removal":   {func(c *clusterv1alpha1.Cluster) { c.DeletionTimestamp = ptr.To(metav1.NewTime(time.Unix(1, 0))) }, true},
		"made anew": {func(c *clusterv1alpha1.Cluster) { c.UID = "2" }, true},
	} {
		before := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "1", Generation: 1}, Spec: clusterv1alpha1.ClusterSpec{
			SyncMode: clusterv1alpha1.Push, Taints: []clusterv1alpha1.Taint{{Key: "b", Effect: corev1.TaintEffectNoSchedule}}}}
		after := before.DeepCopy()
		after.Generation = 2
		c.change(after)
		if got := clusterChanged().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
		if len(before.Spec.Taints) != 1 {
			t.Errorf("%s: the object of the cache was changed", name)
		}
	}
}
