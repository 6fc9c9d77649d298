package topology_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/topology"
)

func node(gateway, ready bool, acks ...string) v1alpha1.NodeIndex {
	return v1alpha1.NodeIndex{Status: v1alpha1.NodeIndexStatus{Gateway: gateway, Ready: ready, Acks: acks}}
}

func TestHave(t *testing.T) {
	tests := map[string]struct {
		gateways topology.Gateways
		want     bool
	}{
		"no gateway":       {nil, false},
		"one has it":       {topology.Gateways{node(true, true, "a", "b")}, true},
		"one of two":       {topology.Gateways{node(true, true, "b"), node(true, true, "a")}, false},
		"both":             {topology.Gateways{node(true, true, "b"), node(true, true, "a", "b")}, true},
		"nothing is acked": {topology.Gateways{node(true, true)}, false},
	}
	for name, tt := range tests {
		if got := tt.gateways.Have("b"); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// A gateway that is down is asked for no acknowledgement.
func TestInService(t *testing.T) {
	type gateway struct {
		name, label, ready, boot string
	}
	up := func(name string) gateway { return gateway{name, "true", "True", "b1"} }
	for name, tt := range map[string]struct {
		nodes  []gateway
		silent string
		want   string
	}{
		"both":                                     {[]gateway{up("a"), up("b")}, "", "a b"},
		"the Node of one is not Ready":             {[]gateway{up("a"), {"b", "true", "Unknown", "b1"}}, "", "a"},
		"one has booted since its report":          {[]gateway{up("a"), {"b", "true", "True", "b2"}}, "", "a"},
		"one has no Node":                          {[]gateway{up("a")}, "", "a"},
		"another Node has its name":                {[]gateway{up("a"), {"b", "uid", "True", "b1"}}, "", "a"},
		"one answers no witness":                   {[]gateway{up("a"), up("b")}, "b", "a"},
		"neither answers a witness":                {[]gateway{up("a"), up("b")}, "a b", "a b"},
		"the other one is not Ready":               {[]gateway{up("a"), {"b", "true", "False", "b1"}}, "a", "a"},
		"one has lost its label":                   {[]gateway{up("a"), {"b", "", "True", "b1"}}, "", "a"},
		"the only one that is left lost its label": {[]gateway{{"a", "", "True", "b1"}, {"b", "", "False", "b1"}}, "", "a"},
		"none is Ready":                            {[]gateway{{"a", "true", "Unknown", "b1"}, {"b", "true", "Unknown", "b1"}}, "", ""},
	} {
		var ready []v1alpha1.NodeIndex
		for _, name := range []string{"a", "b"} {
			ready = append(ready, v1alpha1.NodeIndex{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeIndexSpec{NodeUID: "uid-" + name},
				Status: v1alpha1.NodeIndexStatus{Ready: true, Gateway: true, NodeBootID: "b1"},
			})
		}
		nodes, silent := map[string]*corev1.Node{}, map[string]bool{}
		for _, g := range tt.nodes {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: g.name, UID: types.UID("uid-" + g.name), Labels: map[string]string{submarinerv1.LabelGateway: g.label}}}
			if g.label == "uid" {
				n.UID = "another"
			}
			n.Status.NodeInfo.BootID = g.boot
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionStatus(g.ready)}}
			nodes[g.name] = n
		}
		for _, name := range strings.Fields(tt.silent) {
			silent[name] = true
		}
		got := topology.InService(ready, nodes, silent).Missing("x")
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestChanged(t *testing.T) {
	tests := map[string]struct {
		was, is v1alpha1.NodeIndex
		want    bool
	}{
		"the same":                     {node(true, true, "a"), node(true, true, "a"), false},
		"another acknowledgement":      {node(true, true, "a"), node(true, true, "a", "b"), true},
		"it gets ready":                {node(true, false), node(true, true), true},
		"it is drained":                {node(true, true), node(true, false), true},
		"it is a gateway no more":      {node(true, true), node(false, true), true},
		"what is no gateway has a say": {node(false, true), node(false, true, "a"), false},
	}
	for name, tt := range tests {
		if got := topology.NodeIndexChanged(&tt.was, &tt.is); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
