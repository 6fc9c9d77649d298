package status

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/liveness"
)

// clusterState is whether this node reaches another cluster through the other gateways of its own.
type clusterState struct {
	known bool      // a gateway has reached it since it was accepted
	lost  time.Time // since when no gateway reaches it; zero: one does
	gone  damped
}

func (c *clusterState) status() submarinerv1.ConnectionStatus {
	switch {
	case c.gone.bad && c.gone.good.IsZero():
		return submarinerv1.ConnectionError
	case c.gone.bad || !c.known:
		return submarinerv1.Connecting
	}
	return submarinerv1.Connected
}

// updateClusters records which clusters the other gateways of this one reach, and reports whether
// that has changed.
func (t *Tracker) updateClusters(snap Snapshot, now time.Time) (changed bool) {
	current := map[uint16]bool{}
	for p := range tables.RoutedPeers(snap.Objects.Peers) {
		index := uint16(p.Spec.ClusterIndex)
		current[index] = true
		c := t.clusters[index]
		if c == nil {
			c = &clusterState{}
			t.clusters[index] = c
		}
		before := c.status()
		_, through := t.siblings(snap, index)
		c.known = c.known || through != nil
		switch {
		case through != nil:
			c.lost = time.Time{}
		case c.lost.IsZero():
			c.lost = now
		}
		timeout := liveness.DeadAfter
		if !c.known {
			timeout = firstAnswer
		}
		c.gone.update(!c.lost.IsZero() && now.Sub(c.lost) >= timeout, through != nil, now)
		changed = changed || c.status() != before
	}
	for index := range t.clusters {
		if !current[index] {
			delete(t.clusters, index)
		}
	}
	return changed
}

// siblings divides the live other gateways of this cluster: without are the names of those that do
// not reach another cluster, through is the nearest that does, or nil.
func (t *Tracker) siblings(snap Snapshot, cluster uint16) (without []string, through *Target) {
	for i := range snap.Targets {
		target := &snap.Targets[i]
		if target.remote() {
			break // those of this cluster come first
		}
		s := t.paths[target.Address]
		switch {
		case !s.answered || s.dead.bad || s.path.Suspect():
		case !s.path.Reaches(cluster):
			without = append(without, target.gateway)
		case through == nil || s.path.SRTT < t.paths[through.Address].path.SRTT:
			through = target
		}
	}
	return without, through
}

// silent returns the gateways of the own cluster that do not answer this node.
func (t *Tracker) silent(snap Snapshot) []string {
	var out []string
	for _, target := range snap.Targets {
		if !target.remote() && t.paths[target.Address].status == submarinerv1.ConnectionError {
			out = append(out, target.gateway)
		}
	}
	slices.Sort(out)
	return out
}

// blackHoles describes where large packets to another cluster are lost: between this node and a
// gateway of its cluster, or, by the report of that gateway, beyond.
func (t *Tracker) blackHoles(snap Snapshot, cluster string) []string {
	var out []string
	for i := range snap.Objects.NodeIndexes {
		n := &snap.Objects.NodeIndexes[i]
		if mtu, ok := n.Status.PathMTU[cluster]; ok && n.Status.Gateway && n.Name != snap.Objects.Name {
			out = append(out, fmt.Sprintf("From gateway %s to %s packets of more than %d bytes are lost: its Gateway object says more.", n.Name, cluster, mtu))
		}
	}
	for _, target := range snap.Targets {
		s := t.paths[target.Address]
		if hole := s.blackHole(); hole != "" && !target.remote() {
			out = append(out, fmt.Sprintf("To gateway %s %s.", target.gateway, hole))
		}
		if lost := s.gsoLost(); lost != "" && !target.remote() {
			out = append(out, fmt.Sprintf("Gateway %s: %s.", target.gateway, lost))
		}
	}
	return out
}

// RouteAgent is the desired RouteAgent object.
type RouteAgent struct {
	Status submarinerv1.RouteAgentStatus
	// Silent is the value of AnnotationSilentGateways; empty: none.
	Silent string
	// Witness: the node has a verdict on clusters, and Unreachable is the value of
	// AnnotationUnreachableClusters.
	Witness     bool
	Unreachable string
	// LeftOut is the value of AnnotationPodsLeftOut; empty: none.
	LeftOut string
	// Owner is the Node.
	Owner *metav1.OwnerReference
}

