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

// Way is a proxy with its own TLS server in front of an API server, in which a test inspects every
// request.
type Way struct {
	// Config is access to the proxy. All requests are sent on with the credentials of its target,
	// whatever identity the caller presents.
	Config *rest.Config

	server *httptest.Server
}

// NewWay starts a proxy to a server. past wraps the transport of the requests; if that returns an
// error the response is 502.
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
