package propagate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/scheduler"
)

// decided is what an attempt to decide came to.
type decided struct {
	promise *Reservation // nil: nothing is assumed
	// written: the record of the decision differs from the former one; moved: the clusters do.
	written, moved bool
	// message says why there is no decision, or what has no part in it.
	message string
	retry   bool
	// Of an attempt to decide: when it began (zero: there was none), whether it was the first one, why it failed.
	began   time.Time
	first   bool
	failure error
}

func (d decided) drop() {
	if d.promise != nil {
		d.promise.Drop()
	}
}

// decide completes a binding with the decision where its template runs: the one that it has if none is due. remove takes
// the template away from everywhere if no cluster fits.
func (r *reconciler) decide(ctx context.Context, b binding, remove bool) (decided, error) {
	before := recorded(b)
	if !scheduled(b, before) {
		return decided{}, nil
	}
	hash, err := workv1alpha2.SpecHash(b.spec)
	if err != nil {
		return decided{}, err
	}
	now := time.Now()
	req, observed := request(b, before)
	fields, binding := unsupported(b.spec)
	applied, clusters, record := observed.Placement, b.spec.Clusters, kept(before, hash, now)
	var out decided
	fresh := false
	switch {
	case binding:
		record = failed(before, hash, workv1alpha2.ReasonNotSupportedYet, notSupported(fields, "what runs stays as it is"), nil, now)
	case r.Room.Need(b.roomKey(), req, observed) != "":
		if len(b.spec.Clusters) == 0 && before.Scheduled.IsZero() {
			if err := r.unreported(ctx); err != nil {
				return decided{}, err
			}
		}
		out.began, out.first = time.Now(), before.Scheduled.IsZero()
		d, promise, err := r.Room.Decide(b.roomKey(), req)
		if err != nil {
			out.failure = err
			record = failed(before, hash, reasonOf(err), err.Error(), rejections(d.Reasons), now)
			var fit *scheduler.FitError
			if remove && errors.As(err, &fit) {
				clusters = nil
			} else if clusters, err = r.staying(ctx, clusters); err != nil {
				return decided{}, err
			}
			break
		}
		out.promise, fresh, clusters = promise, req.Fresh, d.Clusters
		record = succeeded(d, hash, now, observed.Rescheduled)
		if applied, err = scheduler.Applied(b.spec.Placement); err != nil {
			out.drop()
			return decided{}, err
		}
	}
	record = reported(record, fields)
	out.message, out.retry = record.Message, retried(record.Reason)
	out.moved = !equality.Semantic.DeepEqual(clusters, b.spec.Clusters)
	if !out.moved && !fresh && sameRecord(before, record) && applied == observed.Placement {
		return out, nil
	}
	text, err := record.Encode()
	if err != nil {
		out.drop()
		return decided{}, err
	}
	out.written = true
	b.spec.Clusters = clusters
	setAnnotation(b, policyv1alpha1.AnnotationAppliedPlacement, applied)
	setAnnotation(b, workv1alpha2.AnnotationDecision, text)
	return out, nil
}

// staying are the clusters less those that are being removed: what cannot be decided stays where it is, but does not keep a cluster
// from leaving. A cluster that cannot be seen stays.
func (r *reconciler) staying(ctx context.Context, all []workv1alpha2.TargetCluster) ([]workv1alpha2.TargetCluster, error) {
	var out []workv1alpha2.TargetCluster
	for _, t := range all {
		var c clusterv1alpha1.Cluster
		err := r.cache.Get(ctx, client.ObjectKey{Name: t.Name}, &c)
		switch {
		case err != nil && !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("read Cluster %s: %w", t.Name, err)
		case c.DeletionTimestamp == nil:
			out = append(out, t)
		}
	}
	return out, nil
}
