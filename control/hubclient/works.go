package hubclient

import (
	"fmt"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// NewWorks prepares the access to the hub of the execution of Works in a member, with a config from
// Config; no connection is made. Its cache holds the Works of this cluster and the interpreter
// rules; the Cluster and the Lease are read individually, without the cache, since a member may not
// list them.
func NewWorks(access *rest.Config, id string, logger logr.Logger) (cluster.Cluster, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, coordinationv1.AddToScheme, clusterv1alpha1.AddToScheme,
		configv1alpha1.AddToScheme, pelagov1alpha1.AddToScheme, workv1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("prepare access to the hub: %w", err)
		}
	}
	c, err := cluster.New(access, func(o *cluster.Options) {
		o.Scheme, o.Logger, o.MapperProvider = scheme, logger, mapper
		o.Cache = cache.Options{
			DefaultNamespaces: map[string]cache.Config{workv1alpha2.ExecutionNamespace(id): {}},
			DefaultTransform:  cache.TransformStripManagedFields(),
		}
		o.Client = client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&clusterv1alpha1.Cluster{},
			&coordinationv1.Lease{}}}}
	})
	if err != nil {
		return nil, fmt.Errorf("prepare access to the hub at %s: %w", access.Host, err)
	}
	return c, nil
}
