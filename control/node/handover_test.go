package node

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/node/status"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane/liveness"
	"github.com/pelago-net/pelago/test/clusterset"
)

// handover is a cluster with the gateways n1 and n3 and the plain node n2, of which from is looked
// at: the reconcile of its daemon without the kernel.
type handover struct {
	objs    tables.Objects
	host    tables.Host
	tracker *status.Tracker
	role    role
	now     time.Time
	// paths to the gateways by name
	paths map[string]liveness.Path
}

const addressOfN1, addressOfN3 = "172.31.1.11", "172.31.1.13"

// steady is longer than a path must answer until it is connected again.
const steady = 4 * time.Second

func newHandover(from string) *handover {
	objs, host := clusterset.TwoGateways(from)
	h := &handover{objs: objs, host: host, tracker: status.NewTracker("v3"), now: time.Unix(1_700_000_000, 0), paths: map[string]liveness.Path{}}
	for _, name := range []string{"n1", "n3"} {
		h.report(name, true)
		h.paths[name] = clusterset.Answering()
	}
	return h
}

func (h *handover) node(name string) *corev1.Node {
	return &h.objs.Nodes[slices.IndexFunc(h.objs.Nodes, func(n corev1.Node) bool { return n.Name == name })]
}

// report is what a node's daemon writes into its NodeIndex as a gateway.
func (h *handover) report(name string, serving bool) {
	for i := range h.objs.NodeIndexes {
		if n := &h.objs.NodeIndexes[i]; n.Name == name {
			n.Status = pelagov1alpha1.NodeIndexStatus{Ready: true, Gateway: true, Serving: serving}
		}
	}
}

// run lets a time pass, in which paths are watched and the node is reconciled at the intervals of
// the daemon.
func (h *handover) run(d time.Duration) tables.Result {
	var r tables.Result
	for end := h.now.Add(d); ; h.now = h.now.Add(watchInterval) {
		h.role.update(tables.Wanted(h.objs), true, h.now)
		h.host.Draining = h.role.isDraining(h.now)
		r = tables.Desired(h.objs, h.host)
		snap := status.NewSnapshot(h.objs, r, tables.Reach{}, false)
		paths := map[netip.Addr]liveness.Path{ip("172.31.2.11"): clusterset.Answering()}
		for name, address := range map[string]string{"n1": addressOfN1, "n3": addressOfN3} {
			if p, ok := h.paths[name]; ok {
				paths[ip(address)] = p
			}
		}
		h.objs.Answering = h.tracker.Observe(status.Observation{Snapshot: snap, Paths: paths, Now: h.now}).Answering
		if !h.now.Before(end) {
			return r
		}
	}
}

// A rolling upgrade of the nodes: n1 is uncordoned when its kubelet is ready, then n3 is cordoned,
// while the daemon of n1 still starts. Only n1 writes the status of its NodeIndex, which reports
// ready throughout.
func TestCordonedGatewayStaysUntilAnotherServes(t *testing.T) {
	notReady, cut := clusterset.Answering(), clusterset.Answering().WithUnreachable(2)
	notReady.Ready = false
	for name, tt := range map[string]struct {
		cordon  func(*corev1.Node)
		path    liveness.Path // to n1
		serving bool          // n1 reports so
		stays   bool
	}{
		"the other serves":                         {func(n *corev1.Node) { n.Spec.Unschedulable = true }, clusterset.Answering(), true, false},
		"the other is dead":                        {func(n *corev1.Node) { n.Spec.Unschedulable = true }, clusterset.Silent(time.Minute), true, true},
		"the other is dead, drained by annotation": {func(n *corev1.Node) { n.Annotations = map[string]string{pelagov1alpha1.AnnotationDrained: "true"} }, clusterset.Silent(time.Minute), true, true},
		"the other is dead, label removed":         {func(n *corev1.Node) { delete(n.Labels, submarinerv1.LabelGateway) }, clusterset.Silent(time.Minute), true, true},
		"the other's tables are not complete":      {func(n *corev1.Node) { n.Spec.Unschedulable = true }, notReady, true, true},
		"the other does not reach the remote side": {func(n *corev1.Node) { n.Spec.Unschedulable = true }, cut, true, true},
		"the other is not known everywhere yet":    {func(n *corev1.Node) { n.Spec.Unschedulable = true }, clusterset.Answering(), false, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHandover("n3")
			h.paths["n1"] = tt.path
			h.report("n1", tt.serving)
			h.run(time.Minute)
			tt.cordon(h.node("n3"))
			for range 10 {
				r := h.run(time.Second)
				if r.Gateway != tt.stays || r.State.Settings.Leaving == tt.stays || !r.State.Settings.Gateway {
					t.Fatalf("gateway %t, leaving %t, switching %t; want it to stay: %t", r.Gateway, r.State.Settings.Leaving, r.State.Settings.Gateway, tt.stays)
				}
			}
		})
	}
}

// The upgrade continues: at every moment the gateways that nodes use include one that works, and n3
// switches on while it is left.
func TestHandoverOverlaps(t *testing.T) {
	last, worker := newHandover("n3"), newHandover("n2")
	working := map[string]bool{"n1": false, "n3": true}
	check := func(when string, d time.Duration, leaving bool) {
		t.Helper()
		for end := last.now.Add(d); last.now.Before(end); {
			r := last.run(watchInterval)
			if r.Gateway == leaving || !r.State.Settings.Gateway {
				t.Fatalf("%s: n3 is a gateway: %t, switches: %t; want it to leave: %t", when, r.Gateway, r.State.Settings.Gateway, leaving)
			}
			for i := range worker.objs.NodeIndexes { // what n3 reports
				if n := &worker.objs.NodeIndexes[i]; n.Name == "n3" {
					n.Status.Gateway, n.Status.Serving = r.Gateway, r.Gateway
				}
			}
			used := worker.run(watchInterval).State.Gateways
			if !(slices.Contains(used, 1) && working["n1"]) && !(slices.Contains(used, 3) && working["n3"]) {
				t.Fatalf("%s: the nodes use %v, of which none works", when, used)
			}
		}
	}
	both := func(change func(*handover)) { change(last); change(worker) }

	both(func(h *handover) {
		h.paths["n1"] = clusterset.Silent(time.Minute)
		h.node("n1").Spec.Unschedulable = true
	})
	check("n1 is upgraded", time.Minute, false)
	both(func(h *handover) { h.node("n1").Spec.Unschedulable = false; h.node("n3").Spec.Unschedulable = true })
	check("n1 boots, its NodeIndex still says serving", 10*time.Second, false)
	both(func(h *handover) { h.report("n1", false); h.paths["n1"] = clusterset.Answering() })
	check("n1 is not known everywhere yet", 10*time.Second, false)
	working["n1"] = true
	both(func(h *handover) { h.report("n1", true) })
	last.run(steady)
	worker.run(steady)
	check("n1 serves", drainTime/2, true)
	both(func(h *handover) { h.paths["n1"] = clusterset.Silent(time.Minute) })
	last.run(watchInterval)
	working["n1"] = false
	check("n1 dies", 10*time.Second, false)
}
