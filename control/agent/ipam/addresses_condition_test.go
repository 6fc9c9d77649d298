package ipam

import (
	"net/netip"
	"strings"
	"testing"

	v1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/topology"
)

// An address that no gateway can forward reports what to do, rather than to wait for gateways.
func TestIngressConditionNamesTheGateways(t *testing.T) {
	have := []netip.Addr{netip.MustParseAddr("120.1.0.9")}
	gateway := func(acks ...string) v1alpha1.NodeIndex {
		return v1alpha1.NodeIndex{Status: v1alpha1.NodeIndexStatus{Ready: true, Gateway: true, Acks: acks}}
	}
	for name, tt := range map[string]struct {
		gateways topology.Gateways
		want     string
	}{
		"no gateway":               {nil, "label a node submariner.io/gateway=true"},
		"one of two has it":        {topology.Gateways{gateway("u"), gateway()}, "once every ready gateway has it in its tables"},
		"all ready gateways do so": {topology.Gateways{gateway("u"), gateway("u")}, "Allocated global IP"},
	} {
		if c := ingressCondition(have, "", nil, tt.gateways, "u", supply{}); !strings.Contains(c.Message, tt.want) {
			t.Errorf("%s: %s %s: %s; want %s", name, c.Status, c.Reason, c.Message, tt.want)
		}
	}
}
