package observe

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pelago-net/pelago/dataplane/dump"
	"github.com/pelago-net/pelago/dataplane/liveness"
)

var update = flag.Bool("update", false, "write testdata")

type source struct {
	counters []dump.Counter
	paths    map[netip.Addr]liveness.Path
	err      error
	asked    *int // look-ups of paths
}

func (s source) Counters() ([]dump.Counter, error) { return s.counters, s.err }
func (s source) Path(a netip.Addr) (liveness.Path, bool, error) {
	if s.asked != nil {
		*s.asked++
	}
	p, ok := s.paths[a]
	return p, ok, s.err
}

func none() View { return View{} }

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

// gateway is n1 of g1 with a second gateway next to it, joined to g2, one of whose two gateways has
// died and one of which no tunnel leads to.
func gateway() (source, View) {
	answers := liveness.Path{Probes: 100, Replies: 99, Ready: true, RTT: time.Millisecond, SRTT: 1200 * time.Microsecond, Loss: 0.01}
	answers.Histogram[0], answers.Histogram[1], answers.Histogram[11], answers.Histogram[23] = 1, 2, 4, 1
	dead := liveness.Path{Probes: 50, Replies: 40, Ready: true, Seen: 2 * time.Second, Open: 10, OldestOpen: 2 * time.Second, Loss: 1}
	s := source{
		counters: []dump.Counter{{Hook: "edge-out", Verdict: "sent", Packets: 3, Bytes: 300}, {Hook: "uplink-in", Verdict: "drop-bad-token", Packets: 1, Bytes: 90}},
		paths:    map[netip.Addr]liveness.Path{ip("172.31.1.12"): {Ready: true, Replies: 9, Loss: 0.125}, ip("241.0.128.1"): answers, ip("241.0.128.2"): dead},
	}
	v := View{
		Cluster: "g1", Node: "n1", Address: "172.31.1.11", Driver: "wireguard", State: "serving", Reports: 7,
		Created: time.Unix(1_700_000_000, 0), Gateways: 2,
		Flows: map[dump.FlowKind]int{
			{Role: dump.RoleClient, Protocol: "tcp", State: "established"}: 2, {Role: dump.RoleServer, Protocol: "udp", State: "active"}: 1,
		},
		Peers: []Peer{
			{Cluster: "g1", Gateway: "n2", Path: ip("172.31.1.12"), Up: true, MTU: 1390},
			{Cluster: "g2", Gateway: "g2-n1", Path: ip("241.0.128.1"), Up: true, MTU: 1330, BlackHole: true, Connection: &Connection{
				IP: "172.31.2.11", Status: "connected", Established: time.Unix(1_700_000_100, 0), Counted: true, RxBytes: 1000, TxBytes: 2000}},
			{Cluster: "g2", Gateway: "g2-n2", Path: ip("241.0.128.2"), Connection: &Connection{IP: "172.31.2.12", Status: "error", Counted: true}},
			{Cluster: "g2", Gateway: "g2-n3", Path: ip("241.0.128.3"), Connection: &Connection{IP: "172.31.2.13", Status: "connecting"}},
		},
		Ranges: []Range{{CIDR: "120.1.0.0/24", Usable: 254, Egress: 2, ClusterEgress: 8, Ingress: 3}},
	}
	return s, v
}

func TestCollect(t *testing.T) {
	s, v := gateway()
	got, golden := text(t, New(s, func() View { return v })), filepath.Join("testdata", "gateway.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func text(t *testing.T, c prometheus.Collector) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if page.Code != http.StatusOK {
		t.Fatal(page.Body)
	}
	return page.Body.String()
}

// What `promtool check metrics` reports, by the library that it uses and, where it is
// installed, by itself.
func TestLint(t *testing.T) {
	s, v := gateway()
	c := New(s, func() View { return v })
	problems, err := testutil.CollectAndLint(c)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		return
	}
	check := exec.Command(promtool, "check", "metrics")
	check.Stdin = strings.NewReader(text(t, c))
	if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool: %v %s", err, out)
	}
}

// A node that is no gateway shows its ways to the gateways, and nothing under the names of
// Submariner but its reports.
func TestPlainNode(t *testing.T) {
	s, v := gateway()
	v.Peers, v.Gateways, v.State, v.Ranges, v.Created = v.Peers[:1], 0, "none", nil, time.Time{}
	var names []string
	for _, line := range strings.Split(text(t, New(s, func() View { return v })), "\n") {
		if strings.HasPrefix(line, "submariner_") || strings.HasPrefix(line, "pelago_path_up") {
			names = append(names, line)
		}
	}
	want := `[pelago_path_up{cluster="g1",gateway="n2"} 1 submariner_gateway_sync_iterations 7]`
	if fmt.Sprint(names) != want {
		t.Errorf("got %v, want %s", names, want)
	}
}

// A gateway keeps a path for each node; a scrape looks only at those to gateways.
func TestOnlyGatewaysAreLookedAt(t *testing.T) {
	s, v := gateway()
	for i := range 65536 {
		s.paths[netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})] = liveness.Path{Replies: 1}
	}
	asked := 0
	s.asked = &asked
	series := testutil.CollectAndCount(New(s, func() View { return v }))
	if asked != len(v.Peers) || series > 120 {
		t.Errorf("%d look-ups and %d series for %d gateways", asked, series, len(v.Peers))
	}
}

func TestPathState(t *testing.T) {
	open := func(age time.Duration) liveness.Path {
		return liveness.Path{Replies: 9, Ready: true, Open: 5, OldestOpen: age, Seen: age}
	}
	lossy := liveness.Path{Replies: 9, Ready: true, Loss: 0.1}
	for _, tt := range []struct {
		path  liveness.Path
		known bool
		want  string
	}{
		{liveness.Path{}, false, "unknown"},
		{liveness.Path{Probes: 1}, true, "unknown"},
		{open(50 * time.Millisecond), true, "suspect"},
		{open(2 * time.Second), true, "dead"},
		{liveness.Path{Replies: 1}, true, "unready"},
		{lossy, true, "degraded"},
		{liveness.Path{Replies: 9, Ready: true}, true, "ready"},
	} {
		if got := pathState(tt.path, tt.known); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.path, got, tt.want)
		}
	}
}

func TestUnreadableMapsShow(t *testing.T) {
	want := `
# HELP pelago_scrape_error 1 if the maps could not be read at this scrape.
# TYPE pelago_scrape_error gauge
pelago_scrape_error 1
`
	if err := testutil.CollectAndCompare(New(source{err: errors.New("gone")}, none), strings.NewReader(want), "pelago_scrape_error"); err != nil {
		t.Error(err)
	}
}
