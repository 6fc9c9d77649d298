package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// clusterScoped are the kinds in use that have no namespace.
var clusterScoped = []string{"Namespace", "Cluster"}

// mapperOf knows the kinds of the scheme without a request to a server: on the hub's the CRDs are
// installed, and removed, later.
func mapperOf(scheme *runtime.Scheme) (meta.RESTMapper, error) {
	var versions []schema.GroupVersion
	for gvk := range scheme.AllKnownTypes() {
		versions = append(versions, gvk.GroupVersion())
	}
	if len(versions) == 0 {
		return nil, fmt.Errorf("the scheme is empty")
	}
	mapper := meta.NewDefaultRESTMapper(versions)
	for gvk := range scheme.AllKnownTypes() {
		scope := meta.RESTScopeNamespace
		for _, kind := range clusterScoped {
			if gvk.Kind == kind {
				scope = meta.RESTScopeRoot
			}
		}
		mapper.Add(gvk, scope)
	}
	return mapper, nil
}
