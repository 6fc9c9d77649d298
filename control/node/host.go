package node

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/netdev"
)

// observeHost reads what the tables need of the node itself, and creates pelago0.
func (d *Daemon) observeHost(objs tables.Objects) (tables.Host, error) {
	host := tables.Host{
		Needed:   d.needed.addresses(objs.Config.APIServer, objs.Config.HubServer),
		Draining: d.gateway.role.isDraining(time.Now()), Settled: d.settled.Load(), Maglev: &d.maglev, Slices: &d.slices,
	}
	var err error
	own, _ := tables.InternalIP(tables.OwnNode(objs)) // not valid without one, which Desired reports
	if host.Addresses, host.OwnDevices, err = d.addresses.Read(own); err != nil {
		return host, err
	}
	// An address without a route is left out; Desired reports which node or gateway that is.
	host.Hops, host.Others = d.hops.Resolve(tables.OuterAddresses(objs))
	if topology.IsGateway(tables.OwnNode(objs)) || host.Draining {
		host.External = map[netip.Addr]uint32{}
		hops, _ := d.externalHops.Resolve(tables.ExternalAddresses(objs))
		for a, hop := range hops {
			host.External[a] = hop.Ifindex
		}
	}
	var pods []netip.Addr
	for i := range objs.Pods {
		if a, ok := tables.PodIP(&objs.Pods[i]); ok && tables.IsLocal(objs, &objs.Pods[i]) {
			pods = append(pods, a)
		}
	}
	uplinks := map[uint32]bool{}
	for _, ifindex := range host.OwnDevices {
		uplinks[ifindex] = false // true below if a peer is reached by it
	}
	for _, hop := range host.Hops {
		uplinks[hop.Ifindex] = true
	}
	for _, devices := range host.Others {
		for _, ifindex := range devices {
			uplinks[ifindex] = true
		}
	}
	devices, err := d.podDevices.Find(pods, uplinks, netdev.NamespacesDir)
	if devices == nil {
		return host, err
	} else if err != nil {
		host.Problems = append(host.Problems, err.Error()) // of single namespaces
	}
	d.selftest.devices = devices
	d.podEnds = podEnds(devices)
	host.Devices, host.Unserved, host.Limited = map[netip.Addr]uint32{}, map[netip.Addr]string{}, map[netip.Addr]string{}
	for a, v := range devices {
		if v.Source == 0 {
			host.Unserved[a] = v.Problem
		} else {
			host.Devices[a] = v.Source
		}
	}
	datapaths := tables.Datapaths(objs, d.opts.Datapath, d.conntrack)
	host.Datapath, host.Problems = datapaths.Node, append(host.Problems, datapaths.Problems...)
	if d.endpoints.find(objs, datapaths, devices, &host) {
		d.wakeLater()
	}
	l3 := map[uint32]bool{}
	if host.Underlay, host.Unusable, err = readUplinks(uplinks, l3); err != nil {
		return host, err
	}
	for a, hop := range host.Hops {
		if l3[hop.Ifindex] {
			hop.Next = netip.Addr{}
			host.Hops[a] = hop
		}
	}
	host.MTU = tables.LimitMTU(objs, host.Underlay-cable.Overhead(objs.Config.CableDriver))
	sizes := d.prober.Sizes()
	host.Limits, host.PathMTU = tables.RouteLimits(objs, sizes), tables.CableLimits(objs, sizes)
	overlay, err := config.ParseOverlayTokens(readDir(d.opts.OverlayTokenDir))
	if err != nil {
		return host, err
	}
	psk, err := config.ParsePSK(readDir(d.opts.PSKDir))
	if err != nil {
		return host, err
	}
	host.Overlay = dataplane.Tokens{Current: overlay.Current}
	if overlay.HasPrevious {
		host.Overlay.Old = overlay.Previous
	}
	host.Cable = dataplane.Tokens{Current: CableToken(psk)}
	if tables.Placed(objs) {
		edge, err := netdev.EnsureOverlay(host.MTU)
		if err != nil {
			return host, err
		}
		host.Edge = uint32(edge)
	}
	return host, nil
}

