package status

import (
	"net/netip"
	"time"

	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dataplane/liveness"
)

// deadAfter is how long no gateway may have reported that it reaches a cluster before this node
// considers the cluster dead. What gateways report is their forwarding decision for the next
// packet, which may change at any moment.
const deadAfter = 200 * time.Millisecond

// Verdict is what this node observes of the other clusters.
type Verdict struct {
	// Unreachable are the clusters that no gateway reaches, sorted; empty if Isolated.
	Unreachable []string
	// Known is false while a cluster that is not reached may have been dead before the first
	// observation: the verdict of the process before this one stands, as "none is dead" would bring
	// the cluster back for deadAfter.
	Known bool
	// Isolated: gateways exist and none answers this node. The fault may be the node's own, so that
	// it has no verdict: what the other nodes report decides.
	Isolated bool
}

// Witness reports whether the verdict counts.
func (v Verdict) Witness() bool { return v.Known && !v.Isolated }

// UnreachableClusters derives which clusters no gateway reaches.
type UnreachableClusters struct {
	damper   topology.UnreachableClustersDamper
	since    map[string]time.Time // by cluster that no gateway reaches
	begin    time.Time            // of the first observation
	isolated time.Time            // since when no gateway answers; zero: one does
	known    bool                 // see Verdict
}

// Observe returns the verdict after an observation.
func (d *UnreachableClusters) Observe(snap Snapshot, paths map[netip.Addr]liveness.Path, now time.Time) Verdict {
	if d.begin.IsZero() {
		d.begin = now
	}
	if !witness(snap, paths) {
		if d.isolated.IsZero() {
			d.isolated = now
		}
		// What was observed so far says nothing of the time without a gateway.
		d.since, d.damper = nil, topology.UnreachableClustersDamper{}
		d.known = d.known || now.Sub(d.begin) >= firstAnswer
		return Verdict{Unreachable: []string{}, Known: d.known, Isolated: true}
	}
	if !d.isolated.IsZero() {
		d.isolated, d.begin, d.known = time.Time{}, now, false
	}
	seen, since := map[string]bool{}, map[string]time.Time{}
	for p := range tables.RoutedPeers(snap.Objects.Peers) {
		if reached(snap, uint16(p.Spec.ClusterIndex), paths) {
			seen[p.Name] = false
			continue
		}
		begin, ok := d.since[p.Name]
		if !ok {
			begin = now
		}
		since[p.Name] = begin
		seen[p.Name] = now.Sub(begin) >= deadAfter
	}
	d.since = since
	d.known = d.known || len(since) == 0 || now.Sub(d.begin) >= deadAfter
	return Verdict{Unreachable: d.damper.Note(seen, now), Known: d.known}
}

// witness reports whether a gateway answers this node. A node that is the only gateway of its
// cluster is one without any answer: what it does not reach, the cluster does not reach. So is a
// node of a cluster without a gateway. Gateways whose Node is not Ready are not waited for.
func witness(snap Snapshot, paths map[netip.Addr]liveness.Path) bool {
	s := snap.State
	down := map[uint16]bool{}
	for _, index := range downGateways(snap.Objects) {
		down[index] = true
	}
	others := 0
	for _, index := range s.Gateways {
		if index == s.Settings.Node {
			for _, gateways := range s.Clusters {
				for _, g := range gateways {
					if p := paths[g.Hop.Address]; p.Replies > 0 && !p.Suspect() {
						return true
					}
				}
			}
			continue
		}
		if p := paths[s.Nodes[index].Address]; p.Replies > 0 && !p.Dead() {
			return true
		}
		if !down[index] {
			others++
		}
	}
	return others == 0
}

// downGateways are the indexes of the gateways whose Node is not Ready or is gone.
func downGateways(objs tables.Objects) (out []uint16) {
	ready := map[string]bool{}
	for i := range objs.Nodes {
		ready[objs.Nodes[i].Name] = topology.NodeReady(&objs.Nodes[i])
	}
	for i := range objs.NodeIndexes {
		if n := &objs.NodeIndexes[i]; n.Status.Gateway && !ready[n.Name] {
			out = append(out, uint16(n.Spec.Index))
		}
	}
	return out
}

// reached reports whether a live gateway of this cluster reaches another cluster.
func reached(snap Snapshot, cluster uint16, paths map[netip.Addr]liveness.Path) bool {
	s := snap.State
	for _, index := range s.Gateways {
		if index == s.Settings.Node {
			for _, g := range s.Clusters[cluster] {
				if p := paths[g.Hop.Address]; !p.Suspect() {
					return true
				}
			}
			continue
		}
		if hop, ok := s.Nodes[index]; ok {
			if p := paths[hop.Address]; !p.Dead() && p.Reaches(cluster) {
				return true
			}
		}
	}
	return false
}
