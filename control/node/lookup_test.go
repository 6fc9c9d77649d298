package node

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/test/clusterset"
)

// names starts a name server on loopback and returns a resolver that asks only this one.
func names(t *testing.T) *net.Resolver {
	t.Helper()
	records := map[string][]string{
		"several.example.": {"198.51.100.200", "198.51.100.30", "203.0.113.1"},
		"loop.example.":    {"127.0.0.1"},
	}
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		if q.Question[0].Name == "silent.example." {
			return
		}
		m := new(dns.Msg).SetReply(q)
		switch {
		case q.Question[0].Name == "six.example.":
			if q.Question[0].Qtype == dns.TypeAAAA {
				m.Answer = append(m.Answer, &dns.AAAA{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeAAAA, Class: dns.ClassINET}, AAAA: net.ParseIP("2001:db8::1")})
			}
		case records[q.Question[0].Name] == nil:
			m.Rcode = dns.RcodeNameError
		case q.Question[0].Qtype == dns.TypeA:
			for _, a := range records[q.Question[0].Name] {
				m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.ParseIP(a)})
			}
		}
		_ = w.WriteMsg(m) // the client's time-out shows it
	})}
	started, done := make(chan struct{}), make(chan error, 1)
	srv.NotifyStartedFunc = func() { close(started) }
	go func() { done <- srv.ActivateAndServe() }()
	<-started
	t.Cleanup(func() {
		if err := errors.Join(srv.Shutdown(), <-done); err != nil {
			t.Error(err)
		}
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", pc.LocalAddr().String())
	}}
}

func service(_ context.Context, name string) (*corev1.Service, error) {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "pelago-system", Name: name}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	ingress := &s.Status.LoadBalancer.Ingress
	switch name {
	case "ip":
		*ingress = []corev1.LoadBalancerIngress{{IP: "2001:db8::1"}, {IP: "203.0.113.9"}, {IP: "203.0.113.8"}}
	case "host":
		*ingress = []corev1.LoadBalancerIngress{{Hostname: "several.example."}}
	case "pending":
	case "inner":
		s.Spec.Type = corev1.ServiceTypeClusterIP
	default:
		return nil, errors.New("services not found")
	}
	return s, nil
}

// say answers.
func say(w io.Writer, text string) {
	// the resolver reports what it does not get, and every case checks its error
	_, _ = io.WriteString(w, text)
}

// web starts an https server; the transport leads every name to it.
func web(t *testing.T) http.RoundTripper {
	t.Helper()
	mux := http.NewServeMux()
	text := func(path, body string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { say(w, body) })
	}
	text("/plain", "198.51.100.7\n")
	text("/six", "2001:db8::1\n")
	text("/zero", "0.0.0.0")
	text("/late", strings.Repeat("x", maxBody)+" 198.51.100.7")
	text("/edge", strings.Repeat(" ", maxBody-len("198.51.100.7"))+"198.51.100.7")
	mux.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		say(w, "198.51.100.7")
	})
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		say(w, "198.51.100.7 ")
	})
	mux.Handle("/moved", http.RedirectHandler("https://example.com/plain", http.StatusFound))
	mux.Handle("/clear", http.RedirectHandler("http://example.com/plain", http.StatusFound))
	mux.Handle("/round", http.RedirectHandler("/round", http.StatusFound))
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/drip", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write([]byte("x")); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			time.Sleep(10 * time.Millisecond) // drop by drop, until the asker has had enough
		}
	})
	srv := httptest.NewTLSServer(mux)
	srv.Config.ErrorLog = nil
	t.Cleanup(srv.Close)
	transport := srv.Client().Transport.(*http.Transport)
	transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", srv.Listener.Addr().String())
	}
	return transport
}

func TestLookUp(t *testing.T) {
	l := lookup{names: names(t), service: service, client: publicIPClient(web(t)), bound: 10 * time.Second}
	for _, c := range []struct{ sources, want, err string }{
		{"ipv4:198.51.100.7", "198.51.100.7", ""},
		{"dns:several.example.", "198.51.100.30", ""}, // lowest by number
		{"dns:six.example.", "", "look up dns:six.example.: lookup six.example."},
		{"dns:missing.example.", "", "no such host"},
		{"dns:loop.example.", "", "127.0.0.1 is not the address of a host"},
		{"lb:ip", "203.0.113.8", ""},
		{"lb:host", "198.51.100.30", ""},
		{"lb:pending", "", "the Service pelago-system/pending has no IPv4 address yet"},
		{"lb:inner", "", "the Service pelago-system/inner is of type ClusterIP: make it a LoadBalancer"},
		{"lb:missing", "", "look up lb:missing: services not found"},
		{"api:example.com/plain", "198.51.100.7", ""},
		{"api:example.com/moved", "198.51.100.7", ""},
		{"api:example.com/edge", "198.51.100.7", ""},
		{"api:example.com/late", "", "there is no IPv4 address in the first 65536 bytes of the answer"},
		{"api:example.com/six", "", "there is no IPv4 address in the first 12 bytes"},
		{"api:example.com/zero", "", "0.0.0.0 is not the address of a host"},
		{"api:example.com/broken", "", "the server answers 503 Service Unavailable"},
		{"api:example.com/cut", "", "read the answer: unexpected EOF"},
		{"api:example.com/clear", "", "redirected to http://example.com/plain, which is not https"},
		{"api:example.com/round", "", "redirected more than 5 times"},
		{"api:elsewhere.example/plain", "", "certificate is valid for example.com"},
		// The first answer wins, whatever those before it said; all are named if none answers.
		{"lb:missing,dns:missing.example.,api:example.com/plain,ipv4:203.0.113.1", "198.51.100.7", ""},
		{"lb:pending,dns:missing.example.", "", "no such host"},
	} {
		t.Run(c.sources, func(t *testing.T) {
			list := parsed(t, c.sources)
			_, got, err := l.first(t.Context(), list)
			if c.err == "" && (err != nil || got.String() != c.want) {
				t.Errorf("first = %v, %v; want %s", got, err, c.want)
			}
			if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("first = %v, %v; want the error %q", got, err, c.err)
			}
		})
	}
}

