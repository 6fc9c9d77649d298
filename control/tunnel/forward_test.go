package tunnel

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(q *http.Request) (*http.Response, error) { return r(q) }

// TestForward: credentials and impersonation of the client are not forwarded, also if it names
// those headers in Connection; a request that was not sent can be sent again with its body, one of
// which a part was read cannot.
func TestForward(t *testing.T) {
	var got http.Header
	var body string
	var again error
	try := roundTripper(func(q *http.Request) (*http.Response, error) {
		got = q.Header
		_ = q.Body.Close() // as a transport does that cannot connect
		next, err := q.GetBody()
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(next)
		body = string(text)
		if err != nil {
			return nil, err
		}
		_, again = q.GetBody()
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody}, nil
	})
	p := Forward(&url.URL{Scheme: "https", Host: "member", Path: "/base"}, try, nil, func(_, out *http.Request) { out.Header.Set("Impersonate-User", "alice") })
	q := httptest.NewRequest(http.MethodPost, "/api", strings.NewReader("text"))
	for name, value := range map[string]string{"Authorization": "Bearer x", "Impersonate-User": "root", "Impersonate-Group": "system:masters",
		"Impersonate-Extra-X": "x", "Connection": "Impersonate-User", "X-Forwarded-For": "192.0.2.7"} {
		q.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, q)
	if w.Code != http.StatusOK || body != "text" || again == nil {
		t.Errorf("status %d, body %q, body again: %v", w.Code, body, again)
	}
	for name, want := range map[string]string{"Authorization": "", "Impersonate-User": "alice", "Impersonate-Group": "", "Impersonate-Extra-X": "",
		"X-Forwarded-For": "192.0.2.7"} {
		if got.Get(name) != want {
			t.Errorf("%s: %q, want %q", name, got.Get(name), want)
		}
	}
}
