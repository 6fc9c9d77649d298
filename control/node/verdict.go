package node

import (
	"net/netip"
	"time"

	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dataplane/loader"
)

// unreached is how long no gateway must say that it reaches a cluster until the cluster is dead to this node. What the
// gateways tell is their steering of the next packet, which may change its mind at once.
const unreached = 200 * time.Millisecond

// verdicts is what the node remembers between two looks.
type verdicts struct {
	damper topology.DeadClustersDamper
	since  map[string]time.Time // clusters that no gateway reaches → since when
}

// note returns the dead clusters.
func (v *verdicts) note(snap snapshot, paths map[netip.Addr]loader.Path, now time.Time) []string {
	seen, since := map[string]bool{}, map[string]time.Time{}
	for p := range routedPeers(snap.objs.Peers) {
		if reached(snap, uint16(p.Spec.ClusterIndex), paths) {
			seen[p.Name] = false
			continue
		}
		begin, ok := v.since[p.Name]
		if !ok {
			begin = now
		}
		since[p.Name] = begin
		seen[p.Name] = now.Sub(begin) >= unreached
	}
	v.since = since
	return v.damper.Note(seen, now)
}

// reached says whether packets for a cluster have a way: a gateway of this cluster that lives and reaches it.
func reached(snap snapshot, cluster uint16, paths map[netip.Addr]loader.Path) bool {
	s := snap.state
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
