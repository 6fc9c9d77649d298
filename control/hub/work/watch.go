package work

import (
	"context"
	"errors"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/kube"
)

// Indexes of the cache.
const (
	bindingIndex = "works.binding" // Works by the binding that they name, as a request prints it
	clusterIndex = "works.cluster" // bindings by the clusters that they name
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

func (r *reconciler) watch(mgr ctrl.Manager, o controller.Options) error {
	if err := errors.Join(
		kube.AddIndex(mgr, &workv1alpha1.Work{}, bindingIndex, func(w *workv1alpha1.Work) []string {
			if key, ok := binding.OfWork(w); ok {
				return []string{key.String()}
			}
			return nil
		}),
		binding.AddIndex(mgr, clusterIndex, func(b binding.Binding) []string { return clustersOf(b.Spec) }),
	); err != nil {
		return err
	}
	works, err := kube.Reconciler("works", r.recorder, r.reconcile)
	if err != nil {
		return err
	}
	spec := predicate.GenerationChangedPredicate{}
	labelsOrSpec := predicate.Or(spec, predicate.LabelChangedPredicate{})
	marksOrSpec := predicate.Or(labelsOrSpec, predicate.AnnotationChangedPredicate{})
	ofCluster, ofOverride := handler.EnqueueRequestsFromMapFunc(r.ofCluster), handler.EnqueueRequestsFromMapFunc(r.ofOverride)
	ofPolicy := handler.EnqueueRequestsFromMapFunc(r.ofPolicy)
	return ctrl.NewControllerManagedBy(mgr).Named("works").WithOptions(o).
		Watches(&workv1alpha2.ResourceBinding{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(marksOrSpec)).
		Watches(&workv1alpha2.ClusterResourceBinding{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(marksOrSpec)).
		Watches(&workv1alpha1.Work{}, r.writer.Events(binding.OfWork), builder.WithPredicates(marksOrSpec)).
		Watches(&clusterv1alpha1.Cluster{}, ofCluster, builder.WithPredicates(clusterChanged())).
		Watches(&policyv1alpha1.OverridePolicy{}, ofOverride, builder.WithPredicates(spec)).
		Watches(&policyv1alpha1.ClusterOverridePolicy{}, ofOverride, builder.WithPredicates(spec)).
		Watches(&policyv1alpha1.PropagationPolicy{}, ofPolicy, builder.WithPredicates(memberOwnedChanged())).
		Watches(&policyv1alpha1.ClusterPropagationPolicy{}, ofPolicy, builder.WithPredicates(memberOwnedChanged())).
		WatchesRawSource(source.Func(r.followRules)).
		Complete(works)
}

// clusterChanged passes updates of Clusters that affect Works: of labels and spec, which overrides
// refer to, and of whether it takes Works, but not of other taints, which change with conditions.
func clusterChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		was, is := e.ObjectOld.(*clusterv1alpha1.Cluster), e.ObjectNew.(*clusterv1alpha1.Cluster)
		before, after := was.Spec, is.Spec
		before.Taints, after.Taints = nil, nil
		return was.UID != is.UID || (was.DeletionTimestamp == nil) != (is.DeletionTimestamp == nil) || was.Takes() != is.Takes() ||
			!maps.Equal(was.Labels, is.Labels) || !equality.Semantic.DeepEqual(before, after)
	}}
}

// followRules enqueues the bindings of kinds whose rules have changed: what is pruned and how
// replicas are set depends on them.
func (r *reconciler) followRules(ctx context.Context, q queue) error {
	r.Interpreter.Follow(ctx, func(changed func(schema.GroupVersionKind) bool) {
		for _, req := range r.bindings(ctx, func(b binding.Binding) bool { return changed(kindOf(b.Spec.Resource)) }) {
			q.Add(req)
		}
	})
	return nil
}

func kindOf(r workv1alpha2.ObjectReference) schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(r.APIVersion, r.Kind)
}

// memberOwnedChanged lets those changes of policies pass that the bindings do not show.
func memberOwnedChanged() predicate.Predicate {
	said := func(o client.Object) string { return o.GetAnnotations()[policyv1alpha1.AnnotationMemberOwned] }
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return said(e.Object) != "" },
		UpdateFunc: func(e event.UpdateEvent) bool { return said(e.ObjectOld) != said(e.ObjectNew) },
		DeleteFunc: func(event.DeleteEvent) bool { return false }, // what it said holds on
	}
}

