package node

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pelago-net/pelago/control/node/tables"
)

const (
	interval = 60 * time.Second // between two successful look-ups
	soonest  = 2 * time.Second  // after the first one that fails; doubled up to interval
	bound    = 30 * time.Second // of one source
)

// ResolverOptions configures a Resolver. Zero fields mean the default.
type ResolverOptions struct {
	// Service reads a Service of our namespace. Without it `lb:` fails.
	Service func(ctx context.Context, name string) (*corev1.Service, error)
	// Names resolves DNS names; default net.DefaultResolver.
	Names NameResolver
	// Transport carries `api:` requests; default one that dials by IPv4 and obeys HTTPS_PROXY and
	// NO_PROXY.
	Transport http.RoundTripper
	// Changed is called once for each change of the address, from the goroutine of Run.
	Changed func(PublicIP)
	// Interval and Bound: the time between look-ups (60 s) and the limit for one source (30 s).
	Interval, Bound time.Duration
	Log             *slog.Logger
}

// PublicIP is the result of look-ups.
type PublicIP struct {
	// Address is the last that was found; zero if there was none yet, or none is configured.
	Address netip.Addr
	// Source of Address.
	Source tables.PublicIPSource
	// At is when Source last returned Address.
	At time.Time
	// Err is why the last look-up failed, or ErrNoSource; nil if it succeeded.
	Err error
}

// Resolver keeps the address current.
type Resolver struct {
	lookup   lookup
	interval time.Duration
	changed  func(PublicIP)
	log      *slog.Logger
	wake     chan struct{}

	mu      sync.Mutex
	sources []tables.PublicIPSource
	result  PublicIP
	cancel  context.CancelFunc // of the look-up in progress
}

// NewResolver returns a resolver without sources.
func NewResolver(o ResolverOptions) *Resolver {
	if o.Service == nil {
		o.Service = noServices
	}
	if o.Names == nil {
		o.Names = net.DefaultResolver
	}
	if o.Changed == nil {
		o.Changed = func(PublicIP) {}
	}
	if o.Interval <= 0 {
		o.Interval = interval
	}
	if o.Bound <= 0 {
		o.Bound = bound
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Resolver{
		lookup:   lookup{names: o.Names, service: o.Service, client: publicIPClient(o.Transport), bound: o.Bound},
		interval: o.Interval, changed: o.Changed, log: o.Log, wake: make(chan struct{}, 1), result: PublicIP{Err: tables.ErrNoSource}, cancel: func() {},
	}
}

// Set configures the sources (tables.GatewaySettings.PublicIP); it is idempotent. If the source of
// the present address is not among the new ones, the address stays until one of those responds or
// all have failed. Set does not block.
func (r *Resolver) Set(sources []tables.PublicIPSource) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Equal(r.sources, sources) {
		return
	}
	r.sources = slices.Clone(sources)
	r.cancel()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Result returns the present result. It does not wait for a look-up.
func (r *Resolver) Result() PublicIP {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.result
}

// Run repeats look-ups until ctx ends.
func (r *Resolver) Run(ctx context.Context) {
	failures := 0
	for {
		sources, lookupCtx, cancel := r.begin(ctx)
		ok := r.round(lookupCtx, sources)
		cancel()
		failures++
		if ok {
			failures = 0
		}
		var timer <-chan time.Time
		// else nothing can change
		if slices.ContainsFunc(sources, func(s tables.PublicIPSource) bool { return s.Method != tables.IPv4 && s.Method != tables.ExternalIP }) {
			timer = time.After(pause(r.interval, failures))
		}
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
			failures = 0
		case <-timer:
		}
	}
}

// begin returns the present sources, and a context that ends when they change.
func (r *Resolver) begin(ctx context.Context) ([]tables.PublicIPSource, context.Context, context.CancelFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx, r.cancel = context.WithCancel(ctx)
	return r.sources, ctx, r.cancel
}

// round performs one look-up and reports whether it succeeded.
func (r *Resolver) round(ctx context.Context, sources []tables.PublicIPSource) bool {
	if len(sources) == 0 {
		r.note(PublicIP{Err: tables.ErrNoSource})
		return true
	}
	before := r.Result() // only this goroutine writes it
	source, address, err := r.lookup.first(ctx, sources)
	if err == nil {
		r.note(PublicIP{Address: address, Source: source, At: time.Now()})
		return true
	}
	if ctx.Err() != nil {
		return false
	}
	if before.Err == nil || before.Err.Error() != err.Error() {
		r.log.Warn("look up the public address", "error", err, "kept", before.Address)
	}
	if !slices.Contains(sources, before.Source) {
		before = PublicIP{}
	}
	before.Err = err
	r.note(before)
	return false
}

// note stores a result and calls changed if the address is another.
func (r *Resolver) note(after PublicIP) {
	r.mu.Lock()
	before := r.result
	r.result = after
	r.mu.Unlock()
	if before.Address != after.Address {
		r.changed(after)
	}
}

func noServices(_ context.Context, name string) (*corev1.Service, error) {
	return nil, fmt.Errorf("get Service %s: this program reads no Services", name)
}

// pause is the time to the next look-up, with jitter so that the gateways of a cluster do not query
// at once.
func pause(interval time.Duration, failures int) time.Duration {
	if failures > 0 {
		interval = min(interval, soonest<<min(failures-1, 10))
	}
	return interval - rand.N(interval/4+1)
}
