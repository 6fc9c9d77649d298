package status

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

// A cluster is dead when no gateway that lives reaches it, and is back after a while.
func TestVerdicts(t *testing.T) {
	objs, host := clusterset.Globalnet("n2")
	snap := Snapshot{State: tables.Desired(objs, host).State, Objects: objs}
	gateway := ip("172.31.1.11")
	start := time.Unix(1_700_000_000, 0)
	var v UnreachableClusters
	for _, step := range []struct {
		what string
		at   time.Duration
		path liveness.Path
		want []string
	}{
		{"all is well", 0, path(true), []string{}},
		{"the gateway does not reach it", time.Second, path(true, 2), []string{}},
		{"and not for a while", 1300 * time.Millisecond, path(true, 2), []string{"g2"}},
		{"it reaches another one no more", 2 * time.Second, path(true, 3), []string{"g2"}},
		{"it has been back long enough", 5 * time.Second, path(true), []string{}},
		{"the gateway is dead", 6 * time.Second, path(false), []string{}},
		{"and stays so", 6500 * time.Millisecond, path(false), []string{"g2"}},
	} {
		got, known := v.Observe(snap, map[netip.Addr]liveness.Path{gateway: step.path}, start.Add(step.at))
		if diff := cmp.Diff(step.want, got); diff != "" || !known {
			t.Errorf("%s: known %t (-want +got):\n%s", step.what, known, diff)
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
			got, known := v.Observe(snap, map[netip.Addr]liveness.Path{ip("172.31.1.11"): s.path}, start.Add(s.at))
			if known != s.known || known && cmp.Diff(s.dead, got) != "" {
				t.Errorf("%s, after %s: known %t, %v dead; want %t, %v", name, s.at, known, got, s.known, s.dead)
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
