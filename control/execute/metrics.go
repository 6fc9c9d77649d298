package execute

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Metrics counts under Karmada's names. Labels are bounded by the number of clusters and of kinds. Register it once in a process.
type Metrics struct {
	sync                     *prometheus.HistogramVec
	created, updated, delete *prometheus.CounterVec
}

// NewMetrics makes them.
func NewMetrics() *Metrics {
	count := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help},
			[]string{"result", "apiversion", "kind", "cluster"})
	}
	return &Metrics{
		sync: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "work_sync_workload_duration_seconds", Help: "How long it takes to bring a Work's object into its cluster.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		}, []string{"result"}),
		created: count("create_resource_to_cluster", "Objects created in a cluster."),
		updated: count("update_resource_to_cluster", "Objects changed in a cluster."),
		delete:  count("delete_resource_from_cluster", "Objects deleted in a cluster."),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range []prometheus.Collector{m.sync, m.created, m.updated, m.delete} {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range []prometheus.Collector{m.sync, m.created, m.updated, m.delete} {
		c.Collect(ch)
	}
}

func (m *Metrics) synced(began time.Time, err error) {
	m.sync.WithLabelValues(result(err)).Observe(time.Since(began).Seconds())
}

func count(of *prometheus.CounterVec, cluster string, u *unstructured.Unstructured, err error) {
	of.WithLabelValues(result(err), u.GetAPIVersion(), u.GetKind(), cluster).Inc()
}

func result(err error) string {
	if err != nil {
		return "error"
	}
	return "success"
}

// forget drops the counters of a cluster that is executed no more.
func (m *Metrics) forget(cluster string) {
	for _, c := range []*prometheus.CounterVec{m.created, m.updated, m.delete} {
		c.DeletePartialMatch(prometheus.Labels{"cluster": cluster})
	}
}
