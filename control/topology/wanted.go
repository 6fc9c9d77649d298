package topology

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// Labelled says whether the node carries the label of gateways.
func IsGateway(n *corev1.Node) bool { return n.Labels[submarinerv1.LabelGateway] == "true" }

// Drained says whether a gateway is taken out of service, and by what: the annotation of `pelago gateway drain`, or a
// cordon, which also stands at the beginning of `kubectl drain`.
func Drained(n *corev1.Node) (by string, drained bool) {
	switch {
	case n.Annotations[v1alpha1.AnnotationDrained] == "true":
		return v1alpha1.AnnotationDrained, true
	case n.Spec.Unschedulable:
		return "cordon", true
	}
	return "", false
}

// Wanted are the names of the nodes that are to be gateways: those labelled that are not drained. If all are drained, all
// are wanted: a cluster with no gateway helps nobody.
func WantedGateways(nodes []corev1.Node) map[string]bool {
	all, wanted := map[string]bool{}, map[string]bool{}
	for i := range nodes {
		n := &nodes[i]
		if !IsGateway(n) {
			continue
		}
		all[n.Name] = true
		if _, drained := Drained(n); !drained {
			wanted[n.Name] = true
		}
	}
	if len(wanted) == 0 {
		return all
	}
	return wanted
}
