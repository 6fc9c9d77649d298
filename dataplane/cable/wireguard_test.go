//go:build linux

package cable

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/pelago-net/pelago/test/await"
	"github.com/pelago-net/pelago/test/netns"
)

func TestWireGuardCarries(t *testing.T) {
	s := wireguardSet(t, 3, 1)
	s.join(t)
	s.carries(t, 4<<20) // segments of 64 kB into the TUN
	if n := len(s.gateways[0].devices.Ifindexes); n != 2 {
		t.Errorf("%d devices, want a tunnel and the standby", n)
	}
}

// Datagrams of exactly the device's MTU pass an underlay of 1,500 bytes unfragmented, by Overhead.
func TestWireGuardMTU(t *testing.T) {
	s := wireguardSet(t, 2, 1)
	for _, g := range s.gateways {
		g.local.MTU = DeviceMTU(WireGuardDriver, 1500)
	}
	s.join(t)
	a, b := s.gateways[0], s.gateways[1]
	before := fragments(t, a.ns)
	server := b.listen(t, 7400)
	must(t, server.SetReadDeadline(time.Now().Add(5*time.Second)))
	// less IPv4 20, UDP 8
	_, err := a.listen(t, 7401).WriteTo(make([]byte, a.local.MTU-28), server.LocalAddr())
	must(t, err)
	if n, _, err := server.ReadFrom(make([]byte, 2000)); err != nil || n != a.local.MTU-28 {
		t.Errorf("%d bytes came: %v", n, err)
	}
	if n := fragments(t, a.ns) - before; n != 0 {
		t.Errorf("%d fragments left", n)
	}
	if a.devices.MTU != 1440 {
		t.Errorf("MTU %d, want 1440", a.devices.MTU)
	}
}

func fragments(t *testing.T, ns *netns.NS) (n int) {
	t.Helper()
	out, err := ns.Run("sh", "-c", "awk '/^Ip:/ {print $20}' /proc/net/snmp | tail -1")
	must(t, err)
	_, err = fmt.Sscan(string(out), &n)
	must(t, err)
	return n
}

func TestWireGuardEnsureDisturbsNothing(t *testing.T) {
	s := wireguardSet(t, 2, 2)
	s.join(t)
	a, b := s.gateways[0], s.gateways[1]
	before := a.status(t, b).Handshake
	s.ensureDisturbsNothing(t)
	if after := a.status(t, b).Handshake; !after.Equal(before) {
		t.Errorf("a new handshake at %s, the old one was at %s", after, before)
	}
}

// Keys are on disk, so peers need no update when a gateway restarts. A kernel device keeps working
// meanwhile.
func TestWireGuardRestart(t *testing.T) {
	s := wireguardSet(t, 2, 1)
	a, b := s.gateways[0], s.gateways[1]
	dir := t.TempDir()
	a.wire = openWireGuard(t, s, a, dir)
	s.join(t)
	before := a.peer(t).Identity

	var streams []func() (int, []int)
	devices := a.devices.Ifindexes
	if kernelWireGuard(t) {
		streams = append(streams, stream(t, a, b), stream(t, b, a))
	}
	must(t, a.wire.Close())
	time.Sleep(200 * time.Millisecond) // a device of the kernel's carries packets without the wire
	a.wire = openWireGuard(t, s, a, dir)
	a.ensure(t, b.peer(t))
	time.Sleep(200 * time.Millisecond) // and with the new one
	calm(t, streams...)
	if kernelWireGuard(t) && !cmp.Equal(devices, a.devices.Ifindexes) {
		t.Errorf("devices %v after a restart, before %v", a.devices.Ifindexes, devices)
	}
	if diff := cmp.Diff(before, a.peer(t).Identity); diff != "" {
		t.Errorf("another identity after a restart:\n%s", diff)
	}
	if !reaches(t, a, b, 10*time.Second) || !reaches(t, b, a, 10*time.Second) {
		t.Error("nothing passes after a restart")
	}
	for _, name := range []string{"tunnel0.key", "tunnel4.key"} {
		info, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o", name, info.Mode().Perm())
		}
	}
}

func TestWireGuardPeerRemoved(t *testing.T) {
	s := wireguardSet(t, 3, 1)
	s.join(t)
	s.removesPeer(t)
}

