// Package node is the node daemon: it reconciles a node's kernel tables with the API objects, runs
// the wire of a gateway, and reports status. Package tables computes the tables, package status the
// reports; both are pure. Only pelago-node uses it.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clientcache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/node/status"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/dump"
	"github.com/pelago-net/pelago/dataplane/liveness"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/dataplane/observe"
	"github.com/pelago-net/pelago/dataplane/probe"
)

const (
	// settleTime is the delay that batches a burst of events into one reconcile. Under continuous
	// events the delay is settleFactor times the duration of the last reconcile, at most
	// maxSettleTime.
	settleTime    = 50 * time.Millisecond
	settleFactor  = 8
	maxSettleTime = 600 * time.Millisecond
	// resync is how often everything is reapplied: routes, rules, attachments and maps that others
	// changed.
	resync = 30 * time.Second
	// sweepInterval bounds how long an expired flow stays.
	sweepInterval = 10 * time.Second
	// watchInterval is that of reading the paths.
	watchInterval = 100 * time.Millisecond
	// retry after a failed reconcile.
	retry = 2 * time.Second
	// stepTimeout is above the longest step of Run: a first reconcile of a large cluster takes
	// seconds.
	stepTimeout = 5 * time.Minute
)

// Options of a Daemon.
type Options struct {
	NodeName  string
	Namespace string // of our own objects
	PinPath   string // of the maps; dataplane.DefaultPinPath if empty
	// CacheFile is a file on the node that keeps the objects, for a start without the API server.
	CacheFile string
	// CNIDir is the directory CNIDir on the node; empty: pods are known once the API shows their
	// addresses.
	CNIDir string
	// Cgroup is the root of the node's cgroup2 hierarchy (loader.CgroupRoot); empty: none is mounted.
	Cgroup string
	// OverlayTokenDir and PSKDir are the mounted Secrets pelago-overlay-token and
	// submariner-ipsec-psk.
	OverlayTokenDir, PSKDir string
	// APIServer is the server of the daemon's API connection.
	APIServer string
	// Pods lists and watches the pods of the whole cluster (PodsOfCluster). A gateway without
	// globalnet uses it.
	Pods clientcache.ListerWatcher
	// UnreachableClusters publishes the unreachable clusters to others on the node.
	UnreachableClusters *topology.UnreachableClustersServer
	// OpenWire opens the wire of a gateway.
	OpenWire OpenWire
	// XDP selects the uplinks that use XDP; if empty, the cluster's configuration does.
	XDP XDP
	// Datapath is that of pods whose namespace and node have no label; if empty, the cluster's
	// configuration is used.
	Datapath string
	// Version is reported in the Gateway object.
	Version string
	// Events about connections; nil: none.
	Events record.EventRecorder
	Logger *slog.Logger
}

// Daemon keeps the kernel of one node in line with the objects. Its loop never waits for the API
// server: objects come from a cache, and reports have a goroutine per kind.
type Daemon struct {
	opts   Options
	log    *slog.Logger
	loader *loader.Loader
	// firewall is netdev.Firewall, another one in tests.
	firewall func(netdev.Filter) (netdev.Obstacles, error)
	// conntrack: the programs can look up conntrack entries.
	conntrack bool
	prober    *probe.Prober
	objects   objectSource
	needed    *needed
	reports   reports
	tracker   *status.Tracker

	trigger chan struct{}
	// hops are those of nodes and gateways, externalHops those of hosts outside the cluster.
	hops, externalHops netdev.Hops
	addresses          netdev.Addresses
	// displaced is restored before the next reconcile.
	displaced displaced
	urgent    chan struct{}
	swept     chan sweep
	// purges ends with purgeEnded.
	purges     purges
	purgeEnded chan purge
	tested     chan tested
	// ready: a reconcile has succeeded since the start, or since the node had no index or address
	// (latch).
	ready atomic.Bool
	// settled: since its start, the daemon has at some time been connected to the remote gateways
	// (status.Snapshot.Connected), or introduction has passed.
	settled atomic.Bool
	started time.Time
	step    atomic.Pointer[time.Time] // when the loop of Run began its last step

	// Of the loop of Run alone.
	reconciled time.Time     // when the last reconcile ended
	took       time.Duration // how long it took
	kernel     kernel
	flows      flows
	gateway    gateway
	endpoints  endpoints
	selftest   selftest
	leftOut    leftOut
	maglev     dataplane.MaglevCache
	slices     tables.SliceCache
	// computed are the tables; usable those without what the programs could not be attached to.
	computed, usable computed
	kept             tables.Objects // that were saved last
	podDevices       netdev.PodDevices
	// podEnds are the pods' own ends of their devices, by the interface index of the node's end.
	podEnds             map[int]loader.PodEnd
	cni                 cniResults
	unreachableClusters status.UnreachableClusters
	problems            map[string]bool // logged, and present in the last reconcile
	later               *time.Timer     // of wakeLater

	mu     sync.Mutex
	latest status.Snapshot
	kinds  map[dump.FlowKind]int // flows of the last sweep; not changed afterwards
}

