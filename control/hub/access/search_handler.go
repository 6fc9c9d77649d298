package access

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/semaphore"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	searchv1alpha1 "github.com/pelago-net/pelago/api/search/v1alpha1"
	"github.com/pelago-net/pelago/control/hub/access/merge"
	"github.com/pelago-net/pelago/control/hub/member"
)

const (
	// searchRoot is the path of the group, which Karmada's users know.
	searchRoot = "/apis/search.karmada.io/v1alpha1"
	// maxList bounds a list without limit, in bytes over all members, and maxLists how many of
	// these are merged at the same time.
	maxList, maxLists = 128 << 20, 4
	// maxWrite bounds a write, in bytes; an API server accepts 3 MiB.
	maxWrite = 8 << 20
)

// searchHandler serves search.karmada.io/v1alpha1: lists over members, and ResourceRegistries,
// which the hub's API server stores.
type searchHandler struct {
	*proxyHandler
	writer  client.Client // without the leader's fence
	lists   *semaphore.Weighted
	maxList int64
}

func newSearchHandler(h *proxyHandler, options client.Options, hub *rest.Config) (*searchHandler, error) {
	s := &searchHandler{proxyHandler: h, lists: semaphore.NewWeighted(maxLists), maxList: maxList}
	options.HTTPClient = &http.Client{Transport: h.hub.Plain}
	var err error
	if s.writer, err = client.New(hub, options); err != nil {
		return nil, fmt.Errorf("connect the search to the hub's API server: %w", err)
	}
	return s, nil
}

func (h *searchHandler) serve(w http.ResponseWriter, q *http.Request, who user.Info) {
	path, raw := strings.TrimPrefix(q.URL.Path, searchRoot), strings.TrimPrefix(q.URL.RawPath, searchRoot)
	cut := func(prefix string) bool {
		rest, ok := strings.CutPrefix(path, prefix)
		if ok = ok && (rest == "" || rest[0] == '/'); ok {
			path, raw = cmp.Or(rest, "/"), strings.TrimPrefix(raw, prefix)
		}
		return ok
	}
	err := error(apierrors.NewGenericServerResponse(http.StatusNotFound, q.Method, resource, "", "the path is not served", 0, true))
	switch {
	case !plainPath(q.URL.Path):
		err = badPath(q)
	case path == "" || path == "/":
		err = h.discover(w, q)
	case strings.HasPrefix(path, "/resourceregistries"):
		err = h.registries(w, q, who)
	case cut("/search/cache"):
		if t, ok := parseTarget(path); ok && q.Method == http.MethodGet {
			err = h.search(w, q, who, t)
		}
	case cut("/proxying/karmada/proxy"):
		q = q.Clone(q.Context())
		q.URL.Path, q.URL.RawPath = path, raw
		err = h.proxying(w, q, who)
	}
	if err != nil {
		refuse(w, err)
	}
}

// sources reads what is selected from the cache, whose objects are not changed.
func (h *searchHandler) sources(ctx context.Context, t target) (out []source, kind string, selected bool, err error) {
	var registries searchv1alpha1.ResourceRegistryList
	var clusters clusterv1alpha1.ClusterList
	if err := errors.Join(h.clusters.List(ctx, &registries, client.UnsafeDisableDeepCopy), h.clusters.List(ctx, &clusters, client.UnsafeDisableDeepCopy)); err != nil {
		return nil, "", false, apierrors.NewInternalError(fmt.Errorf("list ResourceRegistries and Clusters: %w", err))
	}
	out, kind, selected = sources(t, registries.Items, clusters.Items)
	return out, kind, selected, nil
}

// merge is how the sources are read for a user.
func (h *searchHandler) merge(ctx context.Context, who user.Info, t target, of []source, kind, accept string) *merge.Lists {
	m := &merge.Lists{Parts: parts(of), Kind: kind + "List", APIVersion: t.GroupVersion().String(), MaxBytes: h.maxList, Full: h.lists}
	if kind == "" {
		m.APIVersion = "v1"
	}
	enter := sync.OnceValue(func() func(*clusterv1alpha1.Cluster) error { return h.mayEnter(ctx, who, "get") })
	m.Ask = func(ctx context.Context, i int, query url.Values) (io.ReadCloser, error) {
		if err := enter()(of[i].cluster); err != nil {
			return nil, err
		}
		return h.ask(ctx, who, of[i], query, accept)
	}
	return m
}

