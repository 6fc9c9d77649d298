package scheduler

import (
	"iter"
	"maps"
	"slices"
	"strings"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// Snapshot is the state of all clusters at one time. It is immutable, so decisions may be computed
// from it in parallel.
type Snapshot struct {
	*shape
	of         []*clusterv1alpha1.Cluster // by name
	capacities []*capacity                // in the same order
}

// NewSnapshot prepares clusters for decisions. assumed are the loads of decisions that the
// clusters' status does not include yet, by cluster; it may be nil.
func NewSnapshot(clusters []*clusterv1alpha1.Cluster, assumed map[string]Load) *Snapshot {
	return (&Snapshot{shape: &shape{}}).Renew(clusters).Assume(maps.All(assumed))
}

// Renew returns a snapshot of other clusters, or of newer versions of them, with the same loads
// assumed. It shares what did not change.
func (s *Snapshot) Renew(clusters []*clusterv1alpha1.Cluster) *Snapshot {
	out := &Snapshot{shape: s.shape, of: slices.Clone(clusters), capacities: make([]*capacity, 0, len(clusters))}
	slices.SortFunc(out.of, func(a, b *clusterv1alpha1.Cluster) int { return strings.Compare(a.Name, b.Name) })
	if !slices.EqualFunc(out.of, s.of, sameShape) {
		out.shape = shapeOf(out.of)
	}
	for _, c := range out.of {
		i, ok := s.index[c.Name]
		switch {
		case !ok:
			out.capacities = append(out.capacities, capacityOf(c, Load{}))
		case sameVersion(c, s.of[i]):
			out.capacities = append(out.capacities, s.capacities[i])
		default:
			out.capacities = append(out.capacities, capacityOf(c, s.capacities[i].assumed))
		}
	}
	return out
}

// Assume returns a snapshot of the same clusters in which these loads replace the assumed ones of
// some clusters. Unknown clusters are ignored.
func (s *Snapshot) Assume(assumed iter.Seq2[string, Load]) *Snapshot {
	out := &Snapshot{shape: s.shape, of: s.of, capacities: slices.Clone(s.capacities)}
	for name, load := range assumed {
		if i, ok := s.index[name]; ok {
			out.capacities[i] = s.capacities[i].assuming(load)
		}
	}
	return out
}

// Barred are those of current that a namespace must not use, by name; none if the restriction
// (Request.Within) is invalid: an error in it moves nothing that runs.
func (s *Snapshot) Barred(restriction string, current []workv1alpha2.TargetCluster) (out []string) {
	within, err := s.open(restriction)
	if within == nil || err != nil {
		return nil
	}
	for _, c := range current {
		if at, ok := s.index[c.Name]; ok && !within.has(at) {
			out = append(out, c.Name)
		}
	}
	return out
}

// Fits reports whether each of the clusters has capacity for the replicas that it would get in
// addition to its current ones.
func (s *Snapshot) Fits(r *Request, clusters []workv1alpha2.TargetCluster) bool {
	j := newTask(r, s)
	defer j.done()
	for _, t := range clusters {
		i, ok := s.index[t.Name]
		if !ok {
			if t.Replicas > 0 {
				return false
			}
			continue
		}
		if free, _ := j.free(i); int64(t.Replicas) > j.held(i)+free { // the cause is that of a new decision
			return false
		}
	}
	return true
}

// HasQuotas reports whether a cluster reports a ResourceQuota of the namespace.
func (s *Snapshot) HasQuotas(namespace string) bool {
	return slices.ContainsFunc(s.capacities, func(c *capacity) bool { return c.report != nil && len(c.quotas[namespace]) > 0 })
}
