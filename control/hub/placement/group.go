package placement

import (
	"maps"
	"slices"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/scheduler"
)

// Membership is where a binding of workload affinity groups runs, without the clusters that it is
// being evicted from.
type Membership struct {
	workv1alpha2.WorkloadAffinityGroups
	Clusters []string
}

// MembershipOf is that of a binding in these clusters; nil: it belongs to no group.
func MembershipOf(groups *workv1alpha2.WorkloadAffinityGroups, clusters []workv1alpha2.TargetCluster) *Membership {
	if groups == nil || *groups == (workv1alpha2.WorkloadAffinityGroups{}) {
		return nil
	}
	m := &Membership{WorkloadAffinityGroups: *groups}
	for _, c := range clusters {
		m.Clusters = append(m.Clusters, c.Name)
	}
	return m
}

// grouped returns a request with the clusters of its groups, from the decisions and reservations of
// others in the namespace. Clusters that the template is being evicted from no longer attract it:
// in a group that loses its cluster, the first to move draws the others. r.mu is held.
func (r *Cache) grouped(key string, req *scheduler.Request) *scheduler.Request {
	req = r.bounded(key, req)
	g := req.Groups
	if g == nil || *g == (workv1alpha2.WorkloadAffinityGroups{}) {
		return req
	}
	together, apart := map[string]bool{}, map[string]bool{}
	add := func(m *Membership) {
		if m == nil {
			return
		}
		for _, c := range m.Clusters {
			if g.AffinityGroup != "" && g.AffinityGroup == m.AffinityGroup && !slices.Contains(req.Evicted, c) {
				together[c] = true
			}
			if g.AntiAffinityGroup != "" && g.AntiAffinityGroup == m.AntiAffinityGroup {
				apart[c] = true
			}
		}
	}
	for other, b := range r.spaces[namespaceOf(key)] {
		if other != key {
			add(b.member)
			if b.reserved != nil {
				add(b.reserved.member)
			}
		}
	}
	out := *req
	out.Together, out.Apart = slices.Sorted(maps.Keys(together)), slices.Sorted(maps.Keys(apart))
	return &out
}

// bounded returns a request with what the bindings of its namespace are assumed to request in the
// clusters, if ResourceQuotas there bound it. r.mu is held.
func (r *Cache) bounded(key string, req *scheduler.Request) *scheduler.Request {
	if !req.TakesRoom() || !r.snapshot.HasQuotas(req.Namespace) {
		return req
	}
	out := *req
	out.Assumed = map[string]scheduler.Load{}
	for _, b := range r.spaces[req.Namespace] {
		for _, c := range b.claims(nil) {
			l := out.Assumed[c.cluster]
			l.Add(c.size, c.replicas)
			out.Assumed[c.cluster] = l
		}
	}
	return &out
}

func sameGroups(a, b *scheduler.Request) bool {
	return slices.Equal(a.Together, b.Together) && slices.Equal(a.Apart, b.Apart)
}
