package ipam

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// allocator is the in-memory set of allocated resources of one kind: Pool for addresses, Space for
// port blocks.
type allocator[K any] interface {
	Take(K) bool
	Release(K)
}

// ledger caches the allocations K → L of a controller. All of it can be lost: it saves attempts,
// the API server decides. Event handlers and the one worker share it.
type ledger[K comparable, L any, P allocator[K]] struct {
	mu   sync.Mutex
	pool P
	// created are allocations of this process that the informer cache does not show yet. Without
	// them the next reconcile would allocate once more.
	created map[K]L
	filled  bool // used by the worker only
}

func newLedger[L any, K comparable, P allocator[K]](pool P) *ledger[K, L, P] {
	return &ledger[K, L, P]{pool: pool, created: map[K]L{}}
}

// fill records the allocations that a list of the cache has, once: event handlers may run later
// than the first reconcile.
func (l *ledger[K, L, P]) fill(ctx context.Context, cache client.Reader, list client.ObjectList, key func(runtime.Object) (K, bool)) error {
	if l.filled {
		return nil
	}
	if err := cache.List(ctx, list); err != nil {
		return fmt.Errorf("list %T: %w", list, err)
	}
	err := meta.EachListItem(list, func(o runtime.Object) error {
		if k, ok := key(o); ok {
			l.observed(k)
		}
		return nil
	})
	l.filled = err == nil
	return err
}

// observed records that the cache shows an allocation.
func (l *ledger[K, L, P]) observed(k K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pool.Take(k)
	delete(l.created, k)
}

// deleted records that an allocation was deleted.
func (l *ledger[K, L, P]) deleted(k K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pool.Release(k)
	delete(l.created, k)
}

// add records an allocation by this process.
func (l *ledger[K, L, P]) add(k K, allocation L) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.created[k] = allocation
}

// unobserved returns the allocations that match and that the cache does not show yet.
func (l *ledger[K, L, P]) unobserved(match func(L) bool) map[K]L {
	l.mu.Lock()
	defer l.mu.Unlock()
	created := maps.Clone(l.created)
	maps.DeleteFunc(created, func(_ K, allocation L) bool { return !match(allocation) })
	return created
}

// release ends reservations whose objects were not created.
func (l *ledger[K, L, P]) release(keys ...K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range keys {
		l.pool.Release(k)
	}
}

// use calls f with the pool, which f must not retain. What f takes from the pool is reserved.
func (l *ledger[K, L, P]) use(f func(P)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l.pool)
}

// waiters are the requests that wait for one condition. A request is added before the condition is
// checked, and the list is read after the condition has changed: no change is missed.
type waiters[R comparable] struct {
	mu  sync.Mutex
	set map[R]struct{}
}

// update adds or removes a request and reports whether it was waiting before.
func (w *waiters[R]) update(req R, waits bool) (before bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, before = w.set[req]
	switch {
	case !waits:
		delete(w.set, req)
	case w.set == nil:
		w.set = map[R]struct{}{req: {}}
	default:
		w.set[req] = struct{}{}
	}
	return before
}

func (w *waiters[R]) list() []R {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.set))
}
