package status

import (
	"net/netip"
	"time"

	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dataplane/loader"
)

// deadAfter is how long no gateway must report that it reaches a cluster until the cluster is dead to this node. What gateways report
// is their forwarding decision for the next packet, which may be another at once.
const deadAfter = 200 * time.Millisecond

// UnreachableClusters derives which clusters no gateway reaches.
type UnreachableClusters struct {
	damper topology.UnreachableClustersDamper
	since  map[string]time.Time // by cluster that no gateway reaches
}

// Observe returns the unreachable clusters, sorted.
func (d *UnreachableClusters) Observe(snap Snapshot, paths map[netip.Addr]loader.Path, now time.Time) []string {
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
	return d.damper.Note(seen, now)
}

// reached reports whether a live gateway of this cluster reaches another cluster.
func reached(snap Snapshot, cluster uint16, paths map[netip.Addr]loader.Path) bool {
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
