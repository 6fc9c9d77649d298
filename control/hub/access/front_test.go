package access

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// hubAPI is the hub's API server: it records requests, answers reviews, streams a watch line by
// line and echoes an upgrade.
type hubAPI struct {
	mu     sync.Mutex
	got    []*http.Request
	denied bool
	more   chan struct{} // has the watch send its second event
}

func (h *hubAPI) requests() []*http.Request {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.got
}

func (h *hubAPI) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	h.mu.Lock()
	h.got = append(h.got, q)
	h.mu.Unlock()
	answer := func(code int, body any) {
		w.WriteHeader(code)
		if err := json.NewEncoder(w).Encode(body); err != nil {
			panic(err)
		}
	}
	switch {
	case strings.HasSuffix(q.URL.Path, "/selfsubjectreviews"):
		answer(http.StatusCreated, authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{
			UserInfo: authenticationv1.UserInfo{Username: "alice", Groups: []string{"dev", "system:authenticated"}}}})
	case strings.HasSuffix(q.URL.Path, "/selfsubjectaccessreviews"):
		var r authorizationv1.SelfSubjectAccessReview
		if err := json.NewDecoder(q.Body).Decode(&r); err != nil {
			panic(err)
		}
		a := r.Spec.ResourceAttributes
		r.Status.Allowed = !h.denied && a.Group == "cluster.karmada.io" && a.Resource == "clusters" && a.Subresource == "proxy" &&
			a.Name == "m1" && a.Verb == "delete"
		answer(http.StatusCreated, r)
	case q.URL.Query().Get("watch") != "":
		for _, event := range []string{"first\n", "second\n"} {
			_, _ = io.WriteString(w, event) // the reader reports what is missing
			w.(http.Flusher).Flush()
			<-h.more
		}
	case q.Header.Get("Upgrade") != "":
		conn, in, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		const answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
		_, _ = io.WriteString(conn, answer) // the client reports what is missing
		_, _ = io.Copy(conn, in)            // the client reports what is missing
	}
}

// clusterReader has the Cluster m1, which is no member yet.
type clusterReader struct{ client.Reader }

func (clusterReader) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	o.SetName(key.Name)
	return nil
}

// newFront serves a front of a hub, whose account has the token hub. Certificates are valid, except
// that of the user stranger; for early the authority could not be read.
func newFront(t *testing.T) (front *httptest.Server, hub *hubAPI) {
	t.Helper()
	hub = &hubAPI{more: make(chan struct{})}
	api := httptest.NewServer(hub)
	to, err := url.Parse(api.URL)
	if err != nil {
		t.Fatal(err)
	}
	account := roundTripper(func(q *http.Request) (*http.Response, error) {
		if q.Header.Get("Authorization") == "" { // as client-go does
			q = q.Clone(q.Context())
			q.Header.Set("Authorization", "Bearer hub")
		}
		return http.DefaultTransport.RoundTrip(q)
	})
	f := &frontHandler{
		members: &proxyHandler{clusters: clusterReader{}, tunnels: newTunnels("a"), log: slog.New(slog.DiscardHandler)},
		hub:     &route{URL: to, Plain: http.DefaultTransport, Upgrade: http.DefaultTransport, set: identify},
		account: &route{URL: to, Plain: account, Upgrade: account},
		certificate: func(q *http.Request) (*authenticator.Response, bool, error) {
			name, _, _ := strings.Cut(q.TLS.PeerCertificates[0].Subject.CommonName, "@") // no "@": the whole name
			switch name {
			case "stranger":
				return nil, false, errors.New("signed by unknown authority")
			case "early":
				return (&server{live: &away{}}).authenticateCertificate(q)
			}
			return &authenticator.Response{User: &user.DefaultInfo{Name: name, Groups: []string{"ops"}}}, true, nil
		},
	}
	front = httptest.NewUnstartedServer(f)
	front.EnableHTTP2 = true
	front.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	front.StartTLS()
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
		api.CloseClientConnections()
		api.Close()
	})
	return front, hub
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(q *http.Request) (*http.Response, error) { return r(q) }

