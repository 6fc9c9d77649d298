package ipam

import (
	corev1 "k8s.io/api/core/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/topology"
)

// Want is how many blocks of a pool a node shall have: none of a GlobalEgressIP that no pod of the node uses, else the
// minimum, or more if the node daemon says that it needs more. Every node uses the cluster's pool: for its own sake.
func WantedBlocks(pool pelagov1alpha1.EgressPool, minimum int, demand []pelagov1alpha1.BlockDemand, pods []topology.EgressPod, table *topology.EgressTable) int {
	if pool != topology.ClusterPool && !used(pool, pods, table) {
		return 0
	}
	want := minimum
	for _, d := range demand {
		if d.Pool == pool {
			want = max(want, int(d.Blocks))
		}
	}
	return want
}

func used(pool pelagov1alpha1.EgressPool, pods []topology.EgressPod, table *topology.EgressTable) bool {
	for _, pod := range pods {
		if table.Choose(pod).Pool == pool {
			return true
		}
	}
	return false
}

// runs says whether a pod can open flows from an address of its own: it is bound to a node and has not finished.
func runs(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && !pod.Spec.HostNetwork && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}
