package access

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/tunnel"
)

const (
	root = "/apis/" + pelagov1alpha1.ProxyGroup + "/" + pelagov1alpha1.ProxyVersion
	// maxStatus bounds what is read of an error that a member returns, in bytes.
	maxStatus = 1 << 16
	// retryAfter is when a client should repeat a request that found no tunnel, in seconds; another
	// replica may answer.
	retryAfter = "1"
)

var resource = schema.GroupResource{Group: pelagov1alpha1.ProxyGroup, Resource: "clusters"}

// proxyHandler serves the API.
type proxyHandler struct {
	clusters        client.Reader // cached
	live            client.Reader
	brokerNamespace string
	authenticate    func(*http.Request) (*authenticator.Response, bool, error)
	tunnels         *tunnels
	routes          routes
	hub             *route // to the API server, as the hub's account; nil: none
	search          *searchHandler
	log             *slog.Logger
}

// ServeHTTP serves the discovery of the group, and the subresources proxy and attach of clusters,
// and the group search.karmada.io.
func (h *proxyHandler) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	who, ok, err := h.authenticate(q)
	if err != nil || !ok {
		h.log.Warn("a request that does not come from the hub's API server was refused", "from", q.RemoteAddr, "error", err)
		refuse(w, apierrors.NewUnauthorized("only the hub's API server may connect: send requests there"))
		return
	}
	name, subresource, rest, ok := split(q.URL, root+"/clusters/")
	switch {
	case h.search != nil && strings.HasPrefix(q.URL.Path, searchRoot):
		h.search.serve(w, q, who.User)
	case strings.TrimSuffix(q.URL.Path, "/") == root:
		write(w, http.StatusOK, subresources())
	case !ok:
		refuse(w, badPath(q))
	case name == "":
		refuse(w, apierrors.NewGenericServerResponse(http.StatusNotFound, q.Method, resource, "", "the path is not served", 0, true))
	default:
		h.serve(w, q, who.User, resource, name, subresource, rest)
	}
}

// serve serves a subresource of a cluster, whose API group is that of the path.
func (h *proxyHandler) serve(w http.ResponseWriter, q *http.Request, who user.Info, of schema.GroupResource,
	name, subresource string, rest *url.URL) {
	c := &clusterv1alpha1.Cluster{}
	err := h.clusters.Get(q.Context(), client.ObjectKey{Name: name}, c)
	switch {
	case apierrors.IsNotFound(err):
		h.routes.close(name)
		refuse(w, apierrors.NewNotFound(of, name))
	case err != nil:
		refuse(w, apierrors.NewInternalError(fmt.Errorf("read Cluster %s: %w", name, err)))
	case !c.Member():
		refuse(w, unavailable("cluster %s is not a member: %s", name, readiness(c)))
	case subresource == "attach":
		account := serviceaccount.MakeUsername(h.brokerNamespace, "cluster-"+name)
		if who.GetName() != account || c.Spec.SyncMode != clusterv1alpha1.Pull {
			refuse(w, apierrors.NewForbidden(resource, name, fmt.Errorf("only the agent of a pull member attaches it, as %s", account)))
			return
		}
		if !c.Accepted() {
			refuse(w, apierrors.NewForbidden(resource, name, fmt.Errorf("an administrator of the hub accepts the cluster first: pelago clusters accept %s", name)))
			return
		}
		h.tunnels.attach(w, q, c)
	default:
		h.forward(w, q, who, c, rest)
	}
}

