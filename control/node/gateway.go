package node

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/natt"
	"github.com/pelago-net/pelago/dataplane/probe"
)

const (
	// watchEvery is how often the paths are looked at.
	watchEvery = 100 * time.Millisecond
	// rewrite what is reported at the latest after this long, for its round-trip times; changes of a status at once.
	rewrite = 30 * time.Second
	// askWire is how often the wire is asked what it knows.
	askWire = 2 * time.Second
)

// links are the ways to all gateways that this node probes, as they are shown. The loop of the daemon writes them, scrapes
// read them.
type links struct {
	mu       sync.Mutex
	ways     map[netip.Addr]*link // by outer address
	passages map[uint16]*passage  // other clusters by index, as this node's own gateways reach them
	wire     map[netip.Addr]cable.Status
	asked    time.Time // when the wire was; the loop's own
	role     role
	written  string    // what was urgent in the last report
	at       time.Time // of the last report
	reports  uint64
	created  time.Time // of the Gateway object
	mourned  map[netip.Addr]bool
}

func newLinks() *links {
	return &links{ways: map[netip.Addr]*link{}, passages: map[uint16]*passage{}, mourned: map[netip.Addr]bool{}}
}

// role of this node as a gateway; the words are the values of the label state of pelago_gateway_state.
type role string

const (
	roleNone     role = "none"
	roleJoining  role = "joining"  // not all remote gateways know it yet
	roleServing  role = "serving"  // it is used
	roleDraining role = "draining" // it goes on switching what still comes
)

func (t *tenure) role(now time.Time) role {
	switch {
	case t.gateway && t.serves:
		return roleServing
	case t.gateway:
		return roleJoining
	case now.Before(t.until):
		return roleDraining
	}
	return roleNone
}

// watchPaths takes in what the probes show: it tells the nodes which clusters this gateway does not reach, notices that the
// remote gateways know it, and hands on what is to stand in the Gateway and RouteAgent objects. It waits for nobody.
func (d *Daemon) watchPaths(ctx context.Context) {
	d.mu.Lock()
	snap := d.latest
	d.mu.Unlock()
	if err := d.watchPathsOnce(snap, time.Now()); err != nil && ctx.Err() == nil {
		d.log.Error("watch the paths", "error", err)
	}
}

func (d *Daemon) watchPathsOnce(snap snapshot, now time.Time) error {
	if !d.ready.Load() {
		return nil
	}
	paths, err := d.probedPaths(snap.targets)
	if err != nil {
		return err
	}
	d.opts.Verdict.Publish(d.verdicts.note(snap, paths, now))
	if !d.settled.Load() && (settled(snap, paths) || now.Sub(d.began) > introduction) {
		d.settled.Store(true)
		d.wake()
	}
	if snap.gateway {
		if err := d.loader.Unreachable(unreachable(snap.state.Clusters, paths)); err != nil {
			return err
		}
		if d.tenure.introduce(snap.state.Clusters, waiting(snap), paths, now) {
			d.wake() // to report it
		}
	}
	wire := d.askWire(now) // it may take a while, and scrapes go on
	d.links.mu.Lock()
	defer d.links.mu.Unlock()
	d.links.role, d.links.wire = d.tenure.role(now), wire
	d.links.note(snap, paths, d.prober.Sizes(), now)
	if answering := d.links.answering(snap, unreachable(snap.state.Clusters, paths)); !maps.Equal(answering, d.answering) {
		d.answering = answering
		d.wake() // a drained gateway may leave now, or has to come back
	}
	d.mourn(snap)
	if key := d.links.urgent(snap); key != d.links.written || now.Sub(d.links.at) >= rewrite {
		d.links.written, d.links.at = key, now
		d.links.reports++
		d.gateways.put(gatewayReport(snap, d.links, d.opts.Version))
		d.agents.put(routeAgentReport(snap, d.links, d.opts.Version))
	}
	return nil
}

// probedPaths reads the paths to gateways one by one: at a gateway there are as many others as the cluster has nodes.
func (d *Daemon) probedPaths(all []target) (map[netip.Addr]loader.Path, error) {
	out := make(map[netip.Addr]loader.Path, len(all))
	for _, t := range all {
		p, ok, err := d.loader.Path(t.address)
		if err != nil {
			return nil, err
		}
		if ok {
			out[t.address] = p
		}
	}
	return out, nil
}

