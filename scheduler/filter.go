package scheduler

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// matcher is a ClusterAffinity, parsed once for all clusters.
type matcher struct {
	names, exclude []string
	labels         labels.Selector // nil: all
	fields         []policyv1alpha1.FieldSelectorRequirement
}

func newMatcher(a *policyv1alpha1.ClusterAffinity) (matcher, error) {
	if a == nil {
		return matcher{}, nil
	}
	m := matcher{names: a.ClusterNames, exclude: a.ExcludeClusters}
	if a.LabelSelector != nil {
		var err error
		if m.labels, err = metav1.LabelSelectorAsSelector(a.LabelSelector); err != nil {
			return matcher{}, fmt.Errorf("labelSelector of the cluster affinity: %w", err)
		}
	}
	if a.FieldSelector != nil {
		m.fields = a.FieldSelector.MatchExpressions
	}
	return m, nil
}

// matches: every part that is there must match, and who is excluded never does.
func (m matcher) matches(c *cluster) bool {
	if slices.Contains(m.exclude, c.name) || len(m.names) > 0 && !slices.Contains(m.names, c.name) {
		return false
	}
	if m.labels != nil && !m.labels.Matches(c.labels) {
		return false
	}
	return !slices.ContainsFunc(m.fields, func(f policyv1alpha1.FieldSelectorRequirement) bool { return !fieldMatches(f, c) })
}

func fieldMatches(f policyv1alpha1.FieldSelectorRequirement, c *cluster) bool {
	var have []string
	switch f.Key {
	case policyv1alpha1.FieldProvider:
		have = []string{c.provider}
	case policyv1alpha1.FieldRegion:
		have = []string{c.region}
	case policyv1alpha1.FieldZone:
		have = c.zones
	}
	in := slices.ContainsFunc(have, func(v string) bool { return slices.Contains(f.Values, v) })
	if f.Operator == corev1.NodeSelectorOpNotIn {
		return !in
	}
	return in
}

// filter returns the clusters that may run the template, by name, and says of the others why not. Who runs it already may go
// on where the API is not seen or a taint came later.
func (j *task) filter(s *Snapshot, term matcher) (fit []*cluster, reasons []Reason) {
	fit = make([]*cluster, 0, len(s.clusters))
	for _, c := range s.clusters {
		if why := j.refusal(c, term); why != "" {
			reasons = append(reasons, Reason{c.name, why})
			continue
		}
		fit = append(fit, c)
	}
	return fit, reasons
}

func (j *task) refusal(c *cluster, term matcher) string {
	if c.deleting {
		return "cluster(s) are being removed"
	}
	_, runs := j.current[c.name]
	if !runs && !c.served[j.Kind] {
		if c.partial {
			return "cluster(s) did not tell all APIs that they serve"
		}
		return "cluster(s) did not have the API resource"
	}
	if !term.matches(c) {
		return "cluster(s) did not match the placement cluster affinity constraint"
	}
	if slices.Contains(j.Evicted, c.name) {
		return "cluster(s) is in the process of eviction"
	}
	if why := j.spreadRefusal(c); why != "" {
		return why
	}
	if !runs {
		if i := slices.IndexFunc(c.taints, func(t corev1.Taint) bool { return !j.tolerates(t) }); i >= 0 {
			return fmt.Sprintf("cluster(s) had untolerated taint {%s}", c.taints[i].ToString())
		}
	}
	return ""
}

func (r *Request) tolerates(taint corev1.Taint) bool {
	if r.Placement == nil {
		return false
	}
	return slices.ContainsFunc(r.Placement.ClusterTolerations, func(t policyv1alpha1.Toleration) bool {
		toleration := corev1.Toleration(t)
		return toleration.ToleratesTaint(&taint)
	})
}

// spreadRefusal: to be spread by a property, a cluster must have it.
func (r *Request) spreadRefusal(c *cluster) string {
	if r.Placement == nil {
		return ""
	}
	for _, s := range r.Placement.SpreadConstraints {
		missing := s.SpreadByField == policyv1alpha1.SpreadByFieldProvider && c.provider == "" ||
			s.SpreadByField == policyv1alpha1.SpreadByFieldRegion && c.region == "" ||
			s.SpreadByField == policyv1alpha1.SpreadByFieldZone && len(c.zones) == 0
		if missing {
			return fmt.Sprintf("cluster(s) did not have %s property", s.SpreadByField)
		}
	}
	return ""
}
