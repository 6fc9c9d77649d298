package node

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/netdev"
)

// kernel is what this process has installed in the node's kernel.
type kernel struct {
	// reapply: reconciles also reapply what has not changed, until one succeeds.
	reapply bool
	// gateway: a reconcile has succeeded since the node became a gateway.
	gateway bool
	// edge is the interface index of pelago0, mtu its MTU in bytes; the prober reads them.
	edge, mtu atomic.Int64
	// network and devices are what was installed, and what the programs were attached to, last.
	network *netdev.Config
	devices *loader.Devices
	// firewall, attached and guarded identify the firewall rules, attachments and guarded ports
	// that were installed last.
	firewall, attached, guarded string
	// unattached are the uplinks that the programs could not be attached to, and why.
	unattached map[uint32]string
	// clusterIPs are the ranges that the firewall rules protect (netdev.Filter); obstacles are what
	// they could not prevent.
	clusterIPs []netip.Prefix
	obstacles  netdev.Obstacles
	// preceding are rules of others before ours; interference is what others did to ours, and when.
	preceding    []string
	interference map[string]time.Time
	// xdp: some uplink is to have XDP; xdpProblems are why some have none.
	xdp         bool
	xdpProblems []string
	// socketProblems are why processes of the node do not reach ClusterSetIPs by their sockets.
	socketProblems []string
}

const (
	socketsLost = "processes in the host network reach ClusterSetIPs of their own cluster's services by a gateway, or without globalnet not at all: "
	// interferenceShown is how long an interference is reported after it was last seen.
	interferenceShown  = 10 * time.Minute
	interferenceRoutes = "another program removes Pelago's routing rule or routes, which are restored at once; with systemd-networkd, " +
		"set ManageForeignRoutingPolicyRules=no and ManageForeignRoutes=no in networkd.conf"
)

// interfere notes what others did to our rules, routes or programs.
func (k *kernel) interfere(how string) {
	if k.interference == nil {
		k.interference = map[string]time.Time{}
	}
	k.interference[how] = time.Now()
}

// foreign describes what others have on this node that keeps packets from the programs, or has
// within the last minutes; sorted.
func (k *kernel) foreign() []string {
	maps.DeleteFunc(k.interference, func(_ string, at time.Time) bool { return time.Since(at) > interferenceShown })
	return slices.Sorted(slices.Values(slices.Concat(k.preceding, slices.Collect(maps.Keys(k.interference)))))
}

// firewallProblems describes the obstacles.
func (k *kernel) firewallProblems() []string {
	if k.obstacles.Err == nil {
		return k.obstacles.Blocked
	}
	return append([]string{k.obstacles.Err.Error()}, k.obstacles.Blocked...)
}

// overlay returns the interface index and the MTU of pelago0.
func (k *kernel) overlay() (ifindex, mtu int) { return int(k.edge.Load()), int(k.mtu.Load()) }

// install configures devices, routes and firewall, and attaches the programs: uplinks are guarded
// before the first packet goes out. It continues after an error. checked: packets are checked as
// the tables of s require, so these may be written.
func (d *Daemon) install(s dataplane.State, host tables.Host, xdp XDP) (checked bool, err error) {
	k := &d.kernel
	if !s.Settings.Ready {
		return true, nil // without index or address nothing is changed on the node
	}
	k.edge.Store(int64(host.Edge))
	k.mtu.Store(int64(host.MTU))
	network := deviceConfig(s, host)
	again := k.network != nil && reflect.DeepEqual(*k.network, network)
	missing, err := netdev.Ensure(network)
	if err == nil {
		k.network = &network
	}
	if missing && again {
		k.interfere(interferenceRoutes)
	}
	preceding, ruleErr := netdev.Preceding(network.Prefixes)
	k.preceding = preceding
	errs := []error{err, ruleErr}
	filter := netdev.Filter{CablePort: s.Settings.CablePort, Open: host.Wire.Ports, Peers: arrivals(s), Remote: remoteExamples(s)}
	filter.External, filter.ClusterIPs = s.Masqueraded()
	errs = append(errs, d.installFirewall(filter))
	if bypassed(s) {
		errs = append(errs, netdev.LenientConntrack())
	}
	err = d.attach(s, host, xdp)
	// Of the rules, only those against forged ClusterIPs check packets. Without the others, some
	// packets are merely lost.
	checked = err == nil && slices.Equal(k.clusterIPs, filter.ClusterIPs)
	return checked, errors.Join(append(errs, err)...)
}

