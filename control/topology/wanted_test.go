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
	list := func(nodes ...corev1.Node) []corev1.Node { return nodes }
	for name, tt := range map[string]struct {
		nodes   []corev1.Node
		serving []string
		want    []string
	}{
		"no node":                  {nil, nil, nil},
		"no gateway":               {list(gateway("a", worker)), nil, nil},
		"all in service":           {list(gateway("a", nil), gateway("b", nil), gateway("c", worker)), []string{"a", "b"}, []string{"a", "b"}},
		"none serves yet":          {list(gateway("a", nil), gateway("b", nil), gateway("c", worker)), nil, []string{"a", "b"}},
		"one drained":              {list(gateway("a", annotated), gateway("b", nil)), []string{"a", "b"}, []string{"b"}},
		"one cordoned":             {list(gateway("a", nil), gateway("b", cordoned)), []string{"a", "b"}, []string{"a"}},
		"the only one is drained":  {list(gateway("a", annotated), gateway("c", worker)), []string{"a"}, []string{"a"}},
		"the only one is cordoned": {list(gateway("a", cordoned)), []string{"a"}, []string{"a"}},
		"all are drained":          {list(gateway("a", annotated), gateway("b", cordoned)), []string{"a", "b"}, []string{"a", "b"}},

		// a rolling upgrade of the nodes: a was upgraded and uncordoned, then b is cordoned
		"a is dead, b cordoned":              {list(gateway("a", nil), gateway("b", cordoned)), []string{"b"}, []string{"a", "b"}},
		"a is dead, b drained":               {list(gateway("a", nil), gateway("b", annotated)), []string{"b"}, []string{"a", "b"}},
		"a boots, b is cordoned, both fail":  {list(gateway("a", nil), gateway("b", cordoned)), nil, []string{"a", "b"}},
		"a serves again":                     {list(gateway("a", nil), gateway("b", cordoned)), []string{"a"}, []string{"a"}},
		"c is dead, a serves, b is cordoned": {list(gateway("a", nil), gateway("b", cordoned), gateway("c", nil)), []string{"a", "b"}, []string{"a", "c"}},

		"label moved, the new gateway boots":    {list(gateway("a", nil), gateway("b", worker)), []string{"b"}, []string{"a", "b"}},
		"label moved, the new gateway serves":   {list(gateway("a", nil), gateway("b", worker)), []string{"a", "b"}, []string{"a"}},
		"label removed, a drained one serves":   {list(gateway("a", cordoned), gateway("b", worker)), []string{"a", "b"}, []string{"a"}},
		"label removed, the drained one boots":  {list(gateway("a", cordoned), gateway("b", worker)), []string{"b"}, []string{"a", "b"}},
		"label removed, the dead one is no use": {list(gateway("a", nil), gateway("b", worker)), nil, []string{"a"}},
		"last label removed":                    {list(gateway("a", worker), gateway("b", worker)), []string{"b"}, nil},
	} {
		serving := func(node string) bool { return slices.Contains(tt.serving, node) }
		if diff := cmp.Diff(tt.want, slices.Sorted(maps.Keys(topology.WantedGateways(tt.nodes, serving)))); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}

func TestGatewayServing(t *testing.T) {
	for name, tt := range map[string]struct {
		boot   string // of the node, as its kubelet reports it
		status v1alpha1.NodeIndexStatus
		want   bool
	}{
		"serves":                             {"b2", v1alpha1.NodeIndexStatus{Ready: true, Gateway: true, Serving: true, NodeBootID: "b2"}, true},
		"boot id not reported":               {"", v1alpha1.NodeIndexStatus{Ready: true, Gateway: true, Serving: true, NodeBootID: "b2"}, true},
		"daemon of the former version":       {"b2", v1alpha1.NodeIndexStatus{Ready: true, Gateway: true, Serving: true, BootID: "b1"}, true},
		"status of the boot before":          {"b2", v1alpha1.NodeIndexStatus{Ready: true, Gateway: true, Serving: true, NodeBootID: "b1"}, false},
		"remote gateways do not know it yet": {"b2", v1alpha1.NodeIndexStatus{Ready: true, Gateway: true, NodeBootID: "b2"}, false},
		"no tables in the kernel":            {"b2", v1alpha1.NodeIndexStatus{Gateway: true, Serving: true, NodeBootID: "b2"}, false},
	} {
		n := &corev1.Node{Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: tt.boot}}}
		if got := topology.GatewayServing(n, &v1alpha1.NodeIndex{Status: tt.status}); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
}
