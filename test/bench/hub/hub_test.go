package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
	"github.com/pelago-net/pelago/test/hubset"
	"github.com/pelago-net/pelago/test/hubset/member"
	"github.com/pelago-net/pelago/test/need"
)

const log = `{"verb":"create","userAgent":"bench-user/v1","objectRef":{"resource":"deployments","name":"app-00001"},"responseStatus":{"code":201}}
{"verb":"patch","userAgent":"pelago-hub/v1","objectRef":{"resource":"deployments","name":"app-00001"},"responseStatus":{"code":200}}
{"verb":"create","userAgent":"pelago-hub/v1","objectRef":{"resource":"resourcebindings","name":"app-00001-deployment"},"responseStatus":{"code":201}}
{"verb":"create","userAgent":"pelago-hub/v1","objectRef":{"resource":"works","name":"app-00001-687f7fb96f"},"responseStatus":{"code":201}}
{"verb":"update","userAgent":"pelago-hub/v1","objectRef":{"resource":"works","name":"app-00001-687f7fb96f","subresource":"status"},"responseStatus":{"code":409}}
{"verb":"update","userAgent":"pelago-hub/v1","objectRef":{"resource":"deployments","name":"app-00001","subresource":"status"},"requestObject":{"status":{"replicas":2}},"responseStatus":{"code":200}}
{"verb":"update","userAgent":"pelago-hub/v1","objectRef":{"resource":"deployments","name":"app-00001","subresource":"status"},"requestObject":{"status":{"observedGeneration":1}},"responseStatus":{"code":200}}
{"verb":"patch","userAgent":"pelago-hub/v1","objectRef":{"resource":"works","name":"app-00001-687f7fb96f","subresource":"status"},"responseStatus":{"code":200}}
{"verb":"create","userAgent":"pelago-hub/v1","objectRef":{"resource":"works","name":"conf-00001-ab"},"responseStatus":{"code":201}}
{"verb":"patch","userAgent":"pelago-hub/v1","objectRef":{"resource":"propagationpolicies","name":"app-00001"},"responseStatus":{"code":200}}
{"verb":"create","userAgent":"pelago-hub/v1","objectRef":{"resource":"events","name":"app-00001.17"},"responseStatus":{"code":201}}
{"verb":"update","userAgent":"pelago-hub/v1","objectRef":{"resource":"leases","name":"pelago-hub"},"responseStatus":{"code":200}}
{"verb":"create","userAgent":"pelago-hub/v1","objectRef":{"resource":"works","name":"bench-5d"},"responseStatus":{"code":201}}
`

// What comes after the first status that all members have caught up with is counted apart.
func TestCountWrites(t *testing.T) {
	got, ledger, err := countWrites(strings.NewReader(log))
	if err != nil {
		t.Fatal(err)
	}
	want := writes{byClass: map[class]int{ofDeployment: 5, ofConfigMap: 1, ofPolicy: 1, ofEvent: 1, ofMember: 2}, later: 1, refused: 1,
		others: map[string]int{"bench-user": 1}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(writes{})); diff != "" {
		t.Error(diff)
	}
	file := filepath.Join(t.TempDir(), "writes.txt")
	if err := ledger.write(file); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"      2  pelago-hub for deployment: update deployments/status\n",
		"      1  pelago-hub for deployment: update works/status refused with 409\n",
		"\napp-00001\n      0 ms  bench-user: create deployments /app-00001\n",
		"      0 ms  pelago-hub: update deployments/status /app-00001 (complete)\n"} {
		if !strings.Contains(string(text), line) {
			t.Errorf("there is no %q in\n%s", line, text)
		}
	}
	if _, _, err := countWrites(strings.NewReader("nonsense\n")); err == nil {
		t.Error("nonsense was read")
	}
}

