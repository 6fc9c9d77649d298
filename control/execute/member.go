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
	"github.com/pelago-net/pelago/control/execute/meter"
	"github.com/pelago-net/pelago/control/kube"
)

const (
	// probeTimeout bounds the request that verifies whether the member is reachable.
	probeTimeout = 5 * time.Second
	// minProbe and maxProbe bound the backoff of such requests while it is not.
	minProbe, maxProbe = 500 * time.Millisecond, 5 * time.Second
)

// member is the access to the member's API server.
type member struct {
	cluster   string
	client    client.Client // uncached
	mapper    meta.RESTMapper
	discovery *discovery.DiscoveryClient
	managed   cache.Cache // objects with the label karmada.io/managed=true, packed
	scalers   cache.Cache // all HorizontalPodAutoscalers
	probe     *rest.RESTClient

	mu      sync.Mutex
	failure string        // why it is unreachable; "": it is reachable
	failed  chan struct{} // wakes run
	probing sync.Mutex    // serializes probes
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
	watches, err := rest.HTTPClientFor(config) // without a timeout
	if err != nil {
		return nil, err
	}
	m := &member{cluster: o.Cluster, failed: make(chan struct{}, 1)}
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
	newCache := func(selector labels.Selector, transform toolscache.TransformFunc, read kube.UntypedDecoder) (cache.Cache, error) {
		return kube.NewStreamCache(read)(config, cache.Options{
			HTTPClient: watches, Mapper: m.mapper, DefaultLabelSelector: selector,
			DefaultTransform:             transform,
			DefaultUnsafeDisableDeepCopy: ptr.To(true), // readers do not modify the objects
			ReaderFailOnMissingInformer:  true,
		})
	}
	if m.managed, err = newCache(labels.SelectorFromSet(labels.Set{workv1alpha1.LabelManaged: "true"}), pack, packText); err != nil {
		return nil, err
	}
	if m.scalers, err = newCache(labels.Everything(), cache.TransformStripManagedFields(), nil); err != nil {
		return nil, err
	}
	return m, nil
}

// meter reads what FederatedHPAs need.
func (m *member) meter(o Options) meter.Source {
	return meter.Source{Client: m.client, REST: m.probe, Mapper: m.mapper, Interval: o.ScalingInterval, Pulled: o.Metrics.pull}
}

// prober returns a client with its own connections, so that a probe does not queue behind other
// requests.
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

// run runs the caches, and probes the member while it is unreachable, until ctx ends. recovered is
// called when it is reachable again.
func (m *member) run(ctx context.Context, recovered func()) {
	var running sync.WaitGroup
	for _, c := range []cache.Cache{m.managed, m.scalers} {
		running.Go(func() {
			_ = c.Start(ctx) // fails only if started twice
		})
	}
	defer running.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.failed:
		}
		backoff := wait.Backoff{Duration: minProbe, Factor: 2, Steps: 10, Cap: maxProbe, Jitter: 0.2}
		for m.unavailable() != "" {
			select {
			case <-ctx.Done():
				return
			case <-time.After(backoff.Step()):
			}
			m.verify(ctx)
		}
		recovered()
	}
}

// unavailable returns why the member is unreachable; "" if it was reachable last.
func (m *member) unavailable() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failure
}

// verify probes the member after a request has failed without a response. Any response means that
// it is reachable. The first failure is kept while it is not, so that conditions do not change.
func (m *member) verify(ctx context.Context) (cause string) {
	m.probing.Lock()
	defer m.probing.Unlock()
	var code int
	err := m.probe.Get().AbsPath("/version").MaxRetries(0).Do(ctx).StatusCode(&code).Error()
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil || code != 0 && code != http.StatusBadGateway && code != http.StatusGatewayTimeout:
		m.failure = ""
	case m.failure == "" && ctx.Err() == nil:
		m.failure = err.Error()
		select {
		case m.failed <- struct{}{}:
		default: // already pending
		}
	}
	return m.failure
}

// memberKinds watches each kind of the member as long as Works have objects of it.
type memberKinds struct {
	cache cache.Cache
	event toolscache.ResourceEventHandler

	mu      sync.Mutex
	of      map[string]schema.GroupVersionKind // by Work
	users   map[schema.GroupVersionKind]int
	watches map[schema.GroupVersionKind]*kindWatch
}

// kindWatch is the informer of one kind.
type kindWatch struct {
	since   time.Time
	handler toolscache.ResourceEventHandlerRegistration
}

// synced reports whether the cache has all managed objects of the kind, and the handlers have
// received them.
func (w *kindWatch) synced() bool { return w.handler.HasSynced() }

