//go:build linux

package cable

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"

	"github.com/pelago-net/pelago/test/await"
)

// ipsecSet is newSet with an IKE daemon next to each gateway, which does ESP itself where the
// kernel has none.
func ipsecSet(t testing.TB, n int, change ...func(o *IPsecOptions)) (*set, map[*gateway]*daemon) {
	t.Helper()
	s, daemons := newSet(t, n), map[*gateway]*daemon{}
	for _, g := range s.gateways {
		d := newDaemon(t, g, !kernelESP(t))
		o := IPsecOptions{Socket: d.conf.Socket, Keys: t.TempDir(), Linger: time.Second, Log: slog.New(slog.DiscardHandler)}
		for _, f := range change {
			f(&o)
		}
		g.wire, daemons[g] = NewIPsec(o), d
		t.Cleanup(func() { must(t, g.wire.Close()) })
	}
	return s, daemons
}

func TestIPsecCarries(t *testing.T) {
	s, _ := ipsecSet(t, 3)
	s.join(t)
	s.carries(t, 8<<20)
	a, b := s.gateways[0], s.gateways[1]
	device := "dev ipsec0"
	if kernelESP(t) {
		device = "dev pelago-ipsec0"
	}
	if out := run(t, a.ns, "ip", "route", "get", b.local.Fabric.String()); !strings.Contains(out, device) {
		t.Errorf("the way to the peer: %s", out)
	}
}

// Packets of exactly the device's MTU fit the underlay, by Overhead.
func TestIPsecMTU(t *testing.T) {
	s, _ := ipsecSet(t, 2)
	for _, g := range s.gateways {
		g.local.MTU = DeviceMTU(IPsecDriver, 1500)
	}
	s.join(t)
	a, b := s.gateways[0], s.gateways[1]
	before := fragments(t, a.ns)
	for n := a.devices.MTU; n > a.devices.MTU-8; n-- { // all paddings
		server, client := b.listen(t, 7400), a.listen(t, 7401)
		must(t, server.SetReadDeadline(time.Now().Add(5*time.Second)))
		_, err := client.WriteTo(make([]byte, n-28), server.LocalAddr())
		must(t, err)
		if got, _, err := server.ReadFrom(make([]byte, 2000)); err != nil || got != n-28 {
			t.Errorf("%d bytes came: %v", got, err)
		}
		must(t, server.Close())
		must(t, client.Close())
	}
	if n := fragments(t, a.ns) - before; n != 0 {
		t.Errorf("%d fragments left", n)
	}
}

func TestIPsecEnsureDisturbsNothing(t *testing.T) {
	s, _ := ipsecSet(t, 2)
	s.join(t)
	a, b := s.gateways[0], s.gateways[1]
	before, err := a.wire.(*IPsec).vici.call("stats")
	must(t, err)
	s.ensureDisturbsNothing(t)
	after, err := a.wire.(*IPsec).vici.call("stats")
	must(t, err)
	if diff := cmp.Diff(text(section(before, "ikesas"), "total"), text(section(after, "ikesas"), "total")); diff != "" {
		t.Errorf("the number of IKE SAs changed: %s", diff)
	}
	if st := a.status(t, b); time.Since(st.Handshake) < time.Second {
		t.Errorf("new keys since %s ago", time.Since(st.Handshake))
	}
}

