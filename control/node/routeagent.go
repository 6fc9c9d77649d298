package node

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/netdev"
)

// passage is whether this node has a way to another cluster through the gateways of its own.
type passage struct {
	known bool      // a gateway has answered since the cluster is known
	lost  time.Time // since when no gateway reaches it; zero: one does
	gone  damped
}

func (p *passage) status() submarinerv1.ConnectionStatus {
	switch {
	case p.gone.bad && p.gone.good.IsZero():
		return submarinerv1.ConnectionError
	case p.gone.bad || !p.known:
		return submarinerv1.Connecting
	}
	return submarinerv1.Connected
}

// notePassages takes in what the gateways of the own cluster say.
func (l *links) notePassages(snap snapshot, now time.Time) {
	current := map[uint16]bool{}
	for p := range routedPeers(snap.objs.Peers) {
		index := uint16(p.Spec.ClusterIndex)
		current[index] = true
		r := l.passages[index]
		if r == nil {
			r = &passage{}
			l.passages[index] = r
		}
		_, through := l.siblings(snap, index)
		r.known = r.known || through != nil
		switch {
		case through != nil:
			r.lost = time.Time{}
		case r.lost.IsZero():
			r.lost = now
		}
		patience := loader.DeadAfter
		if !r.known {
			patience = firstAnswer
		}
		r.gone.note(!r.lost.IsZero() && now.Sub(r.lost) >= patience, through != nil, now)
	}
	for index := range l.passages {
		if !current[index] {
			delete(l.passages, index)
		}
	}
}

// siblings looks at the other gateways of this cluster: names are those that live and do not reach another cluster, through
// is the nearest of those that do, or nil.
func (l *links) siblings(snap snapshot, cluster uint16) (without []string, through *target) {
	for i := range snap.targets {
		t := &snap.targets[i]
		w := l.ways[t.address]
		switch {
		case t.far() || !w.answered || w.dead.bad || w.path.Suspect():
		case !w.path.Reaches(cluster):
			without = append(without, t.gateway)
		case through == nil || w.path.SRTT < l.ways[through.address].path.SRTT:
			through = t
		}
	}
	return without, through
}

// silent are the gateways of the own cluster that do not answer this node.
func (l *links) silent(snap snapshot) []string {
	var out []string
	for _, t := range snap.targets {
		if !t.far() && l.ways[t.address].status == submarinerv1.ConnectionError {
			out = append(out, t.gateway)
		}
	}
	slices.Sort(out)
	return out
}

// narrow says where large packets to another cluster are lost: on the way to a gateway of the own cluster, or, as that says,
// from there.
func (l *links) narrow(snap snapshot, cluster string) []string {
	var out []string
	for i := range snap.objs.NodeIndexes {
		n := &snap.objs.NodeIndexes[i]
		if mtu, ok := n.Status.PathMTU[cluster]; ok && n.Status.Gateway && n.Name != snap.objs.Name {
			out = append(out, fmt.Sprintf("From gateway %s to %s packets of more than %d bytes are lost: its Gateway object says more.", n.Name, cluster, mtu))
		}
	}
	for _, t := range snap.targets {
		if said := l.ways[t.address].lost(); said != "" && !t.far() {
			out = append(out, fmt.Sprintf("To gateway %s %s.", t.gateway, said))
		}
	}
	return out
}

// agentReport is what is to stand in the RouteAgent object.
type agentReport struct {
	status submarinerv1.RouteAgentStatus
	silent string
	// node owns the object: it goes with it.
	node *metav1.OwnerReference
}

func routeAgentReport(snap snapshot, l *links, version string) agentReport {
	r := agentReport{status: submarinerv1.RouteAgentStatus{Version: version, RemoteEndpoints: remoteEndpoints(snap, l)}}
	if silent := l.silent(snap); len(silent) > 0 {
		r.silent = strings.Join(silent, ",")
		r.status.StatusFailure = fmt.Sprintf("no answer from gateway %s of this cluster: does the node run, and does UDP %d pass between %s and it?",
			strings.Join(silent, ", "), netdev.OverlayPort, snap.objs.Name)
	}
	if n := ownNode(snap.objs); n.Name != "" {
		r.node = &metav1.OwnerReference{APIVersion: corev1.SchemeGroupVersion.String(), Kind: "Node", Name: n.Name, UID: n.UID}
	}
	return r
}

