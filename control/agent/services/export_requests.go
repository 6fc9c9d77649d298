package services

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/kube"
)

// indexService finds a Service's EndpointSlices in the member's cache by `<namespace>/<service>`.
const indexService = "export.service"

func request(namespace, name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

func ofLocalSlice(_ context.Context, obj client.Object) []reconcile.Request {
	if service, ok := SliceService(obj); ok {
		return []reconcile.Request{{NamespacedName: service}}
	}
	return nil
}

func ofHubObject(obj client.Object) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: kube.ServiceOf(obj)}}
}

// ofOwnHubSlice leaves the slices of other clusters alone: they are nothing to an export.
func (r *reconciler) ofOwnHubSlice(obj client.Object) []reconcile.Request {
	if !r.owns(obj) {
		return nil
	}
	return ofHubObject(obj)
}

// ofIngressIP: the address of a pod may serve several exported services, so all of its namespace are looked at.
func (r *reconciler) ofIngressIP(ctx context.Context, obj client.Object) []reconcile.Request {
	g, ok := obj.(*submarinerv1.GlobalIngressIP)
	if !ok {
		return nil
	}
	if g.Spec.Target == submarinerv1.ClusterIPService {
		return []reconcile.Request{request(g.Namespace, g.Name)}
	}
	return r.exports(ctx, client.InNamespace(g.Namespace))
}

// newNodes lets a NodeIndex pass when it is made: from then on its node has a fabric address, which never changes.
var newNodes = predicate.Funcs{
	UpdateFunc: func(event.UpdateEvent) bool { return false },
	DeleteFunc: func(event.DeleteEvent) bool { return false },
}

// ofNodeIndex: without globalnet an endpoint in the network of its node is published under the node's fabric address.
func (r *reconciler) ofNodeIndex(ctx context.Context, _ client.Object) []reconcile.Request {
	if r.cluster.globalnet {
		return nil
	}
	return r.exports(ctx)
}

// all requests every exported service.
func (r *reconciler) all(ctx context.Context) []reconcile.Request { return r.exports(ctx) }

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