func newKinds(c cache.Cache, event toolscache.ResourceEventHandler) *memberKinds {
	return &memberKinds{
		cache: c, event: event, of: map[string]schema.GroupVersionKind{}, users: map[schema.GroupVersionKind]int{},
		watches: map[schema.GroupVersionKind]*kindWatch{},
	}
}

// use watches the kind of a Work's object instead of its former kind; it does not wait for the
// first list.
func (k *memberKinds) use(ctx context.Context, work string, kind schema.GroupVersionKind) (*kindWatch, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.recordLocked(ctx, work, kind); err != nil {
		return nil, err
	}
	if w := k.watches[kind]; w != nil {
		return w, nil
	}
	informer, err := k.cache.GetInformer(ctx, ofKind(kind), cache.BlockUntilSynced(false))
	if err != nil {
		return nil, err // the caller adds the context
	}
	handler, err := informer.AddEventHandler(k.event)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", kind, err)
	}
	w := &kindWatch{since: time.Now(), handler: handler}
	k.watches[kind] = w
	return w, nil
}

// record records the kind of a Work's object for usedBy, without a watch.
func (k *memberKinds) record(ctx context.Context, work string, kind schema.GroupVersionKind) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.recordLocked(ctx, work, kind)
}

func (k *memberKinds) recordLocked(ctx context.Context, work string, kind schema.GroupVersionKind) error {
	if old, ok := k.of[work]; ok && old == kind {
		return nil
	}
	if err := k.releaseLocked(ctx, work); err != nil {
		return err
	}
	k.of[work] = kind
	k.users[kind]++
	return nil
}

// usedBy returns the Works whose objects are of kinds with other rules.
func (k *memberKinds) usedBy(changed func(schema.GroupVersionKind) bool) (works []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for work, kind := range k.of {
		if changed(kind) {
			works = append(works, work)
		}
	}
	return works
}

// release stops watching the kind of a deleted Work unless others use it.
func (k *memberKinds) release(ctx context.Context, work string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.releaseLocked(ctx, work)
}

func (k *memberKinds) releaseLocked(ctx context.Context, work string) error {
	kind, ok := k.of[work]
	if !ok {
		return nil
	}
	delete(k.of, work)
	if k.users[kind]--; k.users[kind] > 0 {
		return nil
	}
	delete(k.users, kind)
	if k.watches[kind] == nil {
		return nil
	}
	delete(k.watches, kind)
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

// packedField holds an object as JSON. The type packedText distinguishes it from a field of that
// name in the object.
const packedField = "packed"

type packedText string

// pack is a TransformFunc of the cache: it packs objects that are not packed yet, see packText.
func pack(in any) (any, error) {
	o, ok := in.(*unstructured.Unstructured)
	if !ok {
		return in, nil // a tombstone
	}
	if _, done := o.Object[packedField].(packedText); done {
		return in, nil
	}
	text, err := json.Marshal(o.Object)
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", describe(o), err)
	}
	return packText(text)
}

// packText returns the form in which the cache keeps a member's object: its identity, the
// annotations that name its Work, and all of it, without managedFields, as JSON text. As maps it
// takes five times the memory, which the garbage collector scans, and it is read once or twice in
// its lifetime. It is a kube.UntypedDecoder.
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

// unpack returns the object that was packed.
func unpack(o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	text, ok := o.Object[packedField].(packedText)
	if !ok {
		return nil, fmt.Errorf("unpack %s: it was not packed", describe(o))
	}
	out := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &out.Object); err != nil {
		return nil, fmt.Errorf("unpack %s: %w", describe(o), err)
	}
	return out, nil
}

// autoscaler is the kind of autoscalers.
var autoscaler = schema.GroupVersionKind{Group: "autoscaling", Version: "v2", Kind: "HorizontalPodAutoscaler"}

// autoscalerWork is the user of that kind in memberKinds; it is no valid name of a Work.
const autoscalerWork = "/autoscalers"

// scaled reports whether an autoscaler of the member controls the replicas of an object.
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

// scaledMeanwhile lists autoscalers uncached if the observed replicas differ from the desired ones:
// an autoscaler that the cache does not show yet may have set them.
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

// targetOf returns the object that an autoscaler scales.
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

// onScaler enqueues the Work whose object an autoscaler scales.
func (e *Execution) onScaler(o client.Object) {
	if hpa, ok := o.(*unstructured.Unstructured); ok {
		if target, ok := targetOf(hpa); ok {
			e.enqueue(workOfPart(e.states.partOf(target)))
		}
	}
}
