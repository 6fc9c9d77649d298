package propagate

import (
	"encoding/json"
	"slices"

	"k8s.io/utils/ptr"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// observation is what the room is told of a binding.
func observation(b binding) Observation {
	o := Observation{ResourceVersion: b.GetResourceVersion(), Requirements: b.spec.ReplicaRequirements}
	add := func(cluster string, replicas int32) {
		if !slices.ContainsFunc(o.Parts, func(p ReservedPart) bool { return p.Cluster == cluster }) {
			o.Parts = append(o.Parts, ReservedPart{Cluster: cluster, Replicas: replicas, Settled: settled(b.status, cluster, replicas)})
		}
	}
	for _, c := range b.spec.Clusters {
		add(c.Name, c.Replicas)
	}
	for i := range b.spec.GracefulEvictionTasks {
		t := &b.spec.GracefulEvictionTasks[i]
		add(t.FromCluster, ptr.Deref(t.Replicas, 0))
	}
	return o
}

// settled says whether the replicas of a cluster are healthy. Where its status counts those that are ready there must be as many of
// them: a status may be older than the decision.
func settled(s *workv1alpha2.ResourceBindingStatus, cluster string, replicas int32) bool {
	i := slices.IndexFunc(s.AggregatedStatus, func(a workv1alpha2.AggregatedStatusItem) bool { return a.ClusterName == cluster })
	if i < 0 || !s.AggregatedStatus[i].Applied || s.AggregatedStatus[i].Health != workv1alpha2.ResourceHealthy {
		return false
	}
	var counts struct {
		ReadyReplicas *int32 `json:"readyReplicas"`
	}
	if raw := s.AggregatedStatus[i].Status; raw != nil && json.Unmarshal(raw.Raw, &counts) != nil {
		return false // it may count them in a way that is not known here
	}
	return counts.ReadyReplicas == nil || *counts.ReadyReplicas >= replicas
}
