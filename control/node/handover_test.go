package node

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
)

// handover is a cluster with the gateways n1 and n3 and the plain node n2, of which from is looked at: the reconcile of its
// daemon without the kernel.
type handover struct {
	objs   Objects
	host   Host
	links  *links
	tenure tenure
	now    time.Time
	// paths to the gateways by name
	paths map[string]loader.Path
}

const addressOfN1, addressOfN3 = "172.31.1.11", "172.31.1.13"

func newHandover(from string) *handover {
	objs, host := world(from)
	objs.Nodes = append(objs.Nodes, node("n3", addressOfN3, true))
	objs.NodeIndexes = append(objs.NodeIndexes, pelagov1alpha1.NodeIndex{
		ObjectMeta: metav1.ObjectMeta{Name: "n3"}, Spec: pelagov1alpha1.NodeIndexSpec{Index: 3},
	})
	host.Hops[ip(addressOfN3)] = dataplane.Hop{Address: ip(addressOfN3), Next: ip(addressOfN3), Ifindex: 2}
	h := &handover{objs: objs, host: host, links: newLinks(), now: begin, paths: map[string]loader.Path{}}
	for _, name := range []string{"n1", "n3"} {
		h.report(name, true)
		h.paths[name] = answering()
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

// run lets a time pass, in which paths are watched and the node is reconciled at the intervals of the daemon.
func (h *handover) run(d time.Duration) Result {
	var r Result
	for end := h.now.Add(d); ; h.now = h.now.Add(watchEvery) {
		h.tenure.note(wanted(h.objs), true, h.now)
		h.host.Draining = h.now.Before(h.tenure.until)
		r = Desired(h.objs, h.host)
		snap := newSnapshot(h.objs, r, Reach{})
		paths := map[netip.Addr]loader.Path{ip("172.31.2.11"): answering()}
		for name, address := range map[string]string{"n1": addressOfN1, "n3": addressOfN3} {
			if p, ok := h.paths[name]; ok {
				paths[ip(address)] = p
			}
		}
		h.links.note(snap, paths, nil, h.now)
		h.objs.Answering = h.links.answering(snap, unreachable(snap.state.Clusters, paths))
		if !h.now.Before(end) {
			return r
		}
	}
}

// A rolling upgrade of the nodes: n1 is uncordoned when its kubelet is ready, then n3 is cordoned, while the daemon of n1 still
// starts. Only n1 writes the status of its NodeIndex, which reports ready throughout.
func TestCordonedGatewayStaysUntilAnotherServes(t *testing.T) {
	notReady, cut := answering(), answering().WithUnreachable(2)
	notReady.Ready = false
	for name, tt := range map[string]struct {
		cordon  func(*corev1.Node)
		path    loader.Path // to n1
		serving bool        // n1 reports so
		stays   bool
	}{
		"the other serves":                         {func(n *corev1.Node) { n.Spec.Unschedulable = true }, answering(), true, false},
		"the other is dead":                        {func(n *corev1.Node) { n.Spec.Unschedulable = true }, silent(time.Minute), true, true},
		"the other is dead, drained by annotation": {func(n *corev1.Node) { n.Annotations = map[string]string{pelagov1alpha1.AnnotationDrained: "true"} }, silent(time.Minute), true, true},
		"the other is dead, label removed":         {func(n *corev1.Node) { delete(n.Labels, submarinerv1.LabelGateway) }, silent(time.Minute), true, true},
		"the other's tables are not complete":      {func(n *corev1.Node) { n.Spec.Unschedulable = true }, notReady, true, true},
		"the other does not reach the remote side": {func(n *corev1.Node) { n.Spec.Unschedulable = true }, cut, true, true},
		"the other is not known everywhere yet":    {func(n *corev1.Node) { n.Spec.Unschedulable = true }, answering(), false, true},
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

// The upgrade goes on: at every moment the gateways that nodes use include one that works, and n3 switches on while it is left.
func TestHandoverOverlaps(t *testing.T) {
	last, worker := newHandover("n3"), newHandover("n2")
	working := map[string]bool{"n1": false, "n3": true}
	check := func(when string, d time.Duration, leaving bool) {
		t.Helper()
		for end := last.now.Add(d); last.now.Before(end); {
			r := last.run(watchEvery)
			if r.Gateway == leaving || !r.State.Settings.Gateway {
				t.Fatalf("%s: n3 is a gateway: %t, switches: %t; want it to leave: %t", when, r.Gateway, r.State.Settings.Gateway, leaving)
			}
			for i := range worker.objs.NodeIndexes { // what n3 reports
				if n := &worker.objs.NodeIndexes[i]; n.Name == "n3" {
					n.Status.Gateway, n.Status.Serving = r.Gateway, r.Gateway
				}
			}
			used := worker.run(watchEvery).State.Gateways
			if !(slices.Contains(used, 1) && working["n1"]) && !(slices.Contains(used, 3) && working["n3"]) {
				t.Fatalf("%s: the nodes use %v, of which none works", when, used)
			}
		}
	}
	both := func(change func(*handover)) { change(last); change(worker) }

	both(func(h *handover) { h.paths["n1"] = silent(time.Minute); h.node("n1").Spec.Unschedulable = true })
	check("n1 is upgraded", time.Minute, false)
	both(func(h *handover) { h.node("n1").Spec.Unschedulable = false; h.node("n3").Spec.Unschedulable = true })
	check("n1 boots, its NodeIndex still says serving", 10*time.Second, false)
	both(func(h *handover) { h.report("n1", false); h.paths["n1"] = answering() })
	check("n1 is not known everywhere yet", 10*time.Second, false)
	working["n1"] = true
	both(func(h *handover) { h.report("n1", true) })
	last.run(steady + time.Second)
	worker.run(steady + time.Second)
	check("n1 serves", drain/2, true)
	both(func(h *handover) { h.paths["n1"] = silent(time.Minute) })
	last.run(watchEvery)
	working["n1"] = false
	check("n1 dies", 10*time.Second, false)
}
