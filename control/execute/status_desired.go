package execute

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// view is what a collector has seen of the member.
type view struct {
	ready metav1.Condition // what the last probe found
	// What the last probe that found the member healthy was followed by; version is empty if the member did not tell.
	version     string
	enablements []clusterv1alpha1.APIEnablement
	complete    *metav1.Condition // nil: not asked yet
	// Nodes and pods, if both were listed once.
	counted bool
	nodes   []node
	pods    []pod
}

// desired is the status that the cluster should have, of the fields that are a collector's; all else stays. While the cluster
// is not ready, or a probe says that it is not, only conditions change. That it is another cluster is said at once: nobody
// waits for that to pass.
func desiredStatus(c *clusterv1alpha1.Cluster, v view, passes bool) clusterv1alpha1.ClusterStatus {
	want := *c.Status.DeepCopy()
	if passes || v.ready.Reason == clusterv1alpha1.ReasonClusterIDMismatch {
		meta.SetStatusCondition(&want.Conditions, v.ready)
	}
	if v.ready.Status != metav1.ConditionTrue || !meta.IsStatusConditionTrue(want.Conditions, clusterv1alpha1.ConditionReady) {
		return want
	}
	if v.version != "" {
		want.KubernetesVersion = v.version
	}
	if v.complete != nil {
		meta.SetStatusCondition(&want.Conditions, *v.complete)
		want.APIEnablements = v.enablements
	}
	if v.counted {
		want.NodeSummary = nodeSummary(v.nodes)
		want.ResourceSummary = resourceSummary(v.nodes, v.pods, usable(c.Spec))
	}
	return want
}

// usable are the models by which nodes are counted; none if the cluster's own contradict each other.
func usable(spec clusterv1alpha1.ClusterSpec) []clusterv1alpha1.ResourceModel {
	if len(spec.Validate(field.NewPath("spec"))) > 0 {
		return nil
	}
	return spec.Models()
}
