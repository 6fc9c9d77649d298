package kube

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Fence refuses writes unless this process has renewed the leader lease recently. It is closed at
// first.
type Fence struct {
	valid time.Duration
	now   func() time.Time

	mu        sync.Mutex
	renewed   time.Time // zero: never, or released
	attempted time.Time // zero: never
}

// NewFence makes a Fence that is open for valid after each renewal of the lease. valid must be
// shorter than the lease, because a write takes time, and no shorter than the time for which the
// leader tries to renew it.
func NewFence(valid time.Duration) *Fence { return &Fence{valid: valid, now: time.Now} }

// Attempted returns when the lease was last read or written, whether that succeeded or not; zero:
// never. The loop of the leader election does so every few seconds, as leader or not.
func (f *Fence) Attempted() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.attempted
}

func (f *Fence) attempt() (now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attempted = f.now()
	return f.attempted
}

// Lock is the lock on the lease, whose renewals open the fence.
func (f *Fence) Lock(lease resourcelock.Interface) resourcelock.Interface { return &lock{lease, f} }

type lock struct {
	resourcelock.Interface
	fence *Fence
}

// Get reads the lease.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.fence.attempt()
	return l.Interface.Get(ctx)
}

// Create makes the lease.
func (l *lock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.fence.renew(r, func() error { return l.Interface.Create(ctx, r) })
}

// Update renews the lease, or releases it.
func (l *lock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.fence.renew(r, func() error { return l.Interface.Update(ctx, r) })
}

func (f *Fence) renew(r resourcelock.LeaderElectionRecord, do func() error) error {
	began := f.attempt() // others count from when they observe the lease, which is later
	if err := do(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.renewed = began; r.HolderIdentity == "" {
		f.renewed = time.Time{}
	}
	return nil
}

// Wrap passes requests to next: reads always, writes while the fence is open.
func (f *Fence) Wrap(next http.RoundTripper) http.RoundTripper { return &gate{f, next} }

type gate struct {
	fence *Fence
	next  http.RoundTripper
}

// RoundTrip passes a request on.
func (g *gate) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		if err := g.fence.open(); err != nil {
			return nil, err
		}
	}
	return g.next.RoundTrip(r)
}

// open returns nil while the fence is open. Of the wall and the monotonic clock, the one that ran
// on while suspended counts.
func (f *Fence) open() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if f.renewed.IsZero() {
		return fmt.Errorf("nothing is written without the lease")
	}
	if since := max(now.Sub(f.renewed), now.Round(0).Sub(f.renewed.Round(0))); since > f.valid {
		return fmt.Errorf("the lease was renewed %s ago, another process may lead: nothing is written", since.Round(time.Millisecond))
	}
	return nil
}

// FencedLease returns the lock on a lease, as controller-runtime makes it, and the fence that the
// lock opens. identity is the holder; if empty, the host's name, made unique. renewDeadline is the
// manager's RenewDeadline. cfg must not go through the fence.
func FencedLease(cfg *rest.Config, namespace, name, identity string, renewDeadline time.Duration) (resourcelock.Interface, *Fence, error) {
	if identity == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, nil, fmt.Errorf("name the holder of the lease %s/%s: %w", namespace, name, err)
		}
		identity = host + "_" + string(uuid.NewUUID())
	}
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, namespace, name,
		resourcelock.ResourceLockConfig{Identity: identity}, cfg, renewDeadline)
	if err != nil {
		return nil, nil, fmt.Errorf("prepare the lease %s/%s: %w", namespace, name, err)
	}
	f := NewFence(renewDeadline)
	return f.Lock(lock), f, nil
}
