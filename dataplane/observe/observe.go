// Package observe shows the kernel's counters and flows as Prometheus metrics. Everything is read from the maps when it is
// asked for; the daemon keeps no packet counters of its own.
package observe

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pelago-net/pelago/dataplane/loader"
)

// Source is what the collector reads. *loader.Loader is one.
type Source interface {
	Counters() ([]loader.Counter, error)
	Flows() ([]loader.Flow, error)
}

// Collector is a prometheus.Collector over the maps of one node. Labels are bounded: hooks and verdicts are enums of
// bpf/types.h, roles and protocols are two and three words.
type Collector struct {
	source               Source
	packets, bytes, flow *prometheus.Desc
	failed               *prometheus.Desc
}

// New makes a collector.
func New(source Source) *Collector {
	return &Collector{
		source: source,
		packets: prometheus.NewDesc("pelago_packets_total", "Packets by the hook that saw them and what became of them.",
			[]string{"hook", "verdict"}, nil),
		bytes: prometheus.NewDesc("pelago_bytes_total", "Bytes by the hook that saw them and what became of them.",
			[]string{"hook", "verdict"}, nil),
		flow: prometheus.NewDesc("pelago_nat_flows", "Translated flows of this node.",
			[]string{"role", "protocol", "state"}, nil),
		failed: prometheus.NewDesc("pelago_scrape_error", "1 if the maps could not be read at this scrape.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	out <- c.packets
	out <- c.bytes
	out <- c.flow
	out <- c.failed
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	failed := 0.0
	counters, err := c.source.Counters()
	if err != nil {
		failed = 1
	}
	for _, r := range counters {
		out <- prometheus.MustNewConstMetric(c.packets, prometheus.CounterValue, float64(r.Packets), r.Hook, r.Verdict)
		out <- prometheus.MustNewConstMetric(c.bytes, prometheus.CounterValue, float64(r.Bytes), r.Hook, r.Verdict)
	}
	flows, err := c.source.Flows()
	if err != nil {
		failed = 1
	}
	type labels struct{ role, protocol, state string }
	number := map[labels]float64{}
	for _, f := range flows {
		number[labels{string(f.Role), f.Protocol, f.State}]++
	}
	for l, n := range number {
		out <- prometheus.MustNewConstMetric(c.flow, prometheus.GaugeValue, n, l.role, l.protocol, l.state)
	}
	out <- prometheus.MustNewConstMetric(c.failed, prometheus.GaugeValue, failed)
}