// remoteEndpoints are the gateways of all other clusters as this node reaches them: a gateway by itself, or by one of the
// others where it does not; every other node by the gateways of its cluster.
func remoteEndpoints(snap snapshot, l *links) []submarinerv1.RemoteEndpoint {
	own := map[string]submarinerv1.Connection{}
	if snap.gateway {
		for _, c := range connections(snap, l) {
			own[wayName(c.Endpoint.ClusterID, c.Endpoint.Hostname)] = c
		}
	}
	out := []submarinerv1.RemoteEndpoint{}
	for p := range routedPeers(snap.objs.Peers) {
		status, message, latency := l.through(snap, p.Name, uint16(p.Spec.ClusterIndex))
		for _, g := range p.Spec.Gateways {
			e := submarinerv1.RemoteEndpoint{Status: status, StatusMessage: message, Spec: peerEndpoint(p, g), LatencyRTT: latency}
			c, probes := own[wayName(p.Name, g.Name)]
			switch {
			case probes && (c.Status == submarinerv1.Connected || status != submarinerv1.Connected):
				e.Status, e.StatusMessage, e.LatencyRTT = c.Status, c.StatusMessage, c.LatencyRTT
			case probes:
				e.StatusMessage = joinSentences(message, "From here: "+c.StatusMessage)
			}
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b submarinerv1.RemoteEndpoint) int { return strings.Compare(a.Spec.CableName, b.Spec.CableName) })
	return out
}

func joinSentences(a, b string) string { return strings.TrimSpace(a + " " + b) }

// through is the way to another cluster by the gateways of this one, this node left out.
func (l *links) through(snap snapshot, name string, cluster uint16) (submarinerv1.ConnectionStatus, string, *submarinerv1.LatencyRTTSpec) {
	without, nearest := l.siblings(snap, cluster)
	r := l.passages[cluster]
	var others []string
	for _, t := range snap.targets {
		if !t.far() {
			others = append(others, t.gateway)
		}
	}
	if len(others) == 0 {
		return submarinerv1.ConnectionError, fmt.Sprintf("no other node of this cluster is a gateway that is ready: label one %s=true", submarinerv1.LabelGateway), nil
	}
	var notes []string
	if dead := l.silent(snap); len(dead) > 0 {
		notes = append(notes, strings.Join(dead, ", ")+" does not answer.")
	}
	if len(without) > 0 {
		notes = append(notes, fmt.Sprintf("%s gets no answer from %s.", strings.Join(without, ", "), name))
	}
	notes = append(notes, l.narrow(snap, name)...)
	status := r.status()
	var latency *submarinerv1.LatencyRTTSpec
	if nearest != nil {
		latency = l.ways[nearest.address].rtt.spec()
	}
	switch {
	case status == submarinerv1.Connecting && r.gone.bad:
		notes = append(notes, fmt.Sprintf("Reached again; connected after %s without a gap.", steady))
	case status == submarinerv1.Connecting:
		notes = append(notes, "Waiting for the first answer of a gateway of this cluster.")
	case nearest != nil:
		notes = append(notes, fmt.Sprintf("Through gateway %s, to which latencyRTT is.", nearest.gateway))
	}
	return status, strings.Join(notes, " "), latency
}

// worthWriting: something changed besides round-trip times, or one of these by more than a quarter.
func worthWriting(have, want submarinerv1.RouteAgentStatus) bool {
	without := func(s submarinerv1.RouteAgentStatus) *submarinerv1.RouteAgentStatus {
		c := s.DeepCopy()
		for i := range c.RemoteEndpoints {
			c.RemoteEndpoints[i].LatencyRTT = nil
		}
		return c
	}
	if !equality.Semantic.DeepEqual(without(have), without(want)) {
		return true
	}
	for i := range have.RemoteEndpoints {
		if !near(have.RemoteEndpoints[i].LatencyRTT, want.RemoteEndpoints[i].LatencyRTT) {
			return true
		}
	}
	return false
}

// noise is the difference of round-trip times that means nothing.
const noise = time.Millisecond

func near(a, b *submarinerv1.LatencyRTTSpec) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, err1 := time.ParseDuration(a.Average)
	y, err2 := time.ParseDuration(b.Average)
	return err1 == nil && err2 == nil && (x-y).Abs() <= max(noise, y/4)
}
