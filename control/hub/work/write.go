package work

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kube"
)

// parallel bounds how many Works of one object are written at a time.
const parallel = 16

// Writer writes Works, those of several clusters in parallel, and records its writes until the cache shows them. Methods that write
// continue after an error and join the errors, each of which names the cluster.
type Writer struct {
	client  client.Client
	written kube.Expectations[client.ObjectKey]

	mu sync.Mutex
	// unseen are written Works that no reconcile has read from the cache yet, by what they hold. The event of one does not remove it:
	// a reconcile under way may have read the cache before.
	unseen map[Identity]map[client.ObjectKey]struct{}
}

// NewWriter writes with a client that reads from a cache with AddIndexes.
func NewWriter(c client.Client) *Writer {
	return &Writer{client: c, unseen: map[Identity]map[client.ObjectKey]struct{}{}}
}

// Create creates Works that hold an object. One that exists is an error of a stale cache (kube.IsStale).
func (w *Writer) Create(ctx context.Context, holds Identity, works []*workv1alpha1.Work) error {
	return each(works, "create", func(x *workv1alpha1.Work) error { return w.noted(holds, x, w.client.Create(ctx, x)) })
}

// Update writes Works as they were read. A newer version at the API server is an error of a stale cache (kube.IsStale).
func (w *Writer) Update(ctx context.Context, holds Identity, works []*workv1alpha1.Work) error {
	return each(works, "update", func(x *workv1alpha1.Work) error { return w.noted(holds, x, w.client.Update(ctx, x)) })
}

func (w *Writer) noted(holds Identity, x *workv1alpha1.Work, err error) error {
	if err != nil {
		return err
	}
	key := client.ObjectKeyFromObject(x)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written.Expect(key, x.ResourceVersion, time.Now())
	if w.unseen[holds] == nil {
		w.unseen[holds] = map[client.ObjectKey]struct{}{}
	}
	w.unseen[holds][key] = struct{}{}
	return nil
}

// Works reads our Works that hold an object, whatever binding they name. It returns a StaleCacheError as long as the cache does not
// show a write of this Writer, also of a Work that is no longer wanted: the own-write event will not lead to a reconcile (Events).
func (w *Writer) Works(ctx context.Context, holds Identity) ([]*workv1alpha1.Work, error) {
	works, err := find(ctx, w.client, holds)
	if err != nil {
		return nil, err
	}
	return works, w.confirm(holds, works)
}

// confirm is a StaleCacheError if the cache does not show a write yet.
func (w *Writer) confirm(holds Identity, shown []*workv1alpha1.Work) error {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	unseen := w.unseen[holds]
	if len(unseen) == 0 {
		return nil
	}
	versions := map[client.ObjectKey]string{}
	for _, x := range shown {
		versions[client.ObjectKeyFromObject(x)] = x.ResourceVersion
	}
	var stale error
	for key := range unseen {
		cached := cmp.Or(versions[key], "0") // "0": the cache does not have it
		if !w.written.Stale(key, cached, now) {
			delete(unseen, key)
			continue
		}
		stale = kube.StaleCache(&workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}},
			cached, "that of our last write")
	}
	if len(unseen) == 0 {
		delete(w.unseen, holds)
	}
	return stale
}

// Delete deletes Works as they were read, but for those that are being deleted.
func (w *Writer) Delete(ctx context.Context, works []*workv1alpha1.Work) error {
	return each(works, "delete", func(x *workv1alpha1.Work) error {
		if x.DeletionTimestamp != nil {
			return nil
		}
		uid, version := x.UID, x.ResourceVersion
		return client.IgnoreNotFound(w.client.Delete(ctx, x, client.Preconditions{UID: &uid, ResourceVersion: &version}))
	})
}

func each(works []*workv1alpha1.Work, verb string, do func(*workv1alpha1.Work) error) error {
	errs := make([]error, len(works))
	var g errgroup.Group
	g.SetLimit(parallel)
	for i, work := range works {
		g.Go(func() error {
			if err := do(work); err != nil {
				cluster, _ := workv1alpha2.ClusterOfNamespace(work.Namespace) // our Works are in execution namespaces
				errs[i] = fmt.Errorf("%s Work %s/%s of cluster %s: %w", verb, work.Namespace, work.Name, cluster, err)
			}
			return nil
		})
	}
	_ = g.Wait() // the errors are in errs
	return errors.Join(errs...)
}
