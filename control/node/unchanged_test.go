package node

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/test/clusterset"
)

// The tables are computed again when an argument has changed, and only then.
func TestComputed(t *testing.T) {
	objs, host := clusterset.Globalnet("n1")
	var c computed
	first := c.desired(objs, host)
	if len(first.State.Nodes) == 0 {
		t.Fatal("the state is empty")
	}
	same := func(r tables.Result) bool { return &r.State.Gateways[0] == &first.State.Gateways[0] }
	if !same(c.desired(objs, host)) {
		t.Error("computed again without a change")
	}
	equal := host
	equal.Hops = maps.Clone(host.Hops)
	if !same(c.desired(objs, equal)) {
		t.Error("computed again for an equal host")
	}
	other := host
	other.Hops = maps.Clone(host.Hops)
	for a, hop := range other.Hops {
		hop.Ifindex++
		other.Hops[a] = hop
	}
	if same(c.desired(objs, other)) {
		t.Error("not computed for another hop")
	}
	changed := objs
	changed.Nodes = append([]corev1.Node(nil), objs.Nodes...)
	changed.Nodes[0].ResourceVersion = "changed"
	first = c.desired(objs, host)
	if same(c.desired(changed, host)) {
		t.Error("not computed for another version of a Node")
	}
	first = c.desired(objs, host)
	answering := objs
	answering.Answering = map[string]bool{"n9": true}
	if same(c.desired(answering, host)) {
		t.Error("not computed when another node answers")
	}
	first = c.desired(objs, host)
	host.Unusable = map[uint32]string{7: "no programs"}
	if r := c.desired(objs, host); same(r) {
		t.Error("not computed for a device that became unusable")
	}
}