// defaultMTU is the Ethernet MTU in bytes, used until a peer is known.
const defaultMTU = 1500

// readUplinks returns the smallest MTU of the uplinks by which peers are reached (value true), and
// why the programs cannot work on some; l3 gets those without an Ethernet header. The underlays of
// other nodes and clusters are assumed to be like this node's; where they are not, large probes
// detect it.
func readUplinks(uplinks, l3 map[uint32]bool) (mtu int, unusable map[uint32]string, err error) {
	unusable = map[uint32]string{}
	for ifindex, leads := range uplinks {
		u, ok, err := netdev.ReadUplink(ifindex)
		switch {
		case err != nil:
			return 0, nil, err
		case !ok:
			continue // an event of its routes follows
		case u.Problem != "":
			unusable[ifindex] = u.Problem
		case u.L3:
			l3[ifindex] = true
		}
		if leads && (mtu == 0 || u.MTU < mtu) {
			mtu = u.MTU
		}
	}
	if mtu == 0 {
		mtu = defaultMTU
	}
	return mtu, unusable, nil
}

// CableToken derives the 24-bit secret of the vxlan cable from the clusterset's pre-shared key (RFC
// 2104). It authenticates packets of the cable and does not encrypt them.
func CableToken(psk []byte) uint32 {
	mac := hmac.New(sha256.New, psk)
	mac.Write([]byte("pelago vxlan cable token 1"))
	sum := mac.Sum(nil)
	token := uint32(sum[0])<<16 | uint32(sum[1])<<8 | uint32(sum[2])
	return max(token, 1) // 0 means none
}

// readDir reads a mounted Secret. Keys that cannot be read are left out; their parser reports them.
func readDir(dir string) map[string][]byte {
	out := map[string][]byte{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return out
	}
	for _, e := range entries {
		if b, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil {
			out[e.Name()] = b
		}
	}
	return out
}

// bootID identifies a boot of the node: port claims of an earlier one are gone with its memory.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// watchHost wakes the daemon when routes, rules, devices, addresses or filters of the node change.
// Our routes, rule and filters are restored at once when others remove them.
func (d *Daemon) watchHost(ctx context.Context) { d.watchChanges(ctx, d.hostChanges()...) }

func (d *Daemon) hostChanges() []subscribe {
	return []subscribe{
		subscription(subscribeRoutes, func(r netlink.RouteUpdate) bool {
			if !d.addresses.RouteChanged(r.Route) {
				return false
			}
			ours := netdev.OurRoute(r.Route)
			d.forgetHops(func(h *netdev.Hops) { h.RouteChanged(r.Route) })
			if ours && r.Type == unix.RTM_DELROUTE {
				d.displaced.signal(displacedRoutes)
			}
			return !ours && r.Protocol != netdev.Protocol
		}),
		subscription(netdev.RuleSubscribe, func(r netdev.RuleUpdate) bool {
			if r.Type == unix.RTM_DELRULE {
				d.displaced.signal(displacedRoutes)
			}
			if !r.Ours {
				d.forgetHops((*netdev.Hops).Forget)
			}
			return !r.Ours
		}),
		subscription(netdev.FilterSubscribe, func(f netdev.FilterUpdate) bool {
			d.selftest.changed.Store(true)
			if d.loader.Displaced(f) {
				d.displaced.signal(displacedFilters)
			}
			return false
		}),
		subscription(netlink.LinkSubscribe, func(l netlink.LinkUpdate) bool {
			d.forgetHops(func(h *netdev.Hops) { h.DeviceChanged(l.Attrs().Index) })
			d.addresses.DeviceChanged(l.Attrs().Index)
			return true
		}),
		subscription(subscribeAddresses, d.addresses.AddressChanged),
	}
}

// notificationBuffer holds, in bytes, the notifications of addresses and routes that are not read
// yet: kube-proxy in IPVS mode adds thousands of both at once when it starts.
const notificationBuffer = 8 << 20

