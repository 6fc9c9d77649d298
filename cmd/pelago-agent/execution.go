package main

import (
	"fmt"
	"log/slog"
	"net/http"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/agent/peering"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/execute"
	"github.com/pelago-net/pelago/control/execute/collect"
	"github.com/pelago-net/pelago/control/hubclient"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/control/tunnel"
)

// addExecution adds the role execution, which executes this cluster's Works, and nothing else from the hub, and maintains the
// cluster's status and Lease at the hub. alone means that the role network, which renews the token, runs in another process
// or, with --workloads-only, not at all.
func (a *agent) addExecution(c config.Config, to hubclient.Options, tokens *peering.TokenSource, alone bool) error {
	id, hubID := c.ClusterID, c.HubID
	access, connected := hubclient.Config(to)
	h, err := openWorks(access, id, to.Logger)
	if err != nil {
		return err
	}
	if len(a.metrics) == 0 { // else the role network exports the same metric
		a.metrics = append(a.metrics, connected)
	}
	log := slog.New(logr.ToSlogHandler(a.manager.GetLogger().WithName("execution")))
	member := rest.CopyConfig(a.manager.GetConfig())
	member.QPS = 0 // the member's priority and fairness limits the requests
	custom := kinds.NewCustom()
	works, err := execute.New(execute.Options{
		Cluster: id, HubID: hubID, Interpreter: custom.Interpreter(), Hub: h.GetClient(), Works: execute.NewWorks(h.GetCache()),
		Member: member, Recorder: h.GetEventRecorderFor("pelago-agent"), Log: log,
	})
	if err != nil {
		return err
	}
	status, err := collect.NewCollector(collect.CollectorOptions{
		Cluster: id, Hub: h.GetClient(), Member: member, Lease: true, Log: log,
	})
	if err != nil {
		return err
	}
	attached := &tunnel.Agent{Cluster: id, Server: to.Server, CA: to.CA, Token: to.Token, Member: member, Log: log}
	a.metrics = append(a.metrics, attached.Metrics())
	follower := &execute.Follower{Cache: h.GetCache(), Live: h.GetAPIReader(), Rules: custom, Log: log}
	for name, r := range map[string]manager.Runnable{
		// Add a Runnable, not the cluster.Cluster h: the manager would wait for its cache to sync, and the hub may be unreachable.
		"the hub's cache":        manager.RunnableFunc(h.Start),
		"the rules of kinds":     manager.RunnableFunc(follower.Start),
		"the execution of Works": manager.RunnableFunc(works.Start),
		"the cluster's status":   manager.RunnableFunc(status.Start),
		"the tunnel of the hub":  manager.RunnableFunc(attached.Start),
	} {
		if err := a.manager.Add(r); err != nil {
			return fmt.Errorf("add %s: %w", name, err)
		}
	}
	switch {
	case c.WorkloadsOnly:
		a.metrics = append(a.metrics, tokens.Metrics())
		return peering.SetupToken(a.manager, peering.TokenOptions{Namespace: config.SystemNamespace, ClusterID: id, Source: tokens,
			Hub: h.GetClient(), BrokerNamespace: c.BrokerNamespace})
	case alone:
		return peering.FollowToken(a.manager, config.SystemNamespace, tokens)
	}
	return nil
}

// openWorks prepares access to the hub for the execution of Works, without connecting yet. Its cache holds this cluster's Works
// and the interpreter rules; the Cluster and the Lease are read individually, without the cache, since a member may not list them.
func openWorks(access *rest.Config, id string, logger logr.Logger) (cluster.Cluster, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, coordinationv1.AddToScheme, clusterv1alpha1.AddToScheme,
		configv1alpha1.AddToScheme, pelagov1alpha1.AddToScheme, workv1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("prepare access to the hub: %w", err)
		}
	}
	c, err := cluster.New(access, func(o *cluster.Options) {
		o.Scheme, o.Logger = scheme, logger
		o.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return hubKinds(), nil }
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

// hubKinds is static: discovery at the hub would fail while the hub is unreachable.
func hubKinds() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	add := func(gvk schema.GroupVersionKind, scope meta.RESTScope) {
		m.Add(gvk, scope)
		m.Add(gvk.GroupVersion().WithKind(gvk.Kind+"List"), scope) // the cache maps list kinds as well
	}
	add(workv1alpha1.GroupVersion.WithKind("Work"), meta.RESTScopeNamespace)
	add(pelagov1alpha1.GroupVersion.WithKind("KindRules"), meta.RESTScopeRoot)
	add(configv1alpha1.GroupVersion.WithKind("ResourceInterpreterCustomization"), meta.RESTScopeRoot)
	add(configv1alpha1.GroupVersion.WithKind("ResourceInterpreterWebhookConfiguration"), meta.RESTScopeRoot)
	add(corev1.SchemeGroupVersion.WithKind("ServiceAccount"), meta.RESTScopeNamespace) // of which tokens are requested
	add(coordinationv1.SchemeGroupVersion.WithKind("Lease"), meta.RESTScopeNamespace)
	add(clusterv1alpha1.GroupVersion.WithKind("Cluster"), meta.RESTScopeRoot)
	return m
}
