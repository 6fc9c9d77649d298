package topology

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// IsGateway reports whether the node has the gateway label.
func IsGateway(n *corev1.Node) bool { return n.Labels[submarinerv1.LabelGateway] == "true" }

// Drained reports whether a gateway is drained, and by what: the annotation set by `pelago gateway
// drain`, or a cordon, with which `kubectl drain` begins.
func Drained(n *corev1.Node) (by string, drained bool) {
	switch {
	case n.Annotations[v1alpha1.AnnotationDrained] == "true":
		return v1alpha1.AnnotationDrained, true
	case n.Spec.Unschedulable:
		return "cordon", true
	}
	return "", false
}

// WantedGateways returns the names of the nodes that are to be gateways: those labelled and not
// drained. Until one of these serves, the drained ones are wanted as well, and if none of those
// serves either, so are former gateways that still serve although their label was removed. Without
// any labelled node there is no gateway.
//
// serving reports whether a node works as a gateway. It is up to the caller how to tell: labels and
// cordons do not show that a node has crashed or is still booting.
func WantedGateways(nodes []corev1.Node, serving func(node string) bool) map[string]bool {
	wanted := map[string]bool{}
	var drained, former []string
	var inService, drainedServes bool
	for i := range nodes {
		n := &nodes[i]
		_, isDrained := Drained(n)
		switch {
		case !IsGateway(n):
			if serving(n.Name) {
				former = append(former, n.Name)
			}
		case isDrained:
			drained = append(drained, n.Name)
			drainedServes = drainedServes || serving(n.Name)
		default:
			wanted[n.Name] = true
			inService = inService || serving(n.Name)
		}
	}
	if inService {
		return wanted
	}
	for _, name := range drained {
		wanted[name] = true
	}
	if !drainedServes && len(wanted) > 0 {
		for _, name := range former {
			wanted[name] = true
		}
	}
	return wanted
}