// A server that sends nothing, or something without end, costs its time and no more; then the next
// source is queried.
func TestSlowSources(t *testing.T) {
	l := lookup{names: names(t), service: func(ctx context.Context, _ string) (*corev1.Service, error) {
		<-ctx.Done() // a cache that never gets its first list
		return nil, ctx.Err()
	}, client: publicIPClient(web(t)), bound: 300 * time.Millisecond}
	for _, slow := range []string{"api:example.com/slow", "api:example.com/drip", "dns:silent.example.", "lb:ip"} {
		list := parsed(t, slow+",ipv4:203.0.113.1")
		start := time.Now()
		s, got, err := l.first(t.Context(), list)
		if err != nil || s.Method != tables.IPv4 || got != netip.MustParseAddr("203.0.113.1") {
			t.Errorf("%s, then an address: %v %v, %v", slow, s, got, err)
		}
		if took := time.Since(start); took < l.bound {
			t.Errorf("%s took %s; want %s at least", slow, took, l.bound)
		}
		_, _, err = l.first(t.Context(), list[:1])
		if err == nil || !strings.Contains(err.Error(), "look up "+slow+": no answer in 300ms") {
			t.Errorf("%s alone: %v; want that it did not answer in time", slow, err)
		}
	}
}

// The client that is used when none is given asks by IPv4, also where a name has addresses of both
// families.
func TestDefaultTransportUsesIPv4(t *testing.T) {
	var from string
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from = r.RemoteAddr
		say(w, "198.51.100.7")
	}))
	defer srv.Close()
	c := publicIPClient(nil)
	c.Transport.(*http.Transport).TLSClientConfig = srv.Client().Transport.(*http.Transport).TLSClientConfig
	l := lookup{client: c, bound: 10 * time.Second}
	got, err := l.one(t.Context(), tables.PublicIPSource{Method: tables.API, Argument: strings.TrimPrefix(srv.URL, "https://")})
	if err != nil || got.String() != "198.51.100.7" || !strings.HasPrefix(from, "127.0.0.1:") {
		t.Errorf("one = %s, %v; asked from %s", got, err, from)
	}
	if _, err := c.Transport.(*http.Transport).DialContext(t.Context(), "tcp", "[::1]:443"); err == nil || !strings.Contains(err.Error(), "no suitable address") {
		t.Errorf("dial an IPv6 address: %v; want a refusal", err)
	}
}

func TestFirstIPv4(t *testing.T) {
	for text, want := range map[string]string{
		"198.51.100.7":                           "198.51.100.7",
		"198.51.100.7\n":                         "198.51.100.7",
		`{"ip":"198.51.100.7","port":443}`:       "198.51.100.7",
		"<p>Your IP is: 198.51.100.7.</p>":       "198.51.100.7",
		"IP:198.51.100.7,203.0.113.9":            "198.51.100.7",
		"server v1.2.3.4 says 198.51.100.7":      "198.51.100.7",
		"1.2.3.4.5 300.1.1.1 010.0.0.1 10.1.1.1": "10.1.1.1",
		"2001:db8::1":                            "none",
		"":                                       "none",
		"...":                                    "none",
		"nginx/1.18.0":                           "none",
	} {
		got := "none"
		if a, ok := firstIPv4([]byte(text)); ok {
			got = a.String()
		}
		if got != want {
			t.Errorf("firstIPv4(%q) = %s; want %s", text, got, want)
		}
	}
}

func FuzzFirstIPv4(f *testing.F) {
	f.Add([]byte("198.51.100.7\n"))
	f.Add([]byte("...."))
	f.Add([]byte("1.2.3.4.5 v1.2.3.4"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if a, ok := firstIPv4(text); ok && !a.Is4() {
			t.Errorf("firstIPv4(%q) = %s", text, a)
		}
	})
}

// parsed are the sources of an annotation.
func parsed(t *testing.T, text string) []tables.PublicIPSource {
	t.Helper()
	objs, _ := clusterset.Globalnet("n1")
	objs.Nodes[0].Annotations = map[string]string{tables.KeyPublicIP: text}
	settings, problems := tables.GatewaySettingsOf(objs)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return settings.PublicIP
}