// The side that is called changes keys later than the caller would at the latest, also where lives
// are a few seconds.
func TestOneSideChangesKeys(t *testing.T) {
	low, high := Local{Fabric: netip.MustParseAddr("241.0.64.1")}, Local{Fabric: netip.MustParseAddr("241.0.128.1")}
	for _, life := range []time.Duration{3 * time.Second, 5 * time.Second, time.Hour, 4 * time.Hour} {
		caller := connection{local: low, peer: Peer{Fabric: high.Fabric}, rekey: life, ike: life}
		called := connection{local: high, peer: Peer{Fabric: low.Fabric}, rekey: life, ike: life}
		times := func(c connection, what string) (earliest, latest int) {
			m, err := message(c.name(), c.fields())
			must(t, err)
			m = section(m, c.name())
			if what == "ESP" {
				m = section(section(m, "children"), "wire")
			}
			latest, err = strconv.Atoi(text(m, "rekey_time"))
			must(t, err)
			spread, err := strconv.Atoi(text(m, "rand_time"))
			must(t, err)
			return latest - spread, latest
		}
		for _, what := range []string{"IKE", "ESP"} {
			_, last := times(caller, what)
			if first, _ := times(called, what); first <= last {
				t.Errorf("%s keys that live %v: the called side changes them after %d s, the caller after up to %d s", what, life, first, last)
			}
		}
	}
}

// Keys change every few seconds, on both sides, under traffic.
func TestIPsecRekey(t *testing.T) {
	s, _ := ipsecSet(t, 2, func(o *IPsecOptions) { o.Rekey, o.IKERekey = 3*time.Second, 5*time.Second })
	s.join(t)
	a, b := s.gateways[0], s.gateways[1]
	spis := map[string]bool{}
	there, back := stream(t, a, b), stream(t, b, a)
	// Long enough for two changes of both.
	for end := time.Now().Add(12 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		messages, err := a.wire.(*IPsec).vici.list()
		must(t, err)
		for _, m := range messages {
			for _, name := range m.Keys() {
				children := section(section(m, name), "child-sas")
				for _, c := range children.Keys() {
					spis[text(section(children, c), "spi-in")] = true
				}
			}
		}
	}
	calm(t, there, back)
	t.Logf("%d different SPIs", len(spis))
	if len(spis) < 3 {
		t.Errorf("only %d different SPIs in 12 s", len(spis))
	}
}

func TestIPsecPeerRemoved(t *testing.T) {
	s, _ := ipsecSet(t, 3)
	s.join(t)
	s.removesPeer(t)
}

