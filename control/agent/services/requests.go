package services

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/hubclient"
)

// indexService finds a Service's EndpointSlices in the member's cache by `<namespace>/<service>`.
const indexService = "export.service"

// indexPod finds the EndpointSlices of a pod's services by the name of the pod.
const indexPod = "export.pod"

func request(namespace, name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

func ofLocalSlice(_ context.Context, obj client.Object) []reconcile.Request {
	if service, ok := SliceService(obj); ok {
		return []reconcile.Request{{NamespacedName: service}}
	}
	return nil
}

// ofOwnHubSlice ignores the slices of other clusters: an export does not depend on them.
func (r *reconciler) ofOwnHubSlice(obj client.Object) []reconcile.Request {
	if !r.owns(obj) {
		return nil
	}
	return ofLabelled(obj)
}

// ofIngressIP: the address of a pod may serve several services, all of which are requeued.
func (r *reconciler) ofIngressIP(ctx context.Context, obj client.Object) []reconcile.Request {
	g, ok := obj.(*submarinerv1.GlobalIngressIP)
	if !ok {
		return nil
	}
	if g.Spec.Target == submarinerv1.ClusterIPService {
		return []reconcile.Request{request(g.Namespace, g.Name)}
	}
	services := sets.New[reconcile.Request]()
	if g.Spec.ServiceRef != nil {
		services.Insert(request(g.Namespace, g.Spec.ServiceRef.Name))
	}
	if g.Spec.PodRef != nil {
		var list discoveryv1.EndpointSliceList
		if err := r.local.List(ctx, &list, client.InNamespace(g.Namespace), client.MatchingFields{indexPod: g.Spec.PodRef.Name}); err != nil {
			log.FromContext(ctx).Error(err, "EndpointSlices cannot be read from the cache")
		}
		for i := range list.Items {
			services.Insert(ofLocalSlice(ctx, &list.Items[i])...)
		}
	}
	return services.UnsortedList()
}

// podsOf are the pods of a local service's slice.
func podsOf(slice *discoveryv1.EndpointSlice) []string {
	if _, ok := SliceService(slice); !ok {
		return nil
	}
	pods := sets.New[string]()
	for _, e := range slice.Endpoints {
		if pod := EndpointPod(e); pod != "" {
			pods.Insert(pod)
		}
	}
	return pods.UnsortedList()
}

// ofCluster requests what a cluster affects that joins, leaves or gets other labels: the services
// that it contributes to, and the restricted exports of this cluster, whose audience may change.
func (r *reconciler) ofCluster(obj client.Object) []reconcile.Request {
	var list mcs.ServiceExportList
	if err := r.local.List(context.Background(), &list); err != nil { // from the cache
		return r.hub.OfCluster(obj) // the cache has ended, and the process with it
	}
	requests := r.hub.OfCluster(obj)
	for i := range list.Items {
		if _, restricted := list.Items[i].Annotations[v1alpha1.AnnotationExportTo]; restricted {
			requests = append(requests, request(list.Items[i].Namespace, list.Items[i].Name))
		}
	}
	return requests
}

// newNodes passes the creation of a NodeIndex: from then on its node has a fabric address, which
// never changes.
var newNodes = predicate.Funcs{
	UpdateFunc: func(event.UpdateEvent) bool { return false },
	DeleteFunc: func(event.DeleteEvent) bool { return false },
}

// ofNodeIndex: without globalnet an endpoint in the network of its node is published under the
// node's fabric address.
func (r *reconciler) ofNodeIndex(ctx context.Context, _ client.Object) []reconcile.Request {
	if r.cluster.globalnet {
		return nil
	}
	return r.exports(ctx)
}

// newSubnets passes Peers with other ranges than before.
var newSubnets = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*v1alpha1.Peer)
	after, same := e.ObjectNew.(*v1alpha1.Peer)
	return ok && same && !slices.Equal(before.Spec.Subnets, after.Spec.Subnets)
}}

// ofPeer: endpoints on no node whose addresses are routed to another cluster do not count.
func (r *reconciler) ofPeer(ctx context.Context, _ client.Object) []reconcile.Request {
	return r.exports(ctx)
}

// all requests every exported service, and those that are no longer exported and have a
// ClusterSetIP of this cluster.
func (r *reconciler) all(ctx context.Context) []reconcile.Request {
	requests := r.exports(ctx)
	var list v1alpha1.GlobalAddressList
	if err := r.local.List(ctx, &list); err != nil {
		log.FromContext(ctx).Error(err, "GlobalAddresses cannot be read from the cache")
	}
	for i := range list.Items {
		requests = append(requests, ofVIP(ctx, &list.Items[i])...)
	}
	return requests
}

func (r *reconciler) exports(ctx context.Context, opts ...client.ListOption) []reconcile.Request {
	var list mcs.ServiceExportList
	if err := r.local.List(ctx, &list, opts...); err != nil {
		log.FromContext(ctx).Error(err, "ServiceExports cannot be read from the cache")
		return nil
	}
	var requests []reconcile.Request
	for _, e := range list.Items {
		requests = append(requests, request(e.Namespace, e.Name))
	}
	return requests
}

// Indexes over the member's cache: the slices that Kubernetes keeps for a Service, and the imported
// ones, both by `<namespace>/<service>`.
const (
	indexLocal    = "imports.local"
	indexImported = "imports.imported"
)

// importedService holds for slices and for the copies of ServiceImports in the system namespace.
func importedService[T client.Object](obj T) []string {
	if s := hubclient.ServiceOf(obj); s.Name != "" && s.Namespace != "" {
		return []string{s.String()}
	}
	return nil
}

func ofSlice(ctx context.Context, obj client.Object) []reconcile.Request {
	if requests := ofLocalSlice(ctx, obj); requests != nil {
		return requests
	}
	return ofLabelled(obj)
}

// ofImport distinguishes the copies, which carry labels, from the merged imports.
func ofImport(_ context.Context, obj client.Object) []reconcile.Request {
	if requests := ofLabelled(obj); requests != nil {
		return requests
	}
	return []reconcile.Request{request(obj.GetNamespace(), obj.GetName())}
}

// ofLabelled names the service by labels.
func ofLabelled(obj client.Object) []reconcile.Request {
	if s := hubclient.ServiceOf(obj); s.Name != "" && s.Namespace != "" {
		return []reconcile.Request{{NamespacedName: s}}
	}
	return nil
}

// ofNamespace: a namespace that appears gets the services that were exported to it before.
func (r *importReconciler) ofNamespace(ctx context.Context, obj client.Object) []reconcile.Request {
	if _, ok := obj.(*corev1.Namespace); !ok || !r.hub.Synced() {
		return nil // the hub's first sync requests everything
	}
	return hubclient.ContributionRequests(ctx)(r.hub.ContributionsIn(ctx, obj.GetName()))
}

// all requests every imported service: some may have lost their last exporter while no agent ran.
func (r *importReconciler) all(ctx context.Context) []reconcile.Request {
	var imported mcs.ServiceImportList
	if err := r.local.List(ctx, &imported); err != nil {
		log.FromContext(ctx).Error(err, "ServiceImports cannot be read from the cache")
	}
	var requests []reconcile.Request
	for i := range imported.Items {
		if obj := &imported.Items[i]; r.cluster.owner.Owns(obj) {
			requests = append(requests, ofImport(ctx, obj)...)
		}
	}
	for _, slice := range r.importedSlices(ctx) {
		requests = append(requests, ofLabelled(&slice)...)
	}
	return requests
}
