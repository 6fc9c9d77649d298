package check

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// golden compares with a file, or writes it.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: -want +got\n%s", file, diff)
	}
}

// Every output format of a member with an error, a warning and a source that could not be read.
func TestPrint(t *testing.T) {
	w := newWorld(t)
	g := get[*submarinerv1.Gateway](w, "g1", "g1-n1")
	g.Status.Connections[0].Status, g.Status.Connections[0].StatusMessage = submarinerv1.ConnectionError, "probes are not answered"
	without[*submarinerv1.Cluster](w, "g1", "g1")
	s := Read(t.Context(), []Target{w.target(t, "g1")}, time.Minute, true, Selection{})
	s.Clusters[0].DNS[0].Forwards = false
	s.Clusters[0].unread[fromToken] = errors.New("secrets is forbidden")
	r := Run(s, Selection{Only: []string{"PLG-N013", "PLG-N040", "PLG-N011", "D"}})
	if r.Verdict != Error {
		t.Errorf("verdict %s", r.Verdict)
	}
	for _, form := range []string{"table", "wide", "json", "yaml", "junit"} {
		var out bytes.Buffer
		if err := r.Print(&out, form); err != nil {
			t.Fatal(err)
		}
		golden(t, filepath.Join("testdata", "result."+form), out.String())
	}
}

// One screen of a clusterset with a lost connection, a service that is not ready, a binding without
// a decision, a member without a context and one that does not answer.
func TestStatus(t *testing.T) {
	w := newWorld(t)
	g := get[*submarinerv1.Gateway](w, "g1", "g1-n1")
	for i := range g.Status.Connections {
		g.Status.Connections[i].Status, g.Status.Connections[i].StatusMessage = submarinerv1.ConnectionError, "probes are not answered"
	}
	last := get[*submarinerv1.Gateway](w, "g1", "g1-n2")
	last.Status.Connections[1].LatencyRTT.Average, last.Status.Connections[1].LossPercent = "12.345678ms", 4
	meta.SetStatusCondition(&get[*mcs.ServiceExport](w, "g2", "web").Status.Conditions, isFalse("Ready", "Failed", "the hub refuses it"))
	meta.SetStatusCondition(&get[*workv1alpha2.ResourceBinding](w, "hub", "web-deployment").Status.Conditions, isFalse("Scheduled", "NoClusterFit", "no cluster fits"))
	w.objects["hub"] = append(w.objects["hub"], &clusterv1alpha1.Cluster{ObjectMeta: at("", "p3"), Spec: clusterv1alpha1.ClusterSpec{
		Taints: []clusterv1alpha1.Taint{{Key: clusterv1alpha1.TaintUnapproved, Effect: "NoSchedule"}}},
		Status: clusterv1alpha1.ClusterStatus{KubernetesVersion: "v1.34.2", Conditions: []metav1.Condition{isFalse("Ready", "ClusterNotReachable", "no answer")}}})
	away := Target{Context: "away", Open: func() (view.Member, error) { return view.Member{}, errors.New("connection refused") }}
	set := Read(t.Context(), []Target{w.target(t, "g1"), w.target(t, "g2"), w.target(t, "hub"), away}, time.Minute, false, Selection{})
	s := NewStatus(set, Run(set, Selection{}))
	for _, form := range []string{"table", "wide", "json"} {
		var out bytes.Buffer
		if err := s.Print(&out, form); err != nil {
			t.Fatal(err)
		}
		golden(t, filepath.Join("testdata", "status."+form), out.String())
	}
}

// What could not be read is not counted as none.
func TestStatusUnread(t *testing.T) {
	set := Read(t.Context(), []Target{newWorld(t).target(t, "g1")}, time.Minute, false, Selection{})
	set.Clusters[0].unread[fromExports] = errLate
	c := NewStatus(set, Run(set, Selection{})).Clusters[0]
	if c.Exports != nil || c.Imports == nil || c.Imports.All != 1 {
		t.Errorf("exports %s, imports %s", c.Exports, c.Imports)
	}
}

// docs/checks.md has one section for each code, and each code is well-formed, ordered and unique.
func TestPages(t *testing.T) {
	golden(t, filepath.Join("..", "..", "..", "..", "docs", "checks.md"), Pages())
	code := regexp.MustCompile(`^PLG-[NDHPA][0-9]{3}$`)
	seen := map[string]bool{}
	for i := range table {
		c := &table[i]
		switch {
		case !code.MatchString(c.Code):
			t.Errorf("code %q", c.Code)
		case seen[c.Code]:
			t.Errorf("code %s is there twice", c.Code)
		case c.Title == "" || c.Looks == "" || c.Why == "" || c.Remedy == "" || c.Topic == "":
			t.Errorf("%s lacks a text", c.Code)
		case c.find == nil && !slices.ContainsFunc(rules, func(r rule) bool { return r.code == c.Code }):
			t.Errorf("%s has neither a function nor a rule", c.Code)
		case !strings.Contains(Pages(), "### "+c.Code+"\n"):
			t.Errorf("%s has no page", c.Code)
		}
		seen[c.Code] = true
	}
	for _, r := range rules {
		if !seen[r.code] {
			t.Errorf("a rule has code %s, which no check has", r.code)
		}
	}
}

