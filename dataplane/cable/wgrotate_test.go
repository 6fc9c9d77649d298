//go:build linux

package cable

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// rotate has the gateways change their keys while each tells the others of itself, late by the
// given number of rounds, as the hub would, and until all are done.
func rotate(t *testing.T, s *set, late int, who ...*gateway) {
	t.Helper()
	for _, g := range who {
		must(t, g.wire.(*WireGuard).Rotate("first"))
	}
	history := [][]Peer{}
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		var now []Peer
		left := 0
		for _, g := range s.gateways {
			now = append(now, g.peer(t))
			left += g.wire.(*WireGuard).Rotation().Left
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

// A peer that has not observed that a tunnel is draining keeps sending there: the rotation waits
// for it.
func TestWireGuardRotationWaits(t *testing.T) {
	s := wireguardSet(t, 2, 1)
	s.join(t)
	a, b := s.gateways[0], s.gateways[1]
	there := stream(t, b, a)
	must(t, a.wire.(*WireGuard).Rotate("first"))
	for range 30 {
		a.ensure(t, b.peer(t))
		time.Sleep(100 * time.Millisecond) // b observes nothing, for several times Settle
	}
	calm(t, there)
	want := Rotation{Request: "first", Left: 2, Waits: "tunnel 4 has its new key, no handshake with it yet by g2"}
	if diff := cmp.Diff(want, a.wire.(*WireGuard).Rotation()); diff != "" {
		t.Errorf("while a peer knows nothing of it: -want +got\n%s", diff)
	}
	rotate(t, s, 0) // now it does
}

// A peer that has observed the standby's new key only, and nothing since, keeps sending into the
// other tunnel. That keeps its key, also after the deadline: all packets would be lost.
func TestWireGuardRotationWaitsForSenders(t *testing.T) {
	s := wireguardSet(t, 2, 1)
	s.join(t)
	a, b := s.gateways[0], s.gateways[1]
	w := a.wire.(*WireGuard)
	w.o.Deadline = time.Second
	there := stream(t, b, a)
	must(t, w.Rotate("first"))
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		a.ensure(t, b.peer(t))
		if w.Rotation().Left == 2 {
			told := a.peer(t)
			delete(told.Identity, IdentityDraining)
			b.ensure(t, told)
		}
	}
	calm(t, there)
	want := Rotation{Request: "first", Left: 1, Waits: "tunnel 0 is being emptied, packets still pass to or from g2"}
	if diff := cmp.Diff(want, w.Rotation()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	rotate(t, s, 0) // now it does
}

// A rotation continues after a restart.
func TestWireGuardRotationRestart(t *testing.T) {
	s := wireguardSet(t, 2, 1)
	a, b := s.gateways[0], s.gateways[1]
	dir := t.TempDir()
	a.wire = openWireGuard(t, s, a, dir)
	s.join(t)
	before := a.peer(t).Identity
	must(t, a.wire.(*WireGuard).Rotate("first"))
	a.ensure(t, b.peer(t))
	must(t, a.wire.Close())
	a.wire = openWireGuard(t, s, a, dir)
	if r := a.wire.(*WireGuard).Rotation(); r.Left != 2 || r.Request != "first" {
		t.Fatalf("after a restart: %+v; want 2 tunnels left of the first request", r)
	}
	a.ensure(t, b.peer(t))
	rotate(t, s, 0)
	must(t, a.wire.(*WireGuard).Rotate("first")) // done already
	must(t, a.wire.Close())
	a.wire = openWireGuard(t, s, a, dir)
	a.ensure(t, b.peer(t))
	must(t, a.wire.(*WireGuard).Rotate("first"))
	if diff := cmp.Diff(Rotation{Request: "first"}, a.wire.(*WireGuard).Rotation()); diff != "" {
		t.Errorf("after the end and a restart: -want +got\n%s", diff)
	}
	must(t, a.wire.(*WireGuard).Rotate("second"))
	if r := a.wire.(*WireGuard).Rotation(); r.Left != 2 || r.Request != "second" {
		t.Errorf("asked for once more: %+v; want 2 tunnels left of the second request", r)
	}
	if after := a.peer(t).Identity; after[IdentityPublicKey] == before[IdentityPublicKey] {
		t.Error("the key is the old one")
	}
	if !reaches(t, a, b, 5*time.Second) {
		t.Error("nothing passes")
	}
}

// A peer that takes no notice of a new key is left behind in the end, and named.
func TestWireGuardRotationLeavesBehind(t *testing.T) {
	s := wireguardSet(t, 2, 1)
	a, b := s.gateways[0], s.gateways[1]
	s.join(t)
	w := a.wire.(*WireGuard)
	w.o.Deadline = time.Second
	old := b.peer(t)
	must(t, w.Rotate("first"))
	for end := time.Now().Add(time.Minute); w.Rotation().Left > 0; time.Sleep(100 * time.Millisecond) {
		a.ensure(t, old)
		if time.Now().After(end) {
			t.Fatalf("the rotation does not end: %+v", w.Rotation())
		}
	}
	want := Rotation{Request: "first", Waits: "no handshake with the new keys was made by g2"}
	if diff := cmp.Diff(want, w.Rotation()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestRotateRefuses(t *testing.T) {
	w, err := OpenWireGuard(WireGuardOptions{Dir: t.TempDir()})
	must(t, err)
	for request, want := range map[string]string{
		"":                      "1 to 64 printable characters",
		"a\nb":                  "1 to 64 printable characters",
		strings.Repeat("x", 65): "1 to 64 printable characters",
		" a":                    "neither begins nor ends with a space",
		"a":                     "there is no tunnel yet",
	} {
		if err := w.Rotate(request); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", request, err, want)
		}
	}
}
