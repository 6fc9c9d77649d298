package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/control/execute/collect"
	"github.com/pelago-net/pelago/control/hub/member"
	"github.com/pelago-net/pelago/control/tunnel"
)

// routes are the connections by which requests of users reach push members, separate from the hub's
// own: any replica has them, not only the leader. As there, only the cluster of spec.id gets a
// request.
type routes struct {
	mu sync.Mutex
	by map[string]*route
}

// route leads to the API server of one push member, or of the hub.
type route struct {
	URL            *url.URL
	Token          string            // of the account that may impersonate, in a push member
	Plain, Upgrade http.RoundTripper // to a push member: without credentials
	// set completes a request to the hub; nil: with nothing.
	set func(in, out *http.Request)

	config member.Config
	closes []func()
}

// to returns the route to a member, whose Secrets are those that spec.secretRef and
// spec.impersonatorSecretRef name; nil: none. Without the latter the hub's own account
// impersonates. The error names the object and key to correct.
func (rs *routes) to(c *clusterv1alpha1.Cluster, secret, impersonator *corev1.Secret) (*route, error) {
	r, err := member.ConfigOf(c, secret)
	if err != nil {
		return nil, err
	}
	token := r.Token
	if ref := c.Spec.ImpersonatorSecretRef; ref != nil {
		if impersonator != nil {
			token = strings.TrimSpace(string(impersonator.Data[clusterv1alpha1.SecretKeyToken]))
		}
		if impersonator == nil || token == "" {
			return nil, fmt.Errorf("cluster %s cannot be asked: its spec.impersonatorSecretRef names Secret %s/%s, which has no key %s: "+
				"correct it, or remove the reference to have the hub's own account impersonate",
				c.Name, ref.Namespace, ref.Name, clusterv1alpha1.SecretKeyToken)
		}
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	known := rs.by[c.Name]
	if known == nil || !reflect.DeepEqual(known.config, r) {
		next, err := newRoute(r)
		if err != nil {
			return nil, err
		}
		if known != nil {
			known.close()
		}
		if rs.by == nil {
			rs.by = map[string]*route{}
		}
		known = next
		rs.by[c.Name] = known
	}
	return &route{URL: known.URL, Token: token, Plain: known.Plain, Upgrade: known.Upgrade}, nil
}

// close ends the connections to a member, if there are any.
func (rs *routes) close(cluster string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if known := rs.by[cluster]; known != nil {
		known.close()
		delete(rs.by, cluster)
	}
}

func newRoute(r member.Config) (*route, error) {
	out := &route{config: r}
	var err error
	if out.URL, err = url.Parse(r.Endpoint); err != nil {
		return nil, fmt.Errorf("use spec.apiEndpoint %q of cluster %s: %w", r.Endpoint, r.Cluster, err)
	}
	for _, to := range []*http.RoundTripper{&out.Plain, &out.Upgrade} {
		l, err := r.Open()
		if err != nil {
			out.close()
			return nil, err
		}
		*to = l.Config.Transport
		ctx, cancel := context.WithCancel(context.Background())
		go l.Watch(ctx, collect.DefaultEvery)
		out.closes = append(out.closes, cancel, l.Close)
		r.Upgrades = true
	}
	return out, nil
}

func (r *route) close() {
	for _, end := range r.closes {
		end()
	}
}

// newRouteTo connects to the hub's API server: with HTTP/2, and without, for upgrades.
func newRouteTo(hub *rest.Config) (*route, error) {
	single := rest.CopyConfig(hub)
	single.NextProtos = []string{"http/1.1"}
	to := &route{}
	var errs [3]error
	to.URL, _, errs[0] = rest.DefaultServerUrlFor(hub)
	to.Plain, errs[1] = rest.TransportFor(hub)
	to.Upgrade, errs[2] = rest.TransportFor(single)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("connect to the hub's API server: %w", err)
	}
	return to, nil
}

// as is the route in the name of a user, whom the account of the route impersonates.
func (r *route) as(who user.Info) *route {
	c := transport.ImpersonationConfig{UserName: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(),
		Extra: who.GetExtra()}
	return &route{URL: r.URL, Plain: transport.NewImpersonatingRoundTripper(c, r.Plain),
		Upgrade: transport.NewImpersonatingRoundTripper(c, r.Upgrade)}
}

// toHub sends a request to the hub's API server by a route. change, if set, changes the answer.
func (h *proxyHandler) toHub(w http.ResponseWriter, q *http.Request, to *route, change func(*http.Response) error) {
	p := tunnel.Forward(to.URL, to.Plain, to.Upgrade, to.set)
	p.ModifyResponse = change
	p.ErrorHandler = func(w http.ResponseWriter, q *http.Request, err error) {
		if q.Context().Err() == nil { // otherwise the client has gone
			refuse(w, unavailable("the hub's API server does not answer: %v", err))
		}
	}
	p.ErrorLog = slog.NewLogLogger(h.log.Handler(), slog.LevelDebug)
	p.ServeHTTP(w, q)
}
