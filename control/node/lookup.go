package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pelago-net/pelago/control/node/tables"
)

const (
	// maxBody bounds the part of a response that is read, in bytes.
	maxBody      = 64 << 10
	maxRedirects = 5
)

// NameResolver resolves DNS names; *net.Resolver implements it.
type NameResolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// lookup queries sources. It has no state.
type lookup struct {
	names   NameResolver
	service func(ctx context.Context, name string) (*corev1.Service, error)
	client  *http.Client
	bound   time.Duration // of one source
}

// first queries the sources in order and returns the first result, or the errors of all.
func (l lookup) first(ctx context.Context, all []tables.PublicIPSource) (tables.PublicIPSource, netip.Addr, error) {
	var errs []error
	for _, s := range all {
		address, err := l.one(ctx, s)
		if err == nil {
			return s, address, nil
		}
		if ctx.Err() != nil { // the sources changed, or the process ends
			return tables.PublicIPSource{}, netip.Addr{}, ctx.Err()
		}
		errs = append(errs, fmt.Errorf("look up %s: %w", s, err))
	}
	return tables.PublicIPSource{}, netip.Addr{}, errors.Join(errs...)
}

func (l lookup) one(ctx context.Context, s tables.PublicIPSource) (netip.Addr, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, l.bound, fmt.Errorf("no answer in %s", l.bound))
	defer cancel()
	var address netip.Addr
	var err error
	switch s.Method {
	case tables.IPv4, tables.ExternalIP:
		address, err = netip.ParseAddr(s.Argument)
	case tables.DNS:
		address, err = l.name(ctx, s.Argument)
	case tables.LoadBalancer:
		address, err = l.loadBalancer(ctx, s.Argument)
	case tables.API:
		address, err = l.api(ctx, "https://"+s.Argument)
	}
	if ctx.Err() != nil {
		return netip.Addr{}, context.Cause(ctx)
	}
	if err != nil {
		return netip.Addr{}, err
	}
	return address, tables.UsableAddress(address)
}

// name returns the lowest A record, so that all gateways and all look-ups choose the same of
// several.
func (l lookup) name(ctx context.Context, host string) (netip.Addr, error) {
	all, err := l.names.LookupNetIP(ctx, "ip4", host)
	if err != nil {
		return netip.Addr{}, err
	}
	for i := range all {
		all[i] = all[i].Unmap()
	}
	all = slices.DeleteFunc(all, func(a netip.Addr) bool { return !a.Is4() })
	if len(all) == 0 {
		return netip.Addr{}, fmt.Errorf("the name %s has no A record", host)
	}
	return slices.MinFunc(all, netip.Addr.Compare), nil
}

func (l lookup) loadBalancer(ctx context.Context, name string) (netip.Addr, error) {
	s, err := l.service(ctx, name)
	if err != nil {
		return netip.Addr{}, err
	}
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return netip.Addr{}, fmt.Errorf("the Service %s/%s is of type %s: make it a LoadBalancer", s.Namespace, name, s.Spec.Type)
	}
	var addresses []netip.Addr
	for _, i := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(i.IP); err == nil && a.Unmap().Is4() {
			addresses = append(addresses, a.Unmap())
		}
	}
	if len(addresses) > 0 {
		return slices.MinFunc(addresses, netip.Addr.Compare), nil
	}
	for _, i := range s.Status.LoadBalancer.Ingress {
		if i.Hostname != "" {
			return l.name(ctx, i.Hostname)
		}
	}
	return netip.Addr{}, fmt.Errorf("the Service %s/%s has no IPv4 address yet", s.Namespace, name)
}

func (l lookup) api(ctx context.Context, url string) (netip.Addr, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return netip.Addr{}, err
	}
	req.Header.Set("Accept", "text/plain, application/json;q=0.9, */*;q=0.5")
	resp, err := l.client.Do(req)
	if err != nil {
		return netip.Addr{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return netip.Addr{}, fmt.Errorf("the server answers %s", resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("read the answer: %w", err)
	}
	address, ok := firstIPv4(body)
	if !ok {
		return netip.Addr{}, fmt.Errorf("there is no IPv4 address in the first %d bytes of the answer", len(body))
	}
	return address, nil
}

// firstIPv4 finds the first dotted quad that stands by itself: not part of a word, a version or a
// longer row of numbers.
func firstIPv4(text []byte) (netip.Addr, bool) {
	part := func(c byte) bool { return c == '.' || c >= '0' && c <= '9' }
	word := func(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' || c == '-' }
	for i := 0; i < len(text); i++ {
		if !part(text[i]) {
			continue
		}
		end := i
		for end < len(text) && part(text[end]) {
			end++
		}
		run := text[i:end]
		if n := len(run); run[n-1] == '.' {
			run = run[:n-1] // the end of a sentence
		}
		free := (i == 0 || !word(text[i-1])) && (end == len(text) || !word(text[end]))
		if a, err := netip.ParseAddr(string(run)); free && err == nil && a.Is4() {
			return a, true
		}
		i = end
	}
	return netip.Addr{}, false
}

// publicIPClient returns a client for https only, also after a redirect. It dials by IPv4, so that
// the server sees our IPv4 address.
func publicIPClient(transport http.RoundTripper) *http.Client {
	if transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		dialer := &net.Dialer{}
		t.DialContext = func(ctx context.Context, _, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp4", address)
		}
		t.DisableKeepAlives = true // the next request is a minute away, and may take another route
		transport = t
	}
	return &http.Client{Transport: transport, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if req.URL.Scheme != "https" {
			return fmt.Errorf("redirected to %s, which is not https", req.URL.Redacted())
		}
		if len(via) > maxRedirects {
			return fmt.Errorf("redirected more than %d times", maxRedirects)
		}
		return nil
	}}
}
