package topology_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/topology"
)

func TestWanted(t *testing.T) {
	gateway := func(name string, change func(*corev1.Node)) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{submarinerv1.LabelGateway: "true"}}}
		if change != nil {
			change(&n)
		}
		return n
	}
	annotated := func(n *corev1.Node) { n.Annotations = map[string]string{v1alpha1.AnnotationDrained: "true"} }
	cordoned := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	worker := func(n *corev1.Node) { n.Labels = nil }
	for name, tt := range map[string]struct {
		nodes []corev1.Node
		want  []string
	}{
		"no node":                  {nil, nil},
		"no gateway":               {[]corev1.Node{gateway("a", worker)}, nil},
		"all in service":           {[]corev1.Node{gateway("a", nil), gateway("b", nil), gateway("c", worker)}, []string{"a", "b"}},
		"one drained":              {[]corev1.Node{gateway("a", annotated), gateway("b", nil)}, []string{"b"}},
		"one cordoned":             {[]corev1.Node{gateway("a", nil), gateway("b", cordoned)}, []string{"a"}},
		"the only one is drained":  {[]corev1.Node{gateway("a", annotated), gateway("c", worker)}, []string{"a"}},
		"the only one is cordoned": {[]corev1.Node{gateway("a", cordoned)}, []string{"a"}},
		"all are drained":          {[]corev1.Node{gateway("a", annotated), gateway("b", cordoned)}, []string{"a", "b"}},
	} {
		if diff := cmp.Diff(tt.want, slices.Sorted(maps.Keys(topology.WantedGateways(tt.nodes)))); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}