// askWire returns what the wire itself knows. Where it cannot say, the probes go on telling.
func (d *Daemon) askWire(now time.Time) map[netip.Addr]cable.Status {
	if d.wire == nil {
		return nil
	}
	if now.Sub(d.links.asked) < askWire {
		return d.links.wire
	}
	d.links.asked = now
	status, err := d.wire.Status()
	if err != nil {
		d.log.Debug("ask the wire for its peers", "error", err)
	}
	return status
}

// unreachable are the clusters of which no gateway answers.
func unreachable(clusters map[uint16][]dataplane.RemoteGateway, paths map[netip.Addr]loader.Path) map[uint16]bool {
	out := map[uint16]bool{}
	for index, gateways := range clusters {
		out[index] = !slices.ContainsFunc(gateways, func(g dataplane.RemoteGateway) bool {
			p := paths[g.Hop.Address]
			return !p.Suspect() && p.Ready
		})
	}
	return out
}

// note takes in the paths, and forgets ways that are gone.
func (l *links) note(snap snapshot, paths map[netip.Addr]loader.Path, sizes map[netip.Addr]probe.Size, now time.Time) {
	current := make(map[netip.Addr]bool, len(snap.targets))
	for _, t := range snap.targets {
		current[t.address] = true
		w := l.ways[t.address]
		if w == nil {
			w = &link{}
			l.ways[t.address] = w
		}
		p, known := paths[t.address]
		w.size, w.overhead = sizes[t.address], cable.Overhead(snap.objs.Config.CableDriver, false)
		w.note(p, known, now)
	}
	for a := range l.ways {
		if !current[a] {
			delete(l.ways, a)
			delete(l.mourned, a)
		}
	}
	l.notePassages(snap, now)
}

// urgent sums up what is reported at once if it changes: everything but numbers.
func (l *links) urgent(snap snapshot) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%t %s;", snap.gateway, haStatus(snap, l))
	for _, t := range snap.targets {
		w := l.ways[t.address]
		fmt.Fprintf(&b, "%s %s %s %s %t %t %t %s %s;", t.cluster, t.gateway, w.status, l.using(t), w.lossy.bad, w.rtt.n > 0, l.usingNAT(t), t.way.State, w.lost())
	}
	for _, t := range snap.refused {
		fmt.Fprintf(&b, "%s %s refused;", t.cluster, t.gateway)
	}
	if p := snap.reach.Public; p != nil {
		fmt.Fprintf(&b, "%s;", p.Address)
	}
	for p := range routedPeers(snap.objs.Peers) {
		if r := l.passages[uint16(p.Spec.ClusterIndex)]; r != nil {
			fmt.Fprintf(&b, "%s %s %d;", p.Name, r.status(), len(p.Spec.Gateways))
		}
	}
	return b.String()
}

// using is the address under which a remote gateway is reached: the wire knows best. It is empty if the wire cannot go there.
func (l *links) using(t target) string {
	switch e := l.wire[t.fabric].Endpoint; {
	case t.refused != "":
		return ""
	case e.IsValid():
		return e.Addr().Unmap().String()
	case t.remote.Address == "" && t.way.Caller.IsValid(): // it is to call, and does so from there
		return t.way.Caller.Addr().Unmap().String()
	}
	return t.remote.Address
}

// usingNAT says whether addresses or ports are rewritten on the way to a remote gateway: by what NAT discovery saw, and where
// that knows nothing, by whether it is reached at another address than its own.
func (l *links) usingNAT(t target) bool {
	if seen := l.wire[t.fabric].Endpoint; seen.IsValid() && !ownPort(t.remote, seen.Port()) {
		return true
	}
	if t.way.State == natt.Confirmed || t.way.Caller.IsValid() {
		return t.way.NAT()
	}
	using := l.using(t)
	return using != "" && using != privateAddress(t.remote)
}

