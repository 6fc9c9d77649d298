package clusterdns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/mcs-api/pkg/apis/v1alpha1"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/dns"
)

const (
	// settle is the debounce interval: a rollout or a lost cluster results in one
	// new table and not hundreds.
	settle = 50 * time.Millisecond
	// restFactor is the idle time after a table was computed, in units of the time
	// that took: with very many endpoints at most a fifth of a CPU is used.
	restFactor = 4
	// retry is the interval between attempts to reach the API server.
	retry = 2 * time.Second
)

// TableController watches the API and sets tables.
type TableController struct {
	api    *rest.Config
	config TableConfig
	set    func(dns.Table) error
	log    *slog.Logger

	synced atomic.Bool
	began  atomic.Pointer[time.Time] // of the reconcile that runs; nil: none does
	dead   atomic.Pointer[[]string]  // clusters
	poked  chan struct{}             // they have changed
	// problems that were logged last.
	problems string
}

// NewTableController returns a controller that passes each new table to set.
func NewTableController(api *rest.Config, c TableConfig, set func(dns.Table) error, log *slog.Logger) *TableController {
	return &TableController{api: api, config: c, set: set, log: log, poked: make(chan struct{}, 1)}
}

// SetDead sets the unreachable clusters: the table is recomputed at once, with none of their
// addresses ready.
func (c *TableController) SetDead(clusters []string) {
	c.dead.Store(&clusters)
	select {
	case c.poked <- struct{}{}:
	default:
	}
}

// Synced reports whether a whole table has been set. Once true it stays true: a
// stale answer is better than none while the API server is unreachable.
func (c *TableController) Synced() bool { return c.synced.Load() }

// Busy returns how long the present reconcile has been running, 0 between
// reconciles. A reconcile never waits for the API server.
func (c *TableController) Busy() time.Duration {
	if began := c.began.Load(); began != nil {
		return time.Since(*began)
	}
	return 0
}

// Run watches until ctx ends. It waits for an API server that is away and for
// the ServiceImport definition to be installed.
func (c *TableController) Run(ctx context.Context) error {
	logged := ""
	for {
		err := c.watch(ctx)
		if ctx.Err() != nil {
			return nil
		}
		var bad *tableError
		if errors.As(err, &bad) {
			return err
		}
		if err.Error() != logged {
			c.log.Warn("cannot watch services yet", "error", err, "retry", retry)
			logged = err.Error()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retry):
		}
	}
}

// tableError is a table that the name server refused: the configuration is
// wrong and trying again would not help.
type tableError struct{ error }

func (e *tableError) Unwrap() error { return e.error }

func (c *TableController) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	objects, err := c.open()
	if err != nil {
		return err
	}
	dirty := make(chan struct{}, 1)
	touch := func() {
		select {
		case dirty <- struct{}{}:
		default:
		}
	}
	for _, o := range []client.Object{&mcs.ServiceImport{}, &discoveryv1.EndpointSlice{}} {
		informer, err := objects.GetInformer(ctx, o, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %T: %w", o, err)
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { touch() },
			UpdateFunc: func(any, any) { touch() },
			DeleteFunc: func(any) { touch() },
		}); err != nil {
			return fmt.Errorf("watch %T: %w", o, err)
		}
	}
	stopped := make(chan error, 1)
	go func() { stopped <- objects.Start(ctx) }()
	defer func() {
		cancel()
		<-stopped
	}()
	if !objects.WaitForCacheSync(ctx) {
		return ctx.Err()
	}
	for {
		begin := time.Now()
		if err := c.reconcile(ctx, objects); err != nil {
			return err
		}
		pause := max(settle, restFactor*time.Since(begin))
		select {
		case <-ctx.Done():
			return nil
		case <-c.poked:
			continue // a dead cluster is not waited for
		case <-dirty:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.poked:
		case <-time.After(pause):
		}
		// What came in during the pause is read now.
		select {
		case <-dirty:
		default:
		}
	}
}

// reconcile sets the table for the present state.
func (c *TableController) reconcile(ctx context.Context, objects client.Reader) error {
	now := time.Now()
	c.began.Store(&now)
	defer c.began.Store(nil)
	var imports mcs.ServiceImportList
	var endpointSlices discoveryv1.EndpointSliceList
	// Only read here, and not kept.
	uncopied := client.UnsafeDisableDeepCopy
	if err := errors.Join(objects.List(ctx, &imports, uncopied), objects.List(ctx, &endpointSlices, uncopied)); err != nil {
		return fmt.Errorf("list services from the cache: %w", err)
	}
	table, problems := DesiredTable(imports.Items, endpointSlices.Items, c.config)
	c.report(problems)
	if dead := c.dead.Load(); dead != nil {
		notReady(&table, *dead)
	}
	divide(&table, imports.Items)
	if err := c.set(table); err != nil {
		return &tableError{fmt.Errorf("set table of %d services: %w", len(table.Services), err)}
	}
	if !c.synced.Swap(true) {
		c.log.Info("serving", "services", len(table.Services), "endpointSlices", len(endpointSlices.Items))
	}
	return nil
}

// report logs problems when they change.
func (c *TableController) report(problems error) {
	text := ""
	if problems != nil {
		text = problems.Error()
	}
	if text != c.problems && text != "" {
		c.log.Warn("some objects are not served", "problems", text)
	}
	c.problems = text
}

// open makes a cache of all ServiceImports, in the version that the API server
// has, and of imported EndpointSlices.
func (c *TableController) open() (cache.Cache, error) {
	d, err := discovery.NewDiscoveryClientForConfig(c.api)
	if err != nil {
		return nil, fmt.Errorf("make discovery client: %w", err)
	}
	version, err := served(d)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := discoveryv1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	// Both versions have the same schema, so one Go type reads either.
	scheme.AddKnownTypes(version, &mcs.ServiceImport{}, &mcs.ServiceImportList{})
	metav1.AddToGroupVersion(scheme, version)

	imported, err := labels.NewRequirement(mcs.LabelServiceName, selection.Exists, nil)
	if err != nil {
		return nil, err
	}
	objects, err := cache.New(c.api, cache.Options{
		Scheme:           scheme,
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&discoveryv1.EndpointSlice{}: {Label: labels.NewSelector().Add(*imported)},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make cache: %w", err)
	}
	return objects, nil
}

// served returns the version in which ServiceImports are served, the newest
// that we know.
func served(d discovery.DiscoveryInterface) (schema.GroupVersion, error) {
	for _, version := range []schema.GroupVersion{schema.GroupVersion(mcs.GroupVersion), schema.GroupVersion(v1alpha1.GroupVersion)} {
		list, err := d.ServerResourcesForGroupVersion(version.String())
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return schema.GroupVersion{}, fmt.Errorf("ask for the resources of %s: %w", version, err)
		}
		for _, r := range list.APIResources {
			if r.Name == mcs.ServiceImportPluralName {
				return version, nil
			}
		}
	}
	return schema.GroupVersion{}, fmt.Errorf("find %s: not served in v1beta1 or v1alpha1; `pelago join` installs the definition", mcs.ServiceImportFullName)
}
