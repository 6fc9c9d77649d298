package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/control/agent/clusterdns"
	"github.com/pelago-net/pelago/control/agent/gateways"
	"github.com/pelago-net/pelago/control/agent/hubaddress"
	"github.com/pelago-net/pelago/control/agent/ipam"
	"github.com/pelago-net/pelago/control/agent/peering"
	"github.com/pelago-net/pelago/control/agent/ranges"
	"github.com/pelago-net/pelago/control/agent/services"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/hubclient"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/control/topology"
)

const (
	// Limits of requests to the hub, per second.
	hubQPS   = 50
	hubBurst = 100
	// drainTime bounds the wait for running reconciles at the end.
	drainTime = 10 * time.Second
	// renewDeadline is how long the leader tries to renew its lease before it gives up, below the
	// 15 s that the lease lasts.
	renewDeadline = 10 * time.Second
)

// agent is everything that one process runs.
type agent struct {
	manager ctrl.Manager
	hub     *hubclient.Hub // of the role network, else nil
	metrics []prometheus.Collector
	live    healthz.Checker // of /healthz
	options options
	// changed is cancelled when the configuration differs from the one that the agent was
	// constructed from.
	changed context.Context
}

// open reads the member's configuration and constructs the controllers. It sends no request to the
// hub.
func open(ctx context.Context, member *rest.Config, o options) (*agent, error) {
	scheme, err := o.roles.scheme(member)
	if err != nil {
		return nil, err
	}
	direct, err := client.New(member, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	have, err := readInput(ctx, direct)
	if err != nil {
		return nil, err
	}
	mo := managerOptions(o, scheme)
	attempted := func() time.Time { return time.Time{} }
	if o.leaderElect { // writes to the member pass the fence
		lock, f, err := kube.FencedLease(member, mo.LeaderElectionNamespace, mo.LeaderElectionID, "", renewDeadline)
		if err != nil {
			return nil, err
		}
		mo.LeaderElectionResourceLockInterface, attempted = lock, f.Attempted
		member = rest.CopyConfig(member)
		member.Wrap(f.Wrap)
	}
	live := kube.Liveness(metrics.Registry, attempted)
	mo.Metrics.ExtraHandlers = map[string]http.Handler{
		"/healthz": healthz.CheckHandler{Checker: live}, "/readyz": healthz.CheckHandler{Checker: healthz.Ping},
	}
	mgr, err := ctrl.NewManager(member, mo)
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	tokens := peering.NewTokenSource(have.broker.Token)
	to := hubclient.Options{
		Server: have.broker.Server, CA: have.broker.CA, Namespace: have.broker.Namespace, ClusterID: have.config.ClusterID, Token: tokens.Token,
		MinPause: o.hubPause[0], MaxPause: o.hubPause[1], QPS: hubQPS, Burst: hubBurst,
		Logger: mgr.GetLogger().WithName("hub"),
	}
	changed, restart := context.WithCancel(context.Background())
	a := &agent{manager: mgr, live: live, options: o, changed: changed}
	var errs []error
	if o.roles.network && have.config.WorkloadsOnly {
		errs = append(errs, fmt.Errorf("this cluster has joined with --workloads-only: run with --roles=%s", roleExecution))
	} else if o.roles.network {
		errs = append(errs, a.addNetwork(have, to, tokens))
	}
	if o.roles.execution {
		errs = append(errs, a.addExecution(have.config, to, tokens, !o.roles.network))
	}
	return a, errors.Join(
		errors.Join(errs...),
		watchInput(mgr, have, restart),
		mgr.AddHealthzCheck("liveness", live),
		mgr.AddReadyzCheck("ping", healthz.Ping),
	)
}

// addNetwork adds the controllers of the role network.
func (a *agent) addNetwork(have input, to hubclient.Options, tokens *peering.TokenSource) error {
	h, err := hubclient.New(to)
	if err != nil {
		return err
	}
	if err := a.manager.Add(h); err != nil {
		return fmt.Errorf("add the hub's cache: %w", err)
	}
	a.hub = h
	a.metrics = append(append(a.metrics, h.Metrics()...), tokens.Metrics())
	kept, err := gateways.Setup(a.manager, gateways.Options{Want: have.config.Gateways})
	a.metrics = append(a.metrics, kept...)
	return errors.Join(err, a.followHub(have.config, tokens), a.compareRanges(have.config), setupControllers(a.manager, have, h, tokens))
}

// compareRanges adds the comparison of the registered ranges. With globalnet none of pods and
// services is routed.
func (a *agent) compareRanges(c config.Config) error {
	if c.Globalnet() {
		return nil
	}
	outgrown, err := ranges.Setup(a.manager, ranges.Options{Namespace: config.SystemNamespace, Interval: a.options.interval,
		Registered: ranges.Registered{ClusterID: c.ClusterID, Pods: c.PodCIDRs, Services: c.ServiceCIDRs}})
	a.metrics = append(a.metrics, outgrown...)
	return err
}

// followHub adds what keeps the hub's address, in the process that renews the token.
func (a *agent) followHub(c config.Config, tokens *peering.TokenSource) error {
	followed, err := hubaddress.Setup(a.manager, hubaddress.Options{
		Namespace: config.SystemNamespace, BrokerNamespace: c.BrokerNamespace, ClusterID: c.ClusterID, HubID: c.HubID, Token: tokens.Token,
		Interval: a.options.interval,
	})
	a.metrics = append(a.metrics, followed...)
	return err
}

func setupControllers(mgr ctrl.Manager, have input, h *hubclient.Hub, tokens *peering.TokenSource) error {
	c := have.config
	given := func(urls ...string) []string {
		return slices.DeleteFunc(urls, func(s string) bool { return s == "" })
	}
	return errors.Join(
		ipam.SetupNodeIndexes(mgr, ipam.NodeIndexOptions{Namespace: config.SystemNamespace, Globalnet: c.Globalnet()}),
		ipam.SetupAddresses(mgr, ipam.AddressOptions{GlobalCIDR: c.GlobalCIDRs}),
		ipam.SetupBlocks(mgr, ipam.BlockOptions{GlobalCIDR: c.GlobalCIDRs}),
		services.SetupIngress(mgr, services.IngressOptions{GlobalCIDR: c.GlobalCIDRs}),
		peering.Setup(mgr, peering.Options{
			ClusterID: c.ClusterID, ClusterIndex: c.ClusterIndex, Subnets: c.Subnets(),
			PodCIDRs: c.PodCIDRs, ServiceCIDRs: c.ServiceCIDRs, GlobalCIDRs: c.GlobalCIDRs, GlobalRange: c.GlobalRange,
			ExternalCIDRs: c.ExternalCIDRs, Fabric: c.FabricCIDR,
			CableDriver: c.CableDriver, CablePort: c.CablePort, NoNAT: c.NoNAT, WireVersion: int(bpf.PelagoOverlayOVERLAY_VERSION_MAX),
			SystemNamespace: config.SystemNamespace, BrokerNamespace: h.Namespace(), HubID: c.HubID, Hub: h,
			HubServers: given(have.broker.Server, have.broker.Other),
			APIServers: given(mgr.GetConfig().Host, c.APIServer),
		}),
		services.SetupExports(mgr, services.ExportOptions{
			ClusterID: c.ClusterID, Globalnet: c.Globalnet(), Routed: c.RoutedPodCIDRs(), Hub: h,
			ClusterSetIPs: c.UseClusterSetIPs(), DashedHostnames: c.Mode == config.ModeMCS,
			Fabric: func(node uint16) (netip.Addr, error) { return c.FabricAddress(c.ClusterIndex, node) },
		}),
		services.SetupImports(mgr, services.ImportOptions{
			ClusterID: c.ClusterID, SystemNamespace: config.SystemNamespace, HubID: c.HubID,
			ModeMCS: c.Mode == config.ModeMCS, Hub: h,
			UnreachableClusters: func(ctx context.Context, set func([]string)) {
				topology.WatchReports(ctx, mgr.GetCache(), set, slog.New(logr.ToSlogHandler(mgr.GetLogger())))
			},
		}),
		peering.SetupIdentity(mgr, peering.IdentityOptions{ClusterID: c.ClusterID, HubID: c.HubID}),
		peering.SetupToken(mgr, peering.TokenOptions{Namespace: config.SystemNamespace, ClusterID: c.ClusterID, Source: tokens, Hub: h.Client(), BrokerNamespace: h.Namespace()}),
		clusterdns.SetupForward(mgr, clusterdns.ForwardOptions{Zones: clusterdns.Zones(c), Cache: c.DNSCache, Custom: c.CoreDNSCustom}),
	)
}

func managerOptions(o options, scheme *runtime.Scheme) ctrl.Options {
	return ctrl.Options{
		Scheme:                        scheme,
		Cache:                         cacheOptions(),
		Metrics:                       metricsserver.Options{BindAddress: o.metricsAddress},
		HealthProbeBindAddress:        o.healthAddress,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              o.roles.lease(),
		LeaderElectionNamespace:       config.SystemNamespace,
		RenewDeadline:                 ptr.To(renewDeadline),
		LeaderElectionReleaseOnCancel: true, // nothing is written after the manager's end
		GracefulShutdownTimeout:       ptr.To(drainTime),
		Controller:                    ctrlconfig.Controller{SkipNameValidation: ptr.To(o.several)},
	}
}

// run runs the controllers until ctx ends or the configuration changes; the next process reads the
// new one.
func (a *agent) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.changed, cancel)()
	if err := a.manager.Start(ctx); err != nil {
		return fmt.Errorf("run the controllers: %w", err)
	}
	if a.changed.Err() != nil {
		a.manager.GetLogger().Info("configuration changed: ending, for a restart with the new one")
	}
	return nil
}