// search answers with a list, also for one object, as Karmada does.
func (h *searchHandler) search(w http.ResponseWriter, q *http.Request, who user.Info, t target) error {
	query := q.URL.Query()
	query.Del("watch") // only proxying watches
	if t.name != "" {
		query.Set("fieldSelector", "metadata.name="+t.name)
		t.name = ""
	}
	of, kind, _, err := h.sources(q.Context(), t)
	if err != nil {
		return err
	}
	return h.merge(q.Context(), who, t, of, kind, "application/json").List(q.Context(), w, query)
}

// proxying serves the API of a cluster: objects of selected kinds from members, everything else
// from the hub's API server.
func (h *searchHandler) proxying(w http.ResponseWriter, q *http.Request, who user.Info) error {
	t, ok := parseTarget(q.URL.Path)
	if !ok {
		h.toHub(w, q, h.hub.as(who), nil)
		return nil
	}
	of, kind, selected, err := h.sources(q.Context(), t)
	switch {
	case err != nil:
		return err
	case !selected:
		h.toHub(w, q, h.hub.as(who), nil)
		return nil
	}
	ctx, reads, query := q.Context(), q.Method == http.MethodGet && t.sub == "", q.URL.Query()
	accept := "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	if reads {
		if accept, err = jsonOnly(q); err != nil {
			return err
		}
	}
	m := h.merge(ctx, who, t, of, kind, accept)
	switch watches, _ := strconv.ParseBool(query.Get("watch")); {
	case reads && watches:
		return m.Watch(ctx, w, query, func() []merge.Part {
			now, _, _, err := h.sources(ctx, t)
			if err != nil {
				now = of
			}
			return parts(now)
		})
	case reads && t.name == "":
		return m.List(ctx, w, query)
	case t.name == "":
		return rejection(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "the request names no cluster: create or delete objects at "+
			"the hub, with a policy, or in a member at "+pelagov1alpha1.ProxyPath("NAME", "proxy"))
	case !reads:
		query = nil
	}
	found, errs := m.Get(ctx, query)
	i, err := one(t, of, errs, !reads)
	if err != nil {
		return err
	}
	if reads {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(found[i]) // the client has gone
		return nil
	}
	if t.sub == "" || q.Method == http.MethodPut || q.Method == http.MethodPatch {
		if err := restore(q, of[i]); err != nil {
			return err
		}
	}
	if err := h.mayEnter(ctx, who, verb(q.Method))(of[i].cluster); err != nil {
		return err
	}
	h.forward(w, q, who, of[i].cluster, q.URL)
	return nil
}

func rejection(code int32, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}}
}

// one is the source that has the object. A write is refused if a member did not answer: it may have
// an object of this name, too.
func one(t target, of []source, errs []error, write bool) (found int, err error) {
	found = -1
	var names []string
	for i, e := range errs {
		switch {
		case e == nil:
			found, names = i, append(names, of[i].cluster.Name)
		case apierrors.IsForbidden(e) && !apierrors.IsForbidden(err) || !apierrors.IsForbidden(e) && !apierrors.IsNotFound(e):
			err = e
		}
	}
	switch {
	case len(names) > 1:
		return -1, apierrors.NewConflict(t.GroupResource(), t.name, fmt.Errorf("clusters %s have it: send the request to one of them, at %s",
			strings.Join(names, ", "), pelagov1alpha1.ProxyPath(names[0], "proxy")))
	case len(names) == 1 && (!write || err == nil || apierrors.IsForbidden(err)):
		return found, nil
	case err != nil:
		return -1, err
	}
	return -1, apierrors.NewNotFound(t.GroupResource(), t.name)
}

