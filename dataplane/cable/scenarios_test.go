//go:build linux

package cable

import (
	"net/netip"
	"testing"
	"time"
)

// What every wire with devices is to do. The tests of each wire call these, with gateways that have
// joined.

// carries checks that each gateway reaches each, and sends size bytes from the first to the second.
func (s *set) carries(t *testing.T, size int64) {
	t.Helper()
	for _, a := range s.gateways {
		for _, b := range s.gateways {
			if a != b && !reaches(t, a, b, 5*time.Second) {
				t.Errorf("g%d does not reach g%d", a.number, b.number)
			}
		}
	}
	a, b := s.gateways[0], s.gateways[1]
	must(t, transfer(a, b, size, 0))
	st := a.status(t, b)
	if st.TxBytes < uint64(size) || st.RxBytes == 0 || st.Endpoint != netip.AddrPortFrom(b.address, 4500) {
		t.Errorf("status %+v: want %d bytes sent to %s:4500", st, size, b.address)
	}
}

// ensureDisturbsNothing calls Ensure fifty times over a second of traffic, of which nothing may be
// lost.
func (s *set) ensureDisturbsNothing(t *testing.T) {
	t.Helper()
	a, b := s.gateways[0], s.gateways[1]
	there, back := stream(t, a, b), stream(t, b, a)
	for range 50 {
		a.ensure(t, s.others(t, a)...)
		time.Sleep(20 * time.Millisecond) // traffic between two calls
	}
	calm(t, there, back)
}

// removesPeer takes the second of three gateways from the first's peers: the two are cut off from
// each other, the third is not.
func (s *set) removesPeer(t *testing.T) {
	t.Helper()
	a, b, c := s.gateways[0], s.gateways[1], s.gateways[2]
	a.ensure(t, c.peer(t))
	if reaches(t, b, a, time.Second) {
		t.Error("the removed peer still reaches this gateway")
	}
	if reaches(t, a, b, time.Second) {
		t.Error("this gateway still reaches the removed peer")
	}
	if !reaches(t, a, c, 5*time.Second) {
		t.Error("the other peer is cut off as well")
	}
	if _, ok := a.devices.Peers[b.local.Fabric]; ok {
		t.Error("the removed peer still has devices")
	}
}

// move gives a gateway another address in the underlay.
func (g *gateway) move(t *testing.T, to netip.Addr) {
	t.Helper()
	via := netip.AddrFrom4([4]byte{172, 16, byte(g.number), 1})
	run(t, g.ns, "ip", "addr", "add", to.String()+"/24", "dev", "eth0")
	run(t, g.ns, "ip", "addr", "del", g.address.String()+"/24", "dev", "eth0")
	// a secondary address goes with the first
	run(t, g.ns, "ip", "addr", "add", to.String()+"/24", "dev", "eth0")
	run(t, g.ns, "ip", "route", "replace", "default", "via", via.String(), "dev", "eth0")
}
