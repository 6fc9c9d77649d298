package execute

import (
	"context"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

const (
	// probeTimeout bounds the question whether the member is there at all.
	probeTimeout = 5 * time.Second
	// minProbe and maxProbe bound the pause between such questions while it is away.
	minProbe, maxProbe = 500 * time.Millisecond, 5 * time.Second
)

// member is the access to the member's API server.
type member struct {
	cluster   string
	client    client.Client // reads and writes at the server
	mapper    meta.RESTMapper
	discovery *discovery.DiscoveryClient
	managed   cache.Cache // objects with the label karmada.io/managed=true, packed
	scalers   cache.Cache // HorizontalPodAutoscalers, whoever made them
	probe     *rest.RESTClient

	mu    sync.Mutex
	away  string        // why it cannot be reached; "": it can
	gone  chan struct{} // tells run that it is away
	asked sync.Mutex    // one probe at a time
}

func newMember(o Options) (*member, error) {
	config := rest.CopyConfig(o.Member)
	if config.QPS == 0 {
		config.QPS = -1
	}
	bounded := rest.CopyConfig(config)
	bounded.Timeout = o.Timeout
	requests, err := rest.HTTPClientFor(bounded)
	if err != nil {
		return nil, err
	}
	watches, err := rest.HTTPClientFor(config) // a watch may take as long as it likes
	if err != nil {
		return nil, err
	}
	m := &member{cluster: o.Cluster, gone: make(chan struct{}, 1)}
	if m.mapper, err = apiutil.NewDynamicRESTMapper(bounded, requests); err != nil {
		return nil, err
	}
	if m.client, err = client.New(bounded, client.Options{HTTPClient: requests, Mapper: m.mapper}); err != nil {
		return nil, err
	}
	if m.discovery, err = discovery.NewDiscoveryClientForConfigAndClient(bounded, requests); err != nil {
		return nil, err
	}
	if m.probe, err = prober(config); err != nil {
		return nil, err
	}
	caching := func(selector labels.Selector, keep toolscache.TransformFunc, read kube.UntypedDecoder) (cache.Cache, error) {
		return kube.NewStreamCache(read)(config, cache.Options{
			HTTPClient: watches, Mapper: m.mapper, DefaultLabelSelector: selector,
			DefaultTransform:             keep,
			DefaultUnsafeDisableDeepCopy: ptr.To(true), // nobody changes what was read of the member
			ReaderFailOnMissingInformer:  true,
		})
	}
	if m.managed, err = caching(labels.SelectorFromSet(labels.Set{workv1alpha1.LabelManaged: "true"}), pack, packText); err != nil {
		return nil, err
	}
	if m.scalers, err = caching(labels.Everything(), cache.TransformStripManagedFields(), nil); err != nil {
		return nil, err
	}
	return m, nil
}

// prober has connections of its own, so that it tells of the way to the member, not of what others wait for.
func prober(config *rest.Config) (*rest.RESTClient, error) {
	config = rest.CopyConfig(config)
	config.Timeout = probeTimeout
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	c, ok := d.RESTClient().(*rest.RESTClient)
	if !ok {
		return nil, fmt.Errorf("a discovery client with %T", d.RESTClient())
	}
	return c, nil
}

// run runs the caches, and asks for the member while it is away, until ctx ends. back is called when it is there again.
func (m *member) run(ctx context.Context, back func()) {
	var running sync.WaitGroup
	for _, c := range []cache.Cache{m.managed, m.scalers} {
		running.Go(func() {
			_ = c.Start(ctx) // it returns when ctx ends; the one error is that it was started twice
		})
	}
	defer running.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.gone:
		}
		pause := wait.Backoff{Duration: minProbe, Factor: 2, Steps: 10, Cap: maxProbe, Jitter: 0.2}
		for m.absence() != "" {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause.Step()):
			}
			m.confirm(ctx)
		}
		back()
	}
}

// absence says why the member cannot be reached; "" if it can, as far as is known.
func (m *member) absence() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.away
}

// confirm asks the member whether it is there, after a request has failed on the way. Any answer means that it is. While it is away
// the first cause is kept, so that the words do not change.
func (m *member) confirm(ctx context.Context) (cause string) {
	m.asked.Lock()
	defer m.asked.Unlock()
	var code int
	err := m.probe.Get().AbsPath("/version").MaxRetries(0).Do(ctx).StatusCode(&code).Error()
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil || code != 0 && code != http.StatusBadGateway && code != http.StatusGatewayTimeout:
		m.away = ""
	case m.away == "" && ctx.Err() == nil:
		m.away = err.Error()
		select {
		case m.gone <- struct{}{}:
		default: // it knows
		}
	}
	return m.away
}

