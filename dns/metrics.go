package dns

import (
	"sync/atomic"
	"time"

	miekg "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the server's own. All label values come from fixed lists or from
// the table, never from a query, so clients cannot create series.
type metrics struct {
	queries  *prometheus.CounterVec
	seconds  prometheus.Histogram
	services *prometheus.CounterVec
	conns    prometheus.Gauge
	refused  *prometheus.CounterVec
	failures *prometheus.CounterVec
	// refusedTotal and refusedSource are the children of refused.
	refusedTotal, refusedSource prometheus.Counter
	// byOutcome holds the children of queries, which spares each query a look-up
	// under the vector's lock.
	byOutcome [len(rcodes)][len(qtypes)]prometheus.Counter
}

// rcodes and qtypes are the label values of pelago_dns_queries_total; the last
// qtype stands for all others.
var (
	rcodes = [...]int{miekg.RcodeSuccess, miekg.RcodeFormatError, miekg.RcodeServerFailure, miekg.RcodeNameError, miekg.RcodeNotImplemented, miekg.RcodeRefused, miekg.RcodeBadVers}
	qtypes = [...]uint16{miekg.TypeA, miekg.TypeAAAA, miekg.TypeSRV, miekg.TypeTXT, miekg.TypeSOA, miekg.TypeNS, miekg.TypePTR, miekg.TypeANY, miekg.TypeNone}
)

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		queries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pelago_dns_queries_total",
			Help: "Queries answered, by response code and query type.",
		}, []string{"rcode", "type"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "pelago_dns_query_duration_seconds",
			Help:    "Time from the parsed query to the packed answer.",
			Buckets: prometheus.ExponentialBuckets(250e-9, 4, 10), // 250 ns … 65 ms
		}),
		services: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "submariner_service_discovery_query",
			Help: "Answers that named a cluster for a service; no destination_cluster means the clusterset IP.",
		}, []string{"source_cluster", "destination_cluster", "destination_service_name", "destination_service_namespace", "destination_service_ip"}),
		conns: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "pelago_dns_tcp_connections",
			Help: "Open TCP connections.",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pelago_dns_tcp_connections_refused_total",
			Help: "TCP connections reset because of the limit on all connections (total) or on those of one address (source).",
		}, []string{"limit"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pelago_dns_socket_errors_total",
			Help: "Failed reads of a UDP socket and failed accepts of the TCP socket.",
		}, []string{"transport"}),
	}
	m.refusedTotal, m.refusedSource = m.refused.WithLabelValues("total"), m.refused.WithLabelValues("source")
	for r, rcode := range rcodes {
		for t, qtype := range qtypes {
			name := miekg.TypeToString[qtype]
			if qtype == miekg.TypeNone {
				name = "other"
			}
			code := miekg.RcodeToString[rcode]
			if rcode == miekg.RcodeBadVers {
				code = "BADVERS" // the library prints 16 as TSIG's BADSIG
			}
			m.byOutcome[r][t] = m.queries.WithLabelValues(code, name)
		}
	}
	reg.MustRegister(m.queries, m.seconds, m.services, m.conns, m.refused, m.failures)
	return m
}

// query counts one answered query.
func (m *metrics) query(rcode int, qtype uint16, took time.Duration) {
	m.outcome(rcode, qtype).Inc()
	m.seconds.Observe(took.Seconds())
}

func (m *metrics) outcome(rcode int, qtype uint16) prometheus.Counter {
	r, t := 0, 0
	for r < len(rcodes)-1 && rcodes[r] != rcode {
		r++
	}
	for t < len(qtypes)-1 && qtypes[t] != qtype {
		t++
	}
	return m.byOutcome[r][t]
}

// destination counts the answers that named one cluster for one service. Its
// series is created by the first answer: an import without queries costs none.
type destination struct {
	labels  [5]string
	of      *prometheus.CounterVec
	counter atomic.Pointer[prometheus.Counter]
}

func (m *metrics) destination(source string, to [2]string, service, namespace string) *destination {
	return &destination{labels: [...]string{source, to[0], service, namespace, to[1]}, of: m.services}
}

func (d *destination) inc() {
	c := d.counter.Load()
	if c == nil {
		created := d.of.WithLabelValues(d.labels[:]...)
		d.counter.Store(&created)
		c = &created
	}
	(*c).Inc()
}

// forget deletes the series of clusters and services that left the table.
func (m *metrics) forget(old, now *index) {
	if old == nil {
		return
	}
	for key, was := range old.services {
		is := now.services[key]
		if is == was {
			continue
		}
		for to, d := range was.to {
			if is == nil || is.to[to] == nil || is.to[to].labels != d.labels {
				m.services.DeleteLabelValues(d.labels[:]...)
			}
		}
	}
}
