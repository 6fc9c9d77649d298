package hubclient

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// transport is a RoundTripper as a function.
type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// away fails the first n requests and notes the tokens that it sees.
func away(n int, tokens *[]string) transport {
	return func(r *http.Request) (*http.Response, error) {
		*tokens = append(*tokens, r.Header.Get("Authorization"))
		if len(*tokens) <= n {
			return nil, errors.New("connection refused")
		}
		return &http.Response{StatusCode: http.StatusOK}, nil
	}
}

func chain(next http.RoundTripper) *resume {
	turn := 0
	return &resume{
		min: time.Millisecond, max: 2 * time.Millisecond, reach: newReachability(logr.Discard()),
		next: &authenticate{token: func() string { turn++; return string(rune('0' + turn)) }, next: next},
	}
}

func request(t *testing.T, ctx context.Context, method string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "https://hub.example/apis", nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestReadsWaitForTheHubAndUseTheTokenOfTheMoment(t *testing.T) {
	var tokens []string
	c := chain(away(2, &tokens))
	resp, err := c.RoundTrip(request(t, t.Context(), http.MethodGet))
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("got %v, %v", resp, err)
	}
	if len(tokens) != 3 || tokens[0] != "Bearer 1" || tokens[2] != "Bearer 3" {
		t.Errorf("tokens sent: %q", tokens)
	}
	if up := testutil.ToFloat64(c.reach.gauge); up != 1 {
		t.Errorf("gauge %v after an answer", up)
	}
}

func TestWritesFailAtOnce(t *testing.T) {
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		var tokens []string
		c := chain(away(1, &tokens))
		if _, err := c.RoundTrip(request(t, t.Context(), method)); err == nil {
			t.Errorf("%s waited for the hub", method)
		}
		if up := testutil.ToFloat64(c.reach.gauge); up != 0 {
			t.Errorf("gauge %v after a failure", up)
		}
	}
}

func TestAWaitingReadEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := chain(transport(func(*http.Request) (*http.Response, error) {
		cancel()
		return nil, errors.New("connection refused")
	}))
	if _, err := c.RoundTrip(request(t, ctx, http.MethodGet)); err == nil {
		t.Error("no error after the end of the context")
	}
}

// TestConnected: the gauge is 1 only while the hub serves requests; the reason why it does not is
// counted and logged.
func TestConnected(t *testing.T) {
	untrusted := httptest.NewTLSServer(http.NotFoundHandler())
	defer untrusted.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	fails := func(url string) error {
		resp, err := http.Get(url)
		if err == nil {
			resp.Body.Close()
			t.Fatalf("%s answers", url)
		}
		return err
	}
	noTrust, noTLS := fails(untrusted.URL), fails("https"+strings.TrimPrefix(plain.URL, "http"))
	var log []string
	r := newReachability(funcr.New(func(_, args string) { log = append(log, args) }, funcr.Options{}))
	samples := func() int { return testutil.CollectAndCount(r, "pelago_hub_connected") }
	if got := samples(); got != 0 {
		t.Errorf("a replica that has sent no request has %d samples of pelago_hub_connected, want none", got)
	}
	for _, step := range []struct {
		name, method string
		code         int
		err          error
		connected    float64
		reason, log  string
	}{
		{name: "served", method: http.MethodGet, code: 200, connected: 1, log: "hub reachable"},
		{name: "expired token", method: http.MethodPatch, code: 401, reason: "unauthorized", log: "token"},
		{name: "served again", method: http.MethodGet, code: 200, connected: 1, log: "hub reachable"},
		{name: "one object refused", method: http.MethodPatch, code: 403, connected: 1, reason: "forbidden"},
		{name: "revoked", method: http.MethodGet, code: 403, reason: "forbidden", log: "unjoined"},
		{name: "one object refused while revoked", method: http.MethodPatch, code: 403, reason: "forbidden"},
		{name: "broken", method: http.MethodGet, code: 500, reason: "server-error", log: "fails"},
		{name: "other CA", method: http.MethodGet, err: noTrust, reason: "certificate", log: "certificate is not trusted"},
		{name: "no TLS", method: http.MethodGet, err: noTLS, reason: "certificate"},
		{name: "away", method: http.MethodGet, err: errors.New("connection refused"), reason: "unreachable", log: "cannot be reached"},
		{name: "object not found", method: http.MethodGet, code: 404, connected: 1, log: "hub reachable"},
	} {
		log = nil
		before := 0.0
		if step.reason != "" {
			before = testutil.ToFloat64(r.failures.WithLabelValues(step.reason))
		}
		r.note(step.method, &http.Response{StatusCode: step.code}, step.err)
		if got := testutil.ToFloat64(r.gauge); got != step.connected {
			t.Errorf("%s: pelago_hub_connected is %g, want %g", step.name, got, step.connected)
		}
		if got := samples(); got != 1 {
			t.Errorf("%s: %d samples of pelago_hub_connected, want 1", step.name, got)
		}
		if step.reason != "" && testutil.ToFloat64(r.failures.WithLabelValues(step.reason)) != before+1 {
			t.Errorf("%s: not counted as %s", step.name, step.reason)
		}
		if text := strings.Join(log, "; "); (text == "") != (step.log == "") || !strings.Contains(text, step.log) {
			t.Errorf("%s: logged %q, want %q", step.name, text, step.log)
		}
	}
	if problems, err := testutil.CollectAndLint(r); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
}

func TestPauseIsWithinItsBounds(t *testing.T) {
	r := &resume{min: time.Second, max: 5 * time.Second}
	seen := map[time.Duration]bool{}
	for range 100 {
		p := r.pause()
		if p < r.min || p >= r.max {
			t.Fatalf("pause %v", p)
		}
		seen[p] = true
	}
	if len(seen) < 50 {
		t.Errorf("only %d different pauses of 100", len(seen))
	}
	if p := (&resume{min: time.Second, max: time.Second}).pause(); p != time.Second {
		t.Errorf("pause %v without spread", p)
	}
}
