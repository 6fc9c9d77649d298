package scheduler

import (
	"iter"
	"maps"
	"slices"
	"strings"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// Snapshot is what is known of all clusters at one moment. It is not changed once made, so decisions may be computed from it
// in parallel.
type Snapshot struct {
	*shape
	of    []*clusterv1alpha1.Cluster // by name
	rooms []*room                    // in the same order
}

// NewSnapshot prepares clusters for decisions. assumed is what was decided and is not part of the clusters' status yet, by
// cluster; it may be nil.
func NewSnapshot(clusters []*clusterv1alpha1.Cluster, assumed map[string]Load) *Snapshot {
	return (&Snapshot{shape: &shape{}}).Renew(clusters).Assume(maps.All(assumed))
}

// Renew is a snapshot of other clusters, or of newer versions of them, with the same sums assumed. It takes over what of the former
// one still holds.
func (s *Snapshot) Renew(clusters []*clusterv1alpha1.Cluster) *Snapshot {
	out := &Snapshot{shape: s.shape, of: slices.Clone(clusters), rooms: make([]*room, 0, len(clusters))}
	slices.SortFunc(out.of, func(a, b *clusterv1alpha1.Cluster) int { return strings.Compare(a.Name, b.Name) })
	if !slices.EqualFunc(out.of, s.of, sameShape) {
		out.shape = shapeOf(out.of)
	}
	for _, c := range out.of {
		i, ok := s.index[c.Name]
		switch {
		case !ok:
			out.rooms = append(out.rooms, roomOf(c, Load{}))
		case sameVersion(c, s.of[i]):
			out.rooms = append(out.rooms, s.rooms[i])
		default:
			out.rooms = append(out.rooms, roomOf(c, s.rooms[i].assumed))
		}
	}
	return out
}

// Assume is a snapshot of the same clusters in which other sums are assumed for some of them: in place of what was assumed for
// these before, not on top of it. Clusters that are not in the snapshot are ignored.
func (s *Snapshot) Assume(assumed iter.Seq2[string, Load]) *Snapshot {
	out := &Snapshot{shape: s.shape, of: s.of, rooms: slices.Clone(s.rooms)}
	for name, load := range assumed {
		if i, ok := s.index[name]; ok {
			out.rooms[i] = s.rooms[i].assuming(load)
		}
	}
	return out
}

// Fits says whether each of the clusters has room for the replicas that it would get beyond those that it has.
func (s *Snapshot) Fits(r *Request, clusters []workv1alpha2.TargetCluster) bool {
	j := newTask(r, s)
	for _, t := range clusters {
		if i, ok := s.index[t.Name]; !ok && t.Replicas > 0 || ok && int64(t.Replicas) > j.held(i)+j.free(i) {
			return false
		}
	}
	return true
}
