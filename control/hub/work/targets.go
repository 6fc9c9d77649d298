package work

import (
	"slices"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// target is a cluster that is to hold the template.
type target struct {
	name string
	// replicas are the cluster's share; scheduled is false for one that only a dependent's owner asks for: the share there is the
	// owner's.
	replicas  int32
	scheduled bool
}

// targets are the clusters of the decision, then those to which bindings go that require this one; each once.
func targets(spec *workv1alpha2.ResourceBindingSpec) []target {
	var out []target
	seen := map[string]bool{}
	add := func(t target) {
		if !seen[t.name] {
			seen[t.name] = true
			out = append(out, t)
		}
	}
	for _, c := range spec.Clusters {
		add(target{c.Name, c.Replicas, true})
	}
	for _, by := range spec.RequiredBy {
		for _, c := range by.Clusters {
			add(target{name: c.Name})
		}
	}
	return out
}

// leaving are the clusters that the template is being moved away from: at once those with purge mode Directly, the others when
// the eviction task ends. A target is leaving nowhere.
func leaving(spec *workv1alpha2.ResourceBindingSpec, targets []target) (directly, later map[string]bool) {
	directly, later = map[string]bool{}, map[string]bool{}
	for _, task := range spec.GracefulEvictionTasks {
		if slices.ContainsFunc(targets, func(t target) bool { return t.name == task.FromCluster }) {
			continue
		}
		if task.PurgeMode.Current() == policyv1alpha1.PurgeModeDirectly {
			directly[task.FromCluster] = true
		} else {
			later[task.FromCluster] = true
		}
	}
	return directly, later
}

// preserved are the labels that carry the state of a template that was moved away from its only cluster to the next one: those
// of the newest eviction task, if that is Directly and the cluster is none of those that had the template before.
func preserved(spec *workv1alpha2.ResourceBindingSpec, cluster string) map[string]string {
	tasks := spec.GracefulEvictionTasks
	if len(tasks) == 0 || len(targets(spec)) != 1 {
		return nil
	}
	newest := tasks[len(tasks)-1]
	if newest.PurgeMode.Current() != policyv1alpha1.PurgeModeDirectly || slices.Contains(newest.ClustersBeforeFailover, cluster) {
		return nil
	}
	return newest.PreservedLabelState
}

// clustersOf are all clusters that a binding names.
func clustersOf(spec *workv1alpha2.ResourceBindingSpec) []string {
	var out []string
	for _, t := range targets(spec) {
		out = append(out, t.name)
	}
	for _, task := range spec.GracefulEvictionTasks {
		out = append(out, task.FromCluster)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func suspended(s *workv1alpha2.Suspension, cluster string) bool {
	if s == nil {
		return false
	}
	if s.Dispatching != nil && *s.Dispatching {
		return true
	}
	return s.DispatchingOnClusters != nil && slices.Contains(s.DispatchingOnClusters.ClusterNames, cluster)
}
