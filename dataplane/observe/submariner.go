package observe

import (
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pelago-net/pelago/dataplane/liveness"
)

// submariner are the metrics of Submariner's gateway, operator and globalnet controller, under the
// same names and labels, so that dashboards and alerts keep working. As there, all are gauges, even
// those that only increase. Each gateway exports the values of the whole cluster; in Submariner one
// process did.
type submariner struct {
	gateways, created, requested, iterations     *prometheus.Desc
	rx, tx, connections, short, established, rtt *prometheus.Desc
	free, allocated, egress, clusterEgress       *prometheus.Desc
	ingress                                      *prometheus.Desc
}

func newSubmariner() submariner {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("submariner_"+name, help, labels, nil)
	}
	seven := []string{"cable_driver", "local_cluster", "local_hostname", "local_endpoint_ip", "remote_cluster", "remote_hostname", "remote_endpoint_ip"}
	eight := append(append([]string{}, seven...), "status")
	return submariner{
		gateways: desc("gateways", "Gateways of this cluster that are in use."),
		created: desc("gateway_creation_timestamp", "When the Gateway object was made, in seconds since 1970.",
			"local_cluster", "local_hostname"),
		requested: desc("requested_connections", "Connections that are wanted, by their status.",
			"local_cluster", "local_hostname", "remote_cluster", "remote_hostname", "status"),
		iterations:    desc("gateway_sync_iterations", "How often the state of the connections was queued for writing."),
		rx:            desc("gateway_rx_bytes", "Bytes that came from a remote gateway by the wire.", seven...),
		tx:            desc("gateway_tx_bytes", "Bytes that went to a remote gateway by the wire.", seven...),
		connections:   desc("connections", "Connections to remote gateways, by their status.", eight...),
		short:         desc("connections_short", "Number of connections to remote gateways with a status.", "cable_driver", "status"),
		established:   desc("connection_established_timestamp", "When a connection was established, in seconds since 1970.", seven...),
		rtt:           desc("connection_latency_seconds", "Round-trip time to a remote gateway, smoothed.", seven...),
		free:          desc("global_IP_availability", "Global addresses of this cluster that are free.", "cidr"),
		allocated:     desc("global_IP_allocated", "Global addresses of this cluster that are allocated.", "cidr"),
		egress:        desc("global_egress_IP_allocated", "Global addresses that GlobalEgressIPs have.", "cidr"),
		clusterEgress: desc("cluster_global_egress_IP_allocated", "Global addresses that the ClusterGlobalEgressIP has.", "cidr"),
		ingress:       desc("global_ingress_IP_allocated", "Global addresses that GlobalIngressIPs have.", "cidr"),
	}
}

func (m submariner) describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		m.gateways, m.created, m.requested, m.iterations, m.rx, m.tx, m.connections, m.short, m.established, m.rtt,
		m.free, m.allocated, m.egress, m.clusterEgress, m.ingress,
	} {
		out <- d
	}
}

// statuses of a connection, all of which connections_short shows.
var statuses = []string{"connected", "connecting", "error"}

func (m submariner) collect(out chan<- prometheus.Metric, v View, known map[netip.Addr]liveness.Path) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(m.iterations, float64(v.Reports))
	if v.Gateways == 0 {
		return // no gateway
	}
	gauge(m.gateways, float64(v.Gateways))
	if !v.Created.IsZero() {
		gauge(m.created, float64(v.Created.Unix()), v.Cluster, v.Node)
	}
	number := map[string]int{}
	for _, p := range v.Peers {
		c := p.Connection
		if c == nil {
			continue
		}
		number[c.Status]++
		seven := []string{v.Driver, v.Cluster, v.Node, v.Address, p.Cluster, p.Gateway, c.IP}
		gauge(m.connections, 1, append(append([]string{}, seven...), c.Status)...)
		gauge(m.requested, 1, v.Cluster, v.Node, p.Cluster, p.Gateway, c.Status)
		if !c.Established.IsZero() {
			gauge(m.established, float64(c.Established.Unix()), seven...)
		}
		if path, ok := known[p.Path]; ok && path.Replies > 0 {
			gauge(m.rtt, path.SRTT.Seconds(), seven...)
		}
		if c.Counted {
			gauge(m.rx, float64(c.RxBytes), seven...)
			gauge(m.tx, float64(c.TxBytes), seven...)
		}
	}
	for _, s := range statuses {
		gauge(m.short, float64(number[s]), v.Driver, s)
	}
	for _, r := range v.Ranges {
		given := r.Egress + r.ClusterEgress + r.Ingress
		gauge(m.free, float64(r.Usable-given), r.CIDR)
		gauge(m.allocated, float64(given), r.CIDR)
		gauge(m.egress, float64(r.Egress), r.CIDR)
		gauge(m.clusterEgress, float64(r.ClusterEgress), r.CIDR)
		gauge(m.ingress, float64(r.Ingress), r.CIDR)
	}
}
