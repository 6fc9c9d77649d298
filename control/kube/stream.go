package kube

import (
	"bufio"
	"bytes"
	"context"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// UntypedDecoder decodes an object without a Go type from its text, which is valid during the call
// only. The cache's transform must turn a listed object into the same form, and must leave an
// object from this decoder unchanged.
type UntypedDecoder func(text []byte) (*unstructured.Unstructured, error)

// NewStreamCache is cache.New with other watches, for a cache of all namespaces. Options must have
// HTTPClient and Mapper, as a manager gives them. Objects that come as protobuf, or as metadata
// only, are read as before. If read is nil, objects without a Go type are maps.
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

// watchSource is an API server whose objects a cache has.
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
	return toolscache.NewSharedIndexInformer(CancelableListWatch(lw), of, resync, indexers)
}

// CancelableListWatch lets a reflector end with its context while the API server refuses
// connections. client-go sleeps out its backoff of up to 30 s after a streamed list that was
// refused (Reflector.watchList), whether the context has ended or not; after any other error it
// lists, and a failed list's backoff ends with the context.
func CancelableListWatch(lw toolscache.ListerWatcher) *toolscache.ListWatch {
	of := toolscache.ToListerWatcherWithContext(lw)
	return &toolscache.ListWatch{
		ListWithContextFunc: of.ListWithContext,
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			w, err := of.WatchWithContext(ctx, opts)
			if opts.SendInitialEvents != nil && utilnet.IsConnectionRefused(err) {
				err = errors.New(err.Error()) // without the errno by which the reflector knows it
			}
			return w, err
		},
	}
}

// asJSON is the decoder of the objects of the kind; nil: they are not encoded as JSON.
func (s watchSource) asJSON(of runtime.Object) (schema.GroupVersionKind, func() object) {
	switch of := of.(type) {
	case *unstructured.Unstructured:
		return of.GroupVersionKind(), func() object { return untyped{s.untyped} }
	case *metav1.PartialObjectMetadata:
		return schema.GroupVersionKind{}, nil
	}
	gvk, err := apiutil.GVKForObject(of, s.scheme)
	if err != nil || clientgoscheme.Scheme.Recognizes(gvk) {
		return gvk, nil // the creator of the informer gets the error of the kind
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
		// as client-go's: the next one continues where the last one was
		return watch.NewEmptyWatch(), nil
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

// maxEvent bounds an event in bytes, as client-go has it; etcd takes less than a tenth of it.
const maxEvent = 16 << 20

// object is what an event's object is read into.
type object interface {
	// read returns the object of a text, which is valid during the call only.
	read(text []byte) (runtime.Object, error)
}

// typed are objects with a Go type. Their kind stays empty, as client-go leaves it.
type typed struct{ of runtime.Object }

func (t *typed) read(text []byte) (runtime.Object, error) {
	err := json.Unmarshal(text, t.of)
	t.of.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return t.of, err
}

// untyped are objects without a Go type; as is nil, or how they are read.
type untyped struct {
	as func(text []byte) (*unstructured.Unstructured, error)
}

func (u untyped) read(text []byte) (runtime.Object, error) {
	if u.as != nil {
		return u.as(text)
	}
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal(text, &o.Object); err != nil {
		return nil, err
	}
	if o.GetKind() == "" {
		return nil, runtime.NewMissingKindErr(string(text))
	}
	return o, nil
}

// decoder reads the events of one watch (k8s.io/apimachinery/pkg/watch.Decoder).
type decoder struct {
	body  io.ReadCloser
	lines *bufio.Scanner
	as    func() object
}

func newDecoder(body io.ReadCloser, as func() object) *decoder {
	d := &decoder{body: body, lines: bufio.NewScanner(body), as: as}
	d.lines.Buffer(nil, maxEvent)
	d.lines.Split(event)
	return d
}

// Decode implements watch.Decoder.
func (d *decoder) Decode() (watch.EventType, runtime.Object, error) {
	if !d.lines.Scan() {
		err := d.lines.Err()
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("an event of more than %d MiB", maxEvent>>20)
		} else if err == nil {
			err = io.EOF
		}
		return "", nil, err
	}
	kind, text, err := parts(d.lines.Bytes())
	if err != nil {
		return "", nil, err
	}
	switch kind {
	case watch.Added, watch.Modified, watch.Deleted, watch.Bookmark:
		as := d.as()
		if _, packed := as.(untyped); packed && kind == watch.Bookmark {
			as = untyped{} // a packed object has not the annotation that ends a streamed list
		}
		o, err := as.read(text)
		if err != nil {
			return "", nil, fmt.Errorf("the object of an event of type %s: %w", kind, err)
		}
		return kind, o, nil
	case watch.Error:
		status := &metav1.Status{}
		if err := json.Unmarshal(text, status); err != nil {
			return "", nil, fmt.Errorf("the status of an event of type %s: %w", kind, err)
		}
		return kind, status, nil
	}
	return "", nil, fmt.Errorf("an event of the unknown type %q", kind)
}

// Close implements watch.Decoder.
func (d *decoder) Close() {
	_ = d.body.Close() // it was read to its end, or the rest is not needed
}

// An event as API servers write it.
var (
	before  = []byte(`{"type":"`)
	between = []byte(`","object":{`)
	after   = []byte(`}}`)
)

// event splits a stream into events (bufio.SplitFunc). API servers write each as one line (Framer
// in k8s.io/apimachinery/pkg/runtime/serializer/json); an event in any other JSON layout is found
// with a decoder.
func event(data []byte, atEOF bool) (advance int, token []byte, err error) {
	n, ours := bytes.IndexByte(data, '\n'), bytes.HasPrefix(data, before)
	switch {
	case n >= 0 && ours && bytes.HasSuffix(data[:n], after):
		return n + 1, data[:n], nil
	case n < 0 && !atEOF && (ours || len(data) < len(before)):
		return 0, nil, nil // the line continues
	}
	d := stdjson.NewDecoder(bytes.NewReader(data))
	var one stdjson.RawMessage
	switch err := d.Decode(&one); {
	case err == nil:
		return int(d.InputOffset()), one, nil
	case !atEOF && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)):
		return 0, nil, nil
	case errors.Is(err, io.EOF):
		return len(data), nil, nil // nothing but space
	default:
		return 0, nil, err
	}
}

// parts are type and object of an event.
func parts(event []byte) (watch.EventType, []byte, error) {
	if rest, ok := bytes.CutPrefix(event, before); ok {
		kind, object, ok := bytes.Cut(rest, between)
		if ok && !bytes.ContainsAny(kind, `"\`) {
			// The brace before the object is its own, the last one is the event's.
			return watch.EventType(kind), rest[len(rest)-len(object)-1 : len(rest)-1], nil
		}
	}
	var e metav1.WatchEvent
	if err := json.Unmarshal(event, &e); err != nil {
		return "", nil, fmt.Errorf("an event that is none: %w", err)
	}
	return watch.EventType(e.Type), e.Object.Raw, nil
}