// holder is a client with the certificate of a user; "": none.
func holder(t *testing.T, front *httptest.Server, name string) *http.Client {
	t.Helper()
	c := front.Client()
	if name == "" {
		return c
	}
	text, key, err := cert.GenerateSelfSignedCertKey(name, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(text, key)
	if err != nil {
		t.Fatal(err)
	}
	transport := c.Transport.(*http.Transport).Clone()
	transport.TLSClientConfig.Certificates = []tls.Certificate{pair}
	return &http.Client{Transport: transport}
}

// TestFrontIdentity: a request reaches the API server under the identity of its caller alone,
// whatever its headers are.
func TestFrontIdentity(t *testing.T) {
	spoofed := http.Header{"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}, "X-Remote-Extra-Scopes": {"all"},
		"X-Forwarded-For": {"192.0.2.1"}}
	for name, c := range map[string]struct {
		certificate string
		header      http.Header
		code        int
		want        http.Header // what the API server receives of Authorization, X-Remote-* and Impersonate-*
	}{
		"no credential": {"", nil, 200, http.Header{}},
		"a token":       {"", http.Header{"Authorization": {"Bearer t"}}, 200, http.Header{"Authorization": {"Bearer t"}}},
		"a token that impersonates": {"", http.Header{"Authorization": {"Bearer t"}, "Impersonate-User": {"bob"}, "Impersonate-Group": {"a", "b"}}, 200,
			http.Header{"Authorization": {"Bearer t"}, "Impersonate-User": {"bob"}, "Impersonate-Group": {"a", "b"}}},
		"a certificate": {"alice", nil, 200, http.Header{"Authorization": {"Bearer hub"}, "Impersonate-User": {"alice"}, "Impersonate-Group": {"ops"}}},
		"a certificate and a token": {"alice", http.Header{"Authorization": {"Bearer t"}}, 200,
			http.Header{"Authorization": {"Bearer hub"}, "Impersonate-User": {"alice"}, "Impersonate-Group": {"ops"}}},
		"a certificate that impersonates":                {"alice", http.Header{"Impersonate-User": {"root"}}, 403, nil},
		"a certificate that adds a group":                {"alice", http.Header{"Impersonate-Group": {"system:masters"}}, 403, nil},
		"a certificate before its authority is known":    {"early", nil, 503, nil},
		"a foreign certificate":                          {"stranger", nil, 401, nil},
		"a foreign certificate and a token":              {"stranger", http.Header{"Authorization": {"Bearer t"}}, 200, http.Header{"Authorization": {"Bearer t"}}},
		"a header that names others as hops":             {"alice", http.Header{"Connection": {"Impersonate-User, Authorization"}}, 200, http.Header{"Authorization": {"Bearer hub"}, "Impersonate-User": {"alice"}, "Impersonate-Group": {"ops"}}},
		"a certificate that impersonates, in lower case": {"alice", http.Header{"impersonate-user": {"root"}}, 403, nil},
	} {
		t.Run(name, func(t *testing.T) {
			front, hub := newFront(t)
			q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL+"/api/v1/pods", nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range []http.Header{spoofed, c.header} {
				for name, values := range h {
					q.Header[name] = values
				}
			}
			caller := holder(t, front, c.certificate)
			if c.header.Get("Connection") != "" { // of HTTP/1.1 alone
				h1 := caller.Transport.(*http.Transport)
				h1.TLSClientConfig.NextProtos, h1.Protocols = nil, new(http.Protocols)
				h1.Protocols.SetHTTP1(true)
			}
			r, err := caller.Do(q)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Body.Close()
			if r.StatusCode != c.code {
				text, _ := io.ReadAll(r.Body) // for the message
				t.Fatalf("%s: %s, want %d", r.Status, text, c.code)
			}
			if c.want == nil {
				if n := len(hub.requests()); n > 0 {
					t.Errorf("%d requests reach the API server, want none", n)
				}
				return
			}
			got := http.Header{}
			for name, values := range hub.requests()[0].Header {
				if name == "Authorization" || strings.HasPrefix(name, "X-Remote-") || strings.HasPrefix(name, "Impersonate-") {
					got[name] = values
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("the API server receives %v, want %v", got, c.want)
			}
			if from := hub.requests()[0].Header["X-Forwarded-For"]; len(from) != 1 || from[0] != "127.0.0.1" {
				t.Errorf("X-Forwarded-For %v, want 127.0.0.1", from)
			}
		})
	}
}

// TestFrontMembers: requests to members are authorized by the API server as the caller, and only
// those are kept from it.
func TestFrontMembers(t *testing.T) {
	const clusters = "/apis/cluster.karmada.io/v1alpha1/clusters"
	for name, c := range map[string]struct {
		path    string
		denied  bool
		code    int
		message string
		hub     string // the paths that the API server receives
	}{
		"permitted": {clusters + "/m1/proxy/api", false, 503, "cluster m1 is not a member", "selfsubjectreviews selfsubjectaccessreviews"},
		"denied": {clusters + "/m1/proxy", true, 403, `user "alice" cannot delete resource "clusters/proxy" in API group "cluster.karmada.io"`,
			"selfsubjectreviews selfsubjectaccessreviews"},
		"another one":      {clusters + "/m2/proxy/", false, 403, "cannot delete", "selfsubjectreviews selfsubjectaccessreviews"},
		"all of them":      {clusters + "/*/proxy/api/v1/pods", false, 400, "pelago get KIND", ""},
		"into another one": {clusters + "/m1/proxy/../../m2/proxy", false, 400, "use the plain path", ""},
		"escaped":          {clusters + "/m1/proxy/a%2F..%2Fb", false, 400, "use the plain path", ""},
		"the object":       {clusters + "/m1", false, 200, "", "m1"},
		"its status":       {clusters + "/m1/status", false, 200, "", "status"},
		"a tunnel":         {clusters + "/m1/attach", false, 200, "", "attach"},
		"another group":    {"/apis/proxy.pelago.io/v1alpha1/clusters/m1/proxy/x", false, 200, "", "x"},
	} {
		t.Run(name, func(t *testing.T) {
			front, hub := newFront(t)
			hub.denied = c.denied
			q, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, front.URL+c.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			q.Header.Set("Authorization", "Bearer t")
			r, err := front.Client().Do(q)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Body.Close()
			text, err := io.ReadAll(r.Body)
			if err != nil {
				t.Fatal(err)
			}
			var status struct{ Message string }
			if err := json.Unmarshal(text, &status); r.StatusCode != c.code || c.message != "" && (err != nil || !strings.Contains(status.Message, c.message)) {
				t.Errorf("%s: %s, want %d: %s", r.Status, text, c.code, c.message)
			}
			var paths []string
			for _, got := range hub.requests() {
				paths = append(paths, got.URL.Path[strings.LastIndex(got.URL.Path, "/")+1:])
				if got.Header.Get("Authorization") != "Bearer t" {
					t.Errorf("%s without the caller's token", got.URL)
				}
			}
			if got := strings.Join(paths, " "); got != c.hub {
				t.Errorf("the API server receives %q, want %q", got, c.hub)
			}
		})
	}
}

// TestFrontStreams: a watch is not buffered, over HTTP/2, and an upgrade passes.
func TestFrontStreams(t *testing.T) {
	front, hub := newFront(t)
	t.Run("watch", func(t *testing.T) {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL+"/api/v1/pods?watch=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := front.Client().Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if r.ProtoMajor != 2 {
			t.Errorf("%s, want HTTP/2", r.Proto)
		}
		lines := bufio.NewReader(r.Body)
		for _, want := range []string{"first\n", "second\n"} {
			if got, err := lines.ReadString('\n'); got != want {
				t.Fatalf("got %q, %v, want %q before the next event is sent", got, err, want)
			}
			hub.more <- struct{}{}
		}
	})
	t.Run("upgrade", func(t *testing.T) {
		roots := x509.NewCertPool()
		roots.AddCert(front.Certificate())
		conn, err := tls.Dial("tcp", front.Listener.Addr().String(), &tls.Config{RootCAs: roots, ServerName: "example.com"})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "POST /api/v1/namespaces/a/pods/b/exec HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer t\r\n"+
			"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		echo(t, conn)
	})
}

func echo(t *testing.T, conn net.Conn) {
	t.Helper()
	in := bufio.NewReader(conn)
	r, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%s, want 101", r.Status)
	}
	for _, want := range []string{"first\n", "second\n"} {
		if _, err := io.WriteString(conn, want); err != nil {
			t.Fatal(err)
		}
		if got, err := in.ReadString('\n'); got != want {
			t.Fatalf("got %q, %v, want %q", got, err, want)
		}
	}
}

// TestFrontWithoutHub: an API server that is away is 503, with what it is.
func TestFrontWithoutHub(t *testing.T) {
	away := &route{URL: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}, Plain: http.DefaultTransport, Upgrade: http.DefaultTransport}
	f := &frontHandler{members: &proxyHandler{log: slog.New(slog.DiscardHandler)}, hub: away}
	for _, path := range []string{"/api", karmadaClusters + "m1/proxy/api"} {
		w := httptest.NewRecorder()
		f.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "the hub's API server does not answer") {
			t.Errorf("%s: %d: %s, want 503", path, w.Code, w.Body)
		}
	}
}
