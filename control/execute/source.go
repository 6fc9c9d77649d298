package execute

import (
	"context"
	"fmt"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
)

// Works are those that a cache holds, of one cluster or of all. Executions share them: with a handler of its own for each of a
// hundred clusters, every event of a Work would wake a hundred goroutines, of which one needs it.
type Works struct {
	cache cache.Cache

	mu        sync.RWMutex
	watched   bool
	followers map[string]map[*follower]struct{} // by namespace
}

// follower is who wants to know of the Works of a namespace.
type follower struct{ notice func(client.Object) }

// NewWorks are the Works that the cache will hold.
func NewWorks(c cache.Cache) *Works {
	return &Works{cache: c, followers: map[string]map[*follower]struct{}{}}
}

// follow calls notice with each Work of the namespace that there is, and of which the cache hears something, until ctx ends. It
// does not wait for the cache.
func (w *Works) follow(ctx context.Context, namespace string, notice func(client.Object)) error {
	f := &follower{notice}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.watched {
		informer, err := w.cache.GetInformer(ctx, &workv1alpha1.Work{}, cache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		if _, err := informer.AddEventHandler(now(w.hand)); err != nil {
			return err
		}
		w.watched = true
	}
	if w.followers[namespace] == nil {
		w.followers[namespace] = map[*follower]struct{}{}
	}
	w.followers[namespace][f] = struct{}{}
	context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if delete(w.followers[namespace], f); len(w.followers[namespace]) == 0 {
			delete(w.followers, namespace)
		}
	})
	go w.present(ctx, namespace, notice)
	return nil
}

// present tells of the Works that are in the cache, once it has been filled; what comes later has been told already, or will be.
func (w *Works) present(ctx context.Context, namespace string, notice func(client.Object)) {
	var list workv1alpha1.WorkList
	if w.cache.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy) != nil {
		return // ctx has ended: a cache that runs answers
	}
	for i := range list.Items {
		notice(&list.Items[i])
	}
}

func (w *Works) hand(o client.Object) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for f := range w.followers[o.GetNamespace()] {
		f.notice(o)
	}
}

// get reads a Work from the cache.
func (w *Works) get(ctx context.Context, key client.ObjectKey) (*workv1alpha1.Work, error) {
	work := &workv1alpha1.Work{}
	if err := w.cache.Get(ctx, key, work); err != nil {
		return nil, fmt.Errorf("read Work %s: %w", key, err)
	}
	return work, nil
}