// cacheOptions restricts the cache to objects that the agent may read, and strips fields that it
// does not use.
func cacheOptions() cache.Options {
	system := cache.ByObject{Namespaces: map[string]cache.Config{config.SystemNamespace: {}}}
	return cache.Options{
		// also of the kinds below, unless they have their own
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: {Namespaces: map[string]cache.Config{
				config.SystemNamespace: {FieldSelector: named(config.BrokerSecretName)},
			}},
			&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{
				config.SystemNamespace: {FieldSelector: named(config.ConfigMapName)},
			}},
			&corev1.Pod{}:                 {Transform: stripPod},
			&submarinerv1.Cluster{}:       system,
			&submarinerv1.Endpoint{}:      system,
			topology.RouteAgentMetadata(): system,
			&submarinerv1.Gateway{}:       system,
		},
	}
}

func named(name string) fields.Selector { return fields.OneTermEqualSelector("metadata.name", name) }

// stripPod reduces a Pod to the fields that control/agent/ipam reads: identity and labels, node and
// host network, and phase. Pods outnumber all other objects together, and they are large. The agent
// never writes one. An object that is not a Pod (the tombstone of a deletion that the watch missed)
// is passed through unchanged.
func stripPod(in any) (any, error) {
	p, ok := in.(*corev1.Pod)
	if !ok {
		return in, nil
	}
	return &corev1.Pod{
		TypeMeta: p.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, Labels: p.Labels,
		},
		Spec:   corev1.PodSpec{NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork},
		Status: corev1.PodStatus{Phase: p.Status.Phase},
	}, nil
}