// mourn tells in events which connections were lost, and which came back.
func (d *Daemon) mourn(snap snapshot) {
	if d.opts.Events == nil || !snap.gateway {
		return
	}
	for _, t := range snap.targets {
		w := d.links.ways[t.address]
		if !t.far() || d.links.mourned[t.address] == (w.status == submarinerv1.ConnectionError) {
			continue
		}
		about := &corev1.ObjectReference{
			APIVersion: submarinerv1.GroupVersion.String(), Kind: "Gateway", Namespace: d.opts.Namespace, Name: d.opts.NodeName,
		}
		ends := fmt.Sprintf("from gateway %s of %s to gateway %s of %s (%s, %s)",
			d.opts.NodeName, snap.objs.Config.ClusterID, t.gateway, t.cluster, d.links.using(t), t.remote.Wire)
		switch w.status {
		case submarinerv1.ConnectionError:
			d.links.mourned[t.address] = true
			d.opts.Events.Eventf(about, corev1.EventTypeWarning, "ConnectionLost", "the connection %s is dead: %s %s",
				ends, d.links.message(t), d.links.others(snap, t))
		case submarinerv1.Connected:
			delete(d.links.mourned, t.address)
			d.opts.Events.Eventf(about, corev1.EventTypeNormal, "ConnectionRestored", "the connection %s is back: probes were answered for %s",
				ends, steady)
		}
	}
}

// others says who carries the packets of a dead connection.
func (l *links) others(snap snapshot, dead target) string {
	var names []string
	for _, t := range snap.targets {
		if t.far() && t.cluster == dead.cluster && l.ways[t.address].status == submarinerv1.Connected {
			names = append(names, t.gateway)
		}
	}
	if len(names) == 0 {
		return "From here no other gateway of " + dead.cluster + " answers."
	}
	return "Packets go to " + strings.Join(names, ", ") + " instead."
}

// message is what is known of the way to a remote gateway, by the probes, by the wire and by NAT discovery.
func (l *links) message(t target) string {
	if t.refused != "" {
		return t.refused
	}
	w := l.ways[t.address]
	said := w.message(fmt.Sprintf("UDP %d to %s of node %s", t.remote.Port, l.using(t), t.gateway))
	var others []string
	if e := l.wire[t.fabric].Error; e != "" {
		others = append(others, "the wire says: "+e)
	}
	if t.way.Reason != "" && w.status != submarinerv1.Connected {
		others = append(others, "NAT discovery says: it "+t.way.Reason)
	}
	switch {
	case len(others) == 0:
		return said
	case said == "":
		return strings.Join(others, "; ")
	}
	return said + " (" + strings.Join(others, "; ") + ")"
}

// haStatus: every gateway is active, but where all flows take one of them; then it is the first that answers.
func haStatus(snap snapshot, l *links) submarinerv1.HAStatus {
	s := snap.state
	if !s.Settings.Single {
		return submarinerv1.HAStatusActive
	}
	living := slices.DeleteFunc(slices.Clone(s.Gateways), func(index uint16) bool {
		w := l.ways[s.Nodes[index].Address]
		return index != s.Settings.Node && w != nil && w.dead.bad
	})
	if dataplane.First(living) != s.Settings.Node {
		return submarinerv1.HAStatusPassive
	}
	return submarinerv1.HAStatusActive
}

// gatewayReport is what is to stand in the Gateway object; nil: there is to be none.
func gatewayReport(snap snapshot, l *links, version string) *submarinerv1.GatewayStatus {
	if !snap.gateway {
		return nil
	}
	return &submarinerv1.GatewayStatus{
		Version: version, HAStatus: haStatus(snap, l), LocalEndpoint: localEndpoint(snap), Connections: connections(snap, l),
	}
}

// completeEndpoints takes over what gateways published of themselves, and what of this one only the agent knows.
func completeEndpoints(status *submarinerv1.GatewayStatus, published []submarinerv1.Endpoint) {
	type name struct{ cluster, host string }
	specs := map[name]submarinerv1.EndpointSpec{}
	for _, e := range published {
		specs[name{e.Spec.ClusterID, e.Spec.Hostname}] = e.Spec
	}
	own := &status.LocalEndpoint
	if e, ok := specs[name{own.ClusterID, own.Hostname}]; ok {
		own.HealthCheckIP = e.HealthCheckIP
		for k, v := range e.BackendConfig {
			if _, known := own.BackendConfig[k]; !known {
				own.BackendConfig[k] = v
			}
		}
	}
	for i := range status.Connections {
		c := &status.Connections[i]
		if e, ok := specs[name{c.Endpoint.ClusterID, c.Endpoint.Hostname}]; ok {
			c.Endpoint = e
		}
	}
}

