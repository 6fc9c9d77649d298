//go:build linux

package cable

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"pgregory.net/rapid"

	"github.com/pelago-net/pelago/dataplane/netdev"
)

func TestOverhead(t *testing.T) {
	for _, c := range []struct {
		driver   string
		overhead int
		device   int // MTU over 1,500 bytes
	}{
		{"vxlan", 50, 1500},
		{"wireguard", 110, 1440},
		{"libreswan", 115, 1435},
		{"ipsec", 115, 1435},
		{"something", 115, 1435},
	} {
		if got := Overhead(c.driver); got != c.overhead {
			t.Errorf("Overhead(%s) = %d, want %d", c.driver, got, c.overhead)
		}
		if got := DeviceMTU(c.driver, 1500); got != c.device {
			t.Errorf("DeviceMTU(%s, 1500) = %d, want %d", c.driver, got, c.device)
		}
	}
}

func TestDriver(t *testing.T) {
	for name, want := range map[string]string{"wireguard": "wireguard", "ipsec": "libreswan", "libreswan": "libreswan", "vxlan": "vxlan"} {
		if got, err := Driver(name); got != want || err != nil {
			t.Errorf("Driver(%s) = %s, %v", name, got, err)
		}
	}
	if _, err := Driver("gre"); err == nil || !strings.Contains(err.Error(), "use wireguard, libreswan or vxlan") {
		t.Errorf("Driver(gre): %v", err)
	}
}

// Both ends derive the same key, and every pair, wire and secret another.
func TestPairKey(t *testing.T) {
	a, b, c := netip.MustParseAddr("241.0.64.1"), netip.MustParseAddr("241.0.128.1"), netip.MustParseAddr("241.0.192.1")
	key := func(psk, wire string, x, y netip.Addr) string {
		k, err := pairKey([]byte(psk), wire, x, y)
		must(t, err)
		return string(k[:])
	}
	if key("s", "w", a, b) != key("s", "w", b, a) {
		t.Error("the two ends have different keys")
	}
	keys := map[string]bool{
		key("s", "w", a, b): true, key("s", "w", a, c): true, key("s", "w", b, c): true, key("s", "v", a, b): true, key("r", "w", a, b): true,
	}
	if len(keys) != 5 {
		t.Errorf("%d different keys, want 5", len(keys))
	}
}