// mayEnter returns the check whether a user may send requests to a cluster: clusters/proxy of
// proxy.pelago.io, as for requests to it.
func (h *searchHandler) mayEnter(ctx context.Context, who user.Info, verb string) func(*clusterv1alpha1.Cluster) error {
	check := func(name string) error {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: map[string]authorizationv1.ExtraValue{},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: resource.Group, Version: pelagov1alpha1.ProxyVersion,
				Resource: resource.Resource, Subresource: "proxy", Name: name, Verb: verb}}}
		for key, values := range who.GetExtra() {
			review.Spec.Extra[key] = values
		}
		if err := h.writer.Create(ctx, review); err != nil {
			return apierrors.NewInternalError(fmt.Errorf("check whether user %s may %s clusters/proxy: %w", who.GetName(), verb, err))
		}
		if !review.Status.Allowed {
			return apierrors.NewForbidden(resource, name, fmt.Errorf("user %q cannot %s resource \"clusters/proxy\" in API group %q",
				who.GetName(), verb, resource.Group))
		}
		return nil
	}
	if check("") == nil {
		return func(*clusterv1alpha1.Cluster) error { return nil }
	}
	return func(c *clusterv1alpha1.Cluster) error { return check(c.Name) }
}

// verb is that of the hub's API server for a method.
func verb(method string) string {
	verb, ok := map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}[method]
	if !ok {
		return "get"
	}
	return verb
}

// ask reads from a member as a user. The error is a *StatusError.
func (h *searchHandler) ask(ctx context.Context, who user.Info, s source, query url.Values, accept string) (io.ReadCloser, error) {
	to, err := h.enter(ctx, who, s.cluster)
	if err != nil {
		return nil, err
	}
	u := to.URL.JoinPath(s.path())
	u.RawQuery = query.Encode()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	q.Header.Set("Accept", accept)
	q.Header.Set("User-Agent", member.UserAgent)
	r, err := to.Plain.RoundTrip(q)
	if err == nil {
		if err = explain(r, s.cluster); err == nil && r.StatusCode == http.StatusOK {
			return r.Body, nil
		}
		defer r.Body.Close()
	}
	var status *apierrors.StatusError
	switch {
	case errors.As(err, &status):
		return nil, status
	case err != nil:
		return nil, unavailable("cluster %s does not answer: %v (%s)", s.cluster.Name, err, readiness(s.cluster))
	}
	return nil, answered(r, "get", s.GroupResource(), s.name)
}

// answered is the error in an answer of an API server.
func answered(r *http.Response, verb string, of schema.GroupResource, name string) error {
	status := &apierrors.StatusError{}
	text, err := io.ReadAll(io.LimitReader(r.Body, maxStatus))
	if err != nil || json.Unmarshal(text, &status.ErrStatus) != nil || status.ErrStatus.Code == 0 {
		return apierrors.NewGenericServerResponse(r.StatusCode, verb, of, name, string(text), 0, true)
	}
	return status
}

// restore makes the body of a write what the member of the source expects (undress). Protobuf
// becomes JSON, unless fields would be lost that the kinds of this version of client-go do not
// have.
func restore(q *http.Request, s source) error {
	body, err := io.ReadAll(http.MaxBytesReader(nil, q.Body, maxWrite))
	if err != nil {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("read the request: %v", err))
	}
	kind, object := q.Header.Get("Content-Type"), map[string]any{}
	if strings.HasPrefix(kind, runtime.ContentTypeProtobuf) {
		o, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		var again bytes.Buffer
		// the scheme has it
		info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
		if err == nil {
			err = info.Serializer.Encode(o, &again)
		}
		if err != nil || !bytes.Equal(again.Bytes(), body) {
			return rejection(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
				"the "+s.Kind+" cannot be converted from protobuf: send application/json")
		}
		if object, err = runtime.DefaultUnstructuredConverter.ToUnstructured(o); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		q.Header.Set("Content-Type", "application/json")
	} else if text, err := yaml.YAMLToJSON(body); err != nil || utiljson.Unmarshal(text, &object) != nil {
		object = nil // not an object (a JSON patch), or invalid: the member's answer has the reason
	}
	changed, err := merge.Undress(object, s.Part)
	if err != nil {
		return apierrors.NewConflict(s.GroupResource(), s.name, err)
	}
	if changed || q.Header.Get("Content-Type") != kind {
		if body, err = json.Marshal(object); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
	}
	q.Body, q.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	q.Header.Set("Content-Length", strconv.Itoa(len(body)))
	return nil
}
