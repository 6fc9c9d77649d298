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
)

const (
	interval = 60 * time.Second // between two look-ups that answer
	soonest  = 2 * time.Second  // after the first one that fails; doubled up to interval
	bound    = 30 * time.Second // of one source
)

// Options says whom to ask. Zero fields take the default.
type ResolverOptions struct {
	// Service reads a Service of our namespace. Without it `lb:` fails.
	Service func(ctx context.Context, name string) (*corev1.Service, error)
	// Names resolves DNS names; default net.DefaultResolver.
	Names NameResolver
	// Transport carries `api:` requests; default one that dials by IPv4 and obeys HTTPS_PROXY and NO_PROXY.
	Transport http.RoundTripper
	// Changed is called when the address changes, once for each change, from the goroutine of Run.
	Changed func(PublicIP)
	// Interval and Bound: the pause between look-ups (60 s) and the time for one source (30 s).
	Interval, Bound time.Duration
	Log             *slog.Logger
}

// Result is what is known.
type PublicIP struct {
	// Address is the last good one; zero if there was none yet, or none is wanted.
	Address netip.Addr
	// Source gave it.
	Source PublicIPSource
	// At is when it did so last.
	At time.Time
	// Err says why the last look-up failed, or that none is wanted; nil if it succeeded.
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
	sources []PublicIPSource
	result  PublicIP
	cancel  context.CancelFunc // of the look-up that is going on
}

// New makes a resolver that wants nothing yet.
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
		interval: o.Interval, changed: o.Changed, log: o.Log, wake: make(chan struct{}, 1), result: PublicIP{Err: ErrNoSource}, cancel: func() {},
	}
}

// Set says what the node wants (Overrides.PublicIP); the same as before changes nothing. Where the source of the present
// address is not among the new ones, the address stays until one of those answers or all have failed. Set never waits.
func (r *Resolver) Set(sources []PublicIPSource) {
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

// Result returns what is known now. It never waits for a look-up.
func (r *Resolver) Result() PublicIP {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.result
}

// Run looks addresses up until ctx ends.
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
		if slices.ContainsFunc(sources, func(s PublicIPSource) bool { return s.Method != IPv4 }) { // else nothing can change
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

// begin takes the sources of the moment, and a context that ends when they change.
func (r *Resolver) begin(ctx context.Context) ([]PublicIPSource, context.Context, context.CancelFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx, r.cancel = context.WithCancel(ctx)
	return r.sources, ctx, r.cancel
}

// round looks the address up once and says whether there is nothing more to try soon.
func (r *Resolver) round(ctx context.Context, sources []PublicIPSource) bool {
	if len(sources) == 0 {
		r.note(PublicIP{Err: ErrNoSource})
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

// note takes over a result, and tells of another address.
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

// pause is the time to the next look-up, drawn so that gateways of a cluster do not ask in step.
func pause(interval time.Duration, failures int) time.Duration {
	if failures > 0 {
		interval = min(interval, soonest<<min(failures-1, 10))
	}
	return interval - rand.N(interval/4+1)
}
