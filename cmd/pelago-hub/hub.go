package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	appsv1alpha1 "github.com/pelago-net/pelago/api/apps/v1alpha1"
	autoscalingv1alpha1 "github.com/pelago-net/pelago/api/autoscaling/v1alpha1"
	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	networkingv1alpha1 "github.com/pelago-net/pelago/api/networking/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	remedyv1alpha1 "github.com/pelago-net/pelago/api/remedy/v1alpha1"
	searchv1alpha1 "github.com/pelago-net/pelago/api/search/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hubclient"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
)

const (
	// drainTime bounds how long running reconciles may take at the end.
	drainTime = 10 * time.Second
	// renewDeadline is how long the leader tries to renew its lease before it gives up, below the
	// 15 s that the lease lasts.
	renewDeadline = 10 * time.Second
	// minPause and maxPause bound the backoff with which the cache retries an unreachable API
	// server.
	minPause, maxPause = 200 * time.Millisecond, time.Second
)

// required are the kinds without which the hub does nothing.
func required() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{
		clusterv1alpha1.GroupVersion.WithKind("Cluster"),
		configv1alpha1.GroupVersion.WithKind("ResourceInterpreterCustomization"),
		configv1alpha1.GroupVersion.WithKind("ResourceInterpreterWebhookConfiguration"),
		pelagov1alpha1.GroupVersion.WithKind("KindRules"),
		policyv1alpha1.GroupVersion.WithKind("PropagationPolicy"),
		policyv1alpha1.GroupVersion.WithKind("ClusterPropagationPolicy"),
		policyv1alpha1.GroupVersion.WithKind("OverridePolicy"),
		policyv1alpha1.GroupVersion.WithKind("ClusterOverridePolicy"),
		policyv1alpha1.GroupVersion.WithKind("ClusterTaintPolicy"),
		policyv1alpha1.GroupVersion.WithKind("FederatedResourceQuota"),
		appsv1alpha1.GroupVersion.WithKind("WorkloadRebalancer"),
		autoscalingv1alpha1.GroupVersion.WithKind("FederatedHPA"),
		autoscalingv1alpha1.GroupVersion.WithKind("CronFederatedHPA"),
		networkingv1alpha1.GroupVersion.WithKind("MultiClusterService"),
		networkingv1alpha1.GroupVersion.WithKind("MultiClusterIngress"),
		remedyv1alpha1.GroupVersion.WithKind("Remedy"),
		searchv1alpha1.Stored.WithKind("ResourceRegistry"),
		workv1alpha1.GroupVersion.WithKind("Work"),
		workv1alpha2.GroupVersion.WithKind("ResourceBinding"),
		workv1alpha2.GroupVersion.WithKind("ClusterResourceBinding"),
	}
}

// open constructs the manager with all controllers.
func open(ctx context.Context, cfg *rest.Config, o options) (ctrl.Manager, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	direct, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connect to the hub's API server at %s: %w", cfg.Host, err)
	}
	if err := served(direct.RESTMapper(), cfg.Host); err != nil {
		return nil, err
	}
	id, err := broker.HubID(ctx, direct)
	if err != nil {
		return nil, err
	}
	uid, err := broker.ClusterUID(ctx, direct)
	if err != nil {
		return nil, err
	}
	mgr, a, err := newManager(cfg, o, scheme)
	if err != nil {
		return nil, err
	}
	return mgr, errors.Join(
		setupControllers(mgr, id, uid, a, o),
		setupProxy(mgr, cfg, o),
		mgr.AddHealthzCheck("liveness", kube.Liveness(metrics.Registry, a.attempted)),
		mgr.AddReadyzCheck("ping", healthz.Ping),
	)
}

// served refuses an API server on which `pelago init` was not run.
func served(mapper meta.RESTMapper, host string) error {
	for _, gvk := range required() {
		_, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if meta.IsNoMatchError(err) {
			return fmt.Errorf("the API server at %s does not serve the kind %s of %s: run `pelago init` there, which installs it", host,
				gvk.Kind, gvk.GroupVersion())
		}
		if err != nil {
			return fmt.Errorf("ask the hub's API server at %s for the kind %s: %w", host, gvk.Kind, err)
		}
	}
	return nil
}

// newScheme knows the kinds that have Go types. Templates are unstructured.
func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, clusterv1alpha1.AddToScheme, configv1alpha1.AddToScheme, pelagov1alpha1.AddToScheme,
		policyv1alpha1.AddToScheme, workv1alpha1.AddToScheme, workv1alpha2.AddToScheme, appsv1alpha1.AddToScheme,
		autoscalingv1alpha1.AddToScheme, networkingv1alpha1.AddToScheme, remedyv1alpha1.AddToScheme, searchv1alpha1.AddStoredToScheme,
	} {
		if err := add(s); err != nil {
			return nil, fmt.Errorf("collect the kinds: %w", err)
		}
	}
	return s, nil
}

// newManager makes the manager, without controllers. All writes by other clients must pass the same
// gate as the manager's.
func newManager(cfg *rest.Config, o options, scheme *runtime.Scheme) (mgr ctrl.Manager, a hubAccess, err error) {
	mo := managerOptions(o, scheme)
	if mo.Cache.HTTPClient, err = rest.HTTPClientFor(hubclient.RetryingConfig(cfg, minPause, maxPause, ctrl.Log)); err != nil {
		return nil, a, fmt.Errorf("connect the cache to the hub's API server at %s: %w", cfg.Host, err)
	}
	a = hubAccess{cfg, func(next http.RoundTripper) http.RoundTripper { return next }, func() time.Time { return time.Time{} }}
	if o.leaderElect {
		lock, f, err := kube.FencedLease(cfg, manifests.SystemNamespace, manifests.HubName, o.identity, renewDeadline)
		if err != nil {
			return nil, a, err
		}
		mo.LeaderElectionResourceLockInterface, a.gate, a.attempted = lock, f.Wrap, f.Attempted
	}
	if mgr, err = ctrl.NewManager(a.way(), mo); err != nil {
		return nil, a, fmt.Errorf("make the manager: %w", err)
	}
	return mgr, a, nil
}

func managerOptions(o options, scheme *runtime.Scheme) ctrl.Options {
	return ctrl.Options{
		Scheme:   scheme,
		Cache:    cache.Options{DefaultTransform: kube.NewStringTable().Transform},
		NewCache: kube.NewStreamCache(nil),
		// Typed Secrets are read only for access to members: such reads are few and do not justify
		// caching all Secrets of the hub.
		Client:                        client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}},
		Metrics:                       metricsserver.Options{BindAddress: o.metricsAddress},
		HealthProbeBindAddress:        o.healthAddress,
		PprofBindAddress:              o.profileAddress,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              manifests.HubName,
		LeaderElectionNamespace:       manifests.SystemNamespace,
		RenewDeadline:                 ptr.To(renewDeadline),
		LeaderElectionReleaseOnCancel: true, // nothing is written after the manager's end
		GracefulShutdownTimeout:       ptr.To(drainTime),
		Controller:                    ctrlconfig.Controller{SkipNameValidation: ptr.To(o.several)},
	}
}
