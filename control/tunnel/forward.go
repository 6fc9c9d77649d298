package tunnel

import (
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
)

// Forward sends requests to the API server at a URL: those that switch protocols (SPDY, WebSocket)
// by upgrade, which must not negotiate HTTP/2, all others by plain. A credential of a request, and
// impersonation, are forwarded only if the caller's set, which may be nil, adds them. Answers are
// forwarded as they come, as logs and watches need it. The caller may set ModifyResponse and
// ErrorHandler.
func Forward(to *url.URL, plain, upgrade http.RoundTripper, set func(in, out *http.Request)) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		FlushInterval: -1,
		Transport:     byProtocol{plain, upgrade},
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(to)
			p.Out.Header.Del("Authorization")
			for name := range p.Out.Header {
				if strings.HasPrefix(name, "Impersonate-") {
					p.Out.Header.Del(name)
				}
			}
			// for the audit log of the API server
			if from := p.In.Header["X-Forwarded-For"]; from != nil {
				p.Out.Header["X-Forwarded-For"] = from
			}
			if p.Out.Body != nil && p.Out.Body != http.NoBody {
				body := &unread{ReadCloser: p.Out.Body}
				p.Out.Body, p.Out.GetBody = body, body.again
			}
			if set != nil {
				set(p.In, p.Out)
			}
		},
	}
}

type byProtocol struct{ plain, upgrade http.RoundTripper }

func (b byProtocol) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Header.Get("Upgrade") != "" {
		return b.upgrade.RoundTrip(q)
	}
	return b.plain.RoundTrip(q)
}

// unread is a body that may be sent by another attempt as long as none has read from it. The server
// closes it.
type unread struct {
	io.ReadCloser
	begun atomic.Bool
}

func (u *unread) Read(p []byte) (int, error) {
	u.begun.Store(true)
	return u.ReadCloser.Read(p)
}

func (u *unread) Close() error { return nil }

func (u *unread) again() (io.ReadCloser, error) {
	if u.begun.Load() {
		return nil, http.ErrBodyReadAfterClose
	}
	return u, nil
}
