package manifest

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/control/names"
)

// parallel bounds how many Works of one object are written at a time.
const parallel = 16

// Writer writes Works, those of several clusters at a time. Each method goes on after an error and returns all of them, each
// naming the cluster.
type Writer struct {
	Client client.Client
	// Wrote is told of each Work that was created or updated, as the server has it then; several at a time. nil: nobody.
	Wrote func(*workv1alpha1.Work)
}

// Create makes Works. One that exists is an error (objectset.IsStale): the cache was behind.
func (w Writer) Create(ctx context.Context, works []*workv1alpha1.Work) error {
	return each(works, "create", func(x *workv1alpha1.Work) error { return w.told(x, w.Client.Create(ctx, x)) })
}

// Update writes Works as they were read: a newer version at the server is an error (objectset.IsStale).
func (w Writer) Update(ctx context.Context, works []*workv1alpha1.Work) error {
	return each(works, "update", func(x *workv1alpha1.Work) error { return w.told(x, w.Client.Update(ctx, x)) })
}

func (w Writer) told(x *workv1alpha1.Work, err error) error {
	if err == nil && w.Wrote != nil {
		w.Wrote(x)
	}
	return err
}

// Delete removes Works as they were read. Those that are being deleted are left to their finalizer.
func (w Writer) Delete(ctx context.Context, works []*workv1alpha1.Work) error {
	return each(works, "delete", func(x *workv1alpha1.Work) error {
		if x.DeletionTimestamp != nil {
			return nil
		}
		uid, version := x.UID, x.ResourceVersion
		return client.IgnoreNotFound(w.Client.Delete(ctx, x, client.Preconditions{UID: &uid, ResourceVersion: &version}))
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
