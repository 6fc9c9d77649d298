package ipam

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/control/topology"
)

// podDelay batches the pod events of one namespace into one reconcile.
const podDelay = time.Second

type namespaceQueue = workqueue.TypedRateLimitingInterface[string]

// conflictReconciler keeps the condition Conflict of the GlobalEgressIPs of one namespace (request:
// its name).
type conflictReconciler struct{ client client.Client }

func setupConflicts(mgr ctrl.Manager) error {
	r := &conflictReconciler{client: mgr.GetClient()}
	return builder.TypedControllerManagedBy[string](mgr).Named("egress-conflicts").
		WatchesRawSource(source.TypedKind(mgr.GetCache(), &submarinerv1.GlobalEgressIP{},
			handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, g *submarinerv1.GlobalEgressIP) []string {
				return []string{g.Namespace}
			}))).
		WatchesRawSource(source.TypedKind(mgr.GetCache(), &corev1.Pod{}, onPod())).
		Complete(r)
}

// Reconcile compares the GlobalEgressIPs of a namespace with each other, over its pods.
func (r *conflictReconciler) Reconcile(ctx context.Context, namespace string) (ctrl.Result, error) {
	var pools submarinerv1.GlobalEgressIPList
	if err := r.client.List(ctx, &pools, client.InNamespace(namespace)); err != nil {
		return ctrl.Result{}, fmt.Errorf("list GlobalEgressIPs of %s: %w", namespace, err)
	}
	var pods []topology.EgressPod
	if len(pools.Items) > 1 {
		var list corev1.PodList
		if err := r.client.List(ctx, &list, client.InNamespace(namespace)); err != nil {
			return ctrl.Result{}, fmt.Errorf("list pods of %s: %w", namespace, err)
		}
		for i := range list.Items {
			pods = append(pods, topology.EgressPodOf(&list.Items[i]))
		}
	}
	lost := conflicts(pools.Items, pods, namespace)
	var errs []error
	for i := range pools.Items {
		errs = append(errs, r.show(ctx, &pools.Items[i], lost[pools.Items[i].Name]))
	}
	return kube.Result(0, errors.Join(errs...))
}

func (r *conflictReconciler) show(ctx context.Context, g *submarinerv1.GlobalEgressIP, lost string) error {
	c := conflictCondition(lost, meta.FindStatusCondition(g.Status.Conditions, submarinerv1.ConditionConflict))
	if c == nil {
		return nil
	}
	before := g.DeepCopy()
	c.ObservedGeneration = g.Generation
	if !meta.SetStatusCondition(&g.Status.Conditions, *c) {
		return nil
	}
	patch := kube.MergeFrom(before)
	if err := r.client.Status().Patch(ctx, g, patch); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write the status of GlobalEgressIP %s/%s: %w", g.Namespace, g.Name, err))
	}
	return nil
}

// onPod enqueues the namespace of a pod that was created, deleted or relabelled.
func onPod() handler.TypedEventHandler[*corev1.Pod, string] {
	later := func(q namespaceQueue, pod *corev1.Pod) { q.AddAfter(pod.Namespace, podDelay) }
	return handler.TypedFuncs[*corev1.Pod, string]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*corev1.Pod], q namespaceQueue) { later(q, e.Object) },
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*corev1.Pod], q namespaceQueue) {
			if !maps.Equal(e.ObjectOld.Labels, e.ObjectNew.Labels) {
				later(q, e.ObjectNew)
			}
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*corev1.Pod], q namespaceQueue) { later(q, e.Object) },
	}
}

// conflicts maps the name of each GlobalEgressIP of a namespace that loses pods to an older one to
// the message of its condition.
func conflicts(pools []submarinerv1.GlobalEgressIP, pods []topology.EgressPod, namespace string) map[string]string {
	table := topology.NewEgressTable(nil, pools, nil)
	lost := map[string]string{}
	winner, losers := table.Shadowed(namespace)
	for _, loser := range losers {
		lost[loser.Name] = fmt.Sprintf("GlobalEgressIP %s is older and, like this one, has no podSelector: it serves the namespace", winner.Name)
	}
	slices.SortFunc(pods, func(a, b topology.EgressPod) int { return cmp.Compare(a.Name, b.Name) })
	for _, pod := range pods {
		c := table.Choose(pod)
		if c.Rank != topology.PodSelector {
			continue
		}
		for _, loser := range c.Shadowed {
			if _, known := lost[loser.Name]; !known {
				lost[loser.Name] = selectedTwice(c.Pool, pod)
			}
		}
	}
	return lost
}

func selectedTwice(winner pelagov1alpha1.EgressPool, pod topology.EgressPod) string {
	return fmt.Sprintf("GlobalEgressIP %s is older and serves the pods that both select, such as %s", winner.Name, pod.Name)
}

// conflictCondition turns what a GlobalEgressIP loses into its condition; nil if none has to be
// written.
func conflictCondition(lost string, was *metav1.Condition) *metav1.Condition {
	switch {
	case lost != "":
		return &metav1.Condition{Type: submarinerv1.ConditionConflict, Status: metav1.ConditionTrue, Reason: submarinerv1.ReasonOlderObject, Message: lost}
	case was != nil:
		return &metav1.Condition{Type: submarinerv1.ConditionConflict, Status: metav1.ConditionFalse, Reason: submarinerv1.ReasonNoConflict}
	}
	return nil
}
