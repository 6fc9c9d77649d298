package execute

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

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
