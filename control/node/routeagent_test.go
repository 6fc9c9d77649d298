package node

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
)

// town is cluster g1 with gateways n1 and n3 and a plain node n2, seen from one of them; g2 is cluster 2.
func town(from string) (snapshot, *links) {
	objs, host := world(from)
	objs.Nodes = append(objs.Nodes, node("n3", "172.31.1.13", true))
	n3 := objs.NodeIndexes[0].DeepCopy()
	n3.Name, n3.Spec.Index = "n3", 3
	objs.NodeIndexes = append(objs.NodeIndexes, *n3)
	host.Hops[ip("172.31.1.13")] = dataplane.Hop{Address: ip("172.31.1.13"), Next: ip("172.31.1.13"), Ifindex: 2}
	r := Desired(objs, host)
	return newSnapshot(objs, r, Reach{}), newLinks()
}

// slow is a path that has got slow.
func slow(p loader.Path) loader.Path {
	p.SRTT, p.RTT, p.Replies = 9*time.Millisecond, 9*time.Millisecond, p.Replies+1
	return p
}

func TestRemoteEndpoints(t *testing.T) {
	n1, n3, far := ip("172.31.1.11"), ip("172.31.1.13"), ip("172.31.2.11")
	type paths = map[netip.Addr]loader.Path
	lost := answering().WithUnreachable(2)
	dead := silent(time.Second)
	for _, tt := range []struct {
		what, from string
		before     paths // a second before
		now        paths
		status     submarinerv1.ConnectionStatus
		says       string
		latency    string // of the last answer
		silent     string
	}{
		{"all is well", "n2", nil, paths{n1: slow(answering()), n3: answering()},
			submarinerv1.Connected, "Through gateway n3, to which latencyRTT is.", "1.2ms", ""},
		{"a gateway is dead", "n2", paths{n1: answering(), n3: answering()}, paths{n1: slow(answering()), n3: dead},
			submarinerv1.Connected, "n3 does not answer. Through gateway n1, to which latencyRTT is.", "9ms", "n3"},
		{"a gateway is cut off from g2", "n2", nil, paths{n1: lost, n3: slow(answering())},
			submarinerv1.Connected, "n1 gets no answer from g2. Through gateway n3, to which latencyRTT is.", "9ms", ""},
		{"both are", "n2", paths{n1: lost, n3: lost}, paths{n1: lost, n3: lost},
			submarinerv1.Connecting, "n1, n3 gets no answer from g2. Waiting for the first answer of a gateway of this cluster.", "", ""},
		{"both are, after a good time", "n2", paths{n1: answering(), n3: lost}, paths{n1: lost, n3: lost},
			submarinerv1.ConnectionError, "n1, n3 gets no answer from g2.", "", ""},
		{"both are dead", "n2", paths{n1: answering(), n3: answering()}, paths{n1: dead, n3: dead},
			submarinerv1.ConnectionError, "n1, n3 does not answer.", "", "n1,n3"},
		{"nobody answered yet", "n2", nil, paths{},
			submarinerv1.Connecting, "Waiting for the first answer of a gateway of this cluster.", "", ""},
		{"at a gateway", "n1", nil, paths{n3: answering(), far: slow(answering())},
			submarinerv1.Connected, "", "9ms", ""},
		{"at a gateway that is cut off", "n1", paths{n3: answering(), far: answering()}, paths{n3: slow(answering()), far: dead},
			submarinerv1.Connected, "Through gateway n3, to which latencyRTT is. From here: probes are not answered any more: " +
				"does the node run, and does UDP 4500 to 172.31.2.11 of node g2-n1 pass?", "9ms", ""},
		{"at a gateway when g2 is dead", "n1", paths{n3: answering(), far: answering()}, paths{n3: lost, far: dead},
			submarinerv1.ConnectionError, "probes are not answered any more: does the node run, and does UDP 4500 to 172.31.2.11 of node g2-n1 pass?", "1.2ms", ""},
	} {
		t.Run(tt.what, func(t *testing.T) {
			snap, l := town(tt.from)
			at := begin
			if tt.before != nil {
				l.note(snap, tt.before, nil, at)
				at = at.Add(time.Second)
				l.note(snap, tt.now, nil, at)
				at = at.Add(time.Second)
			}
			l.note(snap, tt.now, nil, at)
			r := routeAgentReport(snap, l, "v3")
			if len(r.status.RemoteEndpoints) != 1 {
				t.Fatalf("%d remote endpoints", len(r.status.RemoteEndpoints))
			}
			e := r.status.RemoteEndpoints[0]
			latency := ""
			if e.LatencyRTT != nil {
				latency = e.LatencyRTT.Last
			}
			got := []string{string(e.Status), e.StatusMessage, latency, r.silent, e.Spec.Hostname}
			if diff := cmp.Diff([]string{string(tt.status), tt.says, tt.latency, tt.silent, "g2-n1"}, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if (r.silent == "") != (r.status.StatusFailure == "") {
				t.Errorf("silent %q, failure %q", r.silent, r.status.StatusFailure)
			}
		})
	}
}

func TestNoGateway(t *testing.T) {
	objs, host := world("n2")
	objs.Nodes[0].Labels = nil
	r := Desired(objs, host)
	snap, l := newSnapshot(objs, r, Reach{}), newLinks()
	l.note(snap, nil, nil, begin)
	e := routeAgentReport(snap, l, "v3").status.RemoteEndpoints[0]
	if e.Status != submarinerv1.ConnectionError || !strings.Contains(e.StatusMessage, "label one submariner.io/gateway=true") {
		t.Errorf("%s %q", e.Status, e.StatusMessage)
	}
}
