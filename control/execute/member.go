package execute

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
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
