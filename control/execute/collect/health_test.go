package collect

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// Karmada, conditions and health probing: /readyz, at 404 /healthz; an answer that is not
// ok is ClusterNotReady, no answer is ClusterNotReachable.
func TestProbe(t *testing.T) {
	closed := httptest.NewServer(nil)
	closed.Close()
	for name, tt := range map[string]struct {
		codes map[string]int
		host  string
		want  string
	}{
		"ready": {codes: map[string]int{"/readyz": 200},
			want: "True ClusterReady: the API server of the cluster is healthy"},
		"not ready": {codes: map[string]int{"/readyz": 500, "/healthz": 200},
			want: "False ClusterNotReady: the API server of the cluster answers /readyz with 500 Internal Server Error"},
		"overloaded": {codes: map[string]int{"/readyz": 429},
			want: "False ClusterNotReady: the API server of the cluster answers /readyz with 429 Too Many Requests"},
		"of old": {codes: map[string]int{"/healthz": 200},
			want: "True ClusterReady: the API server of the cluster is healthy"},
		"of old, not ready": {codes: map[string]int{"/healthz": 503},
			want: "False ClusterNotReady: the API server of the cluster answers /healthz with 503 Service Unavailable"},
		"a bad token": {codes: map[string]int{"/readyz": 401},
			want: "False ClusterNotReady: the API server of the cluster answers /readyz with 401 Unauthorized: " +
				"renew the token by which it is asked"},
		"refused": {host: closed.URL,
			want: "False ClusterNotReachable: the API server of the cluster does not answer: dial: connect: connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				code, known := tt.codes[r.URL.Path]
				if !known {
					code = http.StatusNotFound
				}
				w.Header().Set("Retry-After", "1") // an answer counts, it is not requested again
				w.WriteHeader(code)
			}))
			defer server.Close()
			host := server.URL
			if tt.host != "" {
				host = tt.host
			}
			if got := said(t, t.Context(), host); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// A member that takes connections and answers nothing is not reachable either.
func TestProbeOfAMemberThatHangs(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	want := "False ClusterNotReachable: the API server of the cluster does not answer: nothing came within 5s"
	if got := said(t, ctx, "http://"+l.Addr().String()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

// Whoever makes the connection may find another cluster behind it; the condition names both.
func TestProbeOfAnotherCluster(t *testing.T) {
	c, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: "https://m1", Transport: roundTripper(
		func(*http.Request) (*http.Response, error) {
			return nil, &OtherCluster{Cluster: "m1", Want: "a", Have: "b"}
		})})
	if err != nil {
		t.Fatal(err)
	}
	found := probe(t.Context(), c.RESTClient())
	want := "False ClusterIDMismatch: another cluster answers at the address of cluster m1: " +
		"the UID of its namespace kube-system is b, not a as in spec.id; nothing is written into it: correct spec.apiEndpoint, or delete this Cluster and join the other one"
	if got := fmt.Sprintf("%s %s: %s", found.Status, found.Reason, found.Message); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Discovery costs a member without aggregated discovery a request per group: every third successful
// probe reads it; each one while it is incomplete, and the first one after an outage, from which
// the member may return upgraded. Gateways are read at each successful probe unless a complete
// discovery does not list them.
func TestRequestsOfProbes(t *testing.T) {
	ready, serves := true, "v1"
	var mu sync.Mutex // discovery requests several groups at once
	reads := map[string]int{}
	c, err := NewCollector(CollectorOptions{Cluster: "m1", Member: &rest.Config{Host: "https://m1", Transport: roundTripper(
		func(q *http.Request) (*http.Response, error) {
			mu.Lock()
			reads[q.URL.Path]++
			mu.Unlock()
			answers := map[string]string{
				"/version": `{"gitVersion":"` + serves + `"}`,
				"/api":     `{"kind":"APIVersions","versions":["v1"]}`,
				"/api/v1":  `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods","kind":"Pod"}]}`,
				"/apis":    `{"kind":"APIGroupList","groups":[{"name":"g","versions":[{"groupVersion":"g/v1","version":"v1"}]}]}`,
			}
			if ready {
				answers["/readyz"] = "ok"
			}
			if serves == "gateways" {
				answers["/apis"] = `{"kind":"APIGroupList","groups":[{"name":"g","versions":[{"groupVersion":"g/v1","version":"v1"}]},
					{"name":"submariner.io","versions":[{"groupVersion":"submariner.io/v1","version":"v1"}]}]}`
				answers["/apis/submariner.io/v1"] = `{"kind":"APIResourceList","groupVersion":"submariner.io/v1","resources":[
					{"name":"gateways","kind":"Gateway","namespaced":true}]}`
				answers["/apis/submariner.io/v1/gateways"] = `{"kind":"GatewayList","items":[{"metadata":{"name":"n1"}}]}`
			}
			if serves != "partial" {
				answers["/apis/g/v1"] = `{"kind":"APIResourceList","groupVersion":"g/v1","resources":[{"name":"things","kind":"Thing"}]}`
			}
			w := httptest.NewRecorder()
			if answer, ok := answers[q.URL.Path]; ok {
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprint(w, answer)
			} else {
				w.WriteHeader(http.StatusInternalServerError)
			}
			return w.Result(), nil
		})}})
	if err != nil {
		t.Fatal(err)
	}
	groups := 0
	for i, step := range []struct {
		ready  bool
		serves string
		reads  bool
		asks   bool // for Gateways
	}{
		{true, "v1", true, false}, {true, "v1", false, false}, {true, "v1", false, false},
		{true, "v2", true, false}, {true, "v2", false, false}, {true, "v2", false, false},
		{true, "partial", true, true}, {true, "partial", true, true}, {true, "v2", true, false}, {true, "gateways", false, false},
		{false, "gateways", false, false}, {true, "gateways", true, true}, {true, "gateways", false, true}, {true, "gateways", false, true},
		{true, "gateways", true, true}, {false, "v3", false, false}, {true, "v3", true, false},
	} {
		ready, serves = step.ready, step.serves
		clear(reads)
		c.probe(t.Context())
		if version, apis := reads["/version"] > 0, reads["/apis"] > 0; version != step.reads || apis != step.reads {
			t.Errorf("probe %d %+v: read /version: %v, /apis: %v", i+1, step, version, apis)
		}
		if asks := reads["/apis/submariner.io/v1/gateways"] > 0; asks != step.asks {
			t.Errorf("probe %d %+v: read Gateways: %v", i+1, step, asks)
		}
		if step.reads && c.observed.version != serves {
			t.Errorf("probe %d: version %s, want %s", i+1, c.observed.version, serves)
		}
		if complete := c.observed.complete.Status == metav1.ConditionTrue; complete != (serves != "partial") {
			t.Errorf("probe %d %+v: complete %v: %s", i+1, step, complete, c.observed.complete.Message)
		}
		if step.reads {
			groups = 2 // v1 and g/v1
			if serves == "gateways" {
				groups = 3
			}
		}
		if len(c.observed.enablements) != groups || len(c.observed.gateways) != groups-2 {
			t.Errorf("probe %d %+v: %v, %d Gateways; want %d groups", i+1, step, c.observed.enablements, len(c.observed.gateways), groups)
		}
	}
}

func said(t *testing.T, ctx context.Context, host string) string {
	t.Helper()
	c, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: host})
	if err != nil {
		t.Fatal(err)
	}
	found := probe(ctx, c.RESTClient())
	return fmt.Sprintf("%s %s: %s", found.Status, found.Reason, found.Message)
}

