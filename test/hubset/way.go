package hubset

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"

	"k8s.io/client-go/rest"
)

// Way leads to an API server past a test that looks at every request, over a TLS server of its own.
type Way struct {
	// Config is the access to its beginning. Whoever comes has the rights of the one to whom it leads, whatever identity is shown.
	Config *rest.Config

	server *httptest.Server
}

// NewWay makes a way to a server. past is put in front of what makes the requests; if it fails the answer is 502.
func NewWay(to *rest.Config, past func(next http.RoundTripper) http.RoundTripper) (*Way, error) {
	target, err := url.Parse(to.Host)
	if err != nil {
		return nil, fmt.Errorf("make a way to %s: %w", to.Host, err)
	}
	next, err := rest.TransportFor(to)
	if err != nil {
		return nil, fmt.Errorf("make a way to %s: %w", to.Host, err)
	}
	s := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(target)
			p.Out.Header.Del("Authorization")
		},
		Transport:     past(next),
		FlushInterval: -1,
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	})
	s.EnableHTTP2 = true
	s.StartTLS()
	return &Way{server: s, Config: &rest.Config{Host: s.URL, BearerToken: "any", QPS: -1, TLSClientConfig: rest.TLSClientConfig{
		CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})}}}, nil
}

// Close ends it, watches included.
func (w *Way) Close() {
	w.server.CloseClientConnections() // watches would hold it
	w.server.Close()
}
