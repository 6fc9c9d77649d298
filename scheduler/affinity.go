package scheduler

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// Affinity is a parsed ClusterAffinity of a placement, a weight or an override rule. The zero value
// selects all clusters.
type Affinity struct {
	names, exclude []string
	labels         labels.Selector // nil: all
	fields         []policyv1alpha1.FieldSelectorRequirement
}

// ParseAffinity returns an error for an invalid label selector. nil selects all clusters.
func ParseAffinity(a *policyv1alpha1.ClusterAffinity) (Affinity, error) {
	if a == nil {
		return Affinity{}, nil
	}
	s := Affinity{names: a.ClusterNames, exclude: a.ExcludeClusters}
	if a.LabelSelector != nil {
		var err error
		if s.labels, err = metav1.LabelSelectorAsSelector(a.LabelSelector); err != nil {
			return Affinity{}, fmt.Errorf("labelSelector of the cluster affinity: %w", err)
		}
	}
	if a.FieldSelector != nil {
		s.fields = a.FieldSelector.MatchExpressions
	}
	return s, nil
}

// Open is what a namespace with this value of policyv1alpha1.AnnotationClusters may use, for what
// reaches clusters without a decision of this package. refuses is nil for a cluster that is open.
func Open(namespace, within string) (refuses func(*clusterv1alpha1.Cluster) error, err error) {
	a, err := policyv1alpha1.ParseClusters(within)
	if err != nil {
		return nil, err
	}
	parsed, err := ParseAffinity(a)
	return func(c *clusterv1alpha1.Cluster) error {
		if parsed.Matches(c) {
			return nil
		}
		return fmt.Errorf("namespace %s must not use cluster %s (annotation %s): an administrator of the hub changes that",
			namespace, c.Name, policyv1alpha1.AnnotationClusters)
	}, err
}

// Matches reports whether all parts that are set match; an excluded cluster never matches.
func (s Affinity) Matches(c *clusterv1alpha1.Cluster) bool {
	if slices.Contains(s.exclude, c.Name) || len(s.names) > 0 && !slices.Contains(s.names, c.Name) {
		return false
	}
	if s.labels != nil && !s.labels.Matches(labels.Set(c.Labels)) {
		return false
	}
	return !slices.ContainsFunc(s.fields, func(f policyv1alpha1.FieldSelectorRequirement) bool { return !fieldMatches(f, c) })
}

// Selects reports whether an affinity of a placement selects a cluster, also one that cannot be
// parsed.
func Selects(p *policyv1alpha1.Placement, c *clusterv1alpha1.Cluster) bool {
	return p == nil || slices.ContainsFunc(affinitiesOf(p), func(a *policyv1alpha1.ClusterAffinity) bool {
		parsed, err := ParseAffinity(a)
		return err != nil || parsed.Matches(c)
	})
}

// affinitiesOf are all affinities of a placement; nil is one that selects all clusters.
func affinitiesOf(p *policyv1alpha1.Placement) (all []*policyv1alpha1.ClusterAffinity) {
	if len(p.ClusterAffinities) == 0 {
		all = append(all, p.ClusterAffinity)
	}
	for i := range p.ClusterAffinities {
		a := &p.ClusterAffinities[i]
		all = append(all, &a.ClusterAffinity)
		for k := range a.OverflowAffinities {
			all = append(all, &a.OverflowAffinities[k].ClusterAffinity)
		}
	}
	return all
}

// fieldMatches: In matches if one of the zones of a cluster does, NotIn if none does.
func fieldMatches(f policyv1alpha1.FieldSelectorRequirement, c *clusterv1alpha1.Cluster) bool {
	var have []string
	switch f.Key {
	case policyv1alpha1.FieldProvider:
		have = []string{c.Spec.Provider}
	case policyv1alpha1.FieldRegion:
		have = []string{c.Spec.Region}
	case policyv1alpha1.FieldZone:
		have = c.Spec.AllZones()
	}
	in := slices.ContainsFunc(have, func(v string) bool { return slices.Contains(f.Values, v) })
	if f.Operator == corev1.NodeSelectorOpNotIn {
		return !in
	}
	return in
}
