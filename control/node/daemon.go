package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	clientcache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/dataplane/probe"
)

const (
	// settleTime gathers a burst of events into one reconcile.
	settleTime = 50 * time.Millisecond
	// reassert puts right what others changed on the node: routes, rules, attachments, maps.
	reassert = 30 * time.Second
	// sweepEvery bounds how long an expired flow stays.
	sweepEvery = 10 * time.Second
	// drain is how long a node goes on switching after it ceased to be a gateway, and how long remote gateways go on taking
	// packets from it: until every node and every remote cluster has heard of it.
	drain = 30 * time.Second
	// retry after a failed reconcile.
	retry = 2 * time.Second
)

// Options of a Daemon.
type Options struct {
	NodeName  string
	Namespace string // of our own objects
	PinPath   string // of the maps; loader.DefaultPinPath if empty
	// CacheFile is a file on the node that keeps the objects, for a start while the API server is away.
	CacheFile string
	// OverlayTokenDir and PSKDir are the mounted Secrets pelago-overlay-token and submariner-ipsec-psk.
	OverlayTokenDir, PSKDir string
	// Pods lists and watches the pods of the whole cluster (PodsOfCluster). A gateway without globalnet uses it.
	Pods clientcache.ListerWatcher
	// Verdict tells others on the node which clusters are dead.
	Verdict *topology.DeadClustersServer
	// OpenWire makes the wire of a gateway.
	OpenWire OpenWire
	// XDP says on which uplinks XDP is used; if empty the cluster's configuration does.
	XDP XDP
	// Datapath is that of pods whose namespace and node set none; if empty the cluster's configuration does.
	Datapath string
	// Version is reported in the Gateway object.
	Version string
	// Events about connections; nil: none.
	Events record.EventRecorder
	Logger *slog.Logger
}

// Daemon keeps one node's kernel as the objects say. It has no client: only those who empty its outboxes write to the API
// server, so that none of its loops can wait for one.
type Daemon struct {
	opts   Options
	cache  cache.Cache
	mapper meta.RESTMapper
	loader *loader.Loader
	places *places
	log    *slog.Logger

	nodes    outbox[nodeReport]
	gateways outbox[*submarinerv1.GatewayStatus]
	agents   outbox[agentReport]
	writers  writers
	saves    outbox[Objects] // to cached
	cached   cacheFile
	arrived  arrival

	trigger chan struct{}
	// fromCache: the objects are those of cached.
	fromCache atomic.Bool
	ready     atomic.Bool
	settled   atomic.Bool // the node has done its part once since its start (leave.go)
	began     time.Time
	heart     heartbeat

	// Below: the reconcile goroutine's own.
	saved       *Objects // what it works from while the API server is away since the start
	owners      map[netip.Addr]types.UID
	demand      demand
	inUse       map[dataplane.BlockKey]bool
	sweeps      int
	leaving     map[string]int // releasing block → sweeps done when it was first seen out of use
	purged      bool           // the flows that an earlier process left have been looked through
	wire        cable.Wire     // of a gateway; else nil
	reach       reach
	wirePeers   []cable.Peer    // what it was last asked for
	tenure      tenure          // as a gateway
	answering   map[string]bool // Objects.Answering
	verdicts    verdicts        // on other clusters
	farewells   farewells       // of remote gateways
	problems    map[string]bool
	endpoints   endpoints
	links       *links
	prober      *probe.Prober
	edge, mtu   atomic.Int64 // interface index and MTU of pelago0; the prober reads them
	assert      bool         // the next reconcile puts right what others changed
	firewall    string       // what the firewall was last made for
	attached    string       // where the programs were last attached
	guarded     string       // what the guard of the wire was last made for
	xdp         bool         // some uplink is to have XDP
	xdpProblems []string     // why some have none

	mu     sync.Mutex
	latest snapshot
	flows  map[loader.FlowKind]int // of the last sweep; not changed afterwards
}