// ofCluster are the bindings that name a cluster (overrides go by its labels and fields), and those
// that have a Work for it, which may be surplus since before it was there.
func (r *reconciler) ofCluster(ctx context.Context, o client.Object) []reconcile.Request {
	out := r.bindings(ctx, func(binding.Binding) bool { return true }, client.MatchingFields{clusterIndex: o.GetName()})
	var works workv1alpha1.WorkList
	if r.client.List(ctx, &works, client.InNamespace(workv1alpha2.ExecutionNamespace(o.GetName())), client.UnsafeDisableDeepCopy) != nil {
		return out // as in bindings
	}
	for i := range works.Items {
		if key, ok := binding.OfWork(&works.Items[i]); ok {
			out = append(out, reconcile.Request{NamespacedName: key})
		}
	}
	return out
}

// ofPolicy are the bindings that a policy claims.
func (r *reconciler) ofPolicy(ctx context.Context, o client.Object) []reconcile.Request {
	labels, _ := PolicyMarks(o.GetLabels(), nil)
	if len(labels) == 0 {
		return nil
	}
	return r.bindings(ctx, func(binding.Binding) bool { return true }, client.MatchingLabels(labels))
}

// ofOverride are the bindings whose templates an override policy may select. Label selectors are
// not evaluated: a template that they do not select gives the same Works as before.
func (r *reconciler) ofOverride(ctx context.Context, o client.Object) []reconcile.Request {
	var spec policyv1alpha1.OverrideSpec
	var within []client.ListOption
	switch p := o.(type) {
	case *policyv1alpha1.OverridePolicy:
		spec, within = p.Spec, []client.ListOption{client.InNamespace(p.Namespace)}
	case *policyv1alpha1.ClusterOverridePolicy:
		spec = p.Spec
	}
	var kinds []policyv1alpha1.ResourceSelector
	for _, s := range spec.ResourceSelectors {
		s.LabelSelector = nil
		kinds = append(kinds, s)
	}
	return r.bindings(ctx, func(b binding.Binding) bool {
		switch {
		case o.GetNamespace() != "" && b.GetNamespace() == "":
			// a list of what has no namespace ignores the one that is requested
			return false
		case len(kinds) == 0:
			return true
		}
		ref := b.Spec.Resource
		precision, err := policy.Match(kinds, o.GetNamespace(), &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: ref.APIVersion, Kind: ref.Kind},
			ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name},
		})
		return err != nil || precision != policy.NoMatch
	}, within...)
}

// bindings are those of both kinds that a list finds and for which holds is true.
func (r *reconciler) bindings(ctx context.Context, holds func(binding.Binding) bool, o ...client.ListOption) []reconcile.Request {
	var out []reconcile.Request
	err := binding.Each(ctx, r.client, func(b binding.Binding) {
		if holds(b) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(b)})
		}
	}, o...)
	if err != nil {
		return nil // a running cache answers; before its start and after its end nothing is due
	}
	return out
}

// settle is how long after an event of a Work it is compared with what is wanted. An event of our
// own write may arrive before the response to it, while the cache still lacks the other writes of
// the same round.
const settle = 500 * time.Millisecond

// Events enqueues what a Work was made of (owner): at once when a Work is gone, as a new one may
// wait for that; else after settle, unless the event is that of a write by this Writer.
func (w *Writer) Events(owner func(client.Object) (client.ObjectKey, bool)) handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	add := func(o client.Object, q queue, after time.Duration) {
		if key, ok := owner(o); ok {
			q.AddAfter(reconcile.Request{NamespacedName: key}, after)
		}
	}
	ownWrite := func(o client.Object) bool {
		return w.written.OwnWrite(client.ObjectKeyFromObject(o), o.GetResourceVersion())
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) {
			if !ownWrite(e.Object) {
				add(e.Object, q, settle)
			}
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			if !ownWrite(e.ObjectNew) {
				add(e.ObjectOld, q, settle)
				add(e.ObjectNew, q, settle)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			w.written.Forget(client.ObjectKeyFromObject(e.Object))
			add(e.Object, q, 0)
		},
	}
}
