package node

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// mapper knows the kinds that the daemon watches by heart. A cache that had to ask the API server for their names could not even
// be made while that is away. Which version of ServiceExport is served it does not know (see exportsKind): it has both.
func mapper() *meta.DefaultRESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	add := func(scope meta.RESTScope, version schema.GroupVersion, resources map[string]string) {
		for kind, plural := range resources {
			m.AddSpecific(version.WithKind(kind), version.WithResource(plural), version.WithResource(strings.ToLower(kind)), scope)
			m.Add(version.WithKind(kind+"List"), scope) // the cache asks for the scope of lists, too
		}
	}
	add(meta.RESTScopeNamespace, corev1.SchemeGroupVersion, map[string]string{"ConfigMap": "configmaps", "Pod": "pods", "Service": "services"})
	add(meta.RESTScopeRoot, corev1.SchemeGroupVersion, map[string]string{"Node": "nodes", "Namespace": "namespaces"})
	add(meta.RESTScopeNamespace, networkingv1.SchemeGroupVersion, map[string]string{"NetworkPolicy": "networkpolicies"})
	add(meta.RESTScopeNamespace, discoveryv1.SchemeGroupVersion, map[string]string{"EndpointSlice": "endpointslices"})
	add(meta.RESTScopeRoot, pelagov1alpha1.GroupVersion, map[string]string{"NodeIndex": "nodeindices", "PortBlock": "portblocks", "Peer": "peers"})
	add(meta.RESTScopeRoot, submarinerv1.GroupVersion, map[string]string{"ClusterGlobalEgressIP": "clusterglobalegressips"})
	add(meta.RESTScopeNamespace, submarinerv1.GroupVersion, map[string]string{
		"GlobalEgressIP": "globalegressips", "GlobalIngressIP": "globalingressips", "Gateway": "gateways",
	})
	for _, version := range exportVersions {
		add(meta.RESTScopeNamespace, schema.GroupVersion{Group: mcs.GroupName, Version: version}, map[string]string{mcs.ServiceExportKindName: "serviceexports"})
	}
	return m
}
