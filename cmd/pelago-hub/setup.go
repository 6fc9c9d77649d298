package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/semaphore"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/execute"
	"github.com/pelago-net/pelago/control/hub/access"
	"github.com/pelago-net/pelago/control/hub/autoscale"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/cluster"
	"github.com/pelago-net/pelago/control/hub/placement"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/hub/propagate"
	"github.com/pelago-net/pelago/control/hub/status"
	"github.com/pelago-net/pelago/control/hub/work"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// setupControllers adds all controllers. They share the interpreter of kinds and the record of
// skipped override rules. The objects that they create carry hubID; uid is the UID of the hub's own
// namespace kube-system.
func setupControllers(mgr ctrl.Manager, hubID, uid string, a hubAccess, o options) error {
	custom := kinds.NewCustom()
	interpreter := custom.Interpreter()
	counts := execute.NewMetrics()
	if err := metrics.Registry.Register(counts); err != nil {
		return fmt.Errorf("register the metrics of the execution of Works: %w", err)
	}
	// Executions use a separate client to the hub, in which eight workers per member write statuses
	// and remove finalizers.
	hub, err := client.New(a.way(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return fmt.Errorf("connect the execution of Works to the hub's API server: %w", err)
	}
	run := executions{
		mgr: mgr, hub: hub, works: execute.NewWorks(mgr.GetCache()), hubID: hubID, kinds: interpreter, workers: o.workers.execution,
		counts: counts, gate: a.gate, allEvents: o.events == eventsAll, log: slog.New(logr.ToSlogHandler(mgr.GetLogger().WithName("execution"))),
	}
	skips, unmade := &policy.Skips{}, &binding.Unmade{}
	return errors.Join(
		work.AddIndexes(mgr),
		policy.Setup(mgr, skips),
		policy.SetupUnsupported(mgr),
		policy.SetupRegistries(mgr, o.proxied()),
		execute.SetupRules(mgr, custom),
		propagate.Setup(mgr, propagate.Options{Interpreter: interpreter, Capacity: placement.NewCache(placement.CacheOptions{}), EmptyWorkloads: o.emptyWorkloads,
			RunsWorkloads: o.workloads, AllEvents: o.events == eventsAll, Workers: o.workers.propagate,
			Eviction: o.eviction, RTTHold: o.rttHold}),
		propagate.SetupRebalancer(mgr),
		autoscale.Setup(mgr, autoscale.Options{SyncReplicas: o.syncReplicas}),
		work.SetupBindings(mgr, work.BindingOptions{HubID: hubID, Interpreter: interpreter, Workers: o.workers.works, OptIn: o.workloads,
			Skips: skips, Unmade: unmade, AllEvents: o.events == eventsAll}),
		work.SetupNamespaces(mgr, work.NamespaceOptions{HubID: hubID, OptIn: o.workloads, Skips: skips}),
		work.SetupMultiClusterServices(mgr, work.MultiClusterOptions{HubID: hubID, Skips: skips, AllEvents: o.events == eventsAll}),
		work.SetupQuotas(mgr, hubID, o.events == eventsAll),
		status.Setup(mgr, status.Options{Interpreter: interpreter, Unmade: unmade, Workers: o.workers.status,
			AllEvents: o.events == eventsAll}),
		cluster.SetupMembership(mgr, cluster.MembershipOptions{HubUID: uid, Grace: o.grace, Registry: metrics.Registry}),
		cluster.SetupObjects(mgr, metrics.Registry),
		cluster.SetupPush(mgr, cluster.PushOptions{Execute: run.execute, Registry: metrics.Registry, Log: run.log}),
	)
}

// proxied reports whether users reach members through this process.
func (o options) proxied() bool { return o.proxyAddress != "" && o.proxyAddress != "0" }

// setupProxy serves the access to members and the search over them, if it has an address.
func setupProxy(mgr ctrl.Manager, hub *rest.Config, o options) error {
	if !o.proxied() {
		return nil
	}
	return access.Setup(mgr, access.Options{
		Address: o.proxyAddress, Host: o.proxyHost, Namespace: manifests.SystemNamespace, Name: manifests.HubName,
		BrokerNamespace: config.DefaultBrokerNamespace, Registry: metrics.Registry, Hub: hub, Karmada: o.karmada,
		Log: slog.New(logr.ToSlogHandler(mgr.GetLogger().WithName("proxy"))),
	})
}

// executions is what the execution of Works is made from, the same for all push members.
type executions struct {
	mgr     ctrl.Manager
	hub     client.Client
	works   *execute.Works
	hubID   string
	kinds   *kinds.Interpreter
	workers int
	counts  *execute.Metrics
	gate    transport.WrapperFunc
	// allEvents is that of execute.Options.
	allEvents bool
	log       *slog.Logger
}

// execute executes the Works of one push member until ctx ends.
func (e executions) execute(ctx context.Context, cluster string, member *rest.Config) error {
	member = rest.CopyConfig(member)
	member.Wrap(e.gate)
	x, err := execute.New(execute.Options{
		Cluster: cluster, HubID: e.hubID, Interpreter: e.kinds, Workers: e.workers,
		Hub: e.hub, Works: e.works, Member: member,
		Recorder: kube.EventRecorder(e.mgr, "pelago-hub"), Log: e.log.With("cluster", cluster), Metrics: e.counts,
		AllEvents: e.allEvents,
	})
	if err != nil {
		return fmt.Errorf("execute the Works of cluster %s: %w", cluster, err)
	}
	return x.Start(ctx)
}

// inFlight bounds the concurrent requests of each client to the hub's API server; further ones
// queue in order. More would not make a busy API server respond sooner: API Priority and Fairness
// queues them and rejects those that have waited for 15 s (429), among them renewals of the
// leader's lease, and the server closes watches that fall behind, which then have to relist. While
// 1,000 templates were created on two cores, this happened about a hundred times with 32, twenty
// times with 16, and once with 8. At a few milliseconds per response, 8 still allow more than a
// thousand requests a second. Initial lists and the lease are not limited.
const inFlight = 8

// hubAccess is how the controllers reach the hub's API server, and the gate that their writes there
// and into members pass.
type hubAccess struct {
	config    *rest.Config
	gate      transport.WrapperFunc
	attempted func() time.Time // see kube.Fence
}

// way returns a client configuration with its own limit on concurrent requests, so that a
// controller with few workers does not queue behind one with hundreds.
func (a hubAccess) way() *rest.Config {
	c := rest.CopyConfig(a.config)
	c.Wrap(a.gate)
	c.Wrap(bounded(inFlight)) // what waits there has not been through the gate
	return c
}

// bounded allows at most n requests in flight over all transports that it wraps together. A request
// is in flight from when it is sent until its response begins.
func bounded(n int64) transport.WrapperFunc {
	slots := semaphore.NewWeighted(n)
	return func(next http.RoundTripper) http.RoundTripper { return &boundedTransport{slots, n, next} }
}

type boundedTransport struct {
	slots *semaphore.Weighted
	n     int64
	next  http.RoundTripper
}

var _ utilnet.RoundTripperWrapper = &boundedTransport{}

// RoundTrip implements http.RoundTripper.
func (b *boundedTransport) RoundTrip(q *http.Request) (*http.Response, error) {
	if err := b.slots.Acquire(q.Context(), 1); err != nil {
		if q.Body != nil {
			_ = q.Body.Close() // as a RoundTripper must; nothing was read
		}
		return nil, fmt.Errorf("wait for %d other requests to the hub's API server: %w", b.n, err)
	}
	defer b.slots.Release(1)
	return b.next.RoundTrip(q)
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (b *boundedTransport) WrappedRoundTripper() http.RoundTripper { return b.next }
