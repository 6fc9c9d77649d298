package member

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// authority is the certificate of a test server, as PEM, and the server.
func authority(t *testing.T, h http.Handler) (*httptest.Server, string) {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	return s, pemOf(s.Certificate().Raw)
}

// Karmada, spec: apiEndpoint, secretRef with the keys token and caBundle,
// insecureSkipTLSVerification, proxyURL, proxyHeader; conditions, StatusCollectionFailed.
func TestReach(t *testing.T) {
	_, ca := authority(t, nil)
	ref := &clusterv1alpha1.SecretReference{Namespace: "karmada-cluster", Name: "m1"}
	spec := clusterv1alpha1.ClusterSpec{APIEndpoint: "https://m1:6443", SecretRef: ref}
	with := func(change func(*clusterv1alpha1.ClusterSpec)) clusterv1alpha1.ClusterSpec {
		s := *spec.DeepCopy()
		change(&s)
		return s
	}
	for name, tt := range map[string]struct {
		spec clusterv1alpha1.ClusterSpec
		data map[string]string // nil: no Secret
		want Config
		err  string
	}{
		"token and authority": {spec: spec, data: map[string]string{"token": "t\n", "caBundle": ca},
			want: Config{Cluster: "m1", Endpoint: "https://m1:6443", Token: "t", ca: ca}},
		"roots of the system": {spec: spec, data: map[string]string{"token": "t"},
			want: Config{Cluster: "m1", Endpoint: "https://m1:6443", Token: "t"}},
		"with an id": {spec: with(func(s *clusterv1alpha1.ClusterSpec) { s.ID = "u" }), data: map[string]string{"token": "t"},
			want: Config{Cluster: "m1", id: "u", Endpoint: "https://m1:6443", Token: "t"}},
		"any certificate": {spec: with(func(s *clusterv1alpha1.ClusterSpec) { s.InsecureSkipTLSVerification = true }),
			data: map[string]string{"token": "t", "caBundle": "-"},
			want: Config{Cluster: "m1", Endpoint: "https://m1:6443", Token: "t", insecure: true}},
		"a proxy": {spec: with(func(s *clusterv1alpha1.ClusterSpec) {
			s.ProxyURL, s.ProxyHeader = "socks5://p:1080", map[string]string{"X-One": "a", "x-two": "b, c"}
		}), data: map[string]string{"token": "t"},
			want: Config{Cluster: "m1", Endpoint: "https://m1:6443", Token: "t", proxy: "socks5://p:1080",
				proxyHeader: http.Header{"X-One": {"a"}, "X-Two": {"b", "c"}}}},
		"no endpoint": {spec: with(func(s *clusterv1alpha1.ClusterSpec) { s.APIEndpoint = "" }), err: "spec.apiEndpoint is empty"},
		"no reference": {spec: with(func(s *clusterv1alpha1.ClusterSpec) { s.SecretRef = nil }),
			err: "spec.secretRef is empty: name the Secret with the keys token and caBundle"},
		"no Secret": {spec: spec, err: "its spec.secretRef names Secret karmada-cluster/m1, which does not exist"},
		"no token": {spec: spec, data: map[string]string{"caBundle": ca},
			err: "key token of Secret karmada-cluster/m1 is missing or empty"},
		"a broken token": {spec: spec, data: map[string]string{"token": "a\nb"},
			err: "key token of Secret karmada-cluster/m1 is no token"},
		"no certificates": {spec: spec, data: map[string]string{"token": "t", "caBundle": "x"},
			err: "key caBundle of Secret karmada-cluster/m1 holds no certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			var secret *corev1.Secret
			if tt.data != nil {
				secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-cluster", Name: "m1"}, Data: map[string][]byte{}}
				for k, v := range tt.data {
					secret.Data[k] = []byte(v)
				}
			}
			got, err := ConfigOf(&clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "m1"}, Spec: tt.spec}, secret)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || !strings.HasPrefix(err.Error(), "cluster m1 cannot be asked") {
					t.Errorf("%v, want it to say %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(Config{})); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// The connection trusts what it is notified to, carries the token, and closing it ends what is
// open.
func TestOpen(t *testing.T) {
	var token string
	server, ca := authority(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token = r.Header.Get("Authorization")
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"gitVersion":"v9"}`)) // the client sees what is missing
	}))
	other := anotherAuthority(t)
	for name, tt := range map[string]struct {
		config Config
		want   string // of the error
	}{
		"its authority":       {Config{Endpoint: server.URL, Token: "t", ca: ca}, ""},
		"any certificate":     {Config{Endpoint: server.URL, Token: "t", insecure: true}, ""},
		"another authority":   {Config{Endpoint: server.URL, Token: "t", ca: other}, "certificate"},
		"roots of the system": {Config{Endpoint: server.URL, Token: "t"}, "certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			way, err := tt.config.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer way.Close()
			c, err := discovery.NewDiscoveryClientForConfig(way.Config)
			if err != nil {
				t.Fatal(err)
			}
			token = ""
			v, err := c.ServerVersion()
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) || token != "" {
					t.Errorf("%v, want a refused certificate; the server saw %q", err, token)
				}
				return
			}
			if err != nil || v.GitVersion != "v9" || token != "Bearer t" {
				t.Errorf("version %v, %v; the server saw %q", v, err, token)
			}
		})
	}
}

// Karmada, spec.proxyURL and proxyHeader: the proxy is asked for the member, with the
// headers.
func TestProxy(t *testing.T) {
	asked := make(chan *http.Request, 1)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r:
		default: // the first is enough
		}
		w.WriteHeader(http.StatusForbidden)
	}))
	defer proxy.Close()
	way, err := Config{
		Endpoint: "https://member.example:6443", Token: "t", proxy: proxy.URL, proxyHeader: http.Header{"X-Two": {"b", "c"}},
	}.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer way.Close()
	c, err := discovery.NewDiscoveryClientForConfig(way.Config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.ServerVersion(); err == nil {
		t.Error("the proxy refuses, and there is an answer")
	}
	r := <-asked
	if r.Method != http.MethodConnect || r.Host != "member.example:6443" || !cmp.Equal(r.Header["X-Two"], []string{"b", "c"}) {
		t.Errorf("the proxy was asked %s %s with %v", r.Method, r.Host, r.Header)
	}
	if r.Header.Get("Authorization") != "" {
		t.Error("the proxy was told the token")
	}
}