// snapshot is what the other loops and the collectors need of the last reconcile.
type snapshot struct {
	state   dataplane.State
	objs    Objects
	gateway bool
	// fleeting: the gateway's wire, or its keys, change when this pod ends.
	fleeting bool
	rotating bool              // its keys change
	wire     map[string]string // what others must know to reach this gateway
	reach    Reach
	// targets are probed; refused are remote gateways to which the wire cannot go.
	targets, refused []target
}

func newSnapshot(objs Objects, r Result, reach Reach) snapshot {
	s := snapshot{state: r.State, objs: objs, gateway: r.Gateway, rotating: r.Rotation.Left > 0, wire: r.Wire, reach: reach}
	s.targets, s.refused = targets(objs, r)
	return s
}

// New makes a daemon over a started loader. cache must be configured by CacheOptions.
func New(opts Options, c cache.Cache, cl client.Client, l *loader.Loader) *Daemon {
	d := &Daemon{
		opts: opts, cache: c, mapper: cl.RESTMapper(), loader: l, log: opts.Logger, trigger: make(chan struct{}, 1),
		owners: map[netip.Addr]types.UID{}, problems: map[string]bool{}, leaving: map[string]int{}, links: newLinks(),
		nodes: newOutbox[nodeReport](), gateways: newOutbox[*submarinerv1.GatewayStatus](), agents: newOutbox[agentReport](),
		saves: newOutbox[Objects](), cached: cacheFile{path: opts.CacheFile}, arrived: arrival{done: make(chan struct{})},
	}
	d.prober = probe.New(l, func() (int, int) { return int(d.edge.Load()), int(d.mtu.Load()) }, d.wake, opts.Logger)
	d.writers = newWriters(types.NamespacedName{Namespace: opts.Namespace, Name: opts.NodeName}, c, cl, d.links)
	d.places = newPlaces(opts.Pods, d.wake)
	d.reach.resolver = NewResolver(ResolverOptions{
		Service: d.service, Changed: func(PublicIP) { d.wake() }, Log: opts.Logger,
	})
	return d
}

// Ready says whether the node's tables are in the kernel and, at a gateway, whether packets have a way out: an upgrade goes on
// to the next node then.
func (d *Daemon) Ready() bool { return d.ready.Load() && d.settled.Load() }

// Run works until ctx ends. What is in the kernel stays there afterwards.
func (d *Daemon) Run(ctx context.Context) error {
	live, err := d.begin(ctx)
	if err != nil {
		return err
	}
	d.began = time.Now()
	var kept sync.WaitGroup
	kept.Go(func() { d.keep(ctx) })
	defer kept.Wait()
	go d.watchHost(ctx)
	go d.reach.resolver.Run(ctx)
	defer d.reach.close()
	go d.prober.Run(ctx)
	sweep, again, paths, wire := time.NewTicker(sweepEvery), time.NewTicker(reassert), time.NewTicker(watchEvery), time.NewTicker(expect)
	rewired := time.Now()
	defer sweep.Stop()
	defer again.Stop()
	defer paths.Stop()
	defer wire.Stop()
	d.wake()
	for {
		d.heart.beat()
		select {
		case <-ctx.Done():
			return d.end()
		case <-d.trigger:
			if !d.settle(ctx) {
				return d.end()
			}
			d.reconcile(ctx)
		case <-live:
			live = nil
			d.goLive(ctx)
		case <-again.C:
			d.loader.Refresh()
			d.assert = true
			d.reconcile(ctx)
		case <-sweep.C:
			d.sweep()
			d.wake() // released blocks and demand are reported with the next reconcile
		case <-paths.C:
			d.watchPaths(ctx)
		case now := <-wire.C:
			if d.wire != nil && (d.expecting() || now.Sub(rewired) >= rewire) {
				rewired = now
				d.wake()
			}
		}
	}
}