// installFirewall writes the firewall rules and checks those of others, only when something of ours
// changed, or to reapply everything. Missing accept rules are no error: see netdev.Obstacles.
func (d *Daemon) installFirewall(filter netdev.Filter) error {
	k := &d.kernel
	firewall := fmt.Sprint(filter)
	if !k.reapply && firewall == k.firewall {
		return nil
	}
	obstacles, err := d.firewall(filter)
	k.obstacles = obstacles
	if err != nil {
		return err
	}
	k.firewall, k.clusterIPs = firewall, filter.ClusterIPs
	return nil
}

// maxExamples bounds the peers and prefixes that firewall rules are checked with.
const maxExamples = 16

// arrivals are examples of how outer packets reach this node: from gateways of its cluster, and at
// a gateway from those of others.
func arrivals(s dataplane.State) []netdev.Arrival {
	var out []netdev.Arrival
	for _, index := range s.Gateways {
		if hop, ok := s.Nodes[index]; ok && index != s.Settings.Node {
			out = append(out, netdev.Arrival{From: hop.Address, Ifindex: int(hop.Ifindex)})
		}
	}
	if s.Settings.Gateway {
		for _, gateways := range s.Clusters {
			for _, g := range gateways {
				a := netdev.Arrival{From: g.Hop.Address, Ifindex: int(g.Hop.Ifindex)}
				if len(g.Tunnels) > 0 {
					a.Ifindex = int(g.Tunnels[0])
				}
				out = append(out, a)
			}
		}
	}
	slices.SortFunc(out, func(a, b netdev.Arrival) int { return a.From.Compare(b.From) })
	return out[:min(len(out), maxExamples)]
}

