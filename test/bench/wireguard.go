package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/test/netns"
)

// The wire `wireguard` of the product between the first gateways, for the variants of
// caseWireGuard. On a kernel without WireGuard it runs in this process, whose time is not part of
// the sender's.

const (
	caseWireGuard = "wireguard"
	wirePort      = 4600 // 4500 is VXLAN's in the variant iptables
)

// wires counts the ends of wires.
var wires atomic.Int32

// wireMTU is that of the wire's devices, wireEdgeMTU that of pelago0 in front of them.
var (
	wireMTU     = cable.DeviceMTU(cable.WireGuardDriver, 1500)
	wireEdgeMTU = wireMTU - netdev.Overhead
)

// wireEnd is the wire at one gateway.
type wireEnd struct {
	ns            *netns.NS
	local, remote netip.Addr // addresses inside the wire
	peer          netip.Addr // underlay address of the other gateway
	wire          *cable.WireGuard
	devices       cable.Devices
}

// tunnels are the devices that lead to the other gateway.
func (e *wireEnd) tunnels() (out []uint32) {
	for _, index := range e.devices.Peers[e.remote] {
		out = append(out, uint32(index))
	}
	return out
}

// openWireGuard connects the first gateways. The keys are in dir.
func openWireGuard(t *Topology, dir string) (a, b *wireEnd, err error) {
	a = &wireEnd{ns: t.GA[0], local: cableGA.Addr(), remote: cableGB.Addr(), peer: wanGB(1, 1).Addr()}
	b = &wireEnd{ns: t.GB[0], local: cableGB.Addr(), remote: cableGA.Addr(), peer: wanGA(1, 1).Addr()}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open the wire: %w", err), closeWires(a, b))
		}
	}()
	for _, e := range []*wireEnd{a, b} {
		if e.wire, err = cable.OpenWireGuard(cable.WireGuardOptions{
			// control sockets are named after devices
			Dir: filepath.Join(dir, e.ns.Name), Prefix: fmt.Sprintf("bench%d-", wires.Add(1)),
		}); err != nil {
			return a, b, err
		}
	}
	var identities [2]map[string]string
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		for i, e := range []*wireEnd{a, b} {
			var peers []cable.Peer
			if other := identities[1-i]; other != nil {
				peers = append(peers, cable.Peer{Name: "other", Fabric: e.remote, Address: e.peer, Port: wirePort, Identity: other})
			}
			err := e.ns.Do(func() (err error) {
				e.devices, err = e.wire.Ensure(cable.Local{Fabric: e.local, Listen: wirePort, PSK: make([]byte, 32), MTU: wireMTU}, peers)
				return err
			})
			if err == nil {
				identities[i], err = e.wire.Identity()
			}
			if err != nil {
				return a, b, err
			}
		}
		if len(a.tunnels()) > 0 && len(b.tunnels()) > 0 {
			return a, b, nil
		}
		if time.Now().After(end) {
			return a, b, errors.New("no handshake within a minute")
		}
	}
}

func closeWires(ends ...*wireEnd) error {
	var errs []error
	for _, e := range ends {
		if e.wire != nil {
			errs = append(errs, e.ns.Do(func() error { return errors.Join(e.wire.Remove(), e.wire.Close()) }))
		}
	}
	return errors.Join(errs...)
}

// iptablesWireGuard is iptables with the prefixes routed into the wire's device, without VXLAN
// between the gateways.
func iptablesWireGuard() Variant {
	return Variant{Name: reference, Target: ingress, Setup: func(t *Topology, scale Scale) (setup, error) {
		if _, err := iptables().Setup(t, scale); err != nil {
			return setup{}, err
		}
		dir, err := os.MkdirTemp("", "pelago-bench-")
		if err != nil {
			return setup{}, fmt.Errorf("make a directory for the keys: %w", err)
		}
		a, b, err := openWireGuard(t, dir)
		if err != nil {
			return setup{}, errors.Join(err, os.RemoveAll(dir))
		}
		s := setup{teardown: func() error { return errors.Join(closeWires(a, b), os.RemoveAll(dir)) }}
		if err := errors.Join(a.routeInto(globalB), b.routeInto(globalA)); err != nil {
			return setup{}, errors.Join(err, s.teardown())
		}
		return s, nil
	}}
}

// routeInto routes a prefix into the wire, and has WireGuard accept every address from the other
// end: in every tunnel, since the other end may have chosen another one, such as the standby while
// tunnel 0 had no handshake yet.
func (e *wireEnd) routeInto(prefix netip.Prefix) error {
	return e.ns.Do(func() error {
		client, err := wgctrl.New()
		if err != nil {
			return err
		}
		defer client.Close()
		all := []net.IPNet{{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}}
		names := map[int]string{}
		for _, index := range e.devices.Ifindexes {
			link, err := net.InterfaceByIndex(index)
			if err != nil {
				return err
			}
			d, err := client.Device(link.Name)
			if err != nil {
				return err
			}
			if err := client.ConfigureDevice(link.Name, wgtypes.Config{Peers: []wgtypes.PeerConfig{{
				PublicKey: d.Peers[0].PublicKey, UpdateOnly: true, AllowedIPs: all,
			}}}); err != nil {
				return err
			}
			names[index] = link.Name
		}
		return e.ns.AddRoute(prefix, e.remote, names[e.devices.Peers[e.remote][0]])
	})
}

func pelagoWireGuard(v Variant, datapath dataplane.Datapath) Variant {
	v.Setup = func(t *Topology, scale Scale) (setup, error) {
		return setupPelago(t, scale, pelagoOptions{datapath: datapath, wireGuard: true})
	}
	return v
}
