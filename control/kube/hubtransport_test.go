package kube

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/go-logr/logr"
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
