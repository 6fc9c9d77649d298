package node

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
)

// rewire is how often the wire is asked to come up to date: it calls again those who did not answer, takes up tunnels that
// have come to work and brings key changes on.
const rewire = 5 * time.Second

// expect is how often while a tunnel is yet to come up.
const expect = 500 * time.Millisecond

// Wire is what a gateway's wire amounts to; the zero value where there is none, or the vxlan wire.
type Wire struct {
	// Devices on which cable packets come in.
	Devices []int
	// Fleeting: they, or their keys, change when this pod ends.
	Fleeting bool
	// Tunnels are the devices that lead to a remote gateway, by its fabric address.
	Tunnels map[netip.Addr][]int
	// Ports are the UDP ports at which the wire listens.
	Ports []uint16
	// Identity is what others must know to reach this gateway.
	Identity map[string]string
	// Rotation of its keys; the zero value if none was asked for.
	Rotation cable.Rotation
}

// OpenWire makes the wire of a driver.
type OpenWire func(driver string) (cable.Wire, error)

// encrypted says whether cable packets go between fabric addresses, inside tunnels.
func encrypted(c config.Config) bool { return c.CableDriver != config.CableVXLAN }

// errNoAddress: the vxlan wire has no address of a gateway. Why, steer has said.
var errNoAddress = errors.New("it has no address that this gateway could use")

// cableAddress is the outer address of cable packets to a remote gateway, and how its path is known.
func cableAddress(c config.Config, g pelagov1alpha1.PeerGateway) (netip.Addr, error) {
	text := g.Address
	if encrypted(c) {
		text = g.FabricAddress
	}
	if text == "" {
		return netip.Addr{}, errNoAddress
	}
	a, err := netip.ParseAddr(text)
	if err == nil && !a.Is4() {
		err = fmt.Errorf("%q is no IPv4 address", text)
	}
	return a, err
}

// ensureWire brings the wire to what the peers say, or takes it away where the node is no gateway. Remote gateways that are
// leaving keep their tunnels for as long as packets are taken from them. Errors that concern one peer are problems to
// report; the others go on. underlay is the MTU of the uplinks.
func (d *Daemon) ensureWire(objs Objects, underlay int, leaving map[netip.Addr]dataplane.Peer) (Wire, []string) {
	if !wanted(objs) && !time.Now().Before(d.tenure.until) {
		return Wire{}, d.closeWire()
	}
	if d.wire == nil {
		w, err := d.opts.OpenWire(objs.Config.CableDriver)
		if err != nil {
			return Wire{}, []string{fmt.Sprintf("open the wire %s: %v", objs.Config.CableDriver, err)}
		}
		d.wire = w
	}
	local, problems := d.localWire(objs, underlay)
	if len(problems) > 0 {
		return Wire{}, problems
	}
	d.wirePeers = withLeaving(wirePeers(objs), d.wirePeers, leaving)
	devices, err := d.wire.Ensure(local, d.wirePeers)
	if err != nil {
		problems = append(problems, err.Error())
	}
	rotation, more := rotateKeys(d.wire, objs)
	problems = append(problems, more...)
	identity, err := d.wire.Identity()
	if err != nil {
		problems = append(problems, err.Error())
	}
	if len(identity) == 0 {
		identity = nil // as it comes back from the API server
	}
	return Wire{
		Devices: devices.Ifindexes, Fleeting: devices.Fleeting, Tunnels: devices.Peers, Ports: slices.Concat(cable.Ports(objs.Config.CableDriver, local), devices.Ports),
		Identity: identity, Rotation: rotation,
	}, problems
}

func (d *Daemon) localWire(objs Objects, underlay int) (cable.Local, []string) {
	fabric, err := objs.Config.FabricAddress(objs.Config.ClusterIndex, uint16(ownIndex(objs).Spec.Index))
	if err != nil {
		return cable.Local{}, []string{fmt.Sprintf("node %s has no fabric address, so it cannot be a gateway: %v", objs.Name, err)}
	}
	psk, err := config.ParsePSK(readDir(d.opts.PSKDir))
	if err != nil {
		return cable.Local{}, []string{err.Error()}
	}
	return cable.Local{
		Fabric: fabric, Listen: objs.Config.CablePort, Tunnels: objs.Config.CableTunnels, PSK: psk,
		MTU: cable.DeviceMTU(objs.Config.CableDriver, underlay, false),
	}, nil
}

// closeWire takes the wire away. Without one it has nothing to do.
func (d *Daemon) closeWire() []string {
	if d.wire == nil {
		return nil
	}
	w := d.wire
	if err := w.Remove(); err != nil {
		return []string{err.Error()}
	}
	d.wire = nil
	if err := w.Close(); err != nil {
		return []string{err.Error()}
	}
	return nil
}

// wirePeers are the gateways of the accepted peers.
func wirePeers(objs Objects) []cable.Peer {
	var out []cable.Peer
	for p, g := range remoteGateways(objs.Peers) {
		// What is no address is a problem that Desired reports.
		fabric, err := netip.ParseAddr(g.FabricAddress)
		address, _ := netip.ParseAddr(g.Address)                         // zero: the wire waits for the peer to call
		if err != nil || !address.IsValid() && !encrypted(objs.Config) { // vxlan cannot wait for a call
			continue
		}
		out = append(out, cable.Peer{
			Name: wayName(p.Name, g.Name), Fabric: fabric, Address: address, Port: uint16(g.Port),
			Identity: maps.Clone(g.Identity), Tunnels: int(g.Tunnels),
		})
	}
	return out
}

// withLeaving adds those of before that are leaving.
func withLeaving(peers, before []cable.Peer, leaving map[netip.Addr]dataplane.Peer) []cable.Peer {
	for _, p := range before {
		_, leaves := leaving[p.Fabric]
		if leaves && !slices.ContainsFunc(peers, func(other cable.Peer) bool { return other.Fabric == p.Fabric }) {
			peers = append(peers, p)
		}
	}
	return peers
}

// expecting says whether a tunnel is yet to come up, or to get a new key.
func (d *Daemon) expecting() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.latest.rotating || d.latest.gateway && !d.settled.Load() && waiting(d.latest)
}

// waiting says whether a gateway of an accepted peer is not in the tables yet: no tunnel leads to it.
func waiting(snap snapshot) bool {
	for p := range routedPeers(snap.objs.Peers) {
		if len(snap.state.Clusters[uint16(p.Spec.ClusterIndex)]) < min(len(p.Spec.Gateways), dataplane.MaxGateways) {
			return true
		}
	}
	return false
}

// tunnels are interface indexes as the tables have them.
func tunnels(devices []int) []uint32 {
	var out []uint32
	for _, d := range devices {
		out = append(out, uint32(d))
	}
	return out
}
