package ipam_test

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/topology"
)

// selecting makes the GlobalEgressIP of a pool, for pods of one role.
func selecting(pool pelagov1alpha1.EgressPool, role string) []submarinerv1.GlobalEgressIP {
	return []submarinerv1.GlobalEgressIP{{
		ObjectMeta: metav1.ObjectMeta{Namespace: pool.Namespace, Name: pool.Name},
		Spec:       submarinerv1.GlobalEgressIPSpec{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": role}}},
	}}
}

func pod(namespace, role string) topology.EgressPod {
	return topology.EgressPod{Namespace: namespace, Name: role, Labels: map[string]string{"role": role}}
}
