//go:build linux

package cable

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

const (
	defaultKeepalive = 25 * time.Second
	// sessionLife bounds the use of session keys after a handshake (REJECT_AFTER_TIME in the
	// WireGuard paper, §6.1).
	sessionLife = 180 * time.Second
)

// wgPeer is a peer gateway as a WireGuard peer.
type wgPeer struct {
	name   string
	fabric netip.Addr
	// keys by tunnel, that of the standby at MaxTunnels; zero: the peer has no such tunnel.
	keys     [MaxTunnels + 1]wgtypes.Key
	draining [MaxTunnels + 1]bool
	psk      wgtypes.Key
	// endpoint of tunnel 0; invalid: wait for the peer to initiate.
	endpoint  netip.AddrPort
	keepalive time.Duration
}

// at is the endpoint of a tunnel.
func (p wgPeer) at(tunnel int) netip.AddrPort {
	if !p.endpoint.IsValid() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(p.endpoint.Addr(), p.endpoint.Port()+uint16(tunnel))
}

// wgPeers parses the peers' identities. An invalid peer is left out and named in the error. Package
// peering rejects duplicate keys; if two peers have one nevertheless, the order by fabric address
// makes the result deterministic.
func wgPeers(local Local, peers []Peer, own []wgtypes.Key) ([]wgPeer, error) {
	var out []wgPeer
	var errs []error
	owner := map[wgtypes.Key]string{}
	for _, k := range own {
		owner[k.PublicKey()] = "this gateway"
	}
	for _, p := range slices.SortedFunc(slices.Values(peers), func(a, b Peer) int { return a.Fabric.Compare(b.Fabric) }) {
		w, err := newWGPeer(local, p)
		for _, k := range w.keys {
			// WireGuard identifies a peer by its key: of two with the same one, the second would
			// replace the first.
			if other, ok := owner[k]; ok && k != (wgtypes.Key{}) {
				err = errors.Join(err, fmt.Errorf("its public key %s is that of %s as well: one of the two must rotate its keys (pelago gateway rotate-keys)", k, other))
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("peer %s: %w", p.Name, err))
			continue
		}
		for _, k := range w.keys {
			owner[k] = "peer " + p.Name
		}
		out = append(out, w)
	}
	return out, errors.Join(errs...)
}

func newWGPeer(local Local, p Peer) (wgPeer, error) {
	w := wgPeer{
		name: p.Name, fabric: p.Fabric,
		// WireGuard's unit is a second; 0 would disable it.
		keepalive: max(cmp.Or(p.Keepalive, defaultKeepalive).Truncate(time.Second), time.Second),
	}
	if p.Address.IsValid() {
		if p.Port == 0 || int(p.Port)+MaxTunnels > 65535 {
			return w, fmt.Errorf("UDP port %d: use 1 to %d", p.Port, 65535-MaxTunnels)
		}
		w.endpoint = netip.AddrPortFrom(p.Address.Unmap(), p.Port)
	}
	psk, err := pairKey(local.PSK, WireGuardDriver, local.Fabric, p.Fabric)
	if err != nil {
		return w, err
	}
	w.psk = psk
	if p.Identity[IdentityPublicKey] == "" {
		return w, fmt.Errorf("it publishes no WireGuard key: is its cable driver another than %s here?", WireGuardDriver)
	}
	keys := strings.Split(p.Identity[IdentityPublicKey], ",")
	for i := range min(len(keys), max(p.Tunnels, 1), local.Tunnels) {
		if w.keys[i], err = wgtypes.ParseKey(keys[i]); err != nil {
			return w, fmt.Errorf("public key %d %q: %w", i, keys[i], err)
		}
	}
	if s := p.Identity[IdentityStandbyKey]; s != "" {
		if w.keys[MaxTunnels], err = wgtypes.ParseKey(s); err != nil {
			return w, fmt.Errorf("public key of the standby tunnel %q: %w", s, err)
		}
	}
	for _, i := range tunnelNumbers(strings.Split(p.Identity[IdentityDraining], ",")) {
		w.draining[i] = true
	}
	return w, nil
}

// tunnel is the desired state of a device.
type tunnel struct {
	number int
	key    wgtypes.Key
	port   uint16
	peers  []wgPeer
	// retired are the keys of retired peers that still receive.
	retired map[wgtypes.Key]bool
}

// endpoints are the configured endpoints by peer key. The kernel follows a peer that roams; its
// configured endpoint is set again only when it changes, or when the peer is silent.
type endpoints map[wgtypes.Key]netip.AddrPort

// tunnelKey is a peer's key in a tunnel.
type tunnelKey struct {
	tunnel int
	key    wgtypes.Key
}

// lingeringKeys returns the keys that stay in a tunnel for Linger after their peers have retired
// from it but not from other tunnels: the caller still sends into the tunnel until it has acted on
// the result of Ensure. A removed peer is cut off at once.
func (w *WireGuard) lingeringKeys(tunnel int, have []wgtypes.Peer, now time.Time) map[wgtypes.Key]bool {
	wanted := map[string]wgtypes.Key{} // by fabric address
	for _, p := range w.peers {
		wanted[host(p.fabric).String()] = p.keys[tunnel]
	}
	out := map[wgtypes.Key]bool{}
	for _, h := range have {
		k := tunnelKey{tunnel, h.PublicKey}
		if len(h.AllowedIPs) != 1 {
			continue
		}
		if key, remains := wanted[h.AllowedIPs[0].String()]; remains && key == (wgtypes.Key{}) {
			out[h.PublicKey] = w.retiredKeys.lingers(k, 0, now, w.o.Linger)
		} else {
			delete(w.retiredKeys, k)
		}
	}
	return out
}

