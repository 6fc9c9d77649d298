package scheduler

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// filter appends a tier of clusters that pass the filters, by name, and sets the causes of the
// others in why, by index. A cluster where the template runs already passes those of APIs and
// taints.
func (j *task) filter(a *policyv1alpha1.ClusterAffinity, tier int, fit []candidate, why []cause) ([]candidate, error) {
	near, err := j.matching(a)
	if err != nil {
		return nil, err
	}
	within, err := j.open(j.Within)
	if err != nil {
		return nil, err
	}
	serving := j.serving(j.Kind)
	for at := range j.traits {
		if tier > 0 && why[at] == none {
			continue // it is in an earlier tier
		}
		refusal := j.refusal(at, near, within, serving)
		if tier == 0 || refusal == none {
			why[at] = refusal
		}
		if refusal == none {
			fit = append(fit, j.candidate(at, tier))
		}
	}
	return fit, nil
}

// unmatched is FitError.Unmatched.
func (j *task) unmatched() bool {
	if j.Placement == nil || len(j.of) == 0 {
		return false
	}
	return !slices.ContainsFunc(affinitiesOf(j.Placement), func(a *policyv1alpha1.ClusterAffinity) bool {
		in, err := j.matching(a)
		return err != nil || in.size() > 0 || a != nil && slices.ContainsFunc(a.ClusterNames, func(name string) bool {
			_, joined := j.index[name]
			return !joined
		})
	})
}

func (j *task) refusal(at int, near, within, serving set) cause {
	c := &j.traits[at]
	runs := j.runs(at)
	switch {
	case c.deleting:
		return leaving
	case !runs && !serving.has(at):
		if c.partial {
			return perhapsNotServed
		}
		return notServed
	case !near.has(at):
		return notNear
	case within != nil && !within.has(at):
		return notOpen
	case len(j.Evicted) > 0 && slices.Contains(j.Evicted, j.of[at].Name):
		return evicting
	case !runs && j.together != nil && !j.together.has(at):
		return notTogether
	case !runs && j.apart != nil && j.apart.has(at):
		return notApart
	case !runs && j.tooFar(at):
		return j.farCause()
	}
	for i := range j.properties {
		if p := &j.properties[i]; !p.in.has(at) {
			return p.missing
		}
	}
	if runs || c.taints == 0 {
		return none
	}
	return j.tainted(c.taints)
}

// property that a cluster must have because of a spread constraint.
type property struct {
	in      set // the clusters that have it
	missing cause
}

func (j *task) spreadProperties() (out []property) {
	if j.Placement == nil {
		return nil
	}
	for _, s := range j.Placement.SpreadConstraints {
		switch {
		case s.SpreadByLabel != "":
			in := newSet(len(j.of))
			for at, c := range j.of {
				if _, ok := c.Labels[s.SpreadByLabel]; ok {
					in.add(at)
				}
			}
			out = append(out, property{in, j.describe(fmt.Sprintf("cluster(s) did not have label %s", s.SpreadByLabel))})
		case s.SpreadByField != policyv1alpha1.SpreadByFieldCluster:
			out = append(out, property{j.with[s.SpreadByField], j.describe(fmt.Sprintf("cluster(s) did not have %s property", s.SpreadByField))})
		}
	}
	return out
}

// tainted is the cause of a list of taints of the snapshot; none if all are tolerated.
func (j *task) tainted(list int) cause {
	if why, ok := j.byTaints[list]; ok {
		return why
	}
	why := none
	if i := slices.IndexFunc(j.taints[list], func(t corev1.Taint) bool { return !j.tolerates(t) }); i >= 0 {
		why = j.describe(fmt.Sprintf("cluster(s) had untolerated taint {%s}", j.taints[list][i].ToString()))
	}
	if j.byTaints == nil {
		j.byTaints = map[int]cause{}
	}
	j.byTaints[list] = why
	return why
}

// tolerates reports whether the policy's tolerations cover a taint. None covers that of an
// unapproved cluster: policies belong to tenants, approval to the hub's administrators.
func (r *Request) tolerates(taint corev1.Taint) bool {
	if r.Placement == nil || taint.Key == clusterv1alpha1.TaintUnapproved {
		return false
	}
	return slices.ContainsFunc(r.Placement.ClusterTolerations, func(t policyv1alpha1.Toleration) bool {
		return t.Tolerates(taint)
	})
}
