package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Untyped reads an object without a Go type from its text, which is valid during the call only. The cache's transformation must
// make the same of an object from a list, and leave what this has made as it is.
type UntypedDecoder func(text []byte) (*unstructured.Unstructured, error)

// NewCache is cache.New with other watches, for a cache of all namespaces. Options must have HTTPClient and Mapper, as a manager
// gives them. Objects that come as protobuf, or as metadata only, are read as before; read is nil: objects without a Go type are
// maps.
func NewStreamCache(read UntypedDecoder) cache.NewCacheFunc {
	return func(config *rest.Config, opts cache.Options) (cache.Cache, error) {
		if opts.HTTPClient == nil || opts.Mapper == nil {
			return nil, errors.New("make a cache: HTTPClient and Mapper must be set")
		}
		if opts.ByObject != nil || opts.DefaultNamespaces != nil || opts.DefaultFieldSelector != nil {
			return nil, errors.New("make a cache: its watches select by label only, the same for all kinds")
		}
		if opts.Scheme == nil {
			opts.Scheme = clientgoscheme.Scheme
		}
		opts.NewInformer = watchSource{
			config: config, http: opts.HTTPClient, mapper: opts.Mapper, scheme: opts.Scheme,
			selector: opts.DefaultLabelSelector, untyped: read,
		}.informer
		return cache.New(config, opts)
	}
}

// source is an API server whose objects a cache has.
type watchSource struct {
	config   *rest.Config
	http     *http.Client
	mapper   meta.RESTMapper
	scheme   *runtime.Scheme
	selector labels.Selector // nil: everything
	untyped  UntypedDecoder
}

// informer is cache.Options.NewInformer.
func (s watchSource) informer(lw toolscache.ListerWatcher, of runtime.Object, resync time.Duration,
	indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	if gvk, newObject := s.asJSON(of); newObject != nil {
		all := toolscache.ToListerWatcherWithContext(lw)
		lw = &toolscache.ListWatch{
			ListWithContextFunc: all.ListWithContext,
			WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
				return s.watch(ctx, gvk, newObject, opts)
			},
		}
	}
	return toolscache.NewSharedIndexInformer(lw, of, resync, indexers)
}

// asJSON says how an object of the kind is read; nil: it does not come as JSON.
func (s watchSource) asJSON(of runtime.Object) (schema.GroupVersionKind, func() object) {
	switch of := of.(type) {
	case *unstructured.Unstructured:
		return of.GroupVersionKind(), func() object { return untyped{s.untyped} }
	case *metav1.PartialObjectMetadata:
		return schema.GroupVersionKind{}, nil
	}
	gvk, err := apiutil.GVKForObject(of, s.scheme)
	if err != nil || clientgoscheme.Scheme.Recognizes(gvk) {
		return gvk, nil // who makes the informer says what is wrong with a kind
	}
	return gvk, func() object {
		obj, err := s.scheme.New(gvk)
		if err != nil {
			panic(fmt.Sprintf("make an object of %s, which the scheme has named itself: %v", gvk, err))
		}
		return &typed{obj}
	}
}

// watch begins a watch of a kind.
func (s watchSource) watch(ctx context.Context, gvk schema.GroupVersionKind, newObject func() object,
	opts metav1.ListOptions) (watch.Interface, error) {
	mapping, err := s.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, err
	}
	client, err := s.client(gvk.GroupVersion())
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", mapping.Resource.GroupResource(), err)
	}
	opts.Watch = true
	if s.selector != nil {
		opts.LabelSelector = s.selector.String()
	}
	body, err := client.Get().Resource(mapping.Resource.Resource).
		SpecificallyVersionedParams(&opts, metav1.ParameterCodec, metav1.Unversioned).Stream(ctx)
	if utilnet.IsProbableEOF(err) || utilnet.IsTimeout(err) {
		return watch.NewEmptyWatch(), nil // as client-go's: the next one goes on where the last one was
	}
	if err != nil {
		return nil, err
	}
	undecodable := apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, "ClientWatchDecoding")
	return watch.NewStreamWatcher(newDecoder(body, newObject), undecodable), nil
}

func (s watchSource) client(gv schema.GroupVersion) (*rest.RESTClient, error) {
	c := rest.CopyConfig(s.config)
	c.GroupVersion, c.APIPath = &gv, "/apis"
	if gv.Group == "" {
		c.APIPath = "/api"
	}
	c.QPS, c.RateLimiter = -1, nil                                     // watches are not limited
	c.NegotiatedSerializer = clientgoscheme.Codecs.WithoutConversion() // for refusals
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	return rest.RESTClientForConfigAndClient(c, s.http)
}
