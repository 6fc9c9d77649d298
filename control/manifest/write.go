package manifest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/control/names"
	"github.com/pelago-net/pelago/control/written"
)

// parallel bounds how many Works of one object are written at a time.
const parallel = 16

// Writer writes Works, those of several clusters at a time, and remembers what it has made of them. Each method that writes goes
// on after an error and returns all of them, each naming the cluster.
type Writer struct {
	client  client.Client
	written written.Versions[client.ObjectKey]
}

// NewWriter writes with a client.
func NewWriter(c client.Client) *Writer { return &Writer{client: c} }

// Create makes Works. One that exists is an error (objectset.IsStale): the cache was behind.
func (w *Writer) Create(ctx context.Context, works []*workv1alpha1.Work) error {
	return each(works, "create", func(x *workv1alpha1.Work) error { return w.noted(x, w.client.Create(ctx, x)) })
}

// Update writes Works as they were read: a newer version at the server is an error (objectset.IsStale).
func (w *Writer) Update(ctx context.Context, works []*workv1alpha1.Work) error {
	return each(works, "update", func(x *workv1alpha1.Work) error { return w.noted(x, w.client.Update(ctx, x)) })
}

func (w *Writer) noted(x *workv1alpha1.Work, err error) error {
	if err == nil {
		w.written.Note(client.ObjectKeyFromObject(x), x.ResourceVersion, time.Now())
	}
	return err
}

// Behind says whether the cache from which Works were planned has yet to show what this Writer has made of one of them. What is
// to be created has no version.
func (w *Writer) Behind(works ...*workv1alpha1.Work) bool {
	now := time.Now()
	return slices.ContainsFunc(works, func(x *workv1alpha1.Work) bool {
		return w.written.Behind(client.ObjectKeyFromObject(x), cmp.Or(x.ResourceVersion, "0"), now)
	})
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
				cluster, _ := names.ClusterOf(work.Namespace) // all Works of ours are in execution namespaces
				errs[i] = fmt.Errorf("%s Work %s/%s of cluster %s: %w", verb, work.Namespace, work.Name, cluster, err)
			}
			return nil
		})
	}
	_ = g.Wait() // what went wrong stands in errs
	return errors.Join(errs...)
}