func TestWireGuardForeign(t *testing.T) {
	foreign, err := wgtypes.GeneratePrivateKey()
	must(t, err)
	for _, c := range []struct {
		name   string
		change func(a *gateway, b *Peer)
	}{
		{"wrong PSK", func(a *gateway, _ *Peer) { a.local.PSK = []byte("another") }},
		{"foreign key", func(_ *gateway, b *Peer) { b.Identity[IdentityPublicKey] = foreign.PublicKey().String() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := wireguardSet(t, 2, 1)
			a, b := s.gateways[0], s.gateways[1]
			a.ensure(t)
			b.ensure(t, a.peer(t))
			peer := b.peer(t)
			delete(peer.Identity, IdentityStandbyKey)
			c.change(a, &peer)
			a.ensure(t, peer)
			if reaches(t, a, b, 2*time.Second) || reaches(t, b, a, time.Second) {
				t.Error("packets pass")
			}
			if st := a.status(t, b); !strings.Contains(st.Error, "no handshake with 172.16.2.2:4500 yet") {
				t.Errorf("status %+v", st)
			}
		})
	}
}

// Packets of a peer with the fabric address of another one are dropped (AllowedIPs).
func TestWireGuardSpoofedSource(t *testing.T) {
	s := wireguardSet(t, 3, 1)
	s.join(t)
	refusesSpoofed(t, s)
}

// A gateway behind a mapping that changes: others know no address of it, or find it at another than
// they know.
func TestWireGuardRoaming(t *testing.T) {
	s := wireguardSet(t, 2, 1)
	a, b := s.gateways[0], s.gateways[1]
	a.ensure(t)
	b.ensure(t)
	roaming := b.peer(t)
	roaming.Address = netip.Addr{}
	a.ensure(t, roaming)
	if st := a.status(t, b); !strings.Contains(st.Error, "waiting for the peer to call") {
		t.Errorf("status %+v", st)
	}
	b.ensure(t, a.peer(t))
	a.await(t, b, func(st Status) bool { return st.Endpoint.Addr() == b.address })
	if !reaches(t, a, b, 5*time.Second) {
		t.Fatal("the roaming peer is not reached")
	}
	// It moves. Keepalives tell the new address, and Ensure does not take it back.
	moved := netip.MustParseAddr("172.16.2.77")
	b.move(t, moved)
	a.await(t, b, func(st Status) bool { return st.Endpoint.Addr() == moved })
	for _, known := range []netip.Addr{{}, b.address} {
		roaming.Address = known
		a.ensure(t, roaming)
		a.ensure(t, roaming)
		if st := a.status(t, b); st.Endpoint.Addr() != moved && known == (netip.Addr{}) {
			t.Errorf("Ensure took the address back: %+v", st)
		}
		if !reaches(t, a, b, 5*time.Second) {
			t.Errorf("with address %q the moved peer is not reached", known)
		}
	}
	a.await(t, b, func(st Status) bool { return st.Endpoint.Addr() == moved })
}

