package services

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/source"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/kube"
)

// Index fields of the cache; the prefix keeps them apart from those of other controllers.
const (
	podIndex     = "ingress.pod"     // EndpointSlice by the pods of its endpoints
	serviceIndex = "ingress.service" // EndpointSlice by the service that it belongs to
	madeForIndex = "ingress.madeFor" // GlobalIngressIP by the service that it was made for
)

// ingressWorkers is how many names are worked on at once; names do not depend on each other.
const ingressWorkers = 4

type queue = workqueue.TypedRateLimitingInterface[ctrl.Request]

func (r *ingressReconciler) watch(mgr ctrl.Manager) error {
	if err := addIndexes(mgr); err != nil {
		return err
	}
	export := new(metav1.PartialObjectMetadata)
	export.SetGroupVersionKind(r.exports)
	cache := mgr.GetCache()
	return ctrl.NewControllerManagedBy(mgr).Named("ingress").
		WatchesRawSource(source.TypedKind(cache, export, comingAndGoing(r, func(was, is *metav1.PartialObjectMetadata) bool { return was.UID == is.UID }))).
		WatchesRawSource(source.TypedKind(cache, &corev1.Service{}, comingAndGoing(r, func(was, is *corev1.Service) bool { return KindOf(was) == KindOf(is) }))).
		WatchesRawSource(source.TypedKind(cache, &discoveryv1.EndpointSlice{}, r.onSlice())).
		WatchesRawSource(source.TypedKind(cache, &submarinerv1.GlobalIngressIP{}, &handler.TypedEnqueueRequestForObject[*submarinerv1.GlobalIngressIP]{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: ingressWorkers}).
		Complete(r)
}

func addIndexes(mgr ctrl.Manager) error {
	slice := new(discoveryv1.EndpointSlice)
	return errors.Join(
		kube.AddIndex(mgr, slice, podIndex, podsOf),
		kube.AddIndex(mgr, slice, serviceIndex, func(s *discoveryv1.EndpointSlice) []string {
			if service := serviceOf(s); service != "" {
				return []string{service}
			}
			return nil
		}),
		kube.AddIndex(mgr, &submarinerv1.GlobalIngressIP{}, madeForIndex, func(g *submarinerv1.GlobalIngressIP) []string {
			return []string{serviceRef(g)}
		}),
	)
}

// serviceOf is the name of the local service that a slice belongs to, empty if it was imported from
// another cluster.
func serviceOf(slice *discoveryv1.EndpointSlice) string {
	service, _ := SliceService(slice)
	return service.Name
}

// comingAndGoing enqueues all names of a service when its Service or ServiceExport is created,
// deleted or no longer the same.
func comingAndGoing[T client.Object](r *ingressReconciler, same func(was, is T) bool) handler.TypedEventHandler[T, ctrl.Request] {
	enqueue := func(ctx context.Context, o T, q queue) {
		for name := range r.namesOf(ctx, o.GetNamespace(), o.GetName()) {
			q.Add(ctrl.Request{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}})
		}
	}
	return handler.TypedFuncs[T, ctrl.Request]{
		CreateFunc: func(ctx context.Context, e event.TypedCreateEvent[T], q queue) { enqueue(ctx, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.TypedUpdateEvent[T], q queue) {
			leaving := e.ObjectOld.GetDeletionTimestamp() == nil && e.ObjectNew.GetDeletionTimestamp() != nil
			if leaving || !same(e.ObjectOld, e.ObjectNew) {
				enqueue(ctx, e.ObjectNew, q)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.TypedDeleteEvent[T], q queue) { enqueue(ctx, e.Object, q) },
	}
}

// namesOf lists the GlobalIngressIPs that a service has or may need.
func (r *ingressReconciler) namesOf(ctx context.Context, namespace, service string) sets.Set[string] {
	names := sets.New(service)
	var list discoveryv1.EndpointSliceList
	if err := r.client.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{serviceIndex: service}); err != nil {
		log.FromContext(ctx).Error(err, "read the cache for ingress IPs")
	}
	for i := range list.Items {
		for _, e := range endpointsOf(&list.Items[i]) {
			names.Insert(e.name(service))
		}
	}
	var made submarinerv1.GlobalIngressIPList
	if err := r.client.List(ctx, &made, client.InNamespace(namespace), client.MatchingFields{madeForIndex: service}); err != nil {
		log.FromContext(ctx).Error(err, "read the cache for ingress IPs")
	}
	for i := range made.Items {
		names.Insert(made.Items[i].Name)
	}
	return names
}

// onSlice enqueues the names of the endpoints that were added to or removed from a slice of an
// exported service.
func (r *ingressReconciler) onSlice() handler.TypedEventHandler[*discoveryv1.EndpointSlice, ctrl.Request] {
	enqueue := func(ctx context.Context, was, is *discoveryv1.EndpointSlice, q queue) {
		slice := is
		if slice == nil {
			slice = was
		}
		if service := serviceOf(slice); service != "" && r.exported(ctx, slice.Namespace, service) {
			for e := range endpointSet(was).SymmetricDifference(endpointSet(is)) {
				q.Add(ctrl.Request{NamespacedName: types.NamespacedName{Namespace: slice.Namespace, Name: e.name(service)}})
			}
		}
	}
	return handler.TypedFuncs[*discoveryv1.EndpointSlice, ctrl.Request]{
		CreateFunc: func(ctx context.Context, e event.TypedCreateEvent[*discoveryv1.EndpointSlice], q queue) {
			enqueue(ctx, nil, e.Object, q)
		},
		UpdateFunc: func(ctx context.Context, e event.TypedUpdateEvent[*discoveryv1.EndpointSlice], q queue) {
			if serviceOf(e.ObjectOld) != serviceOf(e.ObjectNew) {
				enqueue(ctx, e.ObjectOld, nil, q)
				enqueue(ctx, nil, e.ObjectNew, q)
				return
			}
			enqueue(ctx, e.ObjectOld, e.ObjectNew, q)
		},
		DeleteFunc: func(ctx context.Context, e event.TypedDeleteEvent[*discoveryv1.EndpointSlice], q queue) {
			enqueue(ctx, e.Object, nil, q)
		},
	}
}

func endpointSet(slice *discoveryv1.EndpointSlice) sets.Set[Endpoint] {
	if slice == nil {
		return nil
	}
	return sets.New(endpointsOf(slice)...)
}

// exported reports whether the cache has an export of the service. Whichever event comes last, the
// export's or the slice's, finds the other object in the cache.
func (r *ingressReconciler) exported(ctx context.Context, namespace, service string) bool {
	export := new(metav1.PartialObjectMetadata)
	export.SetGroupVersionKind(r.exports)
	err := r.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: service}, export)
	if err != nil && !apierrors.IsNotFound(err) {
		log.FromContext(ctx).Error(err, "read the cache for ingress IPs")
	}
	return err == nil
}
