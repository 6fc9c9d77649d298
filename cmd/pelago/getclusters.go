package main

import (
	"cmp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// clusterListing is the table of `pelago get clusters`.
func clusterListing(clusters []clusterv1alpha1.Cluster, now time.Time) table {
	t := table{
		header: []string{"NAME", "VERSION", "MODE", "ACCEPTED", "READY", "AGE"},
		wide:   []string{"ZONES", "REGION", "PROVIDER", "API-ENDPOINT", "TAINTS"},
		empty:  "No cluster has joined the hub: see `pelago join --help`.",
	}
	for i := range clusters {
		c := &clusters[i]
		ready, accepted := "Unknown", "False"
		if c.Accepted() {
			accepted = "True"
		}
		if condition := meta.FindStatusCondition(c.Status.Conditions, clusterv1alpha1.ConditionReady); condition != nil {
			ready = string(condition.Status)
		}
		var taints []string
		for _, taint := range c.Spec.Taints {
			text := taint.Key
			if taint.Value != "" {
				text += "=" + taint.Value
			}
			taints = append(taints, text+":"+string(taint.Effect))
		}
		t.rows = append(t.rows, row{
			cells: []string{c.Name, cmp.Or(c.Status.KubernetesVersion, "-"), string(c.Spec.SyncMode), accepted, ready,
				age(c.CreationTimestamp.Time, now)},
			wide: []string{cmp.Or(strings.Join(c.Spec.AllZones(), ","), "-"), cmp.Or(c.Spec.Region, "-"), cmp.Or(c.Spec.Provider, "-"),
				cmp.Or(c.Spec.APIEndpoint, "-"), cmp.Or(strings.Join(taints, ","), "-")},
			object: c,
		})
	}
	return t
}
