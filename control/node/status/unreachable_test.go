package status

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane/liveness"
	"github.com/pelago-net/pelago/test/clusterset"
)

// path is one that answers, or that has been silent for a second; unreachable are clusters that the
// gateway does not reach.
func path(answers bool, unreachable ...uint16) liveness.Path {
	p := liveness.Path{Probed: true, Probes: 9, Replies: 9, Ready: true, Seen: 10 * time.Millisecond}
	if !answers {
		p.Seen, p.Open, p.OldestOpen = time.Second, 4, time.Second
	}
	for _, c := range unreachable {
		p = p.WithUnreachable(c)
	}
	return p
}

// A cluster is dead when no gateway that lives reaches it, and is back after a while. A node that
// no gateway answers has no verdict, unless no gateway can answer.
func TestVerdicts(t *testing.T) {
	objs, host := clusterset.Globalnet("n2")
	snap := Snapshot{State: tables.Desired(objs, host).State, Objects: objs}
	down := snap
	down.Objects.Nodes = slices.Clone(objs.Nodes)
	down.Objects.Nodes[0].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	gateway := ip("172.31.1.11")
	start := time.Unix(1_700_000_000, 0)
	var v UnreachableClusters
	for _, step := range []struct {
		what string
		at   time.Duration
		snap Snapshot
		path liveness.Path
		want string
	}{
		{"all is well", 0, snap, path(true), "witness []"},
		{"the gateway does not reach it", time.Second, snap, path(true, 2), "witness []"},
		{"and not for a while", 1300 * time.Millisecond, snap, path(true, 2), "witness [g2]"},
		{"it reaches another one no more", 2 * time.Second, snap, path(true, 3), "witness [g2]"},
		{"it has been back long enough", 5 * time.Second, snap, path(true), "witness []"},
		{"the gateway does not answer", 6 * time.Second, snap, path(false), "isolated []"},
		{"and stays so", 20 * time.Second, snap, path(false), "isolated []"},
		{"its Node is not Ready: no gateway is left", 21 * time.Second, down, path(false), "unknown []"},
		{"so no cluster is reached", 21300 * time.Millisecond, down, path(false), "witness [g2]"},
		{"it answers again", 22 * time.Second, snap, path(true), "witness [g2]"},
		{"for a while", 25 * time.Second, snap, path(true), "witness []"},
		{"it does not answer, and has lost the cluster", 26 * time.Second, snap, path(false, 2), "isolated []"},
		{"the port is open again", 27 * time.Second, snap, path(true, 2), "unknown []"},
		{"and the cluster is lost", 28 * time.Second, snap, path(true, 2), "witness [g2]"},
	} {
		got := v.Observe(step.snap, map[netip.Addr]liveness.Path{gateway: step.path}, start.Add(step.at))
		kind := map[bool]string{true: "witness", false: "unknown"}[got.Witness()]
		if got.Isolated {
			kind = "isolated"
		}
		if text := fmt.Sprintf("%s %v", kind, got.Unreachable); text != step.want {
			t.Errorf("%s: %s, want %s", step.what, text, step.want)
		}
	}
}

// Who is a witness: a gateway alone in its cluster is the only way out, so that its view is the
// cluster's; of two, one that reaches nothing is not.
func TestWitness(t *testing.T) {
	own, sibling, far := ip("172.31.1.11"), ip("172.31.1.12"), ip("172.31.2.11")
	snapshot := func(from string, gateways ...int) Snapshot {
		objs, host := clusterset.Globalnet(from)
		for i := range objs.NodeIndexes {
			objs.NodeIndexes[i].Status.Gateway = slices.Contains(gateways, i+1)
			objs.Nodes[i].Labels[submarinerv1.LabelGateway] = strconv.FormatBool(slices.Contains(gateways, i+1))
		}
		return Snapshot{State: tables.Desired(objs, host).State, Objects: objs, Gateway: slices.Contains(gateways, 1) && from == "n1"}
	}
	never := liveness.Path{Probed: true}
	for name, tt := range map[string]struct {
		snap  Snapshot
		paths map[netip.Addr]liveness.Path
		want  bool
	}{
		"a node, and its gateway answers":              {snapshot("n2", 1), map[netip.Addr]liveness.Path{own: path(true)}, true},
		"a node, and its gateway is silent":            {snapshot("n2", 1), map[netip.Addr]liveness.Path{own: path(false)}, false},
		"a node, and its gateway never answered":       {snapshot("n2", 1), map[netip.Addr]liveness.Path{own: never}, false},
		"a node of a cluster without a gateway":        {snapshot("n2"), nil, true},
		"the only gateway, and no cluster answers":     {snapshot("n1", 1), map[netip.Addr]liveness.Path{far: path(false)}, true},
		"one of two, and only the other answers":       {snapshot("n1", 1, 2), map[netip.Addr]liveness.Path{far: path(false), sibling: path(true)}, true},
		"one of two, and only another cluster answers": {snapshot("n1", 1, 2), map[netip.Addr]liveness.Path{far: path(true), sibling: path(false)}, true},
		"one of two, and nothing answers":              {snapshot("n1", 1, 2), map[netip.Addr]liveness.Path{far: path(false), sibling: path(false)}, false},
	} {
		if got := witness(tt.snap, tt.paths); got != tt.want {
			t.Errorf("%s: %t, gateways %v", name, got, tt.snap.State.Gateways)
		}
	}
}

