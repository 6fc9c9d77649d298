package v1alpha1

import "strings"

// DefaultGracePeriodSeconds is how long a workload stays where it was under PurgeModeGracefully, in
// seconds.
const DefaultGracePeriodSeconds = 600

// Defaulted is a copy of the spec with the defaults that a schema cannot express: the namespace of
// the selectors (that of the policy, empty for a cluster-wide one), the deprecated names of fields,
// the dependencies of a ServiceImport, and those of the placement and the failover. It is for use
// in memory: no spec is written.
func (s PropagationSpec) Defaulted(namespace string) PropagationSpec {
	out := *s.DeepCopy()
	inNamespace(out.ResourceSelectors, namespace)
	for _, r := range out.ResourceSelectors {
		if r.Kind == "ServiceImport" && strings.HasPrefix(r.APIVersion, "multicluster.x-k8s.io/") {
			out.PropagateDeps = true
		}
	}
	if out.Association {
		out.PropagateDeps = true
	}
	out.Placement = out.Placement.Defaulted()
	if f := out.Failover; f != nil && f.Application != nil {
		f.Application.PurgeMode = f.Application.PurgeMode.Current()
		if f.Application.PurgeMode == PurgeModeGracefully && f.Application.GracePeriodSeconds == nil {
			seconds := int32(DefaultGracePeriodSeconds)
			f.Application.GracePeriodSeconds = &seconds
		}
	}
	return out
}

// Defaulted is a copy of the placement with the defaults that a schema cannot express: a spread
// constraint is by cluster and at least 1, division is Weighted.
func (p Placement) Defaulted() Placement {
	out := *p.DeepCopy()
	for i := range out.SpreadConstraints {
		c := &out.SpreadConstraints[i]
		if c.SpreadByField == "" && c.SpreadByLabel == "" {
			c.SpreadByField = SpreadByFieldCluster
		}
		if c.MinGroups == 0 {
			c.MinGroups = 1
		}
	}
	if r := out.ReplicaScheduling; r != nil && r.ReplicaSchedulingType == ReplicaSchedulingTypeDivided && r.ReplicaDivisionPreference == "" {
		r.ReplicaDivisionPreference = ReplicaDivisionPreferenceWeighted
	}
	return out
}

// Divided reports whether the replicas are divided over the clusters. Without replicaScheduling
// each gets all of them.
func (p *Placement) Divided() bool {
	return p != nil && p.ReplicaScheduling != nil && p.ReplicaScheduling.ReplicaSchedulingType != ReplicaSchedulingTypeDuplicated
}

// Defaulted is a copy of the spec with the namespace of the selectors filled in (that of the
// policy, empty for a cluster-wide one) and the former form of one rule turned into the list.
func (s OverrideSpec) Defaulted(namespace string) OverrideSpec {
	out := *s.DeepCopy()
	inNamespace(out.ResourceSelectors, namespace)
	if len(out.OverrideRules) == 0 && out.Overriders != nil {
		out.OverrideRules = []RuleWithCluster{{TargetCluster: out.TargetCluster, Overriders: *out.Overriders}}
		out.TargetCluster, out.Overriders = nil, nil
	}
	return out
}

// inNamespace fills in the namespace of selectors that name none.
func inNamespace(selectors []ResourceSelector, namespace string) {
	for i := range selectors {
		if selectors[i].Namespace == "" {
			selectors[i].Namespace = namespace
		}
	}
}