// kinds watches the kinds that Works name, as long as there are such Works.
type memberKinds struct {
	cache cache.Cache
	event toolscache.ResourceEventHandler

	mu    sync.Mutex
	of    map[string]schema.GroupVersionKind // by Work
	users map[schema.GroupVersionKind]int
	open  map[schema.GroupVersionKind]*executionWatch
}

// watch is the informer of one kind.
type executionWatch struct {
	since   time.Time
	handler toolscache.ResourceEventHandlerRegistration
}

// synced says that the cache has all managed objects of the kind, and their events are out.
func (w *executionWatch) synced() bool { return w.handler.HasSynced() }

func newKinds(c cache.Cache, event toolscache.ResourceEventHandler) *memberKinds {
	return &memberKinds{
		cache: c, event: event, of: map[string]schema.GroupVersionKind{}, users: map[schema.GroupVersionKind]int{},
		open: map[schema.GroupVersionKind]*executionWatch{},
	}
}

// use has the kind of a Work's object watched; it does not wait for the first list.
func (k *memberKinds) use(ctx context.Context, work string, kind schema.GroupVersionKind) (*executionWatch, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if old, ok := k.of[work]; !ok || old != kind {
		if err := k.drop(ctx, work); err != nil {
			return nil, err
		}
		k.of[work] = kind
		k.users[kind]++
	}
	if w := k.open[kind]; w != nil {
		return w, nil
	}
	informer, err := k.cache.GetInformer(ctx, ofKind(kind), cache.BlockUntilSynced(false))
	if err != nil {
		return nil, err // the caller says what it was about
	}
	handler, err := informer.AddEventHandler(k.event)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", kind, err)
	}
	w := &executionWatch{since: time.Now(), handler: handler}
	k.open[kind] = w
	return w, nil
}

// usedBy are the Works of these kinds.
func (k *memberKinds) usedBy(kinds map[schema.GroupVersionKind]bool) (works []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for work, kind := range k.of {
		if kinds[kind] {
			works = append(works, work)
		}
	}
	return works
}

// leave: the Work is gone.
func (k *memberKinds) leave(ctx context.Context, work string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.drop(ctx, work)
}

func (k *memberKinds) drop(ctx context.Context, work string) error {
	kind, ok := k.of[work]
	if !ok {
		return nil
	}
	delete(k.of, work)
	if k.users[kind]--; k.users[kind] > 0 {
		return nil
	}
	delete(k.users, kind)
	if k.open[kind] == nil {
		return nil
	}
	delete(k.open, kind)
	if err := k.cache.RemoveInformer(ctx, ofKind(kind)); err != nil {
		return fmt.Errorf("stop watching %s: %w", kind, err)
	}
	return nil
}

func ofKind(kind schema.GroupVersionKind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	return u
}

// packedField holds all of an object as JSON, of a type of its own: no field of that name that the object has can be taken for it.
const packedField = "packed"

type packedText string

// pack makes of an object what the cache keeps of it (k8s.io/client-go/tools/cache.TransformFunc), unless that was done: see packText.
func pack(in any) (any, error) {
	o, ok := in.(*unstructured.Unstructured)
	if !ok {
		return in, nil // what an informer holds for an object that is gone
	}
	if _, done := o.Object[packedField].(packedText); done {
		return in, nil
	}
	text, err := json.Marshal(o.Object)
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", called(o), err)
	}
	return packText(text)
}