// forward sends a request to the member, with the name of the user.
func (h *proxyHandler) forward(w http.ResponseWriter, q *http.Request, who user.Info, c *clusterv1alpha1.Cluster, rest *url.URL) {
	to, err := h.enter(q.Context(), who, c)
	if err != nil {
		refuse(w, err)
		return
	}
	p := tunnel.Forward(to.URL, to.Plain, to.Upgrade, nil)
	p.ModifyResponse = func(r *http.Response) error { return explain(r, c) }
	p.ErrorHandler = func(w http.ResponseWriter, q *http.Request, err error) {
		if q.Context().Err() != nil {
			return // the client has gone
		}
		var status *apierrors.StatusError
		if !errors.As(err, &status) {
			status = unavailable("cluster %s does not answer: %v (%s)", c.Name, err, readiness(c))
		}
		refuse(w, status)
	}
	p.ErrorLog = slog.NewLogLogger(h.log.Handler(), slog.LevelDebug)
	q = q.Clone(q.Context())
	q.URL.Path, q.URL.RawPath = rest.Path, rest.RawPath
	p.ServeHTTP(w, q)
}

// enter returns how a member is reached for a user: the transports have the credential and
// impersonate.
func (h *proxyHandler) enter(ctx context.Context, who user.Info, c *clusterv1alpha1.Cluster) (*route, error) {
	as, err := impersonation(who)
	if err != nil {
		return nil, apierrors.NewForbidden(resource, c.Name, err)
	}
	to, err := h.route(ctx, c)
	if err != nil {
		return nil, err
	}
	with := func(next http.RoundTripper) http.RoundTripper {
		next = transport.NewImpersonatingRoundTripper(as, next)
		if to.Token == "" {
			return next
		}
		return transport.NewBearerAuthRoundTripper(to.Token, next)
	}
	return &route{URL: to.URL, Plain: with(to.Plain), Upgrade: with(to.Upgrade)}, nil
}

// route returns how a member is reached.
func (h *proxyHandler) route(ctx context.Context, c *clusterv1alpha1.Cluster) (*route, error) {
	if c.Spec.SyncMode == clusterv1alpha1.Pull {
		t := h.tunnels.to(c)
		if t == nil {
			return nil, unavailable("cluster %s has no tunnel to this replica of pelago-hub (%s): see the log of pelago-agent-execution there",
				c.Name, readiness(c))
		}
		return &route{URL: &url.URL{Scheme: "http", Host: c.Name}, Plain: t, Upgrade: t}, nil
	}
	var secrets [2]*corev1.Secret
	for i, ref := range []*clusterv1alpha1.SecretReference{c.Spec.SecretRef, c.Spec.ImpersonatorSecretRef} {
		if ref == nil {
			continue
		}
		secrets[i] = &corev1.Secret{}
		err := h.live.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, secrets[i])
		if apierrors.IsNotFound(err) {
			secrets[i] = nil
		} else if err != nil {
			return nil, apierrors.NewInternalError(fmt.Errorf("read Secret %s/%s of cluster %s: %w", ref.Namespace, ref.Name, c.Name, err))
		}
	}
	to, err := h.routes.to(c, secrets[0], secrets[1])
	if err != nil {
		return nil, unavailable("%v", err)
	}
	return to, nil
}

// impersonation returns the identity of a user in a member. Components of the hub are rejected: the
// member's own components have the same names. Groups with the prefix system:, above all
// system:masters, are removed for the same reason, and those of kubeadm, whose administrators have
// all rights in members that kubeadm made; the member adds those that every user and ServiceAccount
// has.
func impersonation(who user.Info) (transport.ImpersonationConfig, error) {
	name := who.GetName()
	if strings.HasPrefix(name, "system:") && !strings.HasPrefix(name, serviceaccount.ServiceAccountUsernamePrefix) {
		return transport.ImpersonationConfig{}, fmt.Errorf("user %s is a component of the hub: members are reached as a user or ServiceAccount", name)
	}
	out := transport.ImpersonationConfig{UserName: name, Extra: map[string][]string{}}
	for _, g := range who.GetGroups() {
		if !strings.HasPrefix(g, "system:") && !strings.HasPrefix(g, "kubeadm:") {
			out.Groups = append(out.Groups, g)
		}
	}
	for key, values := range who.GetExtra() {
		// about the credential at the hub
		if !strings.HasPrefix(key, "authentication.kubernetes.io/") {
			out.Extra[key] = values
		}
	}
	return out, nil
}