// plan is the difference between a device and t; false: none. last are the configured endpoints of
// the last Ensure.
func plan(have *wgtypes.Device, t tunnel, last endpoints, now time.Time) (wgtypes.Config, bool) {
	var c wgtypes.Config
	known := map[wgtypes.Key]wgtypes.Peer{}
	for _, p := range have.Peers {
		known[p.PublicKey] = p
	}
	renewed := have.PrivateKey != t.key
	if renewed {
		// Clears the handshake times, which otherwise could not be notified from handshakes with
		// the new key.
		c.PrivateKey, c.ReplacePeers = &t.key, true
	}
	if port := int(t.port); have.ListenPort != port {
		c.ListenPort = &port
	}
	stay := map[wgtypes.Key]bool{}
	var add, change []wgtypes.PeerConfig
	for _, p := range t.peers {
		key := p.keys[t.number]
		if key == (wgtypes.Key{}) {
			continue
		}
		stay[key] = true
		h, ok := known[key]
		if !ok || renewed {
			add = append(add, newPeer(p, key, t.number, lastEndpoint(have.Peers, p.fabric)))
		} else if pc, differs := changePeer(h, p, key, t.number, last, now); differs {
			change = append(change, pc)
		}
	}
	if !renewed {
		// Removals first: a peer with a new key takes over the fabric address of its old one.
		for _, h := range have.Peers {
			if !stay[h.PublicKey] && !t.retired[h.PublicKey] {
				c.Peers = append(c.Peers, wgtypes.PeerConfig{PublicKey: h.PublicKey, Remove: true})
			}
		}
	}
	c.Peers = append(append(c.Peers, change...), add...)
	return c, c.PrivateKey != nil || c.ListenPort != nil || len(c.Peers) > 0
}

// lastEndpoint is the endpoint that packets from that fabric address came from last, with whatever
// key; nil: none yet.
func lastEndpoint(peers []wgtypes.Peer, fabric netip.Addr) *net.UDPAddr {
	for _, h := range peers {
		if !h.LastHandshakeTime.IsZero() && len(h.AllowedIPs) == 1 && h.AllowedIPs[0].IP.Equal(fabric.AsSlice()) {
			return h.Endpoint
		}
	}
	return nil
}

// newPeer adds a peer at its last endpoint, or else at the configured one.
func newPeer(p wgPeer, key wgtypes.Key, tunnel int, last *net.UDPAddr) wgtypes.PeerConfig {
	if last == nil && p.at(tunnel).IsValid() {
		last = net.UDPAddrFromAddrPort(p.at(tunnel))
	}
	return wgtypes.PeerConfig{
		PublicKey: key, PresharedKey: &p.psk, Endpoint: last, PersistentKeepaliveInterval: &p.keepalive,
		ReplaceAllowedIPs: true, AllowedIPs: []net.IPNet{*host(p.fabric)},
	}
}

func changePeer(h wgtypes.Peer, p wgPeer, key wgtypes.Key, tunnel int, last endpoints, now time.Time) (c wgtypes.PeerConfig, differs bool) {
	c = wgtypes.PeerConfig{PublicKey: key, UpdateOnly: true}
	if h.PresharedKey != p.psk {
		c.PresharedKey, differs = &p.psk, true
	}
	if h.PersistentKeepaliveInterval != p.keepalive {
		c.PersistentKeepaliveInterval, differs = &p.keepalive, true
	}
	if len(h.AllowedIPs) != 1 || h.AllowedIPs[0].String() != host(p.fabric).String() {
		c.ReplaceAllowedIPs, c.AllowedIPs, differs = true, []net.IPNet{*host(p.fabric)}, true
	}
	at := p.at(tunnel)
	if at.IsValid() && at != endpoint(h) {
		before, known := last[key]
		moved := known && before != at
		silent := now.Sub(h.LastHandshakeTime) > sessionLife
		if h.Endpoint == nil || moved || silent {
			c.Endpoint, differs = net.UDPAddrFromAddrPort(at), true
		}
	}
	return c, differs
}

func endpoint(p wgtypes.Peer) netip.AddrPort {
	if p.Endpoint == nil {
		return netip.AddrPort{}
	}
	a := p.Endpoint.AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// usable are the tunnels over which packets to p may be sent, best first: those with keys that
// neither side drains; else the standby; else any with keys; else all, where the first packets wait
// for the handshake. ready reports whether a handshake was made with the current keys of both
// sides.
func usable(p wgPeer, tunnels int, draining int, ready func(tunnel int) bool) []int {
	standby := func(i int) bool { return i == MaxTunnels }
	free := func(i int) bool { return i != draining && !p.draining[i] }
	for _, choice := range []func(i int) bool{
		func(i int) bool { return i < tunnels && free(i) && ready(i) },
		func(i int) bool { return standby(i) && free(i) && ready(i) },
		func(i int) bool { return i < tunnels && ready(i) },
		func(i int) bool { return standby(i) && ready(i) },
		func(i int) bool { return i < tunnels && free(i) },
		func(i int) bool { return i < tunnels },
	} {
		var out []int
		for i, key := range p.keys {
			if key != (wgtypes.Key{}) && choice(i) {
				out = append(out, i)
			}
		}
		if len(out) > 0 {
			return out
		}
	}
	return nil
}

// handshaken reports whether the peer with that key has made a handshake.
func handshaken(d *wgtypes.Device, key wgtypes.Key) bool {
	return slices.ContainsFunc(d.Peers, func(p wgtypes.Peer) bool {
		return p.PublicKey == key && !p.LastHandshakeTime.IsZero()
	})
}
