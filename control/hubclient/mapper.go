package hubclient

import (
	"net/http"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
)

// mapper is the cluster.Options.MapperProvider of the hub, with the kinds that a member reads and
// writes there. It is static: discovery would fail while the hub is unreachable.
func mapper(*rest.Config, *http.Client) (meta.RESTMapper, error) {
	m := meta.NewDefaultRESTMapper(nil)
	for scope, kinds := range map[meta.RESTScope][]schema.GroupVersionKind{
		meta.RESTScopeNamespace: {
			submarinerv1.GroupVersion.WithKind("Cluster"),
			submarinerv1.GroupVersion.WithKind("Endpoint"),
			v1alpha1.GroupVersion.WithKind("ServiceContribution"),
			discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"),
			corev1.SchemeGroupVersion.WithKind("ConfigMap"),
			corev1.SchemeGroupVersion.WithKind("ServiceAccount"), // of which tokens are requested
			workv1alpha1.GroupVersion.WithKind("Work"),
			coordinationv1.SchemeGroupVersion.WithKind("Lease"),
		},
		meta.RESTScopeRoot: {
			clusterv1alpha1.GroupVersion.WithKind("Cluster"),
			v1alpha1.GroupVersion.WithKind("KindRules"),
			configv1alpha1.GroupVersion.WithKind("ResourceInterpreterCustomization"),
			configv1alpha1.GroupVersion.WithKind("ResourceInterpreterWebhookConfiguration"),
		},
	} {
		for _, kind := range kinds {
			m.Add(kind, scope)
			// the cache maps list kinds as well
			m.Add(kind.GroupVersion().WithKind(kind.Kind+"List"), scope)
		}
	}
	return m, nil
}
