package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/pelago-net/pelago/test/e2e/walk"
)

// testFlood: a pod opens flows as fast as it can, towards the other cluster. Neither the other pods
// of its node nor those of the node that it floods lose a new connection.
func testFlood(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	var neighbour walk.Pod // a pod of the node on which sink is
	within(t, func() error {
		for _, name := range s.podsOf(t, "app=web") {
			if s.kubectl(t, "g2", "-n", loadNamespace, "get", "pod", name, "-o", "jsonpath={.spec.nodeName}") == l.sinkNode {
				neighbour = walk.Pod{Cluster: "g2", Namespace: loadNamespace, Name: name}
				return nil
			}
		}
		return fmt.Errorf("no pod of web runs on %s", l.sinkNode)
	})
	// Pods of their own: a pod that has used up its quota opens no flow until some of them expire.
	// With the pod its flows go.
	flooder := func(name string) walk.Pod {
		must(t, s.Apply(t.Context(), "g1", fmt.Sprintf(loadClient, name, l.clientNode, false)))
		s.kubectl(t, "g1", "-n", loadNamespace, "wait", "--for=condition=Ready", "pod/"+name, walk.WaitFlag)
		return walk.Pod{Cluster: "g1", Namespace: loadNamespace, Name: name}
	}
	tests := []struct {
		name              string
		source, neighbour walk.Pod
		flood             []string
	}{
		{"a neighbour", flooder("flood"), l.client, []string{l.sink.String() + ":7"}},
		{"a pod of the flooded node", flooder("flood-fresh"), neighbour, []string{"-fresh", l.sink.String() + ":7"}},
	}
	dropped := func(verdict string) uint64 { return s.counter(t, "g1", l.clientNode, "edge-out", verdict) }
	for _, tt := range tests {
		quota, ports := dropped("drop-quota"), dropped("drop-ports-exhausted")
		flood := s.start(t, tt.source, append([]string{"whereami", "flood"}, tt.flood...)...)
		n := int(*floods / time.Second * 100)
		out, err := s.In(t.Context(), tt.neighbour, "whereami", "burst", "-connections", fmt.Sprint(n), "-within", floods.String(), l.web.String()+":80")
		must(t, err)
		got := decode[bursted](t, out)
		sent := finish[struct{ Sent, Refused int }](t, flood)
		s.kubectl(t, "g1", "-n", loadNamespace, "delete", "pod", tt.source.Name)
		t.Logf("%s: %+v beside a flood of %+v, of which the quota dropped %d, and %d had no port", tt.name, got, sent, dropped("drop-quota")-quota,
			dropped("drop-ports-exhausted")-ports)
		if got.Opened != n {
			t.Errorf("%d of %d new connections of %s failed beside a flood: %v", got.FailedCount, n, tt.name, got.Failed)
		}
		if sent.Sent < 1000 {
			t.Errorf("%s: %d datagrams are no flood", tt.name, sent.Sent)
		}
	}
}