func TestIPsecBadPeers(t *testing.T) {
	t.Run("wrong PSK", func(t *testing.T) {
		s, _ := ipsecSet(t, 2, func(o *IPsecOptions) { o.Keys = "" })
		a, b := s.gateways[0], s.gateways[1]
		b.local.PSK = []byte("another")
		b.ensure(t, a.peer(t))
		a.ensure(t, b.peer(t))
		a.await(t, b, func(st Status) bool { return strings.Contains(st.Error, "its PSK is another") })
		b.await(t, a, func(st Status) bool { return strings.Contains(st.Error, "PSK is another") })
		if reaches(t, a, b, time.Second) {
			t.Error("packets pass")
		}
	})
	t.Run("foreign peer", func(t *testing.T) {
		s, _ := ipsecSet(t, 2)
		a, b := s.gateways[0], s.gateways[1]
		b.ensure(t)
		a.ensure(t, b.peer(t))
		a.await(t, b, func(st Status) bool { return strings.Contains(st.Error, "it has no Endpoint of this gateway") })
		if reaches(t, a, b, time.Second) {
			t.Error("packets pass")
		}
	})
	t.Run("nobody there", func(t *testing.T) {
		s, daemons := ipsecSet(t, 2)
		a, b := s.gateways[0], s.gateways[1]
		must(t, daemons[b].Stop())
		a.ensure(t, b.peer(t))
		a.await(t, b, func(st Status) bool { return strings.Contains(st.Error, "no IKE daemon runs there") })
	})
	t.Run("another wire", func(t *testing.T) {
		s, _ := ipsecSet(t, 1)
		a := s.gateways[0]
		err := a.tryEnsure(Peer{
			Name: "b", Fabric: netip.MustParseAddr("241.0.128.1"), Address: netip.MustParseAddr("172.16.2.2"), Port: 4500,
			Identity: map[string]string{IdentityPublicKey: "abc"},
		})
		if err == nil || !strings.Contains(err.Error(), "peer b: it publishes no IKE authentication method") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("certificate against PSK", func(t *testing.T) {
		s, _ := ipsecSet(t, 1)
		err := s.gateways[0].tryEnsure(Peer{
			Name: "b", Fabric: netip.MustParseAddr("241.0.128.1"), Identity: map[string]string{IdentityIKE: "certificate"},
		})
		if err == nil || !strings.Contains(err.Error(), "it uses IKE with certificate, this gateway with psk") {
			t.Errorf("error %v", err)
		}
	})
}

// A gateway whose address is not known calls, moves, and is still reached.
func TestIPsecRoaming(t *testing.T) {
	s, _ := ipsecSet(t, 2)
	a, b := s.gateways[0], s.gateways[1]
	roaming := b.peer(t)
	roaming.Address = netip.Addr{}
	a.ensure(t, roaming)
	if st := a.status(t, b); !strings.Contains(st.Error, "waiting for the peer to call") {
		t.Errorf("status %+v", st)
	}
	b.ensure(t, a.peer(t))
	time.Sleep(responderDelay) // b has the higher address, so it does not call before
	b.ensure(t, a.peer(t))
	a.await(t, b, func(st Status) bool { return st.Error == "" && st.Endpoint.Addr() == b.address })
	if !reaches(t, a, b, 5*time.Second) {
		t.Fatal("the roaming peer is not reached")
	}
	moved := netip.MustParseAddr("172.16.2.77")
	b.move(t, moved)
	a.await(t, b, func(st Status) bool { return st.Endpoint.Addr() == moved })
	a.ensure(t, roaming)
	if !reaches(t, a, b, 5*time.Second) {
		t.Error("the moved peer is not reached")
	}
}

// The TUN of an IKE daemon that does ESP itself is gone: an error with the cause.
func TestIPsecWithoutTUN(t *testing.T) {
	if kernelESP(t) {
		return // none exists
	}
	s, _ := ipsecSet(t, 2)
	a, b := s.gateways[0], s.gateways[1]
	b.ensure(t)
	run(t, a.ns, "ip", "link", "del", "ipsec0")
	for range 2 {
		if err := a.tryEnsure(b.peer(t)); err == nil || !strings.Contains(err.Error(), "find the TUN of the IKE daemon") {
			t.Errorf("error %v", err)
		}
	}
}

// A peer moves while its SA is up, and cannot call: the daemon restarts the SA to the former
// address, until Ensure ends that.
func TestIPsecAddressChangesWhileUp(t *testing.T) {
	s, _ := ipsecSet(t, 2, func(o *IPsecOptions) { o.DPD = time.Second })
	a, b := s.gateways[0], s.gateways[1]
	s.join(t)
	called := a.peer(t)
	called.Address = netip.Addr{} // b has no address of a
	b.ensure(t, called)
	peer := b.peer(t)
	peer.Address = netip.MustParseAddr("172.16.2.77")
	a.ensure(t, peer) // the new address is published before the old one goes
	b.move(t, peer.Address)
	await.True(t, "b is reached by its new address", func() bool {
		b.ensure(t, called)
		a.ensure(t, peer)
		return a.status(t, b).Endpoint.Addr() == peer.Address && reaches(t, a, b, time.Second)
	})
}

// The daemon is killed and comes back with nothing: Ensure tells it all again.
func TestIPsecDaemonRestart(t *testing.T) {
	s, daemons := ipsecSet(t, 2)
	s.join(t)
	a, b := s.gateways[0], s.gateways[1]
	must(t, daemons[a].Kill())
	if err := a.tryEnsure(b.peer(t)); err == nil || !strings.Contains(err.Error(), "does its container run?") {
		t.Errorf("error %v", err)
	}
	daemons[a].start(t)
	a.ensure(t, b.peer(t))
	a.await(t, b, func(st Status) bool { return st.Error == "" })
	if !reaches(t, a, b, 5*time.Second) || !reaches(t, b, a, 5*time.Second) {
		t.Error("nothing passes")
	}
}

// While the side that calls starts again the other one does not call: it would get a second pair of
// keys.
func TestIPsecCalledWaits(t *testing.T) {
	s, daemons := ipsecSet(t, 2)
	s.join(t)
	a, b := s.gateways[0], s.gateways[1]
	b.await(t, a, func(st Status) bool { return st.Error == "" })
	wire := b.wire.(*IPsec)
	name := connectionName(a.local.Fabric, 0)
	b.ensure(t, a.peer(t))
	for n := range wire.since {
		wire.since[n] = time.Now().Add(-2 * responderDelay) // as if all this was long ago
	}
	must(t, daemons[a].Stop())
	await.True(t, "b has heard that a has left", func() bool {
		b.ensure(t, a.peer(t))
		_, missing := wire.since[name]
		return missing
	})
	await.Never(t, 2*time.Second, "b calls", func() bool {
		b.ensure(t, a.peer(t))
		wire.mu.Lock()
		defer wire.mu.Unlock()
		states, err := wire.sas()
		must(t, err)
		return states[name].ike != ""
	})
	daemons[a].start(t)
	a.ensure(t, b.peer(t))
	a.await(t, b, func(st Status) bool { return st.Error == "" })
}

// A peer that falls silent is found out by DPD, and comes back when it answers again.
func TestIPsecDeadPeer(t *testing.T) {
	s, daemons := ipsecSet(t, 2, func(o *IPsecOptions) { o.DPD = time.Second })
	s.join(t)
	a, b := s.gateways[0], s.gateways[1]
	must(t, daemons[b].Kill())
	a.await(t, b, func(st Status) bool { return st.Tunnels == 0 && strings.Contains(st.Error, "the peer does not answer") })
	daemons[b].start(t)
	b.ensure(t, a.peer(t))
	a.ensure(t, b.peer(t))
	a.await(t, b, func(st Status) bool { return st.Error == "" })
	if !reaches(t, a, b, 5*time.Second) {
		t.Error("nothing passes")
	}
}

// A new wire over a running daemon: no interruption.
func TestIPsecReopened(t *testing.T) {
	s, daemons := ipsecSet(t, 2)
	s.join(t)
	a, b := s.gateways[0], s.gateways[1]
	there := stream(t, a, b)
	must(t, a.wire.Close())
	time.Sleep(200 * time.Millisecond) // packets pass without the wire
	a.wire = NewIPsec(IPsecOptions{Socket: daemons[a].conf.Socket})
	t.Cleanup(func() { must(t, a.wire.Close()) })
	a.ensure(t, b.peer(t))
	time.Sleep(500 * time.Millisecond) // and with the new one
	calm(t, there)
	must(t, a.ns.Do(a.wire.Remove))
	if states, err := a.wire.(*IPsec).sas(); err != nil || len(states) != 0 {
		t.Errorf("after Remove the daemon has keys: %v, %v", states, err)
	}
	if names, err := a.wire.(*IPsec).known(); err != nil || len(names) != 0 {
		t.Errorf("after Remove the daemon has %v, %v", names, err)
	}
}

// A daemon without ESP needs the kernel's: without xfrm interfaces the wire returns an error and
// makes nothing.
func TestIPsecXfrmInterface(t *testing.T) {
	s := newSet(t, 1)
	a := s.gateways[0]
	d := newDaemon(t, a, false)
	a.wire = NewIPsec(IPsecOptions{Socket: d.conf.Socket})
	t.Cleanup(func() { must(t, a.wire.Close()) })
	switch err := a.tryEnsure(); {
	case !kernelESP(t):
		if hasXfrmi() != nil && !errors.Is(err, ErrNoXfrmInterface) {
			t.Errorf("error %v", err)
		}
	case err != nil:
		t.Error(err)
	default:
		link, err := a.ns.Handle().LinkByIndex(a.devices.Ifindexes[0])
		must(t, err)
		if x, ok := link.(*netlink.Xfrmi); !ok || x.Ifid != firstIfID {
			t.Errorf("device %+v", link)
		}
	}
	// The daemon, which is killed there when its container ends, leaves no rule behind.
	must(t, d.Kill())
	if out := run(t, a.ns, "ip", "rule"); strings.Count(out, "\n") != 3 {
		t.Errorf("rules:\n%s", out)
	}
}

// Two tunnels are two xfrm interfaces with keys of their own; ESP in the daemon has but one tunnel.
func TestIPsecTunnels(t *testing.T) {
	s, _ := ipsecSet(t, 3)
	a, b, c := s.gateways[0], s.gateways[1], s.gateways[2]
	if kernelESP(t) {
		a.local.Tunnels, b.local.Tunnels = 2, 2
	}
	s.join(t)
	for o, want := range map[*gateway]int{b: a.local.Tunnels, c: 1} {
		if n := len(a.devices.Peers[o.local.Fabric]); n != want {
			t.Errorf("%d tunnels to g%d, want %d", n, o.number, want)
		}
	}
	usesTunnels(t, a, b)
	usesTunnels(t, b, a)
	if said, want := a.peer(t).Identity[IdentityTunnels], map[int]string{1: "", 2: "2"}[a.local.Tunnels]; said != want {
		t.Errorf("a gateway with %d tunnels says %q, want %q", a.local.Tunnels, said, want)
	}
	for i := range a.local.Tunnels {
		must(t, transfer(a, b, 4<<20, i))
	}
	// Fewer: what is still sent by the retired devices gets there, then they go.
	devices := a.devices.Peers[b.local.Fabric]
	b.local.Tunnels = 1
	// thrice Linger, and a has not observed it
	for begin := time.Now(); time.Since(begin) < 3*time.Second; {
		b.ensure(t, s.others(t, b)...)
		for range 10 {
			sent(t, a, b, devices[len(devices)-1], 7800)
		}
	}
	a.ensure(t, s.others(t, a)...)
	for _, g := range []*gateway{a, b} {
		for _, o := range []*gateway{a, b} {
			if n := len(g.devices.Peers[o.local.Fabric]); g != o && n != 1 {
				t.Errorf("%d tunnels to g%d, want 1", n, o.number)
			}
		}
	}
	for i, device := range devices {
		sent(t, a, b, device, uint16(7800+i))
	}
	await.True(t, "after Linger the retired device is gone", func() bool {
		b.ensure(t, s.others(t, b)...)
		return len(b.devices.Ifindexes) == 1
	})
	a.local.Tunnels = 1
	await.True(t, "after Linger the other side's is gone as well", func() bool {
		a.ensure(t, s.others(t, a)...)
		return len(a.devices.Ifindexes) == 1
	})
	if !reaches(t, a, b, 5*time.Second) {
		t.Error("nothing passes with fewer tunnels")
	}
}

// Packets of a peer with the fabric address of another one are dropped (traffic selectors).
func TestIPsecSpoofedSource(t *testing.T) {
	s, _ := ipsecSet(t, 3)
	s.join(t)
	refusesSpoofed(t, s)
}

// Nothing is left when the wire is removed.
func TestIPsecRemove(t *testing.T) {
	s, _ := ipsecSet(t, 2)
	a := s.gateways[0]
	before := everything(t, a.ns)
	s.join(t)
	must(t, a.ns.Do(a.wire.Remove))
	if diff := cmp.Diff(before, everything(t, a.ns)); diff != "" {
		t.Errorf("left behind (-before +after):\n%s", diff)
	}
}

// While the daemon is away tunnels of the kernel go on, and those of the daemon do not.
func TestIPsecDaemonAway(t *testing.T) {
	g := newSet(t, 1).gateways[0]
	peers := []Peer{{Name: "b", Fabric: netip.MustParseAddr("241.0.128.1")}, {Name: "new", Fabric: netip.MustParseAddr("241.0.192.1")}}
	b, removed := peers[0].Fabric, netip.MustParseAddr("241.0.128.2")
	last := Devices{Ifindexes: []int{7, 8}, Fleeting: true, MTU: 1420, Peers: map[netip.Addr][]int{b: {7, 8}, removed: {7}}}
	for esp, want := range map[string]Devices{
		ESPKernel: {Ifindexes: []int{7, 8}, Fleeting: true, MTU: 1420, Peers: map[netip.Addr][]int{b: {7, 8}}}, ESPUserspace: {},
	} {
		w := NewIPsec(IPsecOptions{Socket: filepath.Join(t.TempDir(), "none")})
		w.esp, w.last = esp, last
		g.wire = w
		if err := g.tryEnsure(peers...); err == nil || !strings.Contains(err.Error(), "does its container run?") {
			t.Errorf("error %v", err)
		}
		if diff := cmp.Diff(want, g.devices, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("ESP in %s: -want +got\n%s", esp, diff)
		}
	}
}

// Both authenticate by the keys that their identities publish: one with another key is refused,
// though it has the PSK.
func TestIPsecKeys(t *testing.T) {
	s, daemons := ipsecSet(t, 2)
	s.join(t)
	a, b := s.gateways[0], s.gateways[1]
	if !reaches(t, a, b, 5*time.Second) {
		t.Error("nothing passes")
	}
	published := b.peer(t)
	must(t, b.ns.Do(b.wire.Remove))
	must(t, b.wire.Close())
	must(t, daemons[b].Stop())
	d := newDaemon(t, b, !kernelESP(t))
	for name, keys := range map[string]string{"another key": t.TempDir(), "the PSK alone": ""} {
		t.Run(name, func(t *testing.T) {
			b.wire = NewIPsec(IPsecOptions{Socket: d.conf.Socket, Keys: keys, Log: slog.New(slog.DiscardHandler)})
			defer func() { must(t, errors.Join(b.ns.Do(b.wire.Remove), b.wire.Close())) }()
			must(t, a.ns.Do(a.wire.Remove))
			b.ensure(t, a.peer(t))
			a.ensure(t, published)
			a.await(t, b, func(st Status) bool { return strings.Contains(st.Error, "key") })
			if reaches(t, a, b, time.Second) {
				t.Error("packets of a gateway without the published key pass")
			}
		})
	}
}

// ikeSA is the id of the IKE SA of tunnel 0 from a to b, "": none is established.
func ikeSA(t *testing.T, a, b *gateway) string {
	t.Helper()
	all, err := a.wire.(*IPsec).vici.list()
	must(t, err)
	for _, m := range all {
		if sa := section(m, connectionName(b.local.Fabric, 0)); text(sa, "state") == "ESTABLISHED" {
			return text(sa, "uniqueid")
		}
	}
	return ""
}

// renews ends the connection of the first two gateways, which establish another one.
func renews(t *testing.T, s *set, former string) {
	t.Helper()
	a, b := s.gateways[0], s.gateways[1]
	must(t, a.wire.(*IPsec).terminate(connectionName(b.local.Fabric, 0)))
	await.True(t, "there is another IKE SA than "+former, func() bool {
		a.ensure(t, b.peer(t))
		b.ensure(t, a.peer(t))
		now := ikeSA(t, a, b)
		return now != "" && now != former
	})
}

// A gateway of the former release has the PSK alone; when it has keys, connections stay.
func TestIPsecKeysAreNew(t *testing.T) {
	s, daemons := ipsecSet(t, 2)
	a, b := s.gateways[0], s.gateways[1]
	former := NewIPsec(IPsecOptions{Socket: daemons[b].conf.Socket, Log: slog.New(slog.DiscardHandler)})
	now := b.wire
	b.wire = former
	s.join(t)
	if !reaches(t, a, b, 5*time.Second) {
		t.Fatal("nothing passes with the PSK")
	}
	before := ikeSA(t, a, b)
	must(t, former.Close())
	b.wire = now
	b.ensure(t, a.peer(t))
	a.ensure(t, b.peer(t))
	b.ensure(t, a.peer(t))
	if after := ikeSA(t, a, b); after != before {
		t.Errorf("IKE SA %s was replaced by %s", before, after)
	}
	renews(t, s, before)
	if !reaches(t, a, b, 5*time.Second) {
		t.Error("nothing passes with keys")
	}
}

// A rotation publishes the next key, then uses it; existing connections stay, also with a peer that
// has not read it, and new ones need it.
func TestIPsecRotation(t *testing.T) {
	s, _ := ipsecSet(t, 2, func(o *IPsecOptions) { o.Settle = 100 * time.Millisecond })
	a, b := s.gateways[0], s.gateways[1]
	s.join(t)
	w := a.wire.(*IPsec)
	for _, request := range []string{"", " x", strings.Repeat("x", 65)} {
		if err := w.Rotate(request); err == nil {
			t.Errorf("request %q is accepted", request)
		}
	}
	before, first := ikeSA(t, a, b), a.peer(t).Identity[IdentityIKEKeys]
	must(t, w.Rotate("one"))
	both := a.peer(t)
	if keys := strings.Split(both.Identity[IdentityIKEKeys], ","); len(keys) != 2 || keys[0] != first || w.Rotation().Left != 1 {
		t.Fatalf("published %q, %+v", keys, w.Rotation())
	}
	await.True(t, "the next key is in use", func() bool { a.ensure(t, b.peer(t)); return w.Rotation().Left == 0 })
	second := a.peer(t).Identity[IdentityIKEKeys]
	if want := strings.Split(both.Identity[IdentityIKEKeys], ",")[1]; second != want {
		t.Errorf("published %q, want %q", second, want)
	}
	if after := ikeSA(t, a, b); after != before || !reaches(t, a, b, 5*time.Second) {
		t.Errorf("IKE SA %s was replaced by %s", before, after)
	}
	b.ensure(t, a.peer(t))
	renews(t, s, before)
	// performed once, also by the next process
	must(t, w.Rotate("one"))
	again := NewIPsec(w.o)
	must(t, again.openKeys())
	must(t, again.Rotate("one"))
	if id, err := again.Identity(); err != nil || id[IdentityIKEKeys] != second || again.Rotation() != (Rotation{Request: "one"}) {
		t.Errorf("after a restart: %v, %v, %+v", id, err, again.Rotation())
	}
	must(t, again.Rotate("two"))
	third := NewIPsec(w.o)
	must(t, third.openKeys())
	if got := third.Rotation(); got.Request != "two" || got.Left != 1 {
		t.Errorf("interrupted: %+v", got)
	}
}

func TestIPsecKeyFiles(t *testing.T) {
	for name, content := range map[string]string{"no PEM": "x", "another key": "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n-----END PRIVATE KEY-----\n", "no key": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"} {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, ikeKeyFile), []byte(content), 0o600))
		if _, err := openIKEKeys(dir, 0); err == nil || !strings.Contains(err.Error(), "delete the file") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestPeerKeys(t *testing.T) {
	k, err := openIKEKeys(t.TempDir(), 0)
	must(t, err)
	good, err := k.published()
	must(t, err)
	for field, want := range map[string]string{
		"x": "illegal base64", "AAAA": "its IKE key", good + ",": "its IKE key", strings.Repeat(good+",", maxIKEKeys) + good: "5 IKE keys",
		"MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=": "none of ECDSA P-256",
	} {
		if _, err := peerKeys(map[string]string{IdentityIKEKeys: field}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", field, err, want)
		}
	}
	if keys, err := peerKeys(map[string]string{IdentityIKEKeys: good + "," + good}); err != nil || len(keys) != 2 {
		t.Errorf("two keys: %d, %v", len(keys), err)
	}
}
