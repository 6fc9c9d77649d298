package cluster

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// metrics reads the Clusters of the cache at each scrape, push and pull members alike; a cluster that is gone leaves nothing
// behind. Names and label are Karmada's.
type metrics struct{ from client.Reader }

var (
	readyState      = describe("cluster_ready_state", "1 if the cluster is ready, else 0.")
	nodeNumber      = describe("cluster_node_number", "Nodes of the cluster.")
	readyNodeNumber = describe("cluster_ready_node_number", "Nodes of the cluster that are ready.")
	allocatable     = map[corev1.ResourceName]*prometheus.Desc{
		corev1.ResourceMemory: describe("cluster_memory_allocatable_bytes", "Memory that all nodes offer."),
		corev1.ResourceCPU:    describe("cluster_cpu_allocatable_number", "Cores that all nodes offer."),
		corev1.ResourcePods:   describe("cluster_pod_allocatable_number", "Pods for which all nodes have room."),
	}
	allocated = map[corev1.ResourceName]*prometheus.Desc{
		corev1.ResourceMemory: describe("cluster_memory_allocated_bytes", "Memory that pods on nodes request."),
		corev1.ResourceCPU:    describe("cluster_cpu_allocated_number", "Cores that pods on nodes request."),
		corev1.ResourcePods:   describe("cluster_pod_allocated_number", "Pods on nodes that have not ended."),
	}
)

func describe(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"member_cluster"}, nil)
}

// Describe tells the names of the metrics.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	to <- readyState
	to <- nodeNumber
	to <- readyNodeNumber
	for _, of := range []map[corev1.ResourceName]*prometheus.Desc{allocatable, allocated} {
		for _, d := range of {
			to <- d
		}
	}
}

// Collect tells the values of the moment; what a cluster has not reported is left out.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	var all clusterv1alpha1.ClusterList
	if err := m.from.List(context.Background(), &all); err != nil { // the cache has not started, or has ended
		slog.Warn("no metrics of clusters", "error", err)
		return
	}
	for i := range all.Items {
		c := &all.Items[i]
		tell := func(d *prometheus.Desc, value float64) {
			to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, c.Name)
		}
		ready := 0.0
		if r := c.Ready(); r != nil && r.Status == metav1.ConditionTrue {
			ready = 1
		}
		tell(readyState, ready)
		if n := c.Status.NodeSummary; n != nil {
			tell(nodeNumber, float64(n.TotalNum))
			tell(readyNodeNumber, float64(n.ReadyNum))
		}
		if s := c.Status.ResourceSummary; s != nil {
			for name, d := range allocatable {
				q := s.Allocatable[name]
				tell(d, q.AsApproximateFloat64())
			}
			for name, d := range allocated {
				q := s.Allocated[name]
				tell(d, q.AsApproximateFloat64())
			}
		}
	}
}