// input is what `pelago join` left in the member for the agent.
type input struct {
	config config.Config
	broker config.Broker
}

var (
	configKey = client.ObjectKey{Namespace: config.SystemNamespace, Name: config.ConfigMapName}
	brokerKey = client.ObjectKey{Namespace: config.SystemNamespace, Name: config.BrokerSecretName}
)

func readInput(ctx context.Context, c client.Reader) (input, error) {
	var cm corev1.ConfigMap
	if err := c.Get(ctx, configKey, &cm); err != nil {
		return input{}, fmt.Errorf("read ConfigMap %s, which `pelago join` writes: %w", configKey, err)
	}
	var secret corev1.Secret
	if err := c.Get(ctx, brokerKey, &secret); err != nil {
		return input{}, fmt.Errorf("read Secret %s, which `pelago join` writes: %w", brokerKey, err)
	}
	var in input
	var err error
	if in.config, err = config.Parse(cm.Data); err != nil {
		return input{}, err
	}
	if in.broker, err = config.ParseBroker(secret.Data); err != nil {
		return input{}, err
	}
	return in, nil
}

// differs reports whether the configuration now requires a new agent. A renewed token alone does
// not.
func (in input) differs(now input) bool {
	return !maps.Equal(in.config.Data(), now.config.Data()) ||
		in.broker.Server != now.broker.Server || in.broker.Other != now.broker.Other || in.broker.Namespace != now.broker.Namespace || !bytes.Equal(in.broker.CA, now.broker.CA)
}

// watchInput calls restart when the configuration differs from the one in use. The agent derives
// everything from it at start: a restart is simpler than parts that can be reconfigured.
func watchInput(mgr ctrl.Manager, have input, restart func()) error {
	only := builder.WithPredicates(predicate.NewPredicateFuncs(func(obj client.Object) bool {
		key := client.ObjectKeyFromObject(obj)
		return key == configKey || key == brokerKey
	}))
	once := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{{}} })
	return ctrl.NewControllerManagedBy(mgr).
		Named("input").
		Watches(&corev1.ConfigMap{}, once, only).
		Watches(&corev1.Secret{}, once, only).
		WithOptions(controller.Options{NeedLeaderElection: ptr.To(false)}).
		Complete(reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			now, err := readInput(ctx, mgr.GetClient())
			if err != nil {
				return reconcile.Result{}, fmt.Errorf("the configuration changed to one that cannot be used; the former one stays in use: %w", err)
			}
			if have.differs(now) {
				restart()
			}
			return reconcile.Result{}, nil
		}))
}
