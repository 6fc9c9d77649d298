package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	miekg "github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/control/agent/clusterdns"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/node/status"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dns"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

var shared = apiserver.NewShared(apiserver.CRDs("serviceimports.multicluster.x-k8s.io"))

func TestMain(m *testing.M) { os.Exit(shared.Run(m)) }

// TestDaemon walks through a pod's life: started before the cluster joined,
// then configured, serving, and ending.
func TestDaemon(t *testing.T) {
	api := shared.Config(t)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, mcs.Install} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(api, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	create := func(o client.Object) {
		t.Helper()
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}

	o, err := parse([]string{"--listen=127.0.0.1:0", "--metrics=127.0.0.1:0", "--drain=1s"}, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	o.verdict = filepath.Join(t.TempDir(), "verdict.sock")
	verdicts, watching := topology.NewUnreachableClustersServer(), make(chan error, 1)
	go func() { watching <- verdicts.Run(t.Context(), o.verdict) }()
	t.Cleanup(func() {
		if err := <-watching; err != nil {
			t.Error(err)
		}
	})
	d, err := open(o, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, terminate := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.serve(ctx, api) }()
	page := func(path string) string {
		resp, err := http.Get("http://" + d.http.Addr().String() + path)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		return fmt.Sprintf("%d %s", resp.StatusCode, strings.TrimSpace(string(body)))
	}
	const web = "web.sample.svc.clusterset.local."

	if got := page("/healthz"); got != "200 ok" {
		t.Errorf("/healthz of a new pod: %s", got)
	}
	if got := page("/readyz"); got != "503 not synced with the API server yet" {
		t.Errorf("/readyz of a new pod: %s", got)
	}
	if got := lookup(t, d.server.Addr(), web); got != "SERVFAIL" {
		t.Errorf("a new pod answers %s", got)
	}

	create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "sample"}})
	create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: config.SystemNamespace}})
	create(&mcs.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: "web"},
		Spec:       mcs.ServiceImportSpec{Type: mcs.ClusterSetIP, Ports: []mcs.ServicePort{{Name: "http", Port: 80}}},
	})
	remote := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "sample", Name: "web-g2", Labels: map[string]string{mcs.LabelServiceName: "web", mcs.LabelSourceCluster: "g2"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"120.2.0.1"}}},
	}
	create(remote)
	joined := config.Config{
		ClusterID: "g1", ClusterIndex: 1, Mode: config.ModeSubmariner, CableDriver: config.CableVXLAN, CablePort: 4500,
		PodCIDRs: prefixes("10.7.0.0/16"), ServiceCIDRs: prefixes("10.77.0.0/16"), FabricCIDR: prefixes(config.DefaultFabricCIDR)[0], CustomDomains: []string{"global.example"},
		HubID: "hub", HubServer: "https://127.0.0.1:6443", BrokerNamespace: config.DefaultBrokerNamespace,
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: config.SystemNamespace, Name: config.ConfigMapName}, Data: joined.Data()}
	create(cm)
	await.True(t, "ready", func() bool { return page("/readyz") == "200 ok" })
	for _, name := range []string{web, "g2.web.sample.svc.global.example."} {
		if got := lookup(t, d.server.Addr(), name); got != "120.2.0.1" {
			t.Errorf("%s is %s, want 120.2.0.1", name, got)
		}
	}
	metrics := page("/metrics")
	for _, want := range []string{
		`pelago_dns_queries_total{rcode="NOERROR",type="A"} 2`,
		`submariner_service_discovery_query{destination_cluster="g2",destination_service_ip="120.2.0.1",destination_service_name="web",destination_service_namespace="sample",source_cluster="g1"} 2`,
		"go_goroutines", "process_resident_memory_bytes",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}

	// What the node's own daemon reports counts at once. A node that no gateway answers reports
	// nothing (control/node/status), and its name server answers by the EndpointSlices, of which the
	// majority of the other nodes decides.
	isolated := status.Verdict{Isolated: true}
	judged := func(when, want string) {
		t.Helper()
		await.True(t, when+": "+want, func() bool { return lookup(t, d.server.Addr(), web) == want })
	}
	verdicts.Publish([]string{"g2"})
	judged("the node reaches gateways, and none reaches g2", "NOERROR")
	verdicts.Publish(isolated.Unreachable)
	judged("no gateway answers the node", "120.2.0.1")
	ready := func(is bool) {
		t.Helper()
		remote.Endpoints[0].Conditions.Ready = &is
		if err := c.Update(t.Context(), remote); err != nil {
			t.Fatal(err)
		}
	}
	ready(false)
	judged("nor does any reach g2, by the other nodes", "NOERROR")
	ready(true)
	judged("g2 is back, by the other nodes", "120.2.0.1")

	// Another join takes effect without a restart, which would lose queries.
	joined.CustomDomains, joined.DNSTTL, joined.GlobalRange = []string{"other.example"}, 30*time.Second, netip.MustParsePrefix("120.0.0.0/8")
	cm.Data = joined.Data()
	if err := c.Update(t.Context(), cm); err != nil {
		t.Fatal(err)
	}
	await.True(t, "serving the other domain", func() bool { return lookup(t, d.server.Addr(), "g2.web.sample.svc.other.example.") == "120.2.0.1" })
	if got := page("/readyz"); got != "200 ok" {
		t.Errorf("/readyz with another configuration: %s", got)
	}
	for question, want := range map[miekg.Question]string{
		{Name: web, Qtype: miekg.TypeA}:                         web + "\t30\tIN\tA\t120.2.0.1",
		{Name: "1.0.2.120.in-addr.arpa.", Qtype: miekg.TypePTR}: "1.0.2.120.in-addr.arpa.\t30\tIN\tPTR\tg2." + web,
	} {
		r, err := miekg.Exchange(new(miekg.Msg).SetQuestion(question.Name, question.Qtype), d.server.Addr().String())
		if err != nil || len(r.Answer) != 1 || r.Answer[0].String() != want {
			t.Errorf("%s: %v, %v; want %s", question.Name, r, err, want)
		}
	}

	terminate()
	await.True(t, "not ready while ending", func() bool { return page("/readyz") == "503 ending" })
	if got := lookup(t, d.server.Addr(), web); got != "120.2.0.1" {
		t.Errorf("while ending %s is %s, want 120.2.0.1 still", web, got)
	}
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
	if got := page("/healthz"); !strings.Contains(got, "refused") {
		t.Errorf("/healthz after the end: %s", got)
	}
}