// Karmada, health probing: the first observation at once; then only what has been so for 30
// s on end.
func TestThreshold(t *testing.T) {
	const yes, no, unknown = metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown
	type step struct {
		after   time.Duration // in seconds
		found   metav1.ConditionStatus
		current metav1.ConditionStatus // what stands at the hub; empty: nothing
		passes  bool
	}
	for name, steps := range map[string][]step{
		"first, nothing stands there": {{0, no, "", true}},
		"first, another stands there": {{0, no, yes, true}},
		"fails for 30 s": {
			{0, yes, "", true}, {10, yes, yes, true}, {20, no, yes, false}, {30, no, yes, false}, {40, no, yes, false}, {50, no, yes, true},
		},
		"fails, and once not": {
			{0, yes, "", true}, {10, no, yes, false}, {30, no, yes, false}, {35, yes, yes, true},
			{45, no, yes, false}, {74, no, yes, false}, {75, no, yes, true},
		},
		"comes back":                               {{0, no, "", true}, {10, yes, no, false}, {39, yes, no, false}, {40, yes, no, true}},
		"fails for another reason":                 {{0, no, "", true}, {10, no, no, true}},
		"the hub has lost sight of it, not we":     {{0, yes, "", true}, {100, yes, yes, true}, {110, yes, unknown, true}},
		"the hub has lost sight of it, and we too": {{0, yes, "", true}, {100, no, unknown, true}},
		"the condition was taken away":             {{0, yes, "", true}, {10, no, "", true}},
	} {
		t.Run(name, func(t *testing.T) {
			th := threshold{failure: 30 * time.Second, success: 30 * time.Second}
			start := time.Unix(1700000000, 0)
			for _, s := range steps {
				var current *metav1.Condition
				if s.current != "" {
					current = &metav1.Condition{Status: s.current}
				}
				at := start.Add(s.after * time.Second)
				if got := th.passes(at, at, current, s.found); got != s.passes {
					t.Errorf("at %d s, %s where %q stands: passes %v, want %v", s.after, s.found, s.current, got, s.passes)
				}
			}
		})
	}
}

// The time of probes that hang counts.
func TestThresholdOfProbesThatHang(t *testing.T) {
	th := threshold{failure: 10 * time.Second}
	start := time.Unix(1700000000, 0)
	stands := &metav1.Condition{Status: metav1.ConditionTrue}
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	th.passes(at(0), at(0), stands, metav1.ConditionTrue)
	if th.passes(at(9), at(4), stands, metav1.ConditionFalse) {
		t.Error("5 s after the first one began")
	}
	if !th.passes(at(14), at(9), stands, metav1.ConditionFalse) {
		t.Error("not 10 s after the first one began")
	}
}
