package services

import (
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Service is the Service of this cluster that an EndpointSlice belongs to. Slices that were imported from other clusters
// never have the label, and no Service.
func SliceService(slice client.Object) (service types.NamespacedName, ok bool) {
	name := slice.GetLabels()[discoveryv1.LabelServiceName]
	if name == "" {
		return types.NamespacedName{}, false
	}
	return types.NamespacedName{Namespace: slice.GetNamespace(), Name: name}, true
}

// ByService are the values by which EndpointSlices are indexed: `<namespace>/<name>` of the Service.
func ByService(slice *discoveryv1.EndpointSlice) []string {
	if service, ok := SliceService(slice); ok {
		return []string{service.String()}
	}
	return nil
}