// New returns a daemon over a started loader. c must be configured by CacheOptions.
func New(opts Options, c cache.Cache, cl client.Client, l *loader.Loader) *Daemon {
	d := &Daemon{
		opts: opts, loader: l, log: opts.Logger, firewall: netdev.Firewall, trigger: make(chan struct{}, 1), urgent: make(chan struct{}, 1), swept: make(chan sweep), purgeEnded: make(chan purge), tested: make(chan tested), tracker: status.NewTracker(opts.Version),
		problems: map[string]bool{}, cni: cniResults{dir: opts.CNIDir}, displaced: displaced{changed: make(chan struct{}, 1)},
	}
	d.needed = newNeeded(opts.APIServer, resolvConf, net.DefaultResolver, d.wake)
	d.objects = newObjectSource(opts, c, cl.RESTMapper(), d.wake)
	d.reports = newReports(types.NamespacedName{Namespace: opts.Namespace, Name: opts.NodeName}, c, cl, d.tracker.SetCreated, opts.Logger)
	d.prober = probe.New(l, d.kernel.overlay, d.wake, opts.Logger)
	d.prober.Nodes = d.nodes
	d.gateway.resolver = NewResolver(ResolverOptions{
		Service: d.objects.service, Changed: func(PublicIP) { d.wake() }, Log: opts.Logger,
	})
	return d
}

// Ready reports whether the node's tables have been written since the start and, at a gateway,
// packets can leave: an upgrade continues with the next node then.
func (d *Daemon) Ready() bool { return d.ready.Load() && d.settled.Load() }

// FromCache reports whether the node works from saved objects, because the API server has been away
// since the start.
func (d *Daemon) FromCache() bool { return d.objects.fromCache.Load() }

// View returns what a scrape shows of this node's gateways. It may be called from any goroutine.
func (d *Daemon) View() observe.View {
	d.mu.Lock()
	snap, kinds := d.latest, d.kinds
	d.mu.Unlock()
	v := d.tracker.View(snap)
	v.Flows, v.SelfTest = kinds, snap.SelfTest.Paths
	return v
}

// Alive returns an error if the loop of Run hangs, and nil while Run waits for its first objects: a
// restart would not bring back the API server, and would break a wire that ends in this process.
func (d *Daemon) Alive() error {
	began := d.step.Load()
	if began == nil {
		return nil
	}
	if age := time.Since(*began); age > stepTimeout {
		return fmt.Errorf("the reconcile loop has been in one step for %s", age.Round(time.Second))
	}
	return nil
}

func (d *Daemon) beat() {
	now := time.Now()
	d.step.Store(&now)
}

// Run works until ctx ends. What is in the kernel stays there afterwards.
func (d *Daemon) Run(ctx context.Context) error {
	live, err := d.objects.begin(ctx, d.log)
	if err != nil {
		return err
	}
	d.started, d.conntrack = time.Now(), d.loader.Conntrack()
	var saving sync.WaitGroup
	saving.Go(func() { d.objects.keep(ctx, d.log) })
	defer saving.Wait()
	defer d.endSweep()
	defer d.endPurge()
	defer d.endSelftest()
	go d.watchHost(ctx)
	if d.opts.CNIDir != "" {
		go func() {
			if err := watchCNI(ctx, cniResults{dir: d.opts.CNIDir}, d.wakeNow); err != nil {
				d.log.Error("new pods are known once the API shows their addresses", "error", err)
			}
		}()
	}
	go d.gateway.resolver.Run(ctx)
	go d.needed.run(ctx)
	defer d.gateway.closeDiscovery()
	go d.prober.Run(ctx)
	sweep, again, paths, wire := time.NewTicker(sweepInterval), time.NewTicker(resync), time.NewTicker(watchInterval), time.NewTicker(wireRetry)
	test := time.NewTicker(selftestConfirm)
	rewired := time.Now()
	defer sweep.Stop()
	defer again.Stop()
	defer paths.Stop()
	defer wire.Stop()
	defer test.Stop()
	d.wake()
	for {
		d.beat()
		select {
		case <-ctx.Done():
			return d.end()
		case <-d.trigger:
			if !d.settle(ctx) {
				return d.end()
			}
			d.reconcile(ctx)
		case <-d.displaced.changed:
			d.restore(d.displaced.take())
		case <-d.urgent:
			d.reconcile(ctx)
		case <-live:
			live = nil
			d.goLive(ctx)
		case <-again.C:
			d.loader.Refresh()
			d.forgetHost()
			d.kernel.reapply = true
			d.reconcile(ctx)
		case <-sweep.C:
			d.beginSweep()
		case s := <-d.swept:
			d.noteSweep(s)
		case j := <-d.purgeEnded:
			d.notePurge(j)
		case <-test.C:
			d.beginSelftest()
		case t := <-d.tested:
			d.noteSelftest(t)
		case <-paths.C:
			d.watchPaths(ctx)
		case now := <-wire.C:
			if d.gateway.wire != nil && (d.awaitsWire() || now.Sub(rewired) >= wireInterval) {
				rewired = now
				d.wake()
			}
		}
	}
}

