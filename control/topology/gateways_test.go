package topology_test

import (
	"testing"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
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
