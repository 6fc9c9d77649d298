package scheduler

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// Snapshot is what is known of all clusters at one moment. It is not changed once made, so decisions may be computed from it
// in parallel.
type Snapshot struct {
	clusters []*cluster // by name
	byName   map[string]*cluster
}

// cluster is one of them, prepared for many decisions.
type cluster struct {
	name     string
	of       *clusterv1alpha1.Cluster
	taints   []corev1.Taint // those that keep workloads away
	deleting bool
	served   map[schema.GroupVersionKind]bool
	partial  bool // what it serves is not known completely
	room     room
}

// NewSnapshot prepares clusters for decisions. assumed is what was decided and is not part of the clusters' status yet, by
// cluster; it may be nil.
func NewSnapshot(clusters []*clusterv1alpha1.Cluster, assumed map[string]Load) *Snapshot {
	s := &Snapshot{byName: make(map[string]*cluster, len(clusters))}
	for _, c := range clusters {
		p := prepare(c, assumed[c.Name])
		s.clusters = append(s.clusters, p)
		s.byName[c.Name] = p
	}
	slices.SortFunc(s.clusters, func(a, b *cluster) int { return strings.Compare(a.name, b.name) })
	return s
}

func prepare(c *clusterv1alpha1.Cluster, assumed Load) *cluster {
	out := &cluster{
		name: c.Name, of: c,
		deleting: c.DeletionTimestamp != nil, served: map[schema.GroupVersionKind]bool{},
		partial: !meta.IsStatusConditionTrue(c.Status.Conditions, clusterv1alpha1.ConditionCompleteAPIEnablements),
		room:    roomOf(c, assumed),
	}
	for _, t := range c.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute {
			out.taints = append(out.taints, corev1.Taint(t))
		}
	}
	for _, e := range c.Status.APIEnablements {
		gv, err := schema.ParseGroupVersion(e.GroupVersion)
		if err != nil {
			continue // no API server serves it
		}
		for _, r := range e.Resources {
			out.served[gv.WithKind(r.Kind)] = true
		}
	}
	return out
}
