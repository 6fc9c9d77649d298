// Package observe exports the kernel's counters and paths as Prometheus metrics, and the daemon's
// view of the paths under Submariner's names. Maps are read at each scrape; the daemon keeps no
// packet counters of its own. The number of flows is the count of the daemon's last sweep, so that
// the cost of a scrape does not depend on it. pelago-node serves the metrics. The package writes
// nothing and does not use Kubernetes.
//
// Trace evaluates a packet on one node: it applies the tables in the kernel (package loader) and
// adds the decisions of the node's stack. Send and Watch follow a real packet. They cost nothing
// while no trace runs.
package observe

import (
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pelago-net/pelago/dataplane/dump"
	"github.com/pelago-net/pelago/dataplane/liveness"
)

// Source reads counters and paths from the kernel. *loader.Loader implements it.
type Source interface {
	Counters() ([]dump.Counter, error)
	// Path reads one path: a gateway has as many as its cluster has nodes, and only those to
	// gateways are shown.
	Path(netip.Addr) (liveness.Path, bool, error)
}

// Collector is a prometheus.Collector over the maps of one node. Labels are bounded: hooks and
// verdicts are enums of bpf/types.h, roles, protocols and states a few words, the rest are names of
// clusters and of gateways.
type Collector struct {
	source Source
	view   func() View

	packets, bytes, flow, failed, selftest *prometheus.Desc
	paths                                  paths
	submariner                             submariner
}

// New makes a collector. view is called at every scrape, from any goroutine.
func New(source Source, view func() View) *Collector {
	return &Collector{
		source: source, view: view,
		packets: prometheus.NewDesc("pelago_packets_total", "Packets by the hook that saw them and what became of them.",
			[]string{"hook", "verdict"}, nil),
		bytes: prometheus.NewDesc("pelago_bytes_total", "Bytes by the hook that saw them and what became of them.",
			[]string{"hook", "verdict"}, nil),
		flow: prometheus.NewDesc("pelago_nat_flows", "Translated flows of this node when they were last swept, up to ten seconds ago.",
			[]string{"role", "protocol", "state"}, nil),
		failed: prometheus.NewDesc("pelago_scrape_error", "1 if the maps could not be read at this scrape.", nil, nil),
		selftest: prometheus.NewDesc("pelago_selftest_paths",
			"Kinds of devices and routes of this node's pods, by what became of the packet of the last self-test.", []string{"outcome"}, nil),
		paths:      newPaths(),
		submariner: newSubmariner(),
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.packets, c.bytes, c.flow, c.failed, c.selftest} {
		out <- d
	}
	c.paths.describe(out)
	c.submariner.describe(out)
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
	v := c.view()
	for k, n := range v.Flows {
		out <- prometheus.MustNewConstMetric(c.flow, prometheus.GaugeValue, float64(n), string(k.Role), k.Protocol, k.State)
	}
	if v.SelfTest != nil {
		for _, outcome := range SelftestOutcomes {
			out <- prometheus.MustNewConstMetric(c.selftest, prometheus.GaugeValue, float64(v.SelfTest[outcome]), string(outcome))
		}
	}
	known, err := c.read(v)
	if err != nil {
		failed = 1
	}
	c.paths.collect(out, v, known)
	c.submariner.collect(out, v, known)
	out <- prometheus.MustNewConstMetric(c.failed, prometheus.GaugeValue, failed)
}

// read looks up the paths of all peers.
func (c *Collector) read(v View) (map[netip.Addr]liveness.Path, error) {
	known := make(map[netip.Addr]liveness.Path, len(v.Peers))
	for _, p := range v.Peers {
		path, ok, err := c.source.Path(p.Path)
		if err != nil {
			return known, err
		}
		if ok {
			known[p.Path] = path
		}
	}
	return known, nil
}
