package topology_test

import (
	"strings"
	"testing"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/topology"
)

func TestParseNATBehavior(t *testing.T) {
	const independent, dependent = "EndpointIndependent", "AddressAndPortDependent"
	const mapping, filtering = submarinerv1.AnnotationNATMapping, submarinerv1.AnnotationNATFiltering
	for name, c := range map[string]struct {
		annotations map[string]string
		want        topology.NATBehavior
		err         string
	}{
		"none":                   {nil, topology.NATBehavior{}, ""},
		"dependent":              {map[string]string{mapping: dependent, filtering: dependent}, topology.NATBehavior{}, ""},
		"mapped":                 {map[string]string{mapping: independent}, topology.NATBehavior{Mapped: true}, ""},
		"mapped, filtered":       {map[string]string{mapping: independent, filtering: dependent}, topology.NATBehavior{Mapped: true}, ""},
		"open":                   {map[string]string{mapping: independent, filtering: independent}, topology.NATBehavior{Mapped: true, Open: true}, ""},
		"open without a mapping": {map[string]string{filtering: independent}, topology.NATBehavior{}, "set pelago.io/nat-mapping to EndpointIndependent"},
		"an unknown mapping":     {map[string]string{mapping: "endpointindependent"}, topology.NATBehavior{}, `annotation pelago.io/nat-mapping is "endpointindependent": use EndpointIndependent or`},
		"an empty filtering":     {map[string]string{mapping: independent, filtering: ""}, topology.NATBehavior{}, `annotation pelago.io/nat-filtering is "": use`},
	} {
		got, err := topology.ParseNATBehavior(c.annotations)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %+v, %v; want %+v, %q", name, got, err, c.want, c.err)
		}
	}
}

// The choice of a pod has the behaviour of its egress object; one that is invalid is the default.
func TestChooseNATBehavior(t *testing.T) {
	annotated := geip("pool", 0, "db", "120.1.0.3")
	annotated.Annotations = map[string]string{submarinerv1.AnnotationNATMapping: "EndpointIndependent"}
	c := cluster("120.1.0.1")
	c.Annotations = map[string]string{submarinerv1.AnnotationNATFiltering: "EndpointIndependent"}
	table := topology.NewEgressTable(c, []submarinerv1.GlobalEgressIP{annotated}, nil)
	for role, want := range map[string]topology.NATBehavior{"db": {Mapped: true}, "web": {}} {
		if got := table.Choose(topology.EgressPod{Namespace: "ns1", Labels: map[string]string{"role": role}}).NAT; got != want {
			t.Errorf("pod %s: %+v; want %+v", role, got, want)
		}
	}
}