func TestBadLocal(t *testing.T) {
	good := Local{Fabric: netip.MustParseAddr("241.0.64.1"), Listen: 4500, PSK: []byte("s")}
	if l, err := good.validate(); err != nil || l.Tunnels != 1 || l.MTU != DefaultMTU {
		t.Errorf("%+v, %v", l, err)
	}
	for _, c := range []struct {
		change func(l *Local)
		want   string
	}{
		{func(l *Local) { l.Fabric = netip.MustParseAddr("fd00::1") }, "an IPv4 address is needed"},
		{func(l *Local) { l.Tunnels = 5 }, "5 tunnels: use 1 to 4"},
		{func(l *Local) { l.Listen = 0 }, "UDP port 0"},
		{func(l *Local) { l.Listen = 65535 }, "UDP port 65535"},
		{func(l *Local) { l.PSK = nil }, "join again"},
	} {
		l := good
		c.change(&l)
		if _, err := l.validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
}

// Two gateways with the same address, or with the same key; keys that are none.
func TestWireGuardPeers(t *testing.T) {
	key := func() wgtypes.Key {
		k, err := wgtypes.GeneratePrivateKey()
		must(t, err)
		return k
	}
	own, its := key(), key().PublicKey()
	local := Local{Fabric: netip.MustParseAddr("241.0.64.1"), Listen: 4500, PSK: []byte("s"), Tunnels: 2}
	good := Peer{
		Name: "b", Fabric: netip.MustParseAddr("241.0.128.1"), Address: netip.MustParseAddr("192.0.2.1"), Port: 4500,
		Identity: map[string]string{IdentityPublicKey: its.String()},
	}
	with := func(change func(p *Peer)) Peer {
		p := good
		p.Identity = map[string]string{IdentityPublicKey: its.String()}
		change(&p)
		return p
	}
	for _, c := range []struct {
		name  string
		peers []Peer
		left  int // that can be used
		want  string
	}{
		{"good", []Peer{good}, 1, ""},
		{"key of another", []Peer{good, with(func(p *Peer) { p.Name, p.Fabric = "c", netip.MustParseAddr("241.0.192.1") })}, 1, "peer c: its public key " + its.String() + " is that of peer b as well"},
		{"key of another, listed first", []Peer{with(func(p *Peer) { p.Name, p.Fabric = "c", netip.MustParseAddr("241.0.192.1") }), good}, 1, "peer c: its public key " + its.String() + " is that of peer b as well"},
		{"our key", []Peer{with(func(p *Peer) { p.Identity[IdentityPublicKey] = own.PublicKey().String() })}, 0, "is that of this gateway as well"},
		{"no key", []Peer{with(func(p *Peer) { p.Identity = nil })}, 0, "peer b: it publishes no WireGuard key: is its cable driver another"},
		{"not a key", []Peer{with(func(p *Peer) { p.Identity[IdentityPublicKey] = "abc" })}, 0, `public key 0 "abc"`},
		{"standby not a key", []Peer{with(func(p *Peer) { p.Identity[IdentityStandbyKey] = "abc" })}, 0, `standby tunnel "abc"`},
		{"second key missing", []Peer{with(func(p *Peer) { p.Tunnels = 2; p.Identity[IdentityPublicKey] += "," })}, 0, `public key 1 ""`},
		{"port", []Peer{with(func(p *Peer) { p.Port = 65535 })}, 0, "UDP port 65535"},
	} {
		t.Run(c.name, func(t *testing.T) {
			left, err := wgPeers(local, c.peers, []wgtypes.Key{own})
			if len(left) != c.left {
				t.Errorf("%d peers can be used, want %d", len(left), c.left)
			}
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
	other := with(func(p *Peer) { p.Name, p.Fabric = "d", netip.MustParseAddr("241.0.192.1") })
	left, err := distinctFabric(local, []Peer{good, with(func(p *Peer) { p.Name = "c" }), other, with(func(p *Peer) { p.Name, p.Fabric = "e", local.Fabric }),
		with(func(p *Peer) { p.Name, p.Fabric = "f", netip.Addr{} })})
	for _, want := range []string{"peer c: fabric address 241.0.128.1 is that of b as well", "peer e: fabric address " + local.Fabric.String() + " is that of this gateway", "peer f: fabric address"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if len(left) != 2 || left[0].Name != "b" || left[1].Name != "d" {
		t.Errorf("%v can be used, want b and d", left)
	}
}

// Whatever the peers say, packets have some way as long as there is a key, and never go where there
// is none.
func TestUsable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p wgPeer
		var ready [MaxTunnels + 1]bool
		for i := range p.keys {
			if rapid.Bool().Draw(t, "key") {
				p.keys[i] = wgtypes.Key{1}
			}
			p.draining[i], ready[i] = rapid.Bool().Draw(t, "draining"), rapid.Bool().Draw(t, "ready")
		}
		tunnels, draining := rapid.IntRange(1, MaxTunnels).Draw(t, "tunnels"), rapid.IntRange(-1, MaxTunnels).Draw(t, "own")
		got := usable(p, tunnels, draining, func(i int) bool { return ready[i] })
		keys := false
		for i := range tunnels {
			keys = keys || p.keys[i] != (wgtypes.Key{})
		}
		if keys && len(got) == 0 {
			t.Error("no way")
		}
		for _, i := range got {
			if p.keys[i] == (wgtypes.Key{}) || i >= tunnels && i != MaxTunnels {
				t.Errorf("tunnel %d", i)
			}
			// A tunnel that is being drained is used only if nothing else is ready.
			if p.draining[i] || i == draining {
				for j := range p.keys {
					if (j < tunnels || j == MaxTunnels) && p.keys[j] != (wgtypes.Key{}) && ready[j] && !p.draining[j] && j != draining {
						t.Errorf("tunnel %d is drained, %d is ready", i, j)
					}
				}
			}
		}
	})
}

func TestKeyDir(t *testing.T) {
	d := keyDir(filepath.Join(t.TempDir(), "keys"))
	first, err := d.load(0)
	must(t, err)
	if again, err := d.load(0); err != nil || again != first {
		t.Errorf("another key the second time: %v", err)
	}
	must(t, d.setRotation([]int{4, 0}))
	if left, _, err := d.rotation(); err != nil || !cmp.Equal(left, []int{4, 0}) {
		t.Errorf("rotation %v, %v", left, err)
	}
	must(t, d.setRotation(nil))
	if left, _, err := d.rotation(); err != nil || len(left) != 0 {
		t.Errorf("rotation %v, %v", left, err)
	}
	must(t, os.WriteFile(d.file(0), []byte("nonsense"), 0o600))
	if _, err := d.load(0); err == nil || !strings.Contains(err.Error(), d.file(0)+": ") || !strings.Contains(err.Error(), "delete the file") {
		t.Errorf("error %v", err)
	}
	files, err := os.ReadDir(string(d))
	must(t, err)
	if len(files) != 1 {
		t.Errorf("%d files are left", len(files))
	}
}

func TestVXLAN(t *testing.T) {
	s := newSet(t, 1)
	a, w := s.gateways[0], &VXLAN{}
	a.wire = w
	peer := Peer{Name: "b", Fabric: netip.MustParseAddr("241.0.128.1"), Address: netip.MustParseAddr("172.16.2.2"), Port: 4500}
	a.ensure(t, peer)
	if len(a.devices.Ifindexes) != 0 {
		t.Errorf("devices %+v", a.devices)
	}
	st, err := w.Status()
	must(t, err)
	if got := st[peer.Fabric].Endpoint.String(); got != "172.16.2.2:4500" {
		t.Errorf("endpoint %s", got)
	}
	for _, c := range []struct {
		change func(p *Peer)
		want   string
	}{
		{func(p *Peer) { p.Address = netip.Addr{} }, "peer b: its address is not known"},
		{func(p *Peer) { p.Identity = map[string]string{IdentityPublicKey: "x"} }, "peer b: its wire is encrypted"},
		{func(p *Peer) { p.Identity = map[string]string{IdentityIKE: "psk"} }, "peer b: its wire is encrypted"},
	} {
		bad := peer
		c.change(&bad)
		if err := a.tryEnsure(bad); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
	// The device that holds the port is no obstacle, another program is.
	must(t, a.ns.Do(func() error {
		_, err := netdev.Ensure(netdev.Config{Source: a.address, MTU: 1400, CablePort: 4500})
		return err
	}))
	a.ensure(t, peer)
	must(t, a.ns.Do(netdev.Remove))
	var c net.PacketConn
	must(t, a.ns.Do(func() (err error) {
		c, err = net.ListenPacket("udp4", ":4500")
		return err
	}))
	defer c.Close()
	if err := a.tryEnsure(peer); !errors.Is(err, netdev.ErrPortInUse) {
		t.Errorf("error %v", err)
	}
}

// A device is changed only where it differs; the endpoint of a peer that roams is replaced only for
// a reason.
func TestPlanEndpoint(t *testing.T) {
	now := time.Now()
	key, psk := wgtypes.Key{1}, wgtypes.Key{2}
	old, roamed, other := netip.MustParseAddrPort("192.0.2.1:4500"), netip.MustParseAddrPort("192.0.2.9:999"), netip.MustParseAddrPort("192.0.2.5:4500")
	for _, c := range []struct {
		name      string
		want      netip.AddrPort // address wanted now
		last      endpoints
		handshake time.Duration // ago
		set       string        // endpoint set, "" none
	}{
		{"roamed and alive", old, endpoints{key: old}, time.Minute, ""},
		{"roamed, after a restart", old, nil, time.Minute, ""},
		{"another address is wanted", other, endpoints{key: old}, time.Minute, "192.0.2.5:4500"},
		{"roamed and silent", old, endpoints{key: old}, 4 * time.Minute, "192.0.2.1:4500"},
		{"waits for a call", netip.AddrPort{}, endpoints{key: old}, 4 * time.Minute, ""},
		{"as wanted", roamed, endpoints{key: roamed}, 4 * time.Minute, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := wgPeer{fabric: netip.MustParseAddr("241.0.128.1"), psk: psk, keepalive: time.Second, endpoint: c.want}
			p.keys[0] = key
			have := &wgtypes.Device{PrivateKey: wgtypes.Key{3}, ListenPort: 4500, Peers: []wgtypes.Peer{{
				PublicKey: key, PresharedKey: psk, Endpoint: net.UDPAddrFromAddrPort(roamed), PersistentKeepaliveInterval: time.Second,
				LastHandshakeTime: now.Add(-c.handshake), AllowedIPs: []net.IPNet{*host(p.fabric)},
			}}}
			got, differs := plan(have, tunnel{key: wgtypes.Key{3}, port: 4500, peers: []wgPeer{p}}, c.last, now)
			set := ""
			if len(got.Peers) == 1 {
				set = got.Peers[0].Endpoint.String()
			}
			if set != c.set || differs != (c.set != "") {
				t.Errorf("sets %q (%t), want %q", set, differs, c.set)
			}
		})
	}
}
