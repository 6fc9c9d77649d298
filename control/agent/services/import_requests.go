package services

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/control/kube"
)

// Indexes over the member's cache: the slices that Kubernetes keeps for a Service, and the imported ones, both by
// `<namespace>/<service>`.
const (
	indexLocal    = "imports.local"
	indexImported = "imports.imported"
)

// importedService holds for slices and for the copies of ServiceImports in the system namespace.
func importedService[T client.Object](obj T) []string {
	if s := kube.ServiceOf(obj); s.Name != "" && s.Namespace != "" {
		return []string{s.String()}
	}
	return nil
}

func importRequest(namespace, name string) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}}
}

func ofSlice(_ context.Context, obj client.Object) []reconcile.Request {
	if service, ok := SliceService(obj); ok {
		return []reconcile.Request{{NamespacedName: service}}
	}
	return ofMarked(obj)
}

// ofImport tells the copies, which carry labels, from the merged imports.
func ofImport(_ context.Context, obj client.Object) []reconcile.Request {
	if requests := ofMarked(obj); requests != nil {
		return requests
	}
	return importRequest(obj.GetNamespace(), obj.GetName())
}

// ofMarked names the service by labels.
func ofMarked(obj client.Object) []reconcile.Request {
	if s := kube.ServiceOf(obj); s.Name != "" && s.Namespace != "" {
		return []reconcile.Request{{NamespacedName: s}}
	}
	return nil
}

// ofNamespace: a namespace that appears gets the services that were exported to it before.
func (r *importReconciler) ofNamespace(ctx context.Context, obj client.Object) []reconcile.Request {
	if _, ok := obj.(*corev1.Namespace); !ok || !r.hub.Synced() {
		return nil // the hub's first picture requests everything
	}
	return kube.ContributionRequests(ctx)(r.hub.ContributionsIn(ctx, obj.GetName()))
}

// all requests every service that is imported now: some may have lost their last exporter while nobody looked.
func (r *importReconciler) all(ctx context.Context) []reconcile.Request {
	var imported mcs.ServiceImportList
	var slices discoveryv1.EndpointSliceList
	for _, list := range []client.ObjectList{&imported, &slices} {
		if err := r.local.List(ctx, list); err != nil {
			log.FromContext(ctx).Error(err, "imported objects cannot be read from the cache")
		}
	}
	var requests []reconcile.Request
	for i := range imported.Items {
		if obj := &imported.Items[i]; r.cluster.owner.Owns(obj) {
			requests = append(requests, ofImport(ctx, obj)...)
		}
	}
	for i := range slices.Items {
		if obj := &slices.Items[i]; r.cluster.owner.Owns(obj) {
			requests = append(requests, ofMarked(obj)...)
		}
	}
	return requests
}
