package cable

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

const (
	defaultKeepalive = 25 * time.Second
	// sessionLife is how long keys are used at most after a handshake (REJECT_AFTER_TIME in the WireGuard paper, §6.1).
	sessionLife = 180 * time.Second
)

// wgPeer is a gateway as WireGuard sees it.
type wgPeer struct {
	name   string
	fabric netip.Addr
	// keys per tunnel, the standby's last at MaxTunnels; the zero key: the peer has no such tunnel.
	keys     [MaxTunnels + 1]wgtypes.Key
	draining [MaxTunnels + 1]bool
	psk      wgtypes.Key
	// endpoint of tunnel 0; not valid: wait for its call.
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

// wgPeers reads the peers' identities. A peer that cannot be used is left out and named in the error. Package peering has checked
// that keys are unique; should two peers share one all the same, the order by fabric address keeps the result stable.
func wgPeers(local Local, peers []Peer, own []wgtypes.Key) ([]wgPeer, error) {
	var out []wgPeer
	var errs []error
	owner := map[wgtypes.Key]string{}
	for _, k := range own {
		owner[k.PublicKey()] = "this gateway"
	}
	for _, p := range slices.SortedFunc(slices.Values(peers), func(a, b Peer) int { return a.Fabric.Compare(b.Fabric) }) {
		w, err := newWGPeer(local, p)
		if err == nil {
			err = w.claim(owner)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("peer %s: %w", p.Name, err))
			continue
		}
		out = append(out, w)
	}
	return out, errors.Join(errs...)
}

// claim notes the peer's keys. WireGuard knows a peer by its key: of two with one key the later one would take the
// earlier one's place.
func (p wgPeer) claim(owner map[wgtypes.Key]string) error {
	for _, k := range p.keys {
		if other, ok := owner[k]; ok && k != (wgtypes.Key{}) {
			return fmt.Errorf("its public key %s is that of %s as well: one of the two must rotate its keys (pelago gateway rotate-keys)", k, other)
		}
	}
	for _, k := range p.keys {
		owner[k] = "peer " + p.name
	}
	return nil
}

func newWGPeer(local Local, p Peer) (wgPeer, error) {
	w := wgPeer{name: p.Name, fabric: p.Fabric, keepalive: p.Keepalive}
	if w.keepalive == 0 {
		w.keepalive = defaultKeepalive
	}
	// WireGuard counts in seconds; 0 would switch it off.
	w.keepalive = max(w.keepalive.Truncate(time.Second), time.Second)
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
	for word := range strings.SplitSeq(p.Identity[IdentityDraining], ",") {
		if i, err := strconv.Atoi(word); err == nil && i >= 0 && i <= MaxTunnels {
			w.draining[i] = true
		}
	}
	return w, nil
}

// tunnel is one device as wanted.
type tunnel struct {
	number int
	key    wgtypes.Key
	port   uint16
	peers  []wgPeer
	// leavers are keys that are wanted no longer and stay for now.
	leavers map[wgtypes.Key]bool
}

// wanted is which address was last wanted of which peer key: a peer that calls from elsewhere is answered there, until another
// address is wanted of it.
type wanted map[wgtypes.Key]netip.AddrPort

// plan says what to change in a device so that it is as t says, and nothing else; false: nothing.
func plan(have *wgtypes.Device, t tunnel, last wanted, now time.Time) (wgtypes.Config, bool) {
	var c wgtypes.Config
	known := map[wgtypes.Key]wgtypes.Peer{}
	for _, p := range have.Peers {
		known[p.PublicKey] = p
	}
	renewed := have.PrivateKey != t.key
	if renewed {
		// Handshakes made with the old key say nothing any more: forget them, so that one can see when there are new ones.
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
			add = append(add, newPeer(p, key, t.number, heard(have.Peers, p.fabric)))
		} else if pc, differs := changePeer(h, p, key, t.number, last, now); differs {
			change = append(change, pc)
		}
	}
	if !renewed {
		// First away with those that go: a peer with a new key takes over the fabric address of its old one.
		for _, h := range have.Peers {
			if !stay[h.PublicKey] && !t.leavers[h.PublicKey] {
				c.Peers = append(c.Peers, wgtypes.PeerConfig{PublicKey: h.PublicKey, Remove: true})
			}
		}
	}
	c.Peers = append(append(c.Peers, change...), add...)
	return c, c.PrivateKey != nil || c.ListenPort != nil || len(c.Peers) > 0
}

// heard is where the gateway of that fabric address was last heard from, whatever its key was; nil: nowhere.
func heard(peers []wgtypes.Peer, fabric netip.Addr) *net.UDPAddr {
	for _, h := range peers {
		if !h.LastHandshakeTime.IsZero() && len(h.AllowedIPs) == 1 && h.AllowedIPs[0].IP.Equal(fabric.AsSlice()) {
			return h.Endpoint
		}
	}
	return nil
}

// newPeer: heard is where the peer was last heard from, if it was.
func newPeer(p wgPeer, key wgtypes.Key, tunnel int, heard *net.UDPAddr) wgtypes.PeerConfig {
	if heard == nil && p.at(tunnel).IsValid() {
		heard = net.UDPAddrFromAddrPort(p.at(tunnel))
	}
	return wgtypes.PeerConfig{
		PublicKey: key, PresharedKey: &p.psk, Endpoint: heard, PersistentKeepaliveInterval: &p.keepalive,
		ReplaceAllowedIPs: true, AllowedIPs: []net.IPNet{*host(p.fabric)},
	}
}

func changePeer(h wgtypes.Peer, p wgPeer, key wgtypes.Key, tunnel int, last wanted, now time.Time) (c wgtypes.PeerConfig, differs bool) {
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

// usable says over which tunnels packets to p may go, by number, best first: those that neither side is draining and that have
// keys; else the standby; else whatever has keys; else all, and the first packets wait there for the handshake. ready says
// whether a handshake was made with the keys that both sides have now.
func usable(p wgPeer, tunnels int, draining int, ready func(tunnel int) bool) []int {
	pick := func(from, to int, ok func(i int) bool) (out []int) {
		for i := from; i < to; i++ {
			if p.keys[i] != (wgtypes.Key{}) && ok(i) {
				out = append(out, i)
			}
		}
		return out
	}
	free := func(i int) bool { return i != draining && !p.draining[i] }
	both := func(i int) bool { return free(i) && ready(i) }
	choices := [][]int{
		pick(0, tunnels, both), pick(MaxTunnels, MaxTunnels+1, both), pick(0, tunnels, ready),
		pick(MaxTunnels, MaxTunnels+1, ready), pick(0, tunnels, free), pick(0, tunnels, func(int) bool { return true }),
	}
	if i := slices.IndexFunc(choices, func(c []int) bool { return len(c) > 0 }); i >= 0 {
		return choices[i]
	}
	return nil
}
