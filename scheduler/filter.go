package scheduler

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/scheduler/affinity"
)

// filter returns the clusters that may run the template, by name, and says of the others why not. Who runs it already may go
// on where the API is not seen or a taint came later.
func (j *task) filter(s *Snapshot, term affinity.Selector) (fit []*cluster, reasons []Reason) {
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

func (j *task) refusal(c *cluster, term affinity.Selector) string {
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
	if !term.Matches(c.of) {
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
		missing := s.SpreadByField == policyv1alpha1.SpreadByFieldProvider && c.of.Spec.Provider == "" ||
			s.SpreadByField == policyv1alpha1.SpreadByFieldRegion && c.of.Spec.Region == "" ||
			s.SpreadByField == policyv1alpha1.SpreadByFieldZone && len(c.of.Spec.Zones) == 0
		if missing {
			return fmt.Sprintf("cluster(s) did not have %s property", s.SpreadByField)
		}
	}
	return ""
}