func run(t testing.TB, ns *netns.NS, name string, args ...string) string {
	t.Helper()
	out, err := ns.Run(name, args...)
	if err != nil && !strings.Contains(string(out), "exists") && !strings.Contains(err.Error(), "exists") {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// With two tunnels each side uses both; a peer with one is reached over one.
func TestWireGuardTunnels(t *testing.T) {
	s := wireguardSet(t, 3, 2)
	a, b, c := s.gateways[0], s.gateways[1], s.gateways[2]
	c.local.Tunnels = 1
	s.join(t)
	if n := len(a.devices.Peers[b.local.Fabric]); n != 2 {
		t.Errorf("%d tunnels to a peer with two, want 2", n)
	}
	if got, want := a.devices.Peers[c.local.Fabric], a.devices.Ifindexes[:1]; !cmp.Equal(got, want) {
		t.Errorf("tunnels %v to a peer with one, want %v", got, want)
	}
	usesTunnels(t, a, b)
	// The stack receives by any tunnel, however strict rp_filter is: "ip route get" tells what it
	// would do with such a packet.
	must(t, a.ns.Sysctl("net/ipv4/conf/all/rp_filter", "1"))
	for i := range 2 {
		run(t, a.ns, "ip", "route", "get", a.local.Fabric.String(), "from", b.local.Fabric.String(), "iif", a.wire.(*WireGuard).name(i))
	}
	must(t, a.ns.Sysctl("net/ipv4/conf/all/rp_filter", "0"))
	if said := []string{a.peer(t).Identity[IdentityTunnels], c.peer(t).Identity[IdentityTunnels]}; !cmp.Equal(said, []string{"2", ""}) {
		t.Errorf("gateways with two tunnels and with one say %q", said)
	}
	// Fewer: b receives by the retired device as long as a, which has not observed it, sends by it.
	// Then the device is deleted.
	b.local.Tunnels = 1
	b.ensure(t, s.others(t, b)...)
	if n := len(b.devices.Ifindexes); n != 3 || !cmp.Equal(b.devices.Ports, []uint16{4501}) {
		t.Errorf("%d devices and ports %v at first, want the tunnel, the standby and the retired device with port 4501", n, b.devices.Ports)
	}
	if got, want := b.devices.Peers[a.local.Fabric], b.devices.Ifindexes[:1]; !cmp.Equal(got, want) {
		t.Errorf("tunnels %v, want %v", got, want)
	}
	retired := a.devices.Peers[b.local.Fabric][1]
	// thrice Linger
	for begin := time.Now(); time.Since(begin) < 3*time.Second; b.ensure(t, s.others(t, b)...) {
		for range 10 {
			sent(t, a, b, retired, 7800)
		}
	}
	// What a sends before its programs are reconfigured arrives, too; then b is removed from the
	// device.
	a.ensure(t, s.others(t, a)...)
	if got, want := a.devices.Peers[b.local.Fabric], a.devices.Ifindexes[:1]; !cmp.Equal(got, want) {
		t.Errorf("tunnels %v, want %v", got, want)
	}
	sent(t, a, b, retired, 7801)
	await.True(t, "after Linger the retired device and its port are gone", func() bool {
		b.ensure(t, s.others(t, b)...)
		return len(b.devices.Ifindexes) == 2 && len(b.devices.Ports) == 0
	})
	await.True(t, "after Linger the second tunnel has no peer", func() bool {
		a.ensure(t, s.others(t, a)...)
		return run(t, a.ns, "wg", "show", a.wire.(*WireGuard).name(1), "peers") == ""
	})
	if !reaches(t, a, b, 5*time.Second) {
		t.Error("nothing passes with fewer tunnels")
	}
}

func TestWireGuardRemove(t *testing.T) {
	s := wireguardSet(t, 2, 2)
	a := s.gateways[0]
	before := everything(t, a.ns)
	s.join(t)
	must(t, a.ns.Do(a.wire.Remove))
	if diff := cmp.Diff(before, everything(t, a.ns)); diff != "" {
		t.Errorf("left behind (-before +after):\n%s", diff)
	}
	a.ensure(t, s.gateways[1].peer(t))
	if !reaches(t, a, s.gateways[1], 10*time.Second) {
		t.Error("nothing passes after Remove and Ensure")
	}
}

func everything(t *testing.T, ns *netns.NS) string {
	t.Helper()
	out := run(t, ns, "ip", "-br", "link") + run(t, ns, "ip", "-4", "route", "show", "table", "all") + run(t, ns, "ip", "xfrm", "policy")
	return strings.ReplaceAll(out, " linkdown", "")
}

// Ensure repairs changes by others: the device, its address, a route, a peer.
func TestWireGuardRepairs(t *testing.T) {
	s := wireguardSet(t, 2, 1)
	s.join(t)
	a, b := s.gateways[0], s.gateways[1]
	name := a.wire.(*WireGuard).name(0)
	for _, c := range []struct {
		name    string
		command []string
	}{
		{"route", []string{"ip", "route", "del", b.local.Fabric.String()}},
		{"address", []string{"ip", "addr", "flush", "dev", name}},
		{"MTU", []string{"ip", "link", "set", name, "mtu", "1280"}},
		{"peer", []string{"wg", "set", name, "peer", strings.Split(b.peer(t).Identity[IdentityPublicKey], ",")[0], "remove"}},
		{"PSK", []string{"sh", "-c", "wg genpsk | wg set " + name + " peer " + b.peer(t).Identity[IdentityPublicKey] + " preshared-key /dev/stdin"}},
		{"device", []string{"ip", "link", "del", name}},
	} {
		run(t, a.ns, c.command[0], c.command[1:]...)
		if e := a.wire.(*WireGuard).embedded[0]; e != nil && c.name == "device" {
			select {
			case <-e.device.Wait(): // wireguard-go has read the end of the TUN
			case <-time.After(20 * time.Second):
				t.Fatal("wireguard-go does not notice that its TUN has gone")
			}
		}
		a.ensure(t, b.peer(t))
		if !reaches(t, a, b, 10*time.Second) {
			t.Errorf("nothing passes after somebody changed the %s", c.name)
		}
		link, err := a.ns.Handle().LinkByName(name)
		must(t, err)
		if link.Attrs().MTU != DefaultMTU {
			t.Errorf("after somebody changed the %s the MTU is %d", c.name, link.Attrs().MTU)
		}
	}
}

func TestWireGuardPortInUse(t *testing.T) {
	s := wireguardSet(t, 1, 1)
	a := s.gateways[0]
	must(t, a.ns.Do(func() error {
		c, err := netListenPacket(netip.MustParseAddrPort("0.0.0.0:4500"), 0)
		if err == nil {
			t.Cleanup(func() { must(t, c.Close()) })
		}
		return err
	}))
	if err := a.tryEnsure(); err == nil || !strings.Contains(err.Error(), "4500") || !strings.Contains(err.Error(), "--nattport") {
		t.Errorf("error %v: want one that names the port and the remedy", err)
	}
}

// With the port of one tunnel taken the others carry on.
func TestWireGuardStandbyPortInUse(t *testing.T) {
	s := wireguardSet(t, 2, 1)
	a, b := s.gateways[0], s.gateways[1]
	must(t, a.ns.Do(func() error {
		c, err := netListenPacket(netip.MustParseAddrPort("0.0.0.0:4504"), 0)
		if err == nil {
			t.Cleanup(func() { must(t, c.Close()) })
		}
		return err
	}))
	b.ensure(t)
	for range 2 { // the second time with a's keys at b
		if err := a.tryEnsure(b.peer(t)); err == nil || !strings.Contains(err.Error(), "UDP port 4504") {
			t.Errorf("error %v: want one that names the port", err)
		}
		b.ensure(t, a.peer(t))
	}
	if !reaches(t, a, b, 5*time.Second) || a.status(t, b).Tunnels != 1 {
		t.Errorf("nothing passes: %+v", a.status(t, b))
	}
}

// Debian's wireguard-go and wg(8), configured by hand as a peer.
func TestWireGuardInterop(t *testing.T) {
	s := wireguardSet(t, 2, 1)
	a, b := s.gateways[0], s.gateways[1]
	a.ensure(t)
	name := fmt.Sprintf("d%ds%d", os.Getpid(), s.number)
	run(t, b.ns, "wireguard-go", name)
	t.Cleanup(func() { run(t, b.ns, "ip", "link", "del", name) })
	key, err := wgtypes.GeneratePrivateKey()
	must(t, err)
	psk, err := pairKey(a.local.PSK, WireGuardDriver, a.local.Fabric, b.local.Fabric)
	must(t, err)
	own := a.peer(t).Identity[IdentityPublicKey]
	conf := fmt.Sprintf("[Interface]\nPrivateKey = %s\nListenPort = 4500\n[Peer]\nPublicKey = %s\nPresharedKey = %s\nAllowedIPs = %s/32\nEndpoint = %s:4500\n",
		key, own, wgtypes.Key(psk), a.local.Fabric, a.address)
	file := filepath.Join(t.TempDir(), "wg.conf")
	must(t, os.WriteFile(file, []byte(conf), 0o600))
	run(t, b.ns, "wg", "setconf", name, file)
	run(t, b.ns, "ip", "addr", "add", b.local.Fabric.String()+"/32", "dev", name)
	run(t, b.ns, "ip", "link", "set", name, "mtu", "1420", "up")
	run(t, b.ns, "ip", "route", "add", a.local.Fabric.String()+"/32", "dev", name)
	a.ensure(t, Peer{
		Name: "debian", Fabric: b.local.Fabric, Address: b.address, Port: 4500,
		Identity: map[string]string{IdentityPublicKey: key.PublicKey().String()},
	})
	if !reaches(t, a, b, 10*time.Second) || !reaches(t, b, a, 5*time.Second) {
		t.Fatal("nothing passes between this device and wireguard-go of Debian")
	}
	b.devices.Peers = map[netip.Addr][]int{a.local.Fabric: {0}} // as routes say
	if out := run(t, b.ns, "wg", "show", name, "latest-handshakes"); !strings.HasPrefix(out, own) || strings.HasSuffix(out, "\t0\n") {
		t.Errorf("wg(8) there: %q", out)
	}
	if out := run(t, a.ns, "wg", "show", a.wire.(*WireGuard).name(0), "peers"); out != key.PublicKey().String()+"\n" {
		t.Errorf("wg(8) here: %q", out)
	}
	must(t, transfer(a, b, 8<<20, 0))
}

// A gateway whose kernel has WireGuard and one that encrypts in the daemon. (Without the kernel's,
// both do.)
func TestWireGuardMixed(t *testing.T) {
	s := newSet(t, 2)
	a, b := s.gateways[0], s.gateways[1]
	a.local.Tunnels, b.local.Tunnels = 2, 2
	a.wire = openWireGuard(t, s, a, t.TempDir())
	b.wire = openWireGuardAs(t, s, b, t.TempDir(), true)
	s.join(t)
	link, err := a.ns.Handle().LinkByIndex(a.devices.Ifindexes[0])
	must(t, err)
	if of := link.Type() == "wireguard"; of != kernelWireGuard(t) {
		t.Errorf("the device is of type %s", link.Type())
	}
	there, back := stream(t, a, b), stream(t, b, a)
	rotate(t, s, 1, a, b)
	calm(t, there, back)
	usesTunnels(t, a, b)
	usesTunnels(t, b, a)
	must(t, transfer(a, b, 8<<20, 0))
	must(t, transfer(b, a, 8<<20, 1))
}

func TestWireGuardSocketLeftBehind(t *testing.T) {
	s := newSet(t, 1)
	a := s.gateways[0]
	a.wire = openWireGuardAs(t, s, a, t.TempDir(), true)
	path := "/var/run/wireguard/" + a.wire.(*WireGuard).name(0) + ".sock"
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	left, err := netListenUnix(path)
	must(t, err)
	left.SetUnlinkOnClose(false)
	must(t, left.Close())
	a.ensure(t)
	must(t, a.ns.Do(func() error {
		client, err := wgctrl.New()
		if err != nil {
			return err
		}
		defer client.Close()
		d, err := client.Device(a.wire.(*WireGuard).name(0))
		if err == nil && d.ListenPort != 4500 {
			err = fmt.Errorf("port %d", d.ListenPort)
		}
		return err
	}))
}

// A peer with the fabric address of another is left out, and harms nothing else.
func TestWireGuardTwin(t *testing.T) {
	s := wireguardSet(t, 3, 1)
	s.join(t)
	a, b, c := s.gateways[0], s.gateways[1], s.gateways[2]
	key, err := wgtypes.GeneratePrivateKey()
	must(t, err)
	twin := Peer{Name: "twin", Fabric: b.local.Fabric, Address: netip.MustParseAddr("172.16.9.2"), Port: 4500,
		Identity: map[string]string{IdentityPublicKey: key.PublicKey().String()}}
	err = a.tryEnsure(append(s.others(t, a), twin)...)
	if err == nil || !strings.Contains(err.Error(), "peer twin: fabric address 241.0.128.1 is that of g2 as well") {
		t.Errorf("error %v", err)
	}
	if len(a.devices.Peers) != 2 || !reaches(t, a, b, 5*time.Second) || !reaches(t, a, c, 5*time.Second) {
		t.Errorf("the others are not reached: %v", a.devices.Peers)
	}
}

// A second tunnel whose key cannot be had leaves the first as it is, also for a new process.
func TestWireGuardTunnelWithoutKey(t *testing.T) {
	s := newSet(t, 2)
	a, b := s.gateways[0], s.gateways[1]
	dir := t.TempDir()
	a.wire, b.wire = openWireGuard(t, s, a, dir), openWireGuard(t, s, b, t.TempDir())
	s.join(t)
	before, err := a.wire.Identity()
	must(t, err)
	must(t, os.WriteFile(keyDir(dir).file(1), []byte("nonsense"), 0o600))
	a.local.Tunnels = 2
	for range 2 {
		if err := a.tryEnsure(b.peer(t)); err == nil || !strings.Contains(err.Error(), "delete the file to get a new key") {
			t.Errorf("error %v: want one with the remedy", err)
		}
		after, err := a.wire.Identity()
		must(t, err)
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("identity: -before +after\n%s", diff)
		}
		if len(a.devices.Peers[b.local.Fabric]) != 1 || !reaches(t, a, b, 5*time.Second) {
			t.Errorf("the peer is not reached: %+v", a.devices)
		}
		must(t, a.wire.Close())
		a.wire = openWireGuard(t, s, a, dir)
	}
	must(t, os.Remove(keyDir(dir).file(1)))
	a.ensure(t, b.peer(t))
	if after, err := a.wire.Identity(); err != nil || after[IdentityTunnels] != "2" {
		t.Errorf("identity %v, %v: want two tunnels", after, err)
	}
}

// A gateway whose key cannot be read publishes none.
func TestWireGuardBadKey(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(keyDir(dir).file(0), []byte("nonsense"), 0o600))
	w, err := OpenWireGuard(WireGuardOptions{Dir: dir})
	must(t, err)
	_, err = w.Ensure(Local{Fabric: netip.MustParseAddr("241.0.64.1"), Listen: 4500, PSK: []byte("s")}, nil)
	if err == nil || !strings.Contains(err.Error(), "delete the file to get a new key") {
		t.Errorf("error %v: want one with the remedy", err)
	}
	if id, err := w.Identity(); err != nil || len(id) != 0 {
		t.Errorf("identity %v, %v; want none", id, err)
	}
}
