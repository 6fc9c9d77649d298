package topology

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// nodeWithout are labels of nodes on which pelago-node cannot run, each with its values: they have no
// Linux kernel of their own, and DaemonSets have no pods there. The affinity of the DaemonSet in
// deploy/member/workloads/node.yaml names the same.
var nodeWithout = map[string][]string{
	"kubernetes.io/os":               {"windows"},
	"type":                           {"virtual-kubelet"},
	"eks.amazonaws.com/compute-type": {"fargate"},
}

// HasDatapath reports whether pelago-node can run on a node with these labels. Other nodes are never
// waited for, get no index, and their pods are no backends for other clusters.
func HasDatapath(labels map[string]string) bool {
	for key, values := range nodeWithout {
		for _, value := range values {
			if labels[key] == value {
				return false
			}
		}
	}
	return true
}

// SameDatapath reports whether two versions of a node's labels agree on it.
func SameDatapath(a, b map[string]string) bool { return HasDatapath(a) == HasDatapath(b) }

// DatapathAffinity is the affinity of a DaemonSet that runs on nodes with a data path; with names only
// on these of them.
func DatapathAffinity(names ...string) *corev1.Affinity {
	var expressions []corev1.NodeSelectorRequirement
	for _, key := range slices.Sorted(maps.Keys(nodeWithout)) {
		expressions = append(expressions, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpNotIn, Values: nodeWithout[key]})
	}
	terms := []corev1.NodeSelectorTerm{{MatchExpressions: expressions}}
	if len(names) > 0 {
		terms = nil
		for _, name := range names { // a field is compared with one value
			terms = append(terms, corev1.NodeSelectorTerm{MatchExpressions: expressions, MatchFields: []corev1.NodeSelectorRequirement{
				{Key: nodeNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{name}}}})
		}
	}
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
}

// nodeNameField is the only field that an affinity can name (metav1.ObjectNameField).
const nodeNameField = "metadata.name"

// AffinityNames are the nodes to which DatapathAffinity has restricted an affinity; nil: all.
func AffinityNames(a *corev1.Affinity) (names []string) {
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == nodeNameField {
				names = append(names, f.Values...)
			}
		}
	}
	return names
}
