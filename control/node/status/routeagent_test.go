package status

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane/liveness"
	"github.com/pelago-net/pelago/test/clusterset"
)

// town is cluster g1 with gateways n1 and n3 and a plain node n2, seen from one of them; g2 is
// cluster 2.
func town(from string) (Snapshot, *Tracker) {
	objs, host := clusterset.TwoGateways(from)
	r := tables.Desired(objs, host)
	return NewSnapshot(objs, r, tables.Reach{}, false), NewTracker("v3")
}

// slow is a path that has got slow.
func slow(p liveness.Path) liveness.Path {
	p.SRTT, p.RTT, p.Replies = 9*time.Millisecond, 9*time.Millisecond, p.Replies+1
	return p
}

func TestRemoteEndpoints(t *testing.T) {
	n1, n3, far := ip("172.31.1.11"), ip("172.31.1.13"), ip("172.31.2.11")
	type paths = map[netip.Addr]liveness.Path
	lost := clusterset.Answering().WithUnreachable(2)
	dead := clusterset.Silent(time.Second)
	for _, tt := range []struct {
		what, from string
		before     paths // a second before
		now        paths
		status     submarinerv1.ConnectionStatus
		says       string
		latency    string // of the last answer
		silent     string
	}{
		{"all is well", "n2", nil, paths{n1: slow(clusterset.Answering()), n3: clusterset.Answering()},
			submarinerv1.Connected, "Through gateway n3, to which latencyRTT is.", "1.2ms", ""},
		{"a gateway is dead", "n2", paths{n1: clusterset.Answering(), n3: clusterset.Answering()}, paths{n1: slow(clusterset.Answering()), n3: dead},
			submarinerv1.Connected, "n3 does not answer. Through gateway n1, to which latencyRTT is.", "9ms", "n3"},
		{"a gateway is cut off from g2", "n2", nil, paths{n1: lost, n3: slow(clusterset.Answering())},
			submarinerv1.Connected, "n1 gets no answer from g2. Through gateway n3, to which latencyRTT is.", "9ms", ""},
		{"both are", "n2", paths{n1: lost, n3: lost}, paths{n1: lost, n3: lost},
			submarinerv1.Connecting, "n1, n3 gets no answer from g2. Waiting for the first answer of a gateway of this cluster.", "", ""},
		{"both are, after a good time", "n2", paths{n1: clusterset.Answering(), n3: lost}, paths{n1: lost, n3: lost},
			submarinerv1.ConnectionError, "n1, n3 gets no answer from g2.", "", ""},
		{"both are dead", "n2", paths{n1: clusterset.Answering(), n3: clusterset.Answering()}, paths{n1: dead, n3: dead},
			submarinerv1.ConnectionError, "n1, n3 does not answer.", "", "n1,n3"},
		{"nobody answered yet", "n2", nil, paths{},
			submarinerv1.Connecting, "Waiting for the first answer of a gateway of this cluster.", "", ""},
		{"at a gateway", "n1", nil, paths{n3: clusterset.Answering(), far: slow(clusterset.Answering())},
			submarinerv1.Connected, "", "9ms", ""},
		{"at a gateway that is cut off", "n1", paths{n3: clusterset.Answering(), far: clusterset.Answering()}, paths{n3: slow(clusterset.Answering()), far: dead},
			submarinerv1.Connected, "Through gateway n3, to which latencyRTT is. From here: probes are not answered any more: " +
				"does the node run, and does UDP 4500 to 172.31.2.11 of node g2-n1 pass?", "9ms", ""},
		{"at a gateway when g2 is dead", "n1", paths{n3: clusterset.Answering(), far: clusterset.Answering()}, paths{n3: lost, far: dead},
			submarinerv1.ConnectionError, "probes are not answered any more: does the node run, and does UDP 4500 to 172.31.2.11 of node g2-n1 pass?", "1.2ms", ""},
	} {
		t.Run(tt.what, func(t *testing.T) {
			snap, l := town(tt.from)
			at := begin
			if tt.before != nil {
				l.update(snap, tt.before, nil, at)
				at = at.Add(time.Second)
				l.update(snap, tt.now, nil, at)
				at = at.Add(time.Second)
			}
			l.update(snap, tt.now, nil, at)
			r := l.routeAgent(snap)
			if len(r.Status.RemoteEndpoints) != 1 {
				t.Fatalf("%d remote endpoints", len(r.Status.RemoteEndpoints))
			}
			e := r.Status.RemoteEndpoints[0]
			latency := ""
			if e.LatencyRTT != nil {
				latency = e.LatencyRTT.Last
			}
			got := []string{string(e.Status), e.StatusMessage, latency, r.Silent, e.Spec.Hostname}
			if diff := cmp.Diff([]string{string(tt.status), tt.says, tt.latency, tt.silent, "g2-n1"}, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if (r.Silent == "") != (r.Status.StatusFailure == "") {
				t.Errorf("silent %q, failure %q", r.Silent, r.Status.StatusFailure)
			}
		})
	}
}

func TestNoGateway(t *testing.T) {
	objs, host := clusterset.Globalnet("n2")
	objs.Nodes[0].Labels = nil
	r := tables.Desired(objs, host)
	snap, l := NewSnapshot(objs, r, tables.Reach{}, false), NewTracker("v3")
	l.update(snap, nil, nil, begin)
	e := l.routeAgent(snap).Status.RemoteEndpoints[0]
	if e.Status != submarinerv1.ConnectionError || !strings.Contains(e.StatusMessage, "label one submariner.io/gateway=true") {
		t.Errorf("%s %q", e.Status, e.StatusMessage)
	}
}