// localEndpoint is this gateway as its Endpoint object describes it.
func localEndpoint(snap snapshot) submarinerv1.EndpointSpec {
	c, s := snap.objs.Config, snap.state.Settings
	subnets := []string{}
	for _, p := range c.Subnets() {
		subnets = append(subnets, p.String())
	}
	settings := map[string]string{
		submarinerv1.BackendUDPPort:      strconv.Itoa(int(c.CablePort)),
		submarinerv1.BackendClusterIndex: strconv.Itoa(int(c.ClusterIndex)),
		submarinerv1.BackendNodeIndex:    strconv.Itoa(int(s.Node)),
	}
	if a, err := c.FabricAddress(c.ClusterIndex, s.Node); err == nil {
		settings[submarinerv1.BackendFabricIP] = a.String()
	}
	for k, v := range snap.wire {
		settings[k] = v
	}
	e := submarinerv1.EndpointSpec{
		ClusterID: c.ClusterID, CableName: cableName(c.ClusterID, s.Address.String()), Hostname: snap.objs.Name, Subnets: subnets,
		PrivateIP: s.Address.String(), Backend: c.CableDriver, BackendConfig: settings,
	}
	if p := snap.reach.Public; p != nil && p.Address != "" {
		e.PublicIP, e.NATEnabled = p.Address, p.Address != e.PrivateIP && !c.NoNAT
	}
	return e
}

func cableName(cluster, address string) string {
	return "submariner-cable-" + cluster + "-" + strings.ReplaceAll(address, ".", "-")
}

// connections lists every gateway of every accepted peer with what the probes and the wire say.
func connections(snap snapshot, l *links) []submarinerv1.Connection {
	out := []submarinerv1.Connection{}
	for _, t := range slices.Concat(snap.targets, snap.refused) {
		if !t.far() {
			continue
		}
		c := submarinerv1.Connection{
			Status: submarinerv1.ConnectionError, StatusMessage: l.message(t), Endpoint: peerEndpoint(t.peer, t.remote),
			UsingIP: l.using(t), UsingNAT: l.usingNAT(t),
		}
		if t.refused == "" {
			w := l.ways[t.address]
			c.Status, c.LatencyRTT = w.status, w.rtt.spec()
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b submarinerv1.Connection) int {
		return strings.Compare(a.Endpoint.CableName, b.Endpoint.CableName)
	})
	return out
}

// ownPort says whether a gateway itself would send from a port: tunnel i has the port of the cable + i, and one more stands by.
func ownPort(g pelagov1alpha1.PeerGateway, port uint16) bool {
	return port >= uint16(g.Port) && port <= uint16(g.Port)+cable.MaxTunnels
}

func peerEndpoint(p *pelagov1alpha1.Peer, g pelagov1alpha1.PeerGateway) submarinerv1.EndpointSpec {
	settings := map[string]string{
		submarinerv1.BackendUDPPort:      strconv.Itoa(int(g.Port)),
		submarinerv1.BackendClusterIndex: strconv.Itoa(int(p.Spec.ClusterIndex)),
		submarinerv1.BackendNodeIndex:    strconv.Itoa(int(g.NodeIndex)),
	}
	if g.FabricAddress != "" {
		settings[submarinerv1.BackendFabricIP] = g.FabricAddress
	}
	if g.Tunnels > 0 {
		settings[submarinerv1.BackendTunnels] = strconv.Itoa(int(g.Tunnels))
	}
	for k, v := range g.Identity {
		settings[k] = v
	}
	if g.NATTPort > 0 {
		settings[submarinerv1.BackendNATTDiscoveryPort] = strconv.Itoa(int(g.NATTPort))
	}
	if g.BehindLB {
		settings[submarinerv1.BackendLoadBalancer] = "true"
	}
	private := privateAddress(g)
	return submarinerv1.EndpointSpec{
		ClusterID: p.Name, CableName: cableName(p.Name, cmp.Or(private, g.PublicAddress)), Hostname: g.Name, Subnets: p.Spec.Subnets,
		PrivateIP: private, PublicIP: g.PublicAddress, NATEnabled: g.PublicAddress != "" && g.PublicAddress != private,
		Backend: g.Wire, BackendConfig: settings,
	}
}

// privateAddress of a remote gateway; empty if only its public one is of use here. Agents of the former version know but one.
func privateAddress(g pelagov1alpha1.PeerGateway) string {
	if g.PublicAddress != "" {
		return g.PrivateAddress
	}
	return cmp.Or(g.PrivateAddress, g.Address)
}