// A node that no gateway answers is reported once that has lasted, with the remedy, and is no
// witness at once.
func TestIsolatedNodeIsReported(t *testing.T) {
	objs, host := clusterset.Globalnet("n2")
	snap := NewSnapshot(objs, tables.Desired(objs, host), tables.Reach{}, false)
	start := time.Unix(1_700_000_000, 0)
	tracker := NewTracker("v1")
	var v UnreachableClusters
	for _, step := range []struct {
		at                            time.Duration
		answers, witness, says, event bool
	}{
		{0, true, true, false, false}, {time.Second, false, false, false, false}, {4 * time.Second, false, false, true, true},
		{5 * time.Second, false, false, true, false}, {6 * time.Second, true, true, true, false}, {9 * time.Second, true, true, false, true},
	} {
		now := start.Add(step.at)
		paths := map[netip.Addr]liveness.Path{ip("172.31.1.11"): path(step.answers)}
		u := tracker.Observe(Observation{Snapshot: snap, Paths: paths, Verdict: v.Observe(snap, paths, now), Now: now})
		agent := tracker.routeAgent(snap)
		says := strings.Contains(agent.Status.StatusFailure, "check that UDP 4800 passes in both directions between it and n1")
		if agent.Witness != step.witness || says != step.says || (len(u.NodeEvents) == 1) != step.event || tracker.View(snap).Isolated != step.says {
			t.Errorf("after %s: witness %t, says %q, Events %v", step.at, agent.Witness, agent.Status.StatusFailure, u.NodeEvents)
		}
		if agent.Witness && agent.Unreachable != "" {
			t.Errorf("after %s: %q is unreachable", step.at, agent.Unreachable)
		}
		if u.Report == nil && step.event {
			t.Errorf("after %s: it is not reported at once", step.at)
		}
	}
}

// A daemon that starts during an outage gives no verdict until it knows of each cluster: the one of
// the daemon before it stands.
func TestVerdictsAfterARestart(t *testing.T) {
	objs, host := clusterset.Globalnet("n2")
	snap := Snapshot{State: tables.Desired(objs, host).State, Objects: objs}
	g3 := objs.Peers[0]
	g3.Name, g3.Spec.ClusterIndex = "g3", 3
	snap.Objects.Peers = append(slices.Clone(objs.Peers), g3)
	start := time.Unix(1_700_000_000, 0)
	type step struct {
		at    time.Duration
		path  liveness.Path
		known bool
		dead  []string // if known
	}
	for name, steps := range map[string][]step{
		"during an outage": {
			{0, path(true, 2), false, nil}, {deadAfter - time.Millisecond, path(true, 2), false, nil},
			{deadAfter, path(true, 2), true, []string{"g2"}}, {time.Second, path(true, 2, 3), true, []string{"g2"}},
		},
		"the cluster answers again": {
			{0, path(true, 2), false, nil}, {deadAfter / 2, path(true), true, []string{}}, {deadAfter, path(true, 2), true, []string{}},
		},
		"clusters that answer in turns": {
			{0, path(true, 2), false, nil}, {deadAfter / 2, path(true, 3), false, nil}, {deadAfter, path(true, 2), true, []string{}},
		},
		"without an outage": {{0, path(true), true, []string{}}},
	} {
		var v UnreachableClusters
		for _, s := range steps {
			got := v.Observe(snap, map[netip.Addr]liveness.Path{ip("172.31.1.11"): s.path}, start.Add(s.at))
			if got.Known != s.known || got.Known && cmp.Diff(s.dead, got.Unreachable) != "" {
				t.Errorf("%s, after %s: %+v; want known %t, %v", name, s.at, got, s.known, s.dead)
			}
		}
	}
}

// On a gateway its own paths count.
func TestVerdictsAtAGateway(t *testing.T) {
	objs, host := clusterset.Globalnet("n1")
	snap := Snapshot{State: tables.Desired(objs, host).State, Objects: objs, Gateway: true}
	if len(snap.State.Gateways) != 1 || len(snap.State.Clusters[2]) != 1 {
		t.Fatalf("gateways %v, remote %v", snap.State.Gateways, snap.State.Clusters)
	}
	far := ip("172.31.2.11")
	if reached(snap, 2, map[netip.Addr]liveness.Path{far: path(false)}) || !reached(snap, 2, map[netip.Addr]liveness.Path{far: path(true)}) {
		t.Error("a cluster is reached if its gateway answers, and only then")
	}
	if reached(snap, 9, nil) {
		t.Error("a cluster without gateways is reached")
	}
}