// What users apply is taken by the API server, arrivals are seen once, and the audit log shows who
// wrote.
func TestApplyAndArrive(t *testing.T) {
	need.Kubernetes(t)
	server, err := apiserver.Open(apiserver.CRDs("propagationpolicies.policy.karmada.io"), apiserver.Audit(auditPolicy))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	}()
	user, err := connect(server.Config(), userAgent)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if err := user.Create(ctx, namespaceObject()); err != nil {
		t.Fatal(err)
	}
	sent, err := steady(ctx, user, 3, 50, []string{"member1"})
	if err != nil || len(sent) != 3 {
		t.Fatalf("%v, %v", sent, err)
	}
	if err := burst(ctx, user, 3, 4, nil); err == nil {
		t.Error("the same templates were made twice")
	}
	audit, err := os.Open(server.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	defer audit.Close()
	w, _, err := countWrites(audit)
	if err != nil || w.others[userAgent] < 1+3*3 {
		t.Errorf("audited %v, %v", w.others, err)
	}

	m, err := member.Start(member.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	arrived, err := watchArrivals(ctx, []*hubset.Member{{Name: "member1", Config: m.Config()}})
	if err != nil {
		t.Fatal(err)
	}
	there, err := connect(m.Config(), "hub")
	if err != nil {
		t.Fatal(err)
	}
	if err := there.Create(ctx, namespaceObject()); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for i := range 3 {
		_, dependent, template := objects(i+1, nil)
		for _, o := range []client.Object{dependent, template} {
			if err := there.Create(ctx, o); err != nil {
				t.Fatal(err)
			}
		}
	}
	last, err := reach(ctx, arrived, arrived.more, 6, 20*time.Second, "objects")
	if err != nil || last.Before(start) {
		t.Errorf("the last came %v after the start, %v", last.Sub(start), err)
	}
	if ms := arrived.latencies(sent); len(ms) != 3 || ms[0] <= 0 || !slices.IsSorted(ms) {
		t.Errorf("latencies %v", ms)
	}
	if _, err := reach(ctx, arrived, arrived.more, 7, 50*time.Millisecond, "objects"); err == nil ||
		!strings.HasPrefix(err.Error(), "6 of 7 objects") {
		t.Errorf("waiting for one too many: %v", err)
	}
	await.Equal(t, 3, func() int { return m.Count("apps", "v1", "deployments", namespace) })
}

// What users apply is what it says.
func TestObjects(t *testing.T) {
	policy, dependent, template := objects(7, []string{"member1", "member2"})
	text, err := yaml.Marshal([]any{policy, dependent, template})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"name: app-00007", "name: conf-00007", "propagateDeps: true", "- member1", "config: app-00007"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
}

func full() results {
	w := writes{byClass: map[class]int{ofDeployment: 90, ofConfigMap: 80, ofPolicy: 20, ofEvent: 5, ofMember: 7}, later: 40,
		refused: 1}
	return results{members: 2, templates: 10,
		steady: &steadyResult{ms: []float64{10, 20, 30, 400}, writes: w},
		throughput: map[string]samples{caseBurst: {hub: []float64{30, 20, 25}, replay: []float64{40, 25, 30}, ratio: []float64{0.75, 0.8,
			0.83}, decided: []float64{80, 100, 90}, hubEnded: []float64{1, 0, 2}, replayEnded: []float64{90, 4, 51}, writes: w}},
		scale: &scaleResult{rss: 400 << 20, largest: 450 << 20, took: time.Minute, flips: []float64{40, 20}},
		evict: &evictResult{first: 20 * time.Second, moved: 45 * time.Second, rss: 100 << 20, largest: 120 << 20},
	}
}

func TestRows(t *testing.T) {
	var got []string
	for _, r := range full().rows() {
		got = append(got, fmt.Sprintf("%s %s %s %.4g..%.4g..%.4g %s n=%d", r.Case, r.Variant, r.Metric, r.Min, r.Median, r.Max, r.Unit,
			r.N))
	}
	want := []string{
		"steady pelago apply_to_member_ms_p50 10..20..400 ms n=4",
		"steady pelago apply_to_member_ms_p99 10..400..400 ms n=4",
		"steady pelago writes_per_template 9..9..9 1 n=10",
		"steady pelago writes_per_dependent 8..8..8 1 n=10",
		"steady pelago writes_per_template_later 4..4..4 1 n=10",
		"steady pelago writes_per_policy 2..2..2 1 n=10",
		"steady pelago events_per_template 0.5..0.5..0.5 1 n=10",
		"steady pelago writes_for_members 7..7..7 1 n=10",
		"steady pelago writes_refused 1..1..1 1 n=10",
		"burst pelago templates_per_s 20..25..30 1/s n=3",
		"burst replay templates_per_s 25..30..40 1/s n=3",
		"burst pelago decisions_per_s 80..90..100 1/s n=3",
		"burst pelago replay_ratio 0.75..0.8..0.83 ratio n=3",
		"burst pelago watches_ended 0..1..2 1 n=3",
		"burst replay watches_ended 4..51..90 1 n=3",
		"burst pelago writes_per_template 9..9..9 1 n=10",
		"burst pelago writes_per_dependent 8..8..8 1 n=10",
		"burst pelago writes_per_template_later 4..4..4 1 n=10",
		"burst pelago writes_per_policy 2..2..2 1 n=10",
		"burst pelago events_per_template 0.5..0.5..0.5 1 n=10",
		"burst pelago writes_for_members 7..7..7 1 n=10",
		"burst pelago writes_refused 1..1..1 1 n=10",
		"scale pelago rss_bytes 4.194e+08..4.194e+08..4.194e+08 B n=1",
		"scale pelago rss_max_bytes 4.719e+08..4.719e+08..4.719e+08 B n=1",
		"scale pelago queue_depth 0..0..0 1 n=1",
		"scale pelago took_s 60..60..60 s n=1",
		"scale pelago taint_flip_cpu_ms 20..20..40 ms n=2",
		"evict pelago first_moved_s 20..20..20 s n=1",
		"evict pelago all_moved_s 45..45..45 s n=1",
		"evict pelago rss_bytes 1.049e+08..1.049e+08..1.049e+08 B n=1",
		"evict pelago rss_max_bytes 1.258e+08..1.258e+08..1.258e+08 B n=1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	file := filepath.Join(t.TempDir(), "hub.json")
	var table strings.Builder
	if err := full().report(&table, file); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(table.String(), "≤ 9") || !strings.Contains(table.String(), "≥ 0.8") {
		t.Errorf("targets are missing in\n%s", table.String())
	}
	var none results
	if rows := none.rows(); len(rows) > 0 {
		t.Errorf("rows of nothing: %v", rows)
	}
}

func TestVerdict(t *testing.T) {
	if err := full().verdict(); err != nil {
		t.Errorf("verdict %v", err)
	}
	for want, spoil := range map[string]func(r *results){
		"steady: 9.10 writes for each deployment in 2 clusters, more than 9": func(r *results) {
			r.steady.writes.byClass = map[class]int{ofDeployment: 91}
		},
		"burst: 12.00 writes for each configmap in 2 clusters, more than 9": func(r *results) {
			r.throughput[caseBurst] = samples{writes: writes{byClass: map[class]int{ofConfigMap: 120}}}
		},
		"scale: queues that do not empty: map[works:3]": func(r *results) { r.scale.queues = map[string]float64{"works": 3} },
	} {
		r := full()
		spoil(&r)
		if err := r.verdict(); err == nil || err.Error() != want {
			t.Errorf("verdict %v, not %q", err, want)
		}
	}
}

func TestCheck(t *testing.T) {
	good := options{templates: 1, reps: 1, placed: 1, inFlight: 1, rate: 1, members: 1, simulated: 2}
	if err := good.check(); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(o *options){
		"templates": func(o *options) { o.templates = 0 },
		"rate":      func(o *options) { o.rate = 0 },
		"in flight": func(o *options) { o.inFlight = 0 },
		"simulated": func(o *options) { o.simulated = 1 },
	} {
		o := good
		spoil(&o)
		if o.check() == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if err := run([]string{"-cases", "none"}, nil); err == nil {
		t.Error("an unknown case runs")
	}
}

// An interrupted wait ends.
func TestAwaitEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a := &arrivals{at: map[arrival]time.Time{}, more: make(chan struct{}, 1)}
	if _, err := reach(ctx, a, a.more, 1, time.Minute, "objects"); err == nil {
		t.Error("no error")
	}
}