// settle waits until a burst of events is over and consumes its remaining trigger; false if ctx
// ends before.
func (d *Daemon) settle(ctx context.Context) bool {
	rest := time.Until(d.reconciled.Add(min(settleFactor*d.took, maxSettleTime)))
	timer := time.NewTimer(max(settleTime, rest))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	}
	select {
	case <-d.trigger:
	default:
	}
	return true
}

func (d *Daemon) wake() {
	select {
	case d.trigger <- struct{}{}:
	default:
	}
}

// wakeLater wakes the daemon after a pause that restarts with each call.
func (d *Daemon) wakeLater() {
	if d.later == nil {
		d.later = time.AfterFunc(retry, d.wake)
		return
	}
	d.later.Reset(retry)
}

// goLive uses the API server's objects, now that they are complete, and begins to write to it:
// earlier attempts would make the clients of the writers back off for up to a minute. If the node
// works from saved objects, the next reconcile applies what differs.
func (d *Daemon) goLive(ctx context.Context) {
	d.reports.start(ctx, d.nodes)
	if d.objects.goLive() {
		d.log.Info("the API server's objects have been read: the node works from them")
	}
	d.wake()
}

func (d *Daemon) reconcile(ctx context.Context) {
	began := time.Now()
	defer func() { d.reconciled, d.took = time.Now(), time.Since(began) }()
	if err := d.reconcileOnce(ctx); err != nil && ctx.Err() == nil {
		d.log.Error("reconcile the node", "error", err)
		d.wakeLater()
	}
}

// reconcileOnce reads objects and host, configures wire, devices and routes, writes the tables, and
// reports.
func (d *Daemon) reconcileOnce(ctx context.Context) error {
	read, err := d.objects.read(ctx, &d.gateway)
	if err != nil {
		return err
	}
	started, unread := d.addStarting(read)
	objs, reach, problems := d.ensureReach(started)
	problems = append(problems, unread...)
	if d.objects.expired != "" {
		problems = append(problems, d.objects.expired)
	}
	draining := d.updateRoles(objs)
	host, err := d.observeHost(objs)
	if err != nil {
		return err
	}
	host.DrainingPeers = draining
	d.gateway.recheck(host.Addresses)
	wire, more := d.ensureWire(objs, host.Underlay, draining)
	problems = append(problems, more...)
	host.Wire = wire.With(reach)
	result := d.computed.desired(objs, host)
	checked, err := d.install(result.State, host, d.opts.XDP.or(objs.Config))
	if len(d.kernel.unattached) > 0 { // what is reached by these devices is left out
		host.Unusable = maps.Clone(host.Unusable)
		maps.Copy(host.Unusable, d.kernel.unattached)
		result = d.usable.desired(objs, host)
	} else {
		d.usable = computed{}
	}
	errs := []error{err, d.guard(objs.Config, wire)}
	d.logProblems(slices.Concat(problems, host.Problems, result.Problems, d.kernel.xdpProblems, d.kernel.socketProblems, d.kernel.foreign(), d.kernel.firewallProblems(), status.SelfTestMessages(d.selftest.report)))
	written := false
	if checked {
		err := d.apply(result)
		written = err == nil
		errs = append(errs, err)
	}
	err = errors.Join(errs...)
	d.latch(result, err == nil)
	result.LeftOut = d.reportLeftOut(result.LeftOut)
	d.mu.Lock()
	d.latest = status.NewSnapshot(objs, result, reach, host.Wire.Fleeting)
	d.latest.SelfTest = d.selftest.report
	d.mu.Unlock()
	if written && d.ready.Load() && d.objects.saved == nil && (d.objects.unsaved.Load() || !unchanged(d.kept, read)) {
		d.kept = read
		d.objects.saves.put(read)
	}
	d.reports.node.put(d.nodeReport(objs, result, reach, written, err))
	return err
}

// latch records whether the node is ready, and whether it is a ready gateway. Both become true with
// a reconcile that succeeds; later errors do not reset them, because the data path of the last
// success still works: peers find out by probes whether it does.
func (d *Daemon) latch(r tables.Result, succeeded bool) {
	d.ready.Store((succeeded || d.ready.Load()) && r.State.Settings.Ready)
	d.kernel.gateway = (succeeded || d.kernel.gateway) && r.Gateway
	if succeeded {
		d.kernel.reapply = false
	}
}

