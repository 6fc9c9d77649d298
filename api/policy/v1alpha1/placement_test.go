package v1alpha1

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

func TestTolerates(t *testing.T) {
	taints := []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}, {Key: "a", Value: "1", Effect: corev1.TaintEffectNoExecute},
		{Key: "b", Value: "1", Effect: corev1.TaintEffectNoSchedule}}
	for _, key := range []string{"", "a", "b"} {
		for _, operator := range []corev1.TolerationOperator{"", corev1.TolerationOpExists, corev1.TolerationOpEqual, corev1.TolerationOpGt} {
			for _, value := range []string{"", "1", "2"} {
				for _, effect := range []corev1.TaintEffect{"", corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
					toleration := Toleration{Key: key, Operator: operator, Value: value, Effect: effect}
					pods := corev1.Toleration(toleration)
					for _, taint := range taints {
						if got, want := toleration.Tolerates(taint), pods.ToleratesTaint(klog.Background(), &taint, false); got != want {
							t.Errorf("%+v tolerates %+v: %v, that of a pod %v", toleration, taint, got, want)
						}
					}
				}
			}
		}
	}
}
