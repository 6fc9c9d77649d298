package observe

import (
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/liveness"
)

// paths are the metrics of the ways to gateways.
type paths struct{ rtt, loss, up, mtu, hole, gso, state, role, isolated *prometheus.Desc }

func newPaths() paths {
	peer := []string{"cluster", "gateway"}
	return paths{
		rtt: prometheus.NewDesc("pelago_path_rtt_seconds",
			"Round-trip times of the probes to a gateway, as the kernel saw them. The sum takes each from the middle of its bucket.", peer, nil),
		loss: prometheus.NewDesc("pelago_path_loss_ratio", "Share of the latest probes to a gateway that were not answered.", peer, nil),
		up: prometheus.NewDesc("pelago_path_up",
			"1 if a gateway answers and its tables are complete; after an outage once it did for 3 seconds.", peer, nil),
		mtu: prometheus.NewDesc("pelago_path_mtu_bytes", "Largest packet of a pod that passes to a gateway and back, as the large probes found it.", peer, nil),
		hole: prometheus.NewDesc("pelago_path_blackhole",
			"1 if packets to a gateway are lost that are larger than pelago_path_mtu_bytes and that the uplinks allow.", peer, nil),
		gso: prometheus.NewDesc("pelago_path_gso_lost",
			"1 if packets of a gateway that GRO has merged are dropped in this node's stack, by its firewall: large TCP transfers stall.", peer, nil),
		state: prometheus.NewDesc("pelago_path_state",
			"1 for the state in which packets find the path to a gateway at this moment, 0 for the others.", append(peer, "state"), nil),
		isolated: prometheus.NewDesc("pelago_node_isolated",
			"1 if no gateway answers this node, so that its pods reach no other cluster and it has no verdict on clusters.", nil, nil),
		role: prometheus.NewDesc("pelago_gateway_state", "1 for the state of this node as a gateway, 0 for the others.", []string{"state"}, nil),
	}
}

func (m paths) describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.rtt, m.loss, m.up, m.mtu, m.hole, m.gso, m.state, m.role, m.isolated} {
		out <- d
	}
}

func (m paths) collect(out chan<- prometheus.Metric, v View, known map[netip.Addr]liveness.Path) {
	for _, s := range States {
		out <- prometheus.MustNewConstMetric(m.role, prometheus.GaugeValue, oneIf(v.State == s), s)
	}
	out <- prometheus.MustNewConstMetric(m.isolated, prometheus.GaugeValue, oneIf(v.Isolated))
	for _, p := range v.Peers {
		path, ok := known[p.Path]
		out <- prometheus.MustNewConstMetric(m.up, prometheus.GaugeValue, oneIf(p.Up), p.Cluster, p.Gateway)
		if p.MTU > 0 {
			out <- prometheus.MustNewConstMetric(m.mtu, prometheus.GaugeValue, float64(p.MTU), p.Cluster, p.Gateway)
			out <- prometheus.MustNewConstMetric(m.hole, prometheus.GaugeValue, oneIf(p.BlackHole), p.Cluster, p.Gateway)
			out <- prometheus.MustNewConstMetric(m.gso, prometheus.GaugeValue, oneIf(p.GSOLost), p.Cluster, p.Gateway)
		}
		now := pathState(path, ok)
		for _, s := range pathStates {
			out <- prometheus.MustNewConstMetric(m.state, prometheus.GaugeValue, oneIf(s == now), p.Cluster, p.Gateway, s)
		}
		if !ok {
			continue
		}
		out <- prometheus.MustNewConstMetric(m.loss, prometheus.GaugeValue, path.Loss, p.Cluster, p.Gateway)
		count, sum, buckets := histogram(path)
		out <- prometheus.MustNewConstHistogram(m.rtt, count, sum, buckets, p.Cluster, p.Gateway)
	}
}

// pathStates are the states of a path in the order of evaluation.
var pathStates = []string{"unknown", "dead", "suspect", "unready", "degraded", "ready"}

// pathState is the state as the programs see it. unknown: not probed, since no tunnel leads there,
// or not answered yet.
func pathState(p liveness.Path, known bool) string {
	switch {
	case !known || p.Replies == 0 && !p.Dead():
		return "unknown"
	case p.Dead():
		return "dead"
	case p.Suspect():
		return "suspect"
	case !p.Ready:
		return "unready"
	case p.Degraded():
		return "degraded"
	}
	return "ready"
}

// histogram converts the kernel's buckets to cumulative ones. The kernel's last bucket has no upper
// bound.
func histogram(p liveness.Path) (count uint64, sum float64, buckets map[float64]uint64) {
	const last = dataplane.RTTBuckets - 1
	buckets = make(map[float64]uint64, last)
	for i, n := range p.Histogram {
		bound := float64(uint64(1)<<i) / 1e6 // seconds
		count += uint64(n)
		switch i {
		case 0:
			sum += float64(n) * bound / 2
		case last:
			sum += float64(n) * bound / 2 // its lower bound
			continue
		default:
			sum += float64(n) * bound * 3 / 4
		}
		buckets[bound] = count
	}
	return count, sum, buckets
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