// nodeReport is what the kernel has. written: all tables of r are in it; err is that of the
// reconcile.
func (d *Daemon) nodeReport(objs tables.Objects, r tables.Result, reach tables.Reach, written bool, err error) nodeReport {
	return nodeReport{
		index: status.NodeIndex(objs, r, status.Node{
			Ready: d.ready.Load(), Gateway: d.kernel.gateway, Written: written, Err: err,
			Serving: d.gateway.role.serves, BootID: bootID(), Reach: reach,
			XDP: d.kernel.xdp, XDPProblems: d.kernel.xdpProblems, Foreign: d.kernel.foreign(),
			RulesMissing: d.kernel.obstacles.Err, Blocked: d.kernel.obstacles.Blocked, SelfTest: d.selftest.report, Demand: d.flows.demand.Blocks(objs),
		}),
		released: d.flows.released(objs, r.State, written),
	}
}

// logProblems logs each problem once, and again after it was absent.
func (d *Daemon) logProblems(problems []string) {
	now := map[string]bool{}
	for _, p := range problems {
		now[p] = true
		if !d.problems[p] {
			d.log.Warn("an object or setting is not used", "problem", p)
		}
	}
	d.problems = now
}

// watchPaths feeds what probes and the wire show into statuses and tables.
func (d *Daemon) watchPaths(ctx context.Context) {
	d.mu.Lock()
	snap := d.latest
	d.mu.Unlock()
	if err := d.watchPathsOnce(snap, time.Now()); err != nil && ctx.Err() == nil {
		d.log.Error("read the paths to gateways", "error", err)
	}
}

func (d *Daemon) watchPathsOnce(snap status.Snapshot, now time.Time) error {
	if !d.ready.Load() {
		return nil
	}
	d.watchPorts()
	paths, err := d.probedPaths(snap.Targets)
	if err != nil {
		return err
	}
	verdict := d.unreachableClusters.Observe(snap, paths, now)
	if verdict.Known {
		d.opts.UnreachableClusters.Publish(verdict.Unreachable)
	}
	if !d.settled.Load() && (snap.Connected(paths) || now.Sub(d.started) > introduction) {
		d.settled.Store(true)
		d.wake()
	}
	if snap.Gateway {
		if err := d.loader.Reach(snap.Unreachable(paths), snap.Lossy(paths)); err != nil {
			return err
		}
		if d.gateway.role.introduce(snap.State.Clusters, snap.AwaitsTunnel(), paths, now) {
			d.wake() // to report it
		}
	}
	update := d.tracker.Observe(status.Observation{
		Snapshot: snap, Role: d.gateway.role.current(now), Paths: paths, Sizes: d.prober.Sizes(), Peers: d.wireStatus(now), Verdict: verdict, Now: now,
	})
	if d.gateway.setAnswering(update.Answering) {
		d.wake() // a drained gateway may leave now, or has to come back
	}
	d.recordEvents(update.Events)
	d.recordNodeEvents(update.NodeEvents, snap.Objects)
	if r := update.Report; r != nil {
		d.reports.gateway.put(gatewayReport{r.Gateway, r.RouteAgent.Owner})
		d.reports.agent.put(r.RouteAgent)
	}
	return nil
}

// nodes returns the number of nodes of this cluster. It may be called from any goroutine.
func (d *Daemon) nodes() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.latest.State.Nodes)
}

// probedPaths reads the paths to gateways.
func (d *Daemon) probedPaths(targets []status.Target) (map[netip.Addr]liveness.Path, error) {
	peers := make([]netip.Addr, len(targets))
	for i, t := range targets {
		peers[i] = t.Address
	}
	return d.loader.PathsTo(peers)
}

// recordEvents records Events about the Gateway object.
func (d *Daemon) recordEvents(events []status.Event) {
	if d.opts.Events == nil {
		return
	}
	about := &corev1.ObjectReference{
		APIVersion: submarinerv1.GroupVersion.String(), Kind: "Gateway", Namespace: d.opts.Namespace, Name: d.opts.NodeName,
	}
	for _, e := range events {
		d.opts.Events.Event(about, e.Type, e.Reason, e.Message)
	}
}

// recordNodeEvents records Events about this Node.
func (d *Daemon) recordNodeEvents(events []status.Event, objs tables.Objects) {
	if d.opts.Events == nil || len(events) == 0 {
		return
	}
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: d.opts.NodeName, UID: tables.OwnNode(objs).UID}
	for _, e := range events {
		d.opts.Events.Event(about, e.Type, e.Reason, e.Message)
	}
}

// end leaves the wire in an orderly way: the flows move to other gateways first.
func (d *Daemon) end() error { return errors.Join(d.leave(), d.gateway.left()) }
