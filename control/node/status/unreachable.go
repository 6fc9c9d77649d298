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

// UnreachableClusters derives which clusters no gateway reaches.
type UnreachableClusters struct {
	damper topology.UnreachableClustersDamper
	since  map[string]time.Time // by cluster that no gateway reaches
	begin  time.Time            // of the first observation
	known  bool                 // see Observe
}

// Observe returns the unreachable clusters, sorted. known is false while a cluster that is not
// reached may have been dead before the first observation: the caller keeps the verdict of the
// process before it, as "none is dead" would bring the cluster back for deadAfter.
func (d *UnreachableClusters) Observe(snap Snapshot, paths map[netip.Addr]liveness.Path, now time.Time) (dead []string, known bool) {
	if d.begin.IsZero() {
		d.begin = now
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
	return d.damper.Note(seen, now), d.known
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
