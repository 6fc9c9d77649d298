package ipam

import (
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/topology"
)

// An address that no gateway can forward reports what to do, rather than to wait for gateways.
func TestIngressConditionNamesTheGateways(t *testing.T) {
	have := []netip.Addr{netip.MustParseAddr("120.1.0.9")}
	gateway := func(acks ...string) v1alpha1.NodeIndex {
		return v1alpha1.NodeIndex{ObjectMeta: metav1.ObjectMeta{Name: "gw"}, Status: v1alpha1.NodeIndexStatus{Ready: true, Gateway: true, Acks: acks}}
	}
	for name, tt := range map[string]struct {
		gateways topology.Gateways
		want     string
	}{
		"no gateway":               {nil, "label a node submariner.io/gateway=true"},
		"one of two has it":        {topology.Gateways{gateway("u"), gateway()}, "once gateway gw has it in its tables"},
		"all ready gateways do so": {topology.Gateways{gateway("u"), gateway("u")}, "Allocated global IP"},
	} {
		if c := ingressCondition(have, "", nil, tt.gateways, "u", supply{}); !strings.Contains(c.Message, tt.want) {
			t.Errorf("%s: %s %s: %s; want %s", name, c.Status, c.Reason, c.Message, tt.want)
		}
	}
}

// Addresses without ports are no success: the condition names the nodes and the gateways.
func TestEgressConditionNamesPendingBlocks(t *testing.T) {
	have := []netip.Addr{netip.MustParseAddr("120.1.0.9")}
	nodes := []string{"n1", "n2", "n3", "n4", "n5", "n6", "n7"}
	for name, tt := range map[string]struct {
		blocks pendingBlocks
		want   string
	}{
		"none is pending": {pendingBlocks{}, "True Success Allocated global IP(s)"},
		"all are pending": {pendingBlocks{nodes: nodes[:1], gateways: []string{"gw-b"}},
			"False AwaitingGateways the addresses are allocated, but pods on n1 have no ports yet: their port blocks are pending until gateway gw-b has them in its tables: see pelago show gateways"},
		"those of new nodes": {pendingBlocks{nodes: nodes, gateways: []string{"gw-a", "gw-b"}, elsewhere: true},
			"True AwaitingGateways the addresses are allocated, but pods on n1, n2, n3, n4, n5 and 2 more have no ports yet: their port blocks are pending until gateway gw-a, gw-b has them in its tables: see pelago show gateways"},
		"there is no gateway": {pendingBlocks{nodes: nodes[:1]},
			"False AwaitingGateways the addresses are allocated, but pods on n1 have no ports yet: their port blocks are pending until this cluster has a ready gateway: label a node submariner.io/gateway=true, or see pelago show gateways"},
	} {
		c := egressCondition(nil, 1, have, tt.blocks, supply{})
		if got := string(c.Status) + " " + c.Reason + " " + c.Message; got != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, tt.want)
		}
	}
}
