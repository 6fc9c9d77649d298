package main

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFindings(t *testing.T) {
	called, err := findings(strings.NewReader(`{"config":{"protocol_version":"v1.0.0"}}
{"osv":{"id":"GO-2026-0001"}}
{"finding":{"osv":"GO-2026-0001","fixed_version":"v1.2.3","trace":[{"module":"example.org/a","version":"v1.2.2"}]}}
{"finding":{"osv":"GO-2026-0002","fixed_version":"v1.2.3","trace":[{"module":"example.org/a","version":"v1.2.2","function":"Parse"},{"module":"m","function":"main"}]}}
{"finding":{"osv":"GO-2026-0003","trace":[{"module":"stdlib","version":"v1.26.0","function":"Read"}]}}
`))
	want := map[string]string{"GO-2026-0002": "example.org/a v1.2.2: update to v1.2.3", "GO-2026-0003": "stdlib v1.26.0: no release has a fix"}
	if diff := cmp.Diff(want, called); diff != "" || err != nil {
		t.Errorf("%v, -want +got\n%s", err, diff)
	}
	if _, err := findings(strings.NewReader(`{"finding":`)); err == nil {
		t.Error("output that ends early is accepted")
	}
}

// What is accepted has an end, and a reason; what nothing calls is no entry.
func TestAllowed(t *testing.T) {
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	called := map[string]string{"GO-2026-0002": "example.org/a v1.2.2: update to v1.2.3"}
	for name, tt := range map[string]struct{ allowed, want string }{
		"nothing is accepted": {"", "GO-2026-0002 (https://pkg.go.dev/vuln/GO-2026-0002): example.org/a v1.2.2: update to v1.2.3"},
		"accepted":            {"# why\nGO-2026-0002 2026-12-02 only the tests parse\n", ""},
		"expired":             {"GO-2026-0002 2026-12-01 only the tests parse", "GO-2026-0002 was accepted until 2026-12-01"},
		"without a reason":    {"GO-2026-0002 2026-12-02", "write ID YYYY-MM-DD REASON"},
		"without a day":       {"GO-2026-0002 soon only the tests parse", "allowed.txt: GO-2026-0002: parsing time"},
		"not called":          {"GO-2026-0002 2026-12-02 a\nGO-2026-0001 2026-12-02 b", "no command has GO-2026-0001 any more"},
	} {
		err := judge(io.Discard, called, tt.allowed, now)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// Without the database nothing is checked, which is no success.
func TestWithoutTheDatabase(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	for _, database := range []string{server.URL, "https://127.0.0.1:1", "://"} {
		t.Setenv("GOVULNDB", database)
		if err := run(t.Context(), io.Discard); !errors.Is(err, errUnreachable) || !strings.Contains(err.Error(), database) {
			t.Errorf("%s: %v, want a failure that names the cause", database, err)
		}
	}
	server.Close()
}

// The list that is checked in has no line that has expired.
func TestTheListIsCurrent(t *testing.T) {
	called := map[string]string{}
	for line := range strings.Lines(allowed) {
		id, _, _ := strings.Cut(line, " ")
		called[id] = "listed"
	}
	delete(called, "#")
	if err := judge(io.Discard, called, allowed, time.Now()); err != nil {
		t.Error(err)
	}
}
