package node

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/natt"
)

// wireInterval is the interval at which the wire is reconciled: for unanswered handshakes, tunnels
// that have come up, key rotation.
const wireInterval = 5 * time.Second

// wireRetry is the interval instead while a tunnel is expected to come up or to get a new key.
const wireRetry = 500 * time.Millisecond

// statusInterval is that of reading the status of the wire.
const statusInterval = 2 * time.Second

// OpenWire opens the wire of a driver.
type OpenWire func(driver string) (cable.Wire, error)

// gateway is what this node runs as a gateway.
type gateway struct {
	role     role          // of this node
	draining drainingPeers // remote gateways
	// answering is tables.Objects.Answering.
	answering map[string]bool

	wire   cable.Wire   // nil: none
	peers  []cable.Peer // of the wire
	status map[netip.Addr]cable.Status
	asked  time.Time // when status was read

	resolver  *Resolver
	discovery *natt.Discovery // nil: none
	config    natt.Config     // of discovery
	// used is the address of each remote gateway that was used last.
	used map[string]string
	// addresses of this node in the last reconcile.
	addresses []netip.Addr
}

// setAnswering records which other nodes work as gateways and reports whether that has changed.
func (g *gateway) setAnswering(answering map[string]bool) (changed bool) {
	changed = !maps.Equal(answering, g.answering)
	g.answering = answering
	return changed
}

// updateRoles records which gateways come and go, this node and remote ones. It returns the remote
// gateways that are draining.
func (d *Daemon) updateRoles(objs tables.Objects) (draining map[netip.Addr]dataplane.Peer) {
	now := time.Now()
	ended := d.gateway.role.update(tables.Wanted(objs), resumed(objs, bootID()), now)
	draining, some := d.gateway.draining.update(objs.Config, objs.Peers, now)
	if ended || some {
		time.AfterFunc(drainTime+time.Second, d.wake)
	}
	return draining
}

// ensureReach resolves how this gateway is reached and how it reaches others. It returns the
// objects as this gateway uses them: with its own port, and with one address for each remote
// gateway. It does not block.
func (d *Daemon) ensureReach(objs tables.Objects) (tables.Objects, tables.Reach, []string) {
	g := &d.gateway
	if !tables.Wanted(objs) && !g.role.gateway && !g.role.isDraining(time.Now()) {
		g.resolver.Set(nil)
		return objs, tables.Reach{}, g.closeDiscovery()
	}
	settings, refused := tables.GatewaySettingsOf(objs)
	objs.Config.CablePort = settings.UDPPort
	g.resolver.Set(settings.PublicIP)
	r := tables.Reach{
		Backend:  map[string]string{submarinerv1.BackendUDPPort: strconv.Itoa(int(settings.UDPPort)), submarinerv1.BackendNATTDiscoveryPort: "0"},
		Public:   publicAddress(tables.OwnIndex(objs).Status.PublicIP, settings.PublicIP, g.resolver.Result()),
		Settings: refused,
	}
	if settings.PreferredServer {
		r.Backend[submarinerv1.BackendPreferredServer] = "true"
	}
	if r.Public != nil && r.Public.Source != "" && behindLB(settings.PublicIP, r.Public.Source) {
		r.Backend[submarinerv1.BackendLoadBalancer] = "true"
	}
	problems := slices.Clone(refused)
	reachability := map[string]natt.Reachability{}
	if err := d.openDiscovery(objs, settings.DiscoveryPort); err != nil {
		problems = append(problems, err.Error())
	} else {
		if err := g.discovery.Set(tables.DiscoveryPeers(objs)); err != nil {
			problems = append(problems, err.Error())
		}
		reachability = g.discovery.Reachability()
		r.Ports = []uint16{settings.DiscoveryPort}
		r.Backend[submarinerv1.BackendNATTDiscoveryPort] = strconv.Itoa(int(settings.DiscoveryPort))
	}
	objs, more := tables.SelectAddresses(objs, settings.PreferredServer, reachability, g.used)
	g.used = tables.UsedAddresses(objs)
	return objs, r, append(problems, more...)
}