// A server that accepts requests and does not answer costs the deadline of one cluster, is named,
// and hides nothing of the others.
func TestHangingServer(t *testing.T) {
	released := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-released:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(released) })
	w := newWorld(t)
	hanging := Target{Context: "away", Open: func() (view.Member, error) {
		c, err := manifests.Open(&rest.Config{Host: s.URL})
		return view.Member(c), err
	}}
	set := Read(t.Context(), []Target{hanging, w.target(t, "g1")}, 2*time.Second, false, Selection{})
	r := Run(set, Selection{Only: []string{"N"}})
	if r.Verdict != Unknown || r.Count(OK) < 20 {
		t.Fatalf("verdict %s, %d are ok", r.Verdict, r.Count(OK))
	}
	all := r.Findings()
	if len(all) != 1 || all[0].Code != codeUnreachable || !strings.Contains(all[0].Object, "away") {
		t.Errorf("findings %+v", all)
	}
}

// A source that may not be read makes the checks that need it unknown, with its name, and no other.
func TestUnread(t *testing.T) {
	s := Read(t.Context(), []Target{newWorld(t).target(t, "g1")}, time.Minute, false, Selection{})
	s.Clusters[0].unread[fromToken] = errors.New("secrets is forbidden")
	r := Run(s, Selection{})
	all := r.Findings()
	if len(all) != 1 || all[0].Code != "PLG-N040" || all[0].Verdict != Unknown || !strings.Contains(all[0].Object, "submariner-broker-secret") {
		t.Errorf("findings %+v", all)
	}
}

func TestSelection(t *testing.T) {
	for _, tt := range []struct {
		selected Selection
		valid    bool
		has, not string
	}{
		{Selection{}, true, "PLG-N001", ""},
		{Selection{Only: []string{"D"}}, true, "PLG-D001", "PLG-N001"},
		{Selection{Only: []string{"plg-n001", "h"}}, true, "PLG-H001", "PLG-N002"},
		{Selection{Only: []string{"X"}}, false, "", ""},
		{Selection{Only: []string{"PLG-N999"}}, false, "", ""},
		{Selection{Topic: "firewall"}, true, "PLG-N022", "PLG-N001"},
		{Selection{OfJoin: true}, true, "PLG-P002", "PLG-P004"},
	} {
		if err := tt.selected.Validate(); (err == nil) != tt.valid {
			t.Errorf("%+v: %v", tt.selected, err)
		}
		if tt.has != "" && !tt.selected.has(Find(tt.has)) || tt.not != "" && tt.selected.has(Find(tt.not)) {
			t.Errorf("%+v: want %s and not %s", tt.selected, tt.has, tt.not)
		}
	}
}

// The clock of an API server is compared within the second that its Date has.
func TestSkew(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 500_000_000, time.UTC)
	for _, tt := range []struct {
		date time.Time
		want time.Duration
	}{
		{now.Truncate(time.Second), 0}, {now.Add(-time.Second).Truncate(time.Second), -500 * time.Millisecond},
		{now.Add(10 * time.Minute), 10*time.Minute - 100*time.Millisecond}, {now.Add(-10 * time.Minute), -10*time.Minute + time.Second},
	} {
		if got := skew(tt.date, now, now.Add(100*time.Millisecond)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.date, got, tt.want)
		}
	}
}

// Clocks and certificates are read from the answer of the API server.
func TestReadServer(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(10*time.Minute).UTC().Format(http.TimeFormat))
		_, _ = w.Write([]byte(`{"gitVersion":"v1.30.1"}`)) // a test server's connection
	}))
	t.Cleanup(s.Close)
	c := Cluster{Context: "c", Joining: true, unread: map[source]error{}}
	m := view.Member{Config: &rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}}
	if err := readServer(context.Background(), m, &c); err != nil {
		t.Fatal(err)
	}
	set := &Set{Now: s.Certificate().NotAfter.Add(-24*time.Hour - c.Skew), Clusters: []Cluster{c}}
	r := Run(set, Selection{Only: []string{"PLG-N003", "PLG-N042", "PLG-N043"}})
	var got []string
	for _, f := range r.Findings() {
		got = append(got, f.Code+" "+string(f.Verdict))
	}
	if diff := cmp.Diff([]string{"PLG-N042 error", "PLG-N003 warning", "PLG-N043 warning"}, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