func (t *Tracker) routeAgent(snap Snapshot) RouteAgent {
	r := RouteAgent{Status: submarinerv1.RouteAgentStatus{Version: t.version, RemoteEndpoints: t.remoteEndpoints(snap)}}
	var failures []string
	if silent := t.silent(snap); len(silent) > 0 {
		r.Silent = strings.Join(silent, ",")
		failures = append(failures, fmt.Sprintf("no answer from gateway %s of this cluster: does the node run, and does UDP %d pass between %s and it?",
			strings.Join(silent, ", "), dataplane.OverlayPort, snap.Objects.Name))
	}
	if t.verdict.Witness() {
		r.Witness, r.Unreachable = true, strings.Join(t.verdict.Unreachable, ",")
	}
	if t.isolated.reported {
		failures = append(failures, isolatedMessage(snap))
	}
	if n := len(snap.LeftOut); n > 0 {
		r.LeftOut = strconv.Itoa(n)
		failures = append(failures, tables.DescribeLeftOut(snap.LeftOut))
	}
	r.Status.StatusFailure = strings.Join(append(failures, SelfTestMessages(snap.SelfTest)...), "; ")
	if n := tables.OwnNode(snap.Objects); n.Name != "" {
		r.Owner = &metav1.OwnerReference{APIVersion: corev1.SchemeGroupVersion.String(), Kind: "Node", Name: n.Name, UID: n.UID}
	}
	return r
}

// remoteEndpoints lists the gateways of all other clusters as this node reaches them: a gateway
// directly, or through another one of its cluster where it does not; every other node through the
// gateways of its cluster.
func (t *Tracker) remoteEndpoints(snap Snapshot) []submarinerv1.RemoteEndpoint {
	own := map[string]submarinerv1.Connection{}
	if snap.Gateway {
		for _, c := range t.connections(snap) {
			own[tables.GatewayName(c.Endpoint.ClusterID, c.Endpoint.Hostname)] = c
		}
	}
	out := []submarinerv1.RemoteEndpoint{}
	for p := range tables.RoutedPeers(snap.Objects.Peers) {
		status, message, latency := t.through(snap, p.Name, uint16(p.Spec.ClusterIndex))
		for _, g := range p.Spec.Gateways {
			e := submarinerv1.RemoteEndpoint{Status: status, StatusMessage: message, Spec: peerEndpoint(p, g), LatencyRTT: latency}
			c, probes := own[tables.GatewayName(p.Name, g.Name)]
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

// through is the connection to another cluster through the other gateways of this one.
func (t *Tracker) through(snap Snapshot, name string, cluster uint16) (submarinerv1.ConnectionStatus, string, *submarinerv1.LatencyRTTSpec) {
	without, nearest := t.siblings(snap, cluster)
	c := t.clusters[cluster]
	var others []string
	for _, target := range snap.Targets {
		if !target.remote() {
			others = append(others, target.gateway)
		}
	}
	if len(others) == 0 {
		return submarinerv1.ConnectionError, fmt.Sprintf("no other node of this cluster is a gateway that is ready: label one %s=true", submarinerv1.LabelGateway), nil
	}
	var notes []string
	if dead := t.silent(snap); len(dead) > 0 {
		notes = append(notes, strings.Join(dead, ", ")+" does not answer.")
	}
	if len(without) > 0 {
		notes = append(notes, fmt.Sprintf("%s gets no answer from %s.", strings.Join(without, ", "), name))
	}
	notes = append(notes, t.blackHoles(snap, name)...)
	status := c.status()
	var latency *submarinerv1.LatencyRTTSpec
	if nearest != nil {
		latency = t.paths[nearest.Address].rtt.spec()
	}
	switch {
	case status == submarinerv1.Connecting && c.gone.bad:
		notes = append(notes, fmt.Sprintf("Reached again; connected after %s without a gap.", steady))
	case status == submarinerv1.Connecting:
		notes = append(notes, "Waiting for the first answer of a gateway of this cluster.")
	case nearest != nil:
		notes = append(notes, fmt.Sprintf("Through gateway %s, to which latencyRTT is.", nearest.gateway))
	}
	return status, strings.Join(notes, " "), latency
}

// Differ reports whether two statuses differ in more than round-trip times, or in one of these by
// more than a quarter.
func Differ(have, want submarinerv1.RouteAgentStatus) bool {
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

// noise is a difference of round-trip times that is not reported.
const noise = time.Millisecond

func near(a, b *submarinerv1.LatencyRTTSpec) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, err1 := time.ParseDuration(a.Average)
	y, err2 := time.ParseDuration(b.Average)
	return err1 == nil && err2 == nil && (x-y).Abs() <= max(noise, y/4)
}