// recheck repeats NAT discovery if the node has other addresses than before.
func (g *gateway) recheck(addresses []netip.Addr) {
	if g.discovery != nil && g.addresses != nil && !slices.Equal(g.addresses, addresses) {
		g.discovery.Recheck()
	}
	g.addresses = slices.Clone(addresses)
}

// closeDiscovery ends NAT discovery.
func (g *gateway) closeDiscovery() []string {
	if g.discovery == nil {
		return nil
	}
	err := g.discovery.Close()
	g.discovery, g.used = nil, nil
	if err != nil {
		return []string{fmt.Sprintf("close NAT discovery: %v", err)}
	}
	return nil
}

// openDiscovery opens NAT discovery, again if its configuration has changed.
func (d *Daemon) openDiscovery(objs tables.Objects, port uint16) error {
	psk, err := config.ParsePSK(readDir(d.opts.PSKDir))
	if err != nil {
		return err
	}
	c := natt.Config{Name: tables.GatewayName(objs.Config.ClusterID, objs.Name), Port: port, PSK: psk}
	g := &d.gateway
	if g.discovery != nil && g.config.Name == c.Name && g.config.Port == c.Port && bytes.Equal(g.config.PSK, c.PSK) {
		return nil
	}
	if g.discovery != nil {
		err := g.discovery.Close()
		g.discovery = nil
		if err != nil {
			return fmt.Errorf("close NAT discovery: %w", err)
		}
	}
	g.config = c
	c.Log, c.Changed = d.log, func(name string, v natt.Reachability) {
		d.log.Debug("NAT discovery", "gateway", name, "state", v.State.String(), "address", v.Address, "reason", v.Reason)
		d.wake()
	}
	g.discovery, err = natt.Open(c)
	return err
}

// publicAddress is the public address to report. While there is no result, or after a restart, the
// former address stays as long as its source is wanted.
func publicAddress(former *pelagov1alpha1.PublicIP, wanted []tables.PublicIPSource, r PublicIP) *pelagov1alpha1.PublicIP {
	if len(wanted) == 0 {
		return nil
	}
	out := &pelagov1alpha1.PublicIP{}
	isFormer := func(s tables.PublicIPSource) bool { return former != nil && s.String() == former.Source }
	switch {
	case r.Address.IsValid():
		out.Address, out.Source = r.Address.String(), r.Source.String()
	case slices.ContainsFunc(wanted, isFormer):
		out.Address, out.Source = former.Address, former.Source
	}
	if r.Err != nil && !errors.Is(r.Err, tables.ErrNoSource) {
		out.Message = r.Err.Error()
	}
	return out
}

func behindLB(wanted []tables.PublicIPSource, source string) bool {
	return slices.ContainsFunc(wanted, func(s tables.PublicIPSource) bool { return s.Method == tables.LoadBalancer && s.String() == source })
}

// ensureWire configures the wire for the accepted peers, or removes it where the node is no
// gateway. Draining remote gateways keep their tunnels while packets of them are accepted. Errors
// of one peer are returned as problems and do not affect the others. underlay is the MTU of the
// uplinks in bytes.
func (d *Daemon) ensureWire(objs tables.Objects, underlay int, draining map[netip.Addr]dataplane.Peer) (tables.Wire, []string) {
	g := &d.gateway
	if !tables.Wanted(objs) && !g.role.isDraining(time.Now()) {
		return tables.Wire{}, g.closeWire()
	}
	if g.wire == nil {
		w, err := d.opts.OpenWire(objs.Config.CableDriver)
		if err != nil {
			d.wakeLater()
			return tables.Wire{}, []string{fmt.Sprintf("open the wire %s: %v", objs.Config.CableDriver, err)}
		}
		g.wire = w
	}
	local, problems := d.localWire(objs, underlay)
	if len(problems) > 0 {
		return tables.Wire{}, problems
	}
	g.peers = tables.WithDraining(tables.WirePeers(objs), g.peers, draining)
	devices, err := g.wire.Ensure(local, g.peers)
	if err != nil {
		problems = append(problems, err.Error())
	}
	rotation, more := rotateKeys(g.wire, objs)
	problems = append(problems, more...)
	identity, err := g.wire.Identity()
	if err != nil {
		problems = append(problems, err.Error())
	}
	if len(identity) == 0 {
		identity = nil // as the API server returns it
	}
	return tables.Wire{
		Devices: devices.Ifindexes, Fleeting: devices.Fleeting, Tunnels: devices.Peers, Identity: identity, Rotation: rotation,
		Ports: slices.Concat(cable.Ports(objs.Config.CableDriver, local), devices.Ports),
	}, problems
}

