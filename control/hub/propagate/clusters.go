package propagate

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/placement"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/scheduler"
)

// onCluster notes that clusters changed, and whether it was more than their load.
func (r *reconciler) onCluster(before, after client.Object) {
	more := before == nil || after == nil || before.GetGeneration() != after.GetGeneration() || !sameMetadata(before, after)
	if !more {
		a, b := before.(*clusterv1alpha1.Cluster), after.(*clusterv1alpha1.Cluster)
		more = !equality.Semantic.DeepEqual(a.Status.APIEnablements, b.Status.APIEnablements)
	}
	r.clustersChanged(more)
	if before == nil || after == nil || rolloutDiffers(before.(*clusterv1alpha1.Cluster), after.(*clusterv1alpha1.Cluster)) {
		r.addBindings(context.Background(), indexRollout, kube.IndexFlag) // all is in memory
	}
}

// clustersChanged wakes followClusters; more: it was not only their load.
func (r *reconciler) clustersChanged(more bool) {
	for {
		select {
		case r.clusters <- more:
			return
		case noted := <-r.clusters: // pending
			more = more || noted
		}
	}
}

// followClusters passes changed clusters to the scheduler's cache and enqueues the templates whose
// decision may change: after a change of load those for which there is capacity now, else those for
// which a decision is due.
func (r *reconciler) followClusters(ctx context.Context) {
	var due <-chan time.Time // when a round-trip time that differs from the one in use replaces it
	for {
		var more bool
		select {
		case <-ctx.Done():
			return
		case more = <-r.clusters:
		case <-due:
		}
		before, rtts := r.leaving.Load(), r.rtts.Load()
		next, err := r.setClusters(ctx)
		if err != nil {
			log.FromContext(ctx).Error(err, "clusters cannot be listed")
			continue
		}
		if due = nil; next > 0 {
			due = time.After(next)
		}
		if exports := r.exports.Swap(false); exports || rtts != r.rtts.Load() {
			if err := binding.Each(ctx, r.cache, r.addNear); err != nil {
				log.FromContext(ctx).Error(err, "bindings cannot be listed")
			}
		}
		if !more && before.Equal(*r.leaving.Load()) {
			r.addSchedulable(ctx)
		} else if err := binding.Each(ctx, r.cache, r.addIfDue); err != nil {
			log.FromContext(ctx).Error(err, "bindings cannot be listed")
		}
		if !pause(ctx, gather) {
			return
		}
	}
}

// addSchedulable enqueues the templates for which no cluster had capacity, if one has it now. Load
// does not cure the other reasons of undecided bindings.
func (r *reconciler) addSchedulable(ctx context.Context) {
	err := binding.Each(ctx, r.cache, func(b binding.Binding) {
		b = r.latest(b)
		before := recorded(b)
		if before.Reason != workv1alpha2.ReasonUnschedulable || !scheduled(b, before) {
			return
		}
		req, _ := request(b, before)
		near, err := r.near(ctx, b)
		if err == nil {
			req.Near = near
			req.Scores, err = r.scores(ctx, b)
		}
		if err == nil {
			_, err = r.Capacity.Try(capacityKey(b), req)
		}
		if err == nil {
			r.addTemplate(b)
		}
	}, client.MatchingFields{indexUndecided: kube.IndexFlag})
	if err != nil {
		log.FromContext(ctx).Error(err, "bindings cannot be listed")
	}
}

// latest is the newest state of a cached binding that is known.
func (r *reconciler) latest(b binding.Binding) binding.Binding {
	key, ok := keyOfReference(b.Spec.Resource)
	if !ok {
		return b
	}
	key.GVK = r.kinds.current(key.GVK)
	return binding.Of(r.bindings.Latest(key, b.Object, time.Now()))
}

// addIfDue enqueues the template of a binding for which another decision may be due now that
// clusters have changed.
func (r *reconciler) addIfDue(b binding.Binding) {
	b = r.latest(b)
	before := recorded(b)
	if !scheduled(b, before) {
		return
	}
	req, observed := request(b, before)
	if before.Failback == nil && len(r.Capacity.Barred(b)) == 0 && !r.leaving.Load().Concerns(b.Spec) {
		switch r.Capacity.Need(req, observed) {
		case "":
			return
		case scheduler.FollowsClusters:
			open := before.Reason != workv1alpha2.ReasonSuccess || before.Held != "" || len(b.Spec.GracefulEvictionTasks) > 0
			if a := b.GetAnnotations(); open || a[policyv1alpha1.AnnotationNear] != "" || a[policyv1alpha1.AnnotationScores] != "" {
				break
			}
			d, err := r.Capacity.Try(capacityKey(b), req)
			if err == nil && d.Term == before.Term && equality.Semantic.DeepEqual(sortedByName(d.Clusters), sortedByName(b.Spec.Clusters)) {
				return // a reconcile takes twenty times as long, and there are thousands of them
			}
		}
	}
	r.addTemplate(b)
}

// setClusters returns when to read the clusters at the latest; 0: when they change.
func (r *reconciler) setClusters(ctx context.Context) (next time.Duration, err error) {
	var list clusterv1alpha1.ClusterList
	if err := r.cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return 0, err
	}
	rtts, changed, next := r.tracker.Update(list.Items, time.Now())
	if changed || r.rtts.Load() == nil {
		r.rtts.Store(&rtts)
	}
	f := placement.ReadClusters(list.Items, r.Eviction.HaltedAbove)
	r.leaving.Store(&f)
	r.Capacity.SetClusters(kube.Pointers(list.Items))
	r.generation.Add(1)
	return next, nil
}
