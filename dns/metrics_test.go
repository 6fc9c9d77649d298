package dns

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	miekg "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func newRegistry() *prometheus.Registry { return prometheus.NewRegistry() }

// counted gives the non-zero series of a registry as "name{label values} n".
func counted(t *testing.T, reg *prometheus.Registry, name string) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			if v := m.GetCounter().GetValue(); f.GetName() == name && v > 0 {
				out[strings.Join(labels, " ")] = v
			}
		}
	}
	return out
}

// TestMetricNames: all names follow Prometheus' rules but those that
// Submariner's dashboards know.
func TestMetricNames(t *testing.T) {
	kept := map[string]string{"submariner_service_discovery_query": `counter metrics should have "_total" suffix`}
	reg := newRegistry()
	h := NewHandler(reg)
	if err := h.Set(sample(ModeSubmariner, Service{Clusters: []Cluster{in("g2", ready("120.2.0.1"))}})); err != nil {
		t.Fatal(err)
	}
	ask(t, h, "web"+zoneSuffix+" A")
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, p := range problems {
		got[p.Metric] = p.Text
	}
	if diff := cmp.Diff(kept, got); diff != "" {
		t.Errorf("promlint (-kept for compatibility +found):\n%s", diff)
	}
}

func TestQueriesAreCounted(t *testing.T) {
	reg := newRegistry()
	h := NewHandler(reg)
	table := sample(ModeSubmariner,
		Service{Ports: http, Clusters: []Cluster{in("g2", ready("120.2.0.1")), in("g3", ready("120.3.0.1"))}},
		Service{Name: "db", Type: Headless, Ports: http, Clusters: []Cluster{in("g2", pod("a", "120.2.0.2"), pod("b", "120.2.0.3"))}},
		Service{Name: "vip", IPs: []netip.Addr{ip("243.0.0.1")}, Ports: http},
	)
	if err := h.Set(table); err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{"web A", "web A", "web A", "g3.web A", "web AAAA", "none A", "db A", "_http._tcp.db SRV", "vip A", "vip SRV", "web MX"} {
		name, typ, _ := strings.Cut(q, " ")
		ask(t, h, name+zoneSuffix+" "+typ)
	}
	ask(t, h, "example.com A")
	m := new(miekg.Msg).SetQuestion("clusterset.local.", miekg.TypeSOA)
	m.Opcode = miekg.OpcodeNotify
	exchange(t, h, m)
	m = new(miekg.Msg).SetQuestion("clusterset.local.", miekg.TypeSOA).SetEdns0(1232, false)
	m.IsEdns0().SetVersion(1)
	exchange(t, h, m)

	want := map[string]float64{
		"NOERROR A": 6, "NOERROR AAAA": 1, "NOERROR SRV": 2, "NOERROR other": 1,
		"NXDOMAIN A": 1, "REFUSED A": 1, "NOTIMP other": 1, "BADVERS SOA": 1,
	}
	if diff := cmp.Diff(want, counted(t, reg, "pelago_dns_queries_total")); diff != "" {
		t.Errorf("pelago_dns_queries_total (-want +got):\n%s", diff)
	}
	// destination cluster, address, service, namespace, source cluster
	want = map[string]float64{"g2 120.2.0.1 web sample g1": 2, "g3 120.3.0.1 web sample g1": 2, "g2  db sample g1": 2, " 243.0.0.1 vip sample g1": 1}
	if diff := cmp.Diff(want, counted(t, reg, "submariner_service_discovery_query")); diff != "" {
		t.Errorf("submariner_service_discovery_query (-want +got):\n%s", diff)
	}
	if got := testutil.CollectAndCount(h.metrics.seconds); got != 1 {
		t.Errorf("histogram has %d series, want 1", got)
	}

	// What leaves the table leaves the metrics; what stays keeps its count.
	table.Services = append([]Service(nil), table.Services[0], table.Services[2])
	table.Services[0].Clusters = table.Services[0].Clusters[:1]
	table.Services[1].IPs = []netip.Addr{ip("243.0.0.2")}
	if err := h.Set(table); err != nil {
		t.Fatal(err)
	}
	want = map[string]float64{"g2 120.2.0.1 web sample g1": 2}
	if diff := cmp.Diff(want, counted(t, reg, "submariner_service_discovery_query")); diff != "" {
		t.Errorf("after the change (-want +got):\n%s", diff)
	}
}