func (d *Daemon) localWire(objs tables.Objects, underlay int) (cable.Local, []string) {
	fabric, err := objs.Config.FabricAddress(objs.Config.ClusterIndex, uint16(tables.OwnIndex(objs).Spec.Index))
	if err != nil {
		return cable.Local{}, []string{fmt.Sprintf("node %s has no fabric address, so it cannot be a gateway: %v", objs.Name, err)}
	}
	psk, err := config.ParsePSK(readDir(d.opts.PSKDir))
	if err != nil {
		return cable.Local{}, []string{err.Error()}
	}
	return cable.Local{
		Fabric: fabric, Listen: objs.Config.CablePort, Tunnels: objs.Config.CableTunnels, PSK: psk,
		MTU: cable.DeviceMTU(objs.Config.CableDriver, underlay),
	}, nil
}

// closeWire removes the wire, if there is one.
func (g *gateway) closeWire() []string {
	if g.wire == nil {
		return nil
	}
	w := g.wire
	if err := w.Remove(); err != nil {
		return []string{err.Error()}
	}
	g.wire = nil
	if err := w.Close(); err != nil {
		return []string{err.Error()}
	}
	return nil
}

// rotateKeys has the wire rotate its keys if the node's annotation requests it, once for each
// value, and returns the progress. It is called in every reconcile.
func rotateKeys(w cable.Wire, objs tables.Objects) (cable.Rotation, []string) {
	request := tables.OwnNode(objs).Annotations[pelagov1alpha1.AnnotationRotateKeys]
	if request == "" {
		return cable.Rotation{}, nil
	}
	if _, err := time.Parse(time.RFC3339, request); err != nil {
		return cable.Rotation{}, []string{fmt.Sprintf("annotation %s of node %s: %q is no RFC 3339 time such as 2026-01-31T12:00:00Z",
			pelagov1alpha1.AnnotationRotateKeys, objs.Name, request)}
	}
	var keys cable.Keys
	if w != nil {
		keys = w.Capabilities().Keys
	}
	if keys == nil {
		return cable.Rotation{Request: request, Waits: fmt.Sprintf("the wire %s is not encrypted and has no keys", objs.Config.CableDriver)}, nil
	}
	if err := keys.Rotate(request); err != nil {
		return cable.Rotation{}, []string{err.Error()}
	}
	return keys.Rotation(), nil
}

// wireStatus returns the status of the wire's peers by fabric address, at most statusInterval old.
// Without it the probes suffice.
func (d *Daemon) wireStatus(now time.Time) map[netip.Addr]cable.Status {
	g := &d.gateway
	if g.wire == nil {
		g.status = nil
		return nil
	}
	if now.Sub(g.asked) < statusInterval {
		return g.status
	}
	g.asked = now
	var err error
	if g.status, err = g.wire.Status(); err != nil {
		d.log.Debug("read the status of the wire", "error", err)
	}
	return g.status
}

// awaitsWire reports whether a tunnel is expected to come up, or to get a new key.
func (d *Daemon) awaitsWire() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.latest.Rotating || d.latest.Gateway && !d.settled.Load() && d.latest.AwaitsTunnel()
}