// explain replaces errors of the member that are about the hub's account, not about the user.
func explain(r *http.Response, c *clusterv1alpha1.Cluster) error {
	switch r.StatusCode {
	case http.StatusUnauthorized:
		return unavailable("cluster %s refuses the credential of the hub: join it again", c.Name)
	case http.StatusForbidden:
		head, err := io.ReadAll(io.LimitReader(r.Body, maxStatus))
		if err != nil {
			return fmt.Errorf("read the answer of cluster %s: %w", c.Name, err)
		}
		if bytes.Contains(head, []byte("cannot impersonate")) {
			var status metav1.Status
			_ = json.Unmarshal(head, &status) // the message is only added
			return unavailable("cluster %s does not let the hub act for users: join it again, which grants impersonate, or grant it to the account "+
				"of spec.impersonatorSecretRef: %s", c.Name, status.Message)
		}
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(head), r.Body), r.Body}
	}
	return nil
}

// split returns the parts of <prefix><name>/<subresource>/<rest>, where the prefix is the path of
// clusters; all are empty for other paths. It reads the path as the API server did when it
// authorized the request. ok is false if the rest would lead elsewhere in the member, or at an
// endpoint with a path, into another cluster.
func split(u *url.URL, prefix string) (name, subresource string, rest *url.URL, ok bool) {
	after, found := strings.CutPrefix(u.Path, prefix)
	if !found {
		return "", "", nil, true
	}
	parts := strings.SplitN(after, "/", 3)
	if len(parts) < 2 || parts[0] == "" || parts[1] != "proxy" && parts[1] != "attach" {
		return "", "", nil, true
	}
	rest = &url.URL{Path: "/"}
	if len(parts) == 3 {
		rest.Path += parts[2]
	}
	if u.RawPath != "" {
		raw, same := strings.CutPrefix(u.RawPath, prefix+parts[0]+"/"+parts[1])
		if !same {
			return "", "", nil, false
		}
		rest.RawPath = raw
	}
	return parts[0], parts[1], rest, plainPath(rest.Path)
}

func badPath(q *http.Request) error {
	return apierrors.NewBadRequest("the path " + q.URL.Path + " has segments that change it: use the plain path")
}

func plainPath(path string) bool {
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			return false
		}
	}
	return true
}

func readiness(c *clusterv1alpha1.Cluster) string {
	ready := c.Ready()
	if ready == nil {
		return "it has no condition Ready yet"
	}
	return fmt.Sprintf("Ready is %s, %s: %s", ready.Status, cmp.Or(ready.Reason, "no reason"), ready.Message)
}

func unavailable(format string, args ...any) *apierrors.StatusError {
	return apierrors.NewServiceUnavailable(fmt.Sprintf(format, args...))
}

// subresources lists only subresources: clusters without them are those of cluster.karmada.io.
func subresources() *metav1.APIResourceList {
	kind := schema.GroupVersionKind{Group: pelagov1alpha1.ProxyGroup, Version: pelagov1alpha1.ProxyVersion, Kind: "ClusterProxyOptions"}
	list := &metav1.APIResourceList{GroupVersion: kind.GroupVersion().String()}
	list.Kind, list.APIVersion = "APIResourceList", "v1"
	for _, sub := range []string{"attach", "proxy"} {
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: "clusters/" + sub, Kind: kind.Kind,
			Verbs: metav1.Verbs{"create", "delete", "get", "patch", "update"}})
	}
	return list
}

func refuse(w http.ResponseWriter, err error) {
	var status *apierrors.StatusError
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	if status.ErrStatus.Code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", retryAfter)
	}
	status.ErrStatus.Kind, status.ErrStatus.APIVersion = "Status", "v1"
	write(w, int(status.ErrStatus.Code), &status.ErrStatus)
}

func write(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client has gone
}