// settle waits until a burst of events is over and takes what has come of it meanwhile as one; false if ctx ends before.
func (d *Daemon) settle(ctx context.Context) bool {
	timer := time.NewTimer(settleTime)
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

func (d *Daemon) reconcile(ctx context.Context) {
	if err := d.reconcileOnce(ctx); err != nil && ctx.Err() == nil {
		d.log.Error("bring the node up to date", "error", err)
		time.AfterFunc(retry, d.wake)
	}
}

// reconcileOnce reads everything, makes devices and routes, writes the tables, and hands on what is to be reported.
func (d *Daemon) reconcileOnce(ctx context.Context) error {
	read, err := d.objects(ctx)
	if err != nil {
		return err
	}
	objs, reach, problems := d.ensureReach(read)
	leaving := d.noteGateways(objs)
	host, err := d.lookAtHost(objs)
	if err != nil {
		return err
	}
	host.Leaving = leaving
	d.reach.rejudge(host.Addresses)
	wire, more := d.ensureWire(objs, host.Underlay, leaving)
	problems = append(problems, more...)
	host.Wire = wire.with(reach)
	result := Desired(objs, host)
	if result.Gateway && host.Wire.Fleeting && !d.settled.Load() {
		result.State.Settings.Leaving = true // what was there before this process is gone: others come when it is up again
	}
	errs := []error{d.install(&result.State, host, d.opts.XDP.or(objs.Config), d.assert), d.guard(objs.Config, wire)}
	d.report(slices.Concat(problems, host.Problems, result.Problems, d.xdpProblems))
	d.assert = false
	if errs[0] == nil {
		errs = append(errs, d.apply(result))
	}
	applied := errors.Join(errs...) == nil
	d.ready.Store(applied && result.State.Settings.Ready)
	d.mu.Lock()
	d.latest = newSnapshot(objs, result, reach)
	d.latest.fleeting = host.Wire.Fleeting
	d.mu.Unlock()
	if d.ready.Load() && d.saved == nil {
		d.saves.put(read)
	}
	d.nodes.put(d.nodeReport(objs, result, reach, applied))
	return errors.Join(errs...)
}

// install makes what lies around the programs. The guard is on the uplinks before the first packet goes out. The firewall
// is asked (by running a dozen commands) only when something of it changed, and with all to put right what others did.
func (d *Daemon) install(s *dataplane.State, host Host, xdp XDP, all bool) error {
	if !s.Settings.Ready {
		return nil // no index or no address yet: nothing is touched on the node
	}
	edge, err := netdev.Ensure(deviceConfig(*s, host))
	if err != nil {
		return err
	}
	s.Settings.Edge = uint32(edge)
	d.edge.Store(int64(edge))
	d.mtu.Store(int64(host.MTU))
	if firewall := fmt.Sprint(s.Settings.CablePort, host.Wire.Ports); all || firewall != d.firewall {
		if err := netdev.Firewall(s.Settings.CablePort, host.Wire.Ports...); err != nil {
			return err
		}
		d.firewall = firewall
	}
	receivers, err := netdev.Receivers()
	if err != nil {
		return err
	}
	devices := loader.Devices{Edge: edge, Uplinks: uplinks(*s), Receivers: receivers, Wires: host.Wire.Devices, Pods: podDevices(*s)}
	if len(devices.Pods) > 0 {
		if err := netdev.LenientConntrack(); err != nil {
			return err
		}
	}
	devices.XDP = xdp.devices(s.Settings.Gateway, devices.Uplinks, deviceKind)
	attached := fmt.Sprint(devices)
	if !all && attached == d.attached {
		return nil
	}
	if err := d.loader.Attach(devices); err != nil {
		return err
	}
	d.xdp, d.xdpProblems = len(devices.XDP) > 0, nil
	for _, p := range d.loader.XDPProblems() {
		d.xdpProblems = append(d.xdpProblems, p.Error())
	}
	d.attached = attached
	return nil
}

// deviceConfig says what pelago0 and the routes into it are to be.
func deviceConfig(s dataplane.State, host Host) netdev.Config {
	c := netdev.Config{Source: s.Settings.Address, MTU: host.MTU, CablePort: s.Settings.CablePort, Limits: map[netip.Prefix]int{}}
	for p, cluster := range s.Routes {
		c.Prefixes = append(c.Prefixes, p)
		if mtu, ok := host.Limits[cluster]; ok {
			c.Limits[p] = mtu
		}
	}
	return c
}

// uplinks are the devices over which a peer is reached.
func uplinks(s dataplane.State) []int {
	seen := map[uint32]bool{}
	for _, hop := range s.Nodes {
		seen[hop.Ifindex] = true
	}
	for _, gateways := range s.Clusters {
		for _, g := range gateways {
			seen[g.Hop.Ifindex] = true
		}
	}
	delete(seen, 0) // a wire is none
	var out []int
	for ifindex := range seen {
		out = append(out, int(ifindex))
	}
	slices.Sort(out)
	return out
}

// podDevices are the devices of pods at which packets may bypass the stack, sorted.
func podDevices(s dataplane.State) []int {
	var out []int
	for _, e := range s.Endpoints {
		out = append(out, int(e.Ifindex))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// apply writes the tables, and takes away the flows of pods that are gone: the next tenant of an address must get none of
// their packets.
func (d *Daemon) apply(r Result) error {
	s := r.State
	if err := d.loader.Apply(s); err != nil {
		return err
	}
	stale := map[netip.Addr]bool{}
	for a, uid := range d.owners {
		if r.Owners[a] != uid {
			stale[a] = true
		}
	}
	d.owners = r.Owners
	if len(stale) == 0 && d.purged || !s.Settings.Ready {
		return nil
	}
	removed, err := d.loader.PurgeFunc(func(a netip.Addr) bool {
		_, known := s.Sources[a]
		return stale[a] || !known
	})
	d.purged = d.purged || err == nil
	if removed > 0 {
		d.log.Info("removed the flows of pods that are gone", "flows", removed)
	}
	return err
}

// noteGateways takes in which gateways come and go, this node and remote ones, before anything is made of it.
func (d *Daemon) noteGateways(objs Objects) (leaving map[netip.Addr]dataplane.Peer) {
	now := time.Now()
	ended := d.tenure.note(wanted(objs), resumed(objs, bootID()), now)
	leaving, some := d.farewells.note(objs.Config, objs.Peers, now)
	if ended || some {
		time.AfterFunc(drain+time.Second, d.wake)
	}
	return leaving
}

func (d *Daemon) sweep() {
	if !d.ready.Load() {
		return
	}
	stats, err := d.loader.Sweep(shortestTimer)
	if err != nil {
		d.log.Error("sweep flows", "error", err)
		return
	}
	d.sweeps++
	d.inUse = stats.InUse
	d.mu.Lock()
	s := d.latest.state
	d.flows = stats.Kinds
	d.mu.Unlock()
	counters, err := d.loader.Counters()
	if err != nil {
		d.log.Error("read counters", "error", err)
	}
	d.demand.update(stats.Crowding, s.Egresses, exhausted(counters))
}

// shortestTimer is the shortest timer of bpf/config.h: ICMP, 60 s.
const shortestTimer = 60 * time.Second

func exhausted(counters []loader.Counter) uint64 {
	for _, c := range counters {
		if c.Hook == "edge-out" && c.Verdict == "drop-ports-exhausted" {
			return c.Packets
		}
	}
	return 0
}

// report logs problems once each, and again after they went away and came back.
func (d *Daemon) report(problems []string) {
	now := map[string]bool{}
	for _, p := range problems {
		now[p] = true
		if !d.problems[p] {
			d.log.Warn("cannot take an object in", "problem", p)
		}
	}
	d.problems = now
}

// watchHost wakes the daemon when routes, devices or addresses of the node change.
func (d *Daemon) watchHost(ctx context.Context) {
	routes, devices, addresses := make(chan netlink.RouteUpdate, 64), make(chan netlink.LinkUpdate, 64), make(chan netlink.AddrUpdate, 64)
	if err := errors.Join(
		netlink.RouteSubscribe(routes, ctx.Done()),
		netlink.LinkSubscribe(devices, ctx.Done()),
		netlink.AddrSubscribe(addresses, ctx.Done()),
	); err != nil {
		d.log.Error("watch the node's routes and devices; changes are found every half minute instead", "error", err)
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case r, ok := <-routes:
			if !ok {
				return
			}
			if r.Protocol != netdev.Protocol {
				d.wake()
			}
		case _, ok := <-devices:
			if !ok {
				return
			}
			d.wake()
		case _, ok := <-addresses:
			if !ok {
				return
			}
			d.wake()
		}
	}
}
