package access

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// karmadaClusters is the path of Clusters, below which Karmada's API server has clusters/proxy.
var karmadaClusters = "/apis/" + clusterv1alpha1.GroupVersion.String() + "/clusters/"

var karmadaResource = schema.GroupResource{Group: clusterv1alpha1.GroupVersion.Group, Resource: "clusters"}

// frontHandler serves the API of the hub as Karmada's API server does: clusters/NAME/proxy of
// cluster.karmada.io leads to a member, every other request to the hub's API server. That
// authenticates and authorizes all of them under the caller's own credential.
type frontHandler struct {
	members *proxyHandler
	hub     *route // without a credential: that of the request is forwarded
	account *route // as the hub's account
	// certificate returns the user of the client certificate of a request.
	certificate func(*http.Request) (*authenticator.Response, bool, error)
}

// ServeHTTP implements http.Handler.
func (f *frontHandler) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	q = q.Clone(q.Context())
	to, err := f.caller(q)
	if err != nil {
		refuse(w, err)
		return
	}
	name, subresource, rest, ok := split(q.URL, karmadaClusters)
	switch {
	case !ok:
		refuse(w, badPath(q))
	case subresource != "proxy":
		f.members.toHub(w, q, to, nil)
	case name == "*":
		refuse(w, apierrors.NewBadRequest("clusters/*/proxy is not served: `pelago get KIND` lists over members, and so "+
			"does "+searchRoot+"/proxying/karmada/proxy, for kinds of a ResourceRegistry"))
	default:
		who, err := f.admit(q, to, name)
		if err != nil {
			refuse(w, err)
			return
		}
		f.members.serve(w, q, who, karmadaResource, name, subresource, rest)
	}
}

// caller returns the route to the hub's API server as the caller of a request, whose headers it
// makes those to be forwarded. As at the API server, a valid client certificate comes before a
// token.
func (f *frontHandler) caller(q *http.Request) (*route, error) {
	for name := range q.Header {
		// they count for the API server's front proxy alone
		if strings.HasPrefix(name, "X-Remote-") {
			q.Header.Del(name)
		}
	}
	q.Header.Del("X-Forwarded-For")
	if host, _, err := net.SplitHostPort(q.RemoteAddr); err == nil {
		q.Header.Set("X-Forwarded-For", host)
	}
	if q.TLS == nil || len(q.TLS.PeerCertificates) == 0 {
		return f.hub, nil
	}
	who, ok, err := f.certificate(q)
	var status *apierrors.StatusError
	switch {
	case ok && err == nil:
	case q.Header.Get("Authorization") != "":
		return f.hub, nil
	case errors.As(err, &status):
		return nil, status
	default:
		return nil, apierrors.NewUnauthorized(fmt.Sprintf("the client certificate is not one of the hub: %v", err))
	}
	q.Header.Del("Authorization") // otherwise it would replace that of the hub's account
	for name := range q.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			return nil, rejection(http.StatusForbidden, metav1.StatusReasonForbidden, "a client certificate does not "+
				"impersonate at this address: use a token, or the address of the hub's API server")
		}
	}
	return f.account.as(who.User), nil
}

// admit returns the user of a request, after impersonation, if the hub's API server lets the user
// enter a cluster: the verb on clusters/proxy of cluster.karmada.io, as at Karmada. Any
// authenticated user may create these two reviews.
func (f *frontHandler) admit(q *http.Request, to *route, name string) (user.Info, error) {
	access := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb(q.Method), Group: karmadaResource.Group,
			Version: clusterv1alpha1.GroupVersion.Version, Resource: karmadaResource.Resource, Subresource: "proxy", Name: name}}}
	access.SetGroupVersionKind(authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"))
	self := &authenticationv1.SelfSubjectReview{}
	self.SetGroupVersionKind(authenticationv1.SchemeGroupVersion.WithKind("SelfSubjectReview"))
	if err := f.review(q, to, "selfsubjectreviews", self); err != nil {
		return nil, err
	}
	if err := f.review(q, to, "selfsubjectaccessreviews", access); err != nil {
		return nil, err
	}
	is := self.Status.UserInfo
	who := &user.DefaultInfo{Name: is.Username, UID: is.UID, Groups: is.Groups, Extra: map[string][]string{}}
	for key, values := range is.Extra {
		who.Extra[key] = values
	}
	if !access.Status.Allowed {
		return nil, apierrors.NewForbidden(karmadaResource, name, fmt.Errorf("user %q cannot %s resource \"clusters/proxy\" in "+
			"API group %q", who.Name, verb(q.Method), karmadaResource.Group))
	}
	return who, nil
}

// review creates a review as the caller of a request and reads the answer into it. The error is a
// *StatusError.
func (f *frontHandler) review(q *http.Request, to *route, resource string, review runtime.Object) error {
	gvk := review.GetObjectKind().GroupVersionKind()
	body, err := json.Marshal(review)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	at := to.URL.JoinPath("apis", gvk.Group, gvk.Version, resource)
	ask, err := http.NewRequestWithContext(q.Context(), http.MethodPost, at.String(), bytes.NewReader(body))
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	identify(q, ask)
	ask.Header.Set("Content-Type", "application/json")
	ask.Header.Set("Accept", "application/json")
	ask.Header["X-Forwarded-For"] = q.Header["X-Forwarded-For"]
	r, err := to.Plain.RoundTrip(ask)
	if err != nil {
		return unavailable("the hub's API server does not answer: %v", err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusCreated {
		return answered(r, "create", schema.GroupResource{Group: gvk.Group, Resource: resource}, "")
	}
	if err := json.NewDecoder(io.LimitReader(r.Body, maxStatus)).Decode(review); err != nil {
		return apierrors.NewInternalError(fmt.Errorf("read the %s of the hub's API server: %w", gvk.Kind, err))
	}
	return nil
}

// identify copies the credential and the impersonation of a request.
func identify(from, to *http.Request) {
	for name, values := range from.Header {
		if name == "Authorization" || strings.HasPrefix(name, "Impersonate-") {
			to.Header[name] = values
		}
	}
}

// frontServer is the HTTPS server of frontHandler.
type frontServer struct {
	*server
	handler     http.Handler
	certificate *certwatcher.CertWatcher
}

// setupFront adds the server to the manager.
func setupFront(mgr manager.Manager, s *server, h *proxyHandler) error {
	f := &frontHandler{members: h, account: h.hub, certificate: s.authenticateCertificate}
	var err error
	if f.hub, err = newRouteTo(rest.AnonymousClientConfig(s.Hub)); err != nil {
		return err
	}
	f.hub.set = identify
	server := &frontServer{server: s, handler: f}
	if server.certificate, err = certwatcher.New(s.Karmada.CertFile, s.Karmada.KeyFile); err != nil {
		return fmt.Errorf("read the certificate of the address for Karmada's tools: %w", err)
	}
	return errors.Join(mgr.Add(server.certificate), mgr.Add(server))
}

// Start serves until ctx ends.
func (s *frontServer) Start(ctx context.Context) error {
	return s.listen(ctx, s.Karmada.Address, s.handler, s.certificate.GetCertificate, func(bool) {})
}