// TestLiveness: an API server that is away never fails the
// liveness probe; a reconcile that hangs does.
func TestLiveness(t *testing.T) {
	lines := make(chan string, 100)
	away, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := away.Close(); err != nil {
		t.Fatal(err)
	}
	o, err := parse([]string{"--listen=127.0.0.1:0", "--metrics=127.0.0.1:0", "--drain=1ms", "--cluster-id=g1"}, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	d, err := open(o, slog.New(slog.NewTextHandler(lineWriter(lines), nil)))
	if err != nil {
		t.Fatal(err)
	}
	d.hung = 0
	ctx, terminate := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.serve(ctx, &rest.Config{Host: "http://" + away.Addr().String()}) }()
	healthz := func() (int, string) {
		w := httptest.NewRecorder()
		d.pages.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		return w.Code, strings.TrimSpace(w.Body.String())
	}
	for line := range lines {
		if strings.Contains(line, "cannot watch services yet") {
			break
		}
	}
	if code, text := healthz(); code != http.StatusOK {
		t.Errorf("/healthz without API server: %d %s", code, text)
	}

	blocked, unblock := make(chan struct{}), make(chan struct{})
	busy := clusterdns.NewTableController(shared.Config(t), o.zone, func(dns.Table) error { close(blocked); <-unblock; return errors.New("the end") }, slog.New(slog.DiscardHandler))
	reconciled := make(chan error)
	go func() { reconciled <- busy.Run(ctx) }()
	<-blocked
	d.controller.Store(busy)
	if code, text := healthz(); code != http.StatusServiceUnavailable || !strings.Contains(text, "a reconcile of the table has been running for") {
		t.Errorf("/healthz with a hung reconcile: %d %s", code, text)
	}
	close(unblock)
	if err := <-reconciled; err == nil {
		t.Error("the refused table is no error")
	}
	if code, text := healthz(); code != http.StatusOK {
		t.Errorf("/healthz after the reconcile: %d %s", code, text)
	}
	terminate()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A configuration that is changed, and changed back before anybody has read it again, is followed
// as well.
func TestConfigurationChangedBack(t *testing.T) {
	var reads atomic.Int32
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/configmaps/"+config.ConfigMapName) {
			http.Error(w, "away", http.StatusServiceUnavailable)
			return
		}
		c := config.Config{
			ClusterID: "g1", ClusterIndex: 1, Mode: config.ModeSubmariner, CableDriver: config.CableVXLAN, CablePort: 4500,
			PodCIDRs: prefixes("10.7.0.0/16"), ServiceCIDRs: prefixes("10.77.0.0/16"), FabricCIDR: prefixes(config.DefaultFabricCIDR)[0],
			HubID: "hub", HubServer: "https://127.0.0.1:6443", BrokerNamespace: config.DefaultBrokerNamespace, CustomDomains: []string{"a.example"},
		}
		if reads.Add(1) == 2 {
			c.CustomDomains = []string{"b.example"}
		}
		w.Header().Set("Content-Type", "application/json")
		err := json.NewEncoder(w).Encode(&corev1.ConfigMap{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: config.ConfigMapName}, Data: c.Data()})
		if err != nil {
			t.Error(err)
		}
	}))
	defer api.Close()
	o, err := parse([]string{"--listen=127.0.0.1:0", "--metrics=127.0.0.1:0", "--drain=1ms"}, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 100)
	d, err := open(o, slog.New(slog.NewTextHandler(lineWriter(lines), nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, terminate := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.serve(ctx, &rest.Config{Host: api.URL}) }()
	for _, domain := range []string{"a.example", "b.example", "a.example"} {
		await.True(t, "configured for "+domain, func() bool {
			select {
			case line := <-lines:
				return strings.Contains(line, "msg=configured") && strings.Contains(line, domain)
			default:
				return false
			}
		})
	}
	terminate()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// lineWriter sends each line of a log.
type lineWriter chan<- string

func (w lineWriter) Write(b []byte) (int, error) {
	select {
	case w <- string(b):
	default: // the test has seen enough
	}
	return len(b), nil
}

// TestRefusedConfiguration: what no retry mends ends the program.
func TestRefusedConfiguration(t *testing.T) {
	d, err := open(options{listen: "127.0.0.1:0", metrics: "127.0.0.1:0"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	d.options.zone.LocalCluster = "g1" // no mode and no zone, which parse does not let pass
	if err := d.serve(t.Context(), shared.Config(t)); err == nil || !strings.Contains(err.Error(), "parse mode") {
		t.Errorf("ended with %v", err)
	}
}

func TestPortTaken(t *testing.T) {
	first, err := open(options{listen: "127.0.0.1:0", metrics: "127.0.0.1:0"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(first.http.Close(), first.server.Close(context.Background())); err != nil {
			t.Error(err)
		}
	})
	for _, o := range []options{
		{listen: "127.0.0.1:0", metrics: first.http.Addr().String()},
		{listen: first.server.Addr().String(), metrics: "127.0.0.1:0"},
	} {
		if _, err := open(o, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "address already in use") {
			t.Errorf("%+v: got error %v", o, err)
		}
	}
}

// lookup requests an A record and gives the address or the rcode.
func lookup(t *testing.T, server netip.AddrPort, name string) string {
	t.Helper()
	r, err := miekg.Exchange(new(miekg.Msg).SetQuestion(name, miekg.TypeA), server.String())
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Answer) != 1 {
		return miekg.RcodeToString[r.Rcode]
	}
	return r.Answer[0].(*miekg.A).A.String()
}

func prefixes(s string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(s)} }