// packText is what the cache of the member's objects keeps of each: by which it is found, by which an event leads to its Work, and the
// rest, without managedFields, as text. As maps an object takes five times as much, and the collector has to follow each of them; it is
// read once or twice in its life. It is a control/kube.Options.Untyped.
func packText(text []byte) (*unstructured.Unstructured, error) {
	var fields, metadata map[string]stdjson.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("pack an object: %w", err)
	}
	if err := json.Unmarshal(fields["metadata"], &metadata); err != nil {
		return nil, fmt.Errorf("pack an object, its metadata: %w", err)
	}
	delete(metadata, "managedFields")
	var known metav1.PartialObjectMetadata
	short, err := json.Marshal(metadata)
	if err == nil {
		fields["metadata"] = short
		text, err = json.Marshal(fields)
	}
	err = errors.Join(err, json.Unmarshal(short, &known.ObjectMeta), json.Unmarshal(fields["kind"], &known.Kind),
		json.Unmarshal(fields["apiVersion"], &known.APIVersion))
	if err != nil {
		return nil, fmt.Errorf("pack %s %s/%s: %w", known.Kind, known.Namespace, known.Name, err)
	}
	out := ofKind(known.GroupVersionKind())
	out.SetNamespace(known.Namespace)
	out.SetName(known.Name)
	out.SetUID(known.UID)
	out.SetResourceVersion(known.ResourceVersion)
	work := map[string]string{}
	for _, key := range []string{workv1alpha1.AnnotationWorkNamespace, workv1alpha1.AnnotationWorkName} {
		if value, ok := known.Annotations[key]; ok {
			work[key] = value
		}
	}
	if len(work) > 0 {
		out.SetAnnotations(work)
	}
	out.Object[packedField] = packedText(text)
	return out, nil
}

// unpack is the object that was packed.
func unpack(o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	text, ok := o.Object[packedField].(packedText)
	if !ok {
		return nil, fmt.Errorf("unpack %s: it was not packed", called(o))
	}
	out := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &out.Object); err != nil {
		return nil, fmt.Errorf("unpack %s: %w", called(o), err)
	}
	return out, nil
}

// autoscaler is the kind that scales objects in members, whoever has made it there.
var autoscaler = schema.GroupVersionKind{Group: "autoscaling", Version: "v2", Kind: "HorizontalPodAutoscaler"}

// autoscalerWork is the user of the kind in the list of those watched; no Work is called so.
const autoscalerWork = "/autoscalers"

// scaled says whether an autoscaler of the member decides on the replicas of an object.
func (t *task) scaled(ctx context.Context, want *unstructured.Unstructured) (bool, error) {
	if _, found, err := unstructured.NestedFieldNoCopy(want.Object, "spec", "replicas"); err != nil || !found {
		return false, err
	}
	w, err := t.scalers.use(ctx, autoscalerWork, autoscaler)
	if err != nil {
		return false, fmt.Errorf("watch the autoscalers: %w", err)
	}
	if !w.synced() {
		return t.scaledBy(ctx, t.member.client, want)
	}
	return t.scaledBy(ctx, t.member.scalers, want)
}

// scaledMeanwhile asks the member itself where other replicas would be written: what has set them may be an autoscaler that the
// cache does not show yet.
func (t *task) scaledMeanwhile(ctx context.Context, want, have *unstructured.Unstructured) (bool, error) {
	wanted, found, err := unstructured.NestedFieldNoCopy(want.Object, "spec", "replicas")
	if err != nil || !found {
		return false, err
	}
	if there, _, err := unstructured.NestedFieldNoCopy(have.Object, "spec", "replicas"); err != nil || there == wanted {
		return false, err
	}
	return t.scaledBy(ctx, t.member.client, want)
}

func (t *task) scaledBy(ctx context.Context, from client.Reader, want *unstructured.Unstructured) (bool, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(autoscaler.GroupVersion().WithKind(autoscaler.Kind + "List"))
	if err := from.List(ctx, list, client.InNamespace(want.GetNamespace())); err != nil {
		return false, fmt.Errorf("list the autoscalers of namespace %s: %w", want.GetNamespace(), err)
	}
	for i := range list.Items {
		if target, ok := targetOf(&list.Items[i]); ok && target == keyOf(want) && list.Items[i].GetDeletionTimestamp() == nil {
			return true, nil
		}
	}
	return false, nil
}

// targetOf is what an autoscaler scales.
func targetOf(hpa *unstructured.Unstructured) (objectKey, bool) {
	ref, found, err := unstructured.NestedStringMap(hpa.Object, "spec", "scaleTargetRef")
	if err != nil || !found {
		return objectKey{}, false
	}
	gv, err := schema.ParseGroupVersion(ref["apiVersion"])
	if err != nil {
		return objectKey{}, false
	}
	return objectKey{schema.GroupKind{Group: gv.Group, Kind: ref["kind"]}, hpa.GetNamespace(), ref["name"]}, true
}

// onScaler: the Work of what an autoscaler scales is looked at again.
func (e *Execution) onScaler(o client.Object) {
	if hpa, ok := o.(*unstructured.Unstructured); ok {
		if target, ok := targetOf(hpa); ok {
			e.kick(e.memory.workOf(target))
		}
	}
}
