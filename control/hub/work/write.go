package work

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kube"
)

// parallel bounds how many Works of one object are written at a time.
const parallel = 16

// Writer writes Works, those of several clusters at a time, and remembers what it has made of them. Each method that writes goes
// on after an error and returns all of them, each naming the cluster.
type Writer struct {
	client  client.Client
	written kube.Expectations[client.ObjectKey]

	mu sync.Mutex
	// unseen are written Works that no look has seen in the cache yet, by what they hold. An event of one says nothing of a look under
	// way, which may have read the cache before.
	unseen map[Identity]map[client.ObjectKey]struct{}
}

// NewWriter writes with a client, which reads from an indexed cache (Index).
func NewWriter(c client.Client) *Writer {
	return &Writer{client: c, unseen: map[Identity]map[client.ObjectKey]struct{}{}}
}

// Create makes Works that hold an object. One that exists is an error (objectset.IsStale): the cache was behind.
func (w *Writer) Create(ctx context.Context, holds Identity, works []*workv1alpha1.Work) error {
	return each(works, "create", func(x *workv1alpha1.Work) error { return w.noted(holds, x, w.client.Create(ctx, x)) })
}

// Update writes Works as they were read: a newer version at the server is an error (objectset.IsStale).
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

// ErrBehind says that the cache does not show yet what something is to be made from.
var ErrStaleCache = errors.New("the cache is behind")

// Works reads the Works of ours that hold an object, of whatever binding they say that they are. It is ErrBehind as long as the
// cache has yet to show what this Writer has made of one, whether that is wanted any more or not: when the cache shows it nobody
// will look, since it is an echo (Events).
func (w *Writer) Works(ctx context.Context, holds Identity) ([]*workv1alpha1.Work, error) {
	works, err := find(ctx, w.client, holds)
	if err == nil && w.behind(holds, works) {
		return nil, ErrStaleCache
	}
	return works, err
}

func (w *Writer) behind(holds Identity, shown []*workv1alpha1.Work) bool {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	unseen := w.unseen[holds]
	if len(unseen) == 0 {
		return false
	}
	versions := map[client.ObjectKey]string{}
	for _, x := range shown {
		versions[client.ObjectKeyFromObject(x)] = x.ResourceVersion
	}
	for key := range unseen {
		if !w.written.Stale(key, cmp.Or(versions[key], "0"), now) { // what is not there has no version
			delete(unseen, key)
		}
	}
	if len(unseen) == 0 {
		delete(w.unseen, holds)
	}
	return len(unseen) > 0
}

// Delete removes Works as they were read. Those that are being deleted are left to their finalizer.
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
				cluster, _ := workv1alpha2.ClusterOfNamespace(work.Namespace) // all Works of ours are in execution namespaces
				errs[i] = fmt.Errorf("%s Work %s/%s of cluster %s: %w", verb, work.Namespace, work.Name, cluster, err)
			}
			return nil
		})
	}
	_ = g.Wait() // what went wrong stands in errs
	return errors.Join(errs...)
}
