package cluster

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// metrics are collected from the Clusters of the cache at each scrape, so a deleted cluster leaves
// no series. Names and label are Karmada's.
type metrics struct{ from client.Reader }

var (
	readyState      = describe("cluster_ready_state", "1 if the cluster is ready, else 0.")
	nodeNumber      = describe("cluster_node_number", "Nodes of the cluster.")
	readyNodeNumber = describe("cluster_ready_node_number", "Nodes of the cluster that are ready.")

	resources = []struct {
		name                   corev1.ResourceName
		allocatable, allocated *prometheus.Desc
	}{
		{corev1.ResourceMemory, describe("cluster_memory_allocatable_bytes", "Memory that all nodes offer."),
			describe("cluster_memory_allocated_bytes", "Memory that pods on nodes request.")},
		{corev1.ResourceCPU, describe("cluster_cpu_allocatable_number", "Cores that all nodes offer."),
			describe("cluster_cpu_allocated_number", "Cores that pods on nodes request.")},
		{corev1.ResourcePods, describe("cluster_pod_allocatable_number", "Pods for which all nodes have room."),
			describe("cluster_pod_allocated_number", "Pods on nodes that have not ended.")},
	}
)

func describe(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"member_cluster"}, nil)
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	to <- readyState
	to <- nodeNumber
	to <- readyNodeNumber
	for _, r := range resources {
		to <- r.allocatable
		to <- r.allocated
	}
}

// Collect implements prometheus.Collector. Values that a cluster has not reported are omitted.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	var all clusterv1alpha1.ClusterList
	// the cache has not started, or has ended
	if err := m.from.List(context.Background(), &all); err != nil {
		slog.Warn("no metrics of clusters", "error", err)
		return
	}
	for i := range all.Items {
		c := &all.Items[i]
		send := func(d *prometheus.Desc, value float64) {
			to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, c.Name)
		}
		ready := 0.0
		if meta.IsStatusConditionTrue(c.Status.Conditions, clusterv1alpha1.ConditionReady) {
			ready = 1
		}
		send(readyState, ready)
		if n := c.Status.NodeSummary; n != nil {
			send(nodeNumber, float64(n.TotalNum))
			send(readyNodeNumber, float64(n.ReadyNum))
		}
		if s := c.Status.ResourceSummary; s != nil {
			for _, r := range resources {
				allocatable, allocated := s.Allocatable[r.name], s.Allocated[r.name]
				send(r.allocatable, allocatable.AsApproximateFloat64())
				send(r.allocated, allocated.AsApproximateFloat64())
			}
		}
	}
}