// remoteExamples are addresses of other clusters.
func remoteExamples(s dataplane.State) []netip.Addr {
	var out []netip.Addr
	for p, cluster := range s.Routes {
		if cluster != s.Settings.Cluster {
			out = append(out, p.Addr().Next())
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out[:min(len(out), maxExamples)]
}

// attach attaches the programs when their devices have changed, or to reapply everything.
func (d *Daemon) attach(s dataplane.State, host tables.Host, xdp XDP) error {
	k := &d.kernel
	receivers, err := netdev.Receivers()
	if err != nil {
		return err
	}
	devices := loader.Devices{
		Edge: int(host.Edge), Uplinks: uplinks(s, host), Receivers: receivers, Wires: host.Wire.Devices, Pods: podDevices(s),
	}
	for _, device := range devices.Pods {
		if end, ok := d.podEnds[device]; ok && len(s.VIPs) > 0 {
			devices.PodEnds = append(devices.PodEnds, end)
		}
	}
	if len(s.VIPs) > 0 {
		devices.Cgroup = d.opts.Cgroup
	}
	devices.XDP = xdp.devices(s.Settings.Gateway, devices.Uplinks, deviceKind)
	attached := fmt.Sprint(devices)
	if !k.reapply && attached == k.attached {
		return nil
	}
	k.devices = &devices
	k.socketProblems = nil
	if len(s.VIPs) > 0 && devices.Cgroup == "" {
		k.socketProblems = []string{socketsLost + "no cgroup2 hierarchy is mounted at /sys/fs/cgroup or /sys/fs/cgroup/unified of the node: " +
			"mount it and restart the daemon's pod"}
	}
	if err := d.attachAgain(); err != nil {
		return err
	}
	k.attached = attached
	return nil
}

// attachAgain attaches the programs to the devices of the last call of attach.
func (d *Daemon) attachAgain() error {
	k := &d.kernel
	if k.devices == nil {
		return nil
	}
	found, err := d.loader.Attach(*k.devices)
	for _, f := range found.Displaced {
		k.interfere(f)
	}
	if err != nil {
		return err
	}
	if found.PodEnds != nil {
		d.log.Warn("answers of ClusterSetIPs are translated at the node's ends of pods' devices only", "error", found.PodEnds)
	}
	if found.Sockets != nil {
		k.socketProblems = []string{socketsLost + found.Sockets.Error()}
	}
	k.unattached = map[uint32]string{}
	for ifindex, err := range found.Uplinks {
		k.unattached[uint32(ifindex)] = err.Error()
	}
	k.xdp, k.xdpProblems = len(k.devices.XDP) > 0, nil
	for _, p := range found.XDP {
		k.xdpProblems = append(k.xdpProblems, p.Error())
	}
	return nil
}

// deviceConfig is the desired device of the vxlan cable and the routes into pelago0.
func deviceConfig(s dataplane.State, host tables.Host) netdev.Config {
	c := netdev.Config{Edge: int(host.Edge), Source: s.Settings.Address, MTU: host.MTU, CablePort: s.Settings.CablePort, Limits: map[netip.Prefix]int{}}
	if s.VIPRange.IsValid() {
		c.Prefixes = append(c.Prefixes, s.VIPRange)
	}
	for p, cluster := range s.Routes {
		c.Prefixes = append(c.Prefixes, p)
		if mtu, ok := host.Limits[cluster]; ok {
			c.Limits[p] = mtu
		}
	}
	// Any cluster may serve a ClusterSetIP: the smallest limit counts.
	if mtus := slices.Collect(maps.Values(c.Limits)); s.VIPRange.IsValid() && len(mtus) > 0 {
		c.Limits[s.VIPRange] = slices.Min(mtus)
	}
	return c
}

// uplinks returns the devices by which packets of peers leave or may arrive, sorted.
func uplinks(s dataplane.State, host tables.Host) []int {
	seen := map[uint32]bool{}
	add := func(hop dataplane.Hop) {
		seen[hop.Ifindex] = true
		for _, other := range host.Others[hop.Address] {
			seen[other] = true
		}
	}
	for _, hop := range s.Nodes {
		add(hop)
	}
	for _, gateways := range s.Clusters {
		for _, g := range gateways {
			add(g.Hop)
		}
	}
	for _, ifindex := range host.OwnDevices {
		seen[ifindex] = true
	}
	delete(seen, 0) // packets over tunnels of the wire have no uplink here
	for ifindex := range host.Unusable {
		delete(seen, ifindex)
	}
	var out []int
	for ifindex := range seen {
		out = append(out, int(ifindex))
	}
	slices.Sort(out)
	return out
}

// bypassed reports whether packets of some pod may bypass the stack.
func bypassed(s dataplane.State) bool {
	for _, e := range s.Endpoints {
		if e.Datapath != dataplane.Strict {
			return true
		}
	}
	return false
}

// podDevices returns the devices of pods that have programs, sorted.
func podDevices(s dataplane.State) []int {
	var out []int
	for _, e := range s.Endpoints {
		out = append(out, int(e.Ifindex))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// podEnds returns the pods' own ends of their devices, by the interface index of the node's end.
func podEnds(devices map[netip.Addr]netdev.PodDevice) map[int]loader.PodEnd {
	out := map[int]loader.PodEnd{}
	for _, v := range devices {
		if device := int(v.Endpoint.Ifindex); device != 0 && v.Namespace != "" {
			out[device] = loader.PodEnd{Device: device, Namespace: v.Namespace, Index: v.Index}
		}
	}
	return out
}

// apply writes the tables and begins to remove the flows that they do not allow any more.
func (d *Daemon) apply(r tables.Result) error {
	if err := d.loader.Apply(r.State); err != nil {
		return err
	}
	d.purges.note(r)
	d.beginPurge()
	return nil
}
