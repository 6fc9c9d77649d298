package cable

import (
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// rotate has the gateways change their keys while each tells the others of itself, late by the given number of rounds, as the
// hub would, and until all are done.
func rotate(t *testing.T, s *set, late int, who ...*gateway) {
	t.Helper()
	for _, g := range who {
		must(t, g.wire.(*WireGuard).Rotate())
	}
	history := [][]Peer{}
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		var now []Peer
		left := 0
		for _, g := range s.gateways {
			now = append(now, g.peer(t))
			left += g.wire.(*WireGuard).Rotating()
		}
		history = append(history, now)
		told := history[max(0, len(history)-1-late)]
		for i, g := range s.gateways {
			var others []Peer
			for j := range told {
				if j != i {
					others = append(others, told[j])
				}
			}
			g.ensure(t, others...)
		}
		if left == 0 && reflect.DeepEqual(told, now) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the rotation is not at its end, %d tunnels are left", left)
		}
	}
}

func TestWireGuardRotation(t *testing.T) {
	for _, c := range []struct {
		name              string
		gateways, tunnels int
		late              int
		who               []int
	}{
		{"one of three", 3, 1, 2, []int{0}},
		{"two at once", 2, 1, 1, []int{0, 1}},
		{"two tunnels", 2, 2, 2, []int{1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := wireguardSet(t, c.gateways, c.tunnels)
			s.join(t)
			a, b := s.gateways[0], s.gateways[1]
			before := a.peer(t).Identity
			there, back := stream(t, a, b), stream(t, b, a)
			var who []*gateway
			for _, i := range c.who {
				who = append(who, s.gateways[i])
			}
			keys := map[*gateway]map[string]string{}
			for _, g := range who {
				keys[g] = g.peer(t).Identity
			}
			rotate(t, s, c.late, who...)
			time.Sleep(200 * time.Millisecond) // packets by the new keys
			calm(t, there, back)
			for _, g := range who {
				now := g.peer(t).Identity
				for _, key := range []string{IdentityPublicKey, IdentityStandbyKey} {
					if now[key] == keys[g][key] {
						t.Errorf("g%d still has %s %s", g.number, key, now[key])
					}
				}
				if now[IdentityDraining] != "" {
					t.Errorf("g%d still drains %s", g.number, now[IdentityDraining])
				}
			}
			if who[0] != a && !cmp.Equal(before, a.peer(t).Identity) {
				t.Error("the keys of another gateway changed as well")
			}
			if got, want := a.devices.Peers[b.local.Fabric], a.devices.Ifindexes[:c.tunnels]; !cmp.Equal(got, want) {
				t.Errorf("afterwards packets go by devices %v, want %v", got, want)
			}
		})
	}
}

// A peer that has not heard that a tunnel is drained keeps sending there: its packets are waited for.
func TestWireGuardRotationWaits(t *testing.T) {
	s := wireguardSet(t, 2, 1)
	s.join(t)
	a, b := s.gateways[0], s.gateways[1]
	there := stream(t, b, a)
	must(t, a.wire.(*WireGuard).Rotate())
	for range 30 {
		a.ensure(t, b.peer(t))
		time.Sleep(100 * time.Millisecond) // b hears nothing, for several times Settle
	}
	calm(t, there)
	if n := a.wire.(*WireGuard).Rotating(); n == 0 {
		t.Error("the rotation ended while a peer still sent by the old key")
	}
	rotate(t, s, 0) // now it hears
}

// A rotation that a restart interrupts goes on.
func TestWireGuardRotationRestart(t *testing.T) {
	s := wireguardSet(t, 2, 1)
	a, b := s.gateways[0], s.gateways[1]
	dir := t.TempDir()
	a.wire = openWireGuard(t, s, a, dir)
	s.join(t)
	before := a.peer(t).Identity
	must(t, a.wire.(*WireGuard).Rotate())
	a.ensure(t, b.peer(t))
	must(t, a.wire.Close())
	a.wire = openWireGuard(t, s, a, dir)
	if n := a.wire.(*WireGuard).Rotating(); n != 2 {
		t.Fatalf("%d tunnels left to rotate after a restart, want 2", n)
	}
	a.ensure(t, b.peer(t))
	rotate(t, s, 0)
	if after := a.peer(t).Identity; after[IdentityPublicKey] == before[IdentityPublicKey] {
		t.Error("the key is the old one")
	}
	if !reaches(t, a, b, 5*time.Second) {
		t.Error("nothing passes")
	}
}