func subscribeRoutes(updates chan<- netlink.RouteUpdate, done <-chan struct{}) error {
	return netlink.RouteSubscribeWithOptions(updates, done, netlink.RouteSubscribeOptions{
		ReceiveBufferSize: notificationBuffer, ReceiveBufferForceSize: true,
	})
}

func subscribeAddresses(updates chan<- netlink.AddrUpdate, done <-chan struct{}) error {
	return netlink.AddrSubscribeWithOptions(updates, done, netlink.AddrSubscribeOptions{
		ReceiveBufferSize: notificationBuffer, ReceiveBufferForceSize: true,
	})
}

// forgetHost forgets what was read of the node's routes and addresses.
func (d *Daemon) forgetHost() {
	d.forgetHops((*netdev.Hops).Forget)
	d.addresses.Forget()
}

// forgetHops lets both kinds of hops forget what a change concerns.
func (d *Daemon) forgetHops(forget func(*netdev.Hops)) {
	forget(&d.hops)
	forget(&d.externalHops)
}

// displaced is what of ours others have removed, or put behind theirs.
type displaced struct {
	mu   sync.Mutex
	what displacement
	// changed wakes the loop of Run.
	changed chan struct{}
}

type displacement uint8

const (
	displacedRoutes displacement = 1 << iota // or the rule
	displacedFilters
)

func (d *displaced) signal(what displacement) {
	d.mu.Lock()
	d.what |= what
	d.mu.Unlock()
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

func (d *displaced) take() displacement {
	d.mu.Lock()
	defer d.mu.Unlock()
	what := d.what
	d.what = 0
	return what
}

// restore writes again what others have displaced, without a reconcile: until then, packets for
// other clusters are lost.
func (d *Daemon) restore(what displacement) {
	k := &d.kernel
	if k.network == nil {
		return // nothing is installed
	}
	var errs []error
	if what&displacedRoutes != 0 {
		missing, err := netdev.Ensure(*k.network)
		if missing {
			k.interfere(interferenceRoutes)
		}
		errs = append(errs, err)
	}
	if what&displacedFilters != 0 {
		errs = append(errs, d.attachAgain())
	}
	if err := errors.Join(errs...); err != nil {
		d.log.Error("restore what others have removed", "error", err)
		d.wakeLater()
		return
	}
	if len(k.interference) > 0 {
		d.wake() // to report it
	}
}

// subscribe calls changed at changes of one kind until done is closed or the kernel ends the
// notifications, and then ended.
type subscribe func(done <-chan struct{}, changed, ended func()) error

func subscription[T any](to func(chan<- T, <-chan struct{}) error, matters func(T) bool) subscribe {
	return func(done <-chan struct{}, changed, ended func()) error {
		updates := make(chan T, 64)
		if err := to(updates, done); err != nil {
			return err
		}
		go func() {
			defer ended()
			for u := range updates { // to the end, or its sender blocks for ever
				if matters(u) {
					changed()
				}
			}
		}()
		return nil
	}
}

// hostChanged wakes the daemon, and has the paths of pods tested.
func (d *Daemon) hostChanged() {
	d.selftest.changed.Store(true)
	d.wake()
}

// watchChanges wakes the daemon at changes of all kinds until ctx ends. The kernel ends
// notifications that come faster than they are read (ENOBUFS, netlink(7)); then it subscribes again
// and wakes the daemon, since some were lost.
func (d *Daemon) watchChanges(ctx context.Context, kinds ...subscribe) {
	for backoff := retry; ; backoff = min(2*backoff, resync) {
		watching, end := context.WithCancel(ctx)
		var errs []error
		for _, kind := range kinds {
			errs = append(errs, kind(watching.Done(), d.hostChanged, end))
		}
		err := errors.Join(errs...)
		if err == nil {
			d.forgetHost() // changes were missed
			d.wake()
			<-watching.Done()
			err, backoff = errors.New("the kernel has ended the notifications"), retry
		}
		end()
		if ctx.Err() != nil {
			return
		}
		d.log.Error("watch the node's routes and devices; they are read every half minute meanwhile", "error", err, "retry", backoff)
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff):
		}
	}
}
