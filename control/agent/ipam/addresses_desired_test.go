package ipam

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

var byValue = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func ip(last byte) netip.Addr { return netip.AddrFrom4([4]byte{120, 1, 0, last}) }

func ips(last ...byte) []netip.Addr {
	var list []netip.Addr
	for _, l := range last {
		list = append(list, ip(l))
	}
	return list
}

func TestDesired(t *testing.T) {
	held := func(last byte) AddressClaim { return AddressClaim{IP: ip(last), Owner: "u1"} }
	leased := func(last byte) AddressClaim { return AddressClaim{IP: ip(last), Owner: "u1", Leased: true} }
	rested := func(last byte, since time.Duration) AddressClaim {
		return AddressClaim{IP: ip(last), Owner: "u1", ReleasedAt: now.Add(-since)}
	}
	for _, tc := range []struct {
		name   string
		owner  AddressOwner
		claims []AddressClaim
		want   AddressPlan
	}{
		{name: "a new owner", owner: AddressOwner{UID: "u1", Count: 8}, want: AddressPlan{Missing: 8}},
		{name: "content", owner: AddressOwner{UID: "u1", Count: 2, Shown: ips(1, 2)}, claims: []AddressClaim{held(2), held(1)}, want: AddressPlan{Have: ips(1, 2)}},
		{name: "claimed but not shown yet", owner: AddressOwner{UID: "u1", Count: 1}, claims: []AddressClaim{held(7)}, want: AddressPlan{Have: ips(7)}},
		{name: "growth keeps what is there", owner: AddressOwner{UID: "u1", Count: 4, Shown: ips(1, 2)}, claims: []AddressClaim{held(1), held(2)},
			want: AddressPlan{Have: ips(1, 2), Missing: 2}},
		{name: "shrinking keeps the lowest", owner: AddressOwner{UID: "u1", Count: 1, Shown: ips(1, 2, 3)}, claims: []AddressClaim{held(1), held(2), held(3)},
			want: AddressPlan{Have: ips(1), Rest: ips(2, 3)}},
		{name: "shrinking waits for leases", owner: AddressOwner{UID: "u1", Count: 1, Shown: ips(1, 2, 3)}, claims: []AddressClaim{leased(1), leased(2), held(3)},
			want: AddressPlan{Have: ips(1), Rest: ips(3)}},
		{name: "growth takes back what still drains", owner: AddressOwner{UID: "u1", Count: 2, Shown: ips(1)}, claims: []AddressClaim{leased(1), leased(2)},
			want: AddressPlan{Have: ips(1, 2)}},
		{name: "of two claims the shown one stays", owner: AddressOwner{UID: "u1", Count: 1, Shown: ips(9)}, claims: []AddressClaim{held(4), held(9)},
			want: AddressPlan{Have: ips(9), Rest: ips(4)}},
		{name: "a claim of an earlier object of the name", owner: AddressOwner{UID: "u2", Count: 1}, claims: []AddressClaim{held(1)},
			want: AddressPlan{Missing: 1, Rest: ips(1)}},
		{name: "the owner is gone", claims: []AddressClaim{held(1), leased(2)}, want: AddressPlan{Rest: ips(1)}},
		{name: "resting", claims: []AddressClaim{rested(1, 20*time.Second), rested(2, 30*time.Second)}, want: AddressPlan{Wait: 90 * time.Second}},
		{name: "rested", claims: []AddressClaim{rested(1, AddressRest), rested(2, AddressRest-time.Second)}, want: AddressPlan{Free: ips(1), Wait: time.Second}},
		{name: "rested, but leased again by a slow writer", claims: []AddressClaim{{IP: ip(1), Owner: "u1", ReleasedAt: now.Add(-time.Hour), Leased: true}}},
		{name: "a resting address is not taken back", owner: AddressOwner{UID: "u1", Count: 1, Shown: ips(1)}, claims: []AddressClaim{rested(1, 0)},
			want: AddressPlan{Missing: 1, Wait: AddressRest}},
		{name: "a claim outside the pool", owner: AddressOwner{UID: "u1", Count: 1, Shown: ips(200)}, claims: []AddressClaim{held(200)},
			want: AddressPlan{Missing: 1, Rest: ips(200)}},
		{name: "the claim of a shown address was deleted", owner: AddressOwner{UID: "u1", Count: 1, Shown: ips(5)}, want: AddressPlan{Missing: 1, Lost: ips(5)}},
		{name: "no addresses wanted", owner: AddressOwner{UID: "u1", Shown: ips(1)}, claims: []AddressClaim{held(1)}, want: AddressPlan{Rest: ips(1)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			usable := func(a netip.Addr) bool { return a.Less(ip(100)) }
			if diff := cmp.Diff(tc.want, DesiredAddresses(tc.owner, tc.claims, usable, now), byValue); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// world is what survives a crash: the claims as the API server keeps them, and the owners with
// their statuses.
type world struct {
	claims map[netip.Addr]AddressClaim
	owners map[types.UID]*AddressOwner
	now    time.Time
}

// step does one reconcile of an owner, crashing after the given number of writes. Its picture of
// the claims lacks those in unseen, as a slow cache does.
func (w *world) step(t *rapid.T, p *Pool, uid types.UID, writes int, unseen map[netip.Addr]bool) {
	crashed := func() bool { writes--; return writes < 0 }
	owner := w.owners[uid]
	if owner == nil {
		owner = &AddressOwner{}
	}
	var seen []AddressClaim
	for a, c := range w.claims {
		if c.Owner == uid && !unseen[a] {
			seen = append(seen, c)
		}
	}
	plan := DesiredAddresses(*owner, seen, p.Contains, w.now)
	for plan.Missing > 0 {
		if plan.Missing > p.Free() {
			break
		}
		var picked []netip.Addr
		for _, a := range plan.Lost {
			if p.Take(a) {
				picked = append(picked, a)
			}
		}
		rest, _ := p.Next(plan.Missing - len(picked))
		picked = append(picked, rest...)
		for _, a := range picked {
			if crashed() {
				return
			}
			if old, exists := w.claims[a]; exists {
				if old.Owner != uid || !old.ReleasedAt.IsZero() || slices.Contains(plan.Have, a) {
					continue
				}
			}
			w.claims[a] = AddressClaim{IP: a, Owner: uid}
			plan.Have = append(plan.Have, a)
			plan.Missing--
		}
	}
	if crashed() {
		return
	}
	owner.Shown = plan.Have
	for _, a := range plan.Rest {
		if crashed() {
			return
		}
		c := w.claims[a]
		c.ReleasedAt = w.now
		w.claims[a] = c
	}
	for _, a := range plan.Free {
		if crashed() {
			return
		}
		if w.now.Sub(w.claims[a].ReleasedAt) < AddressRest {
			t.Fatalf("%s is free again after %s", a, w.now.Sub(w.claims[a].ReleasedAt))
		}
		delete(w.claims, a)
		p.Release(a)
	}
}

// check: no address is shown twice, and each one that is shown is usable and claimed for its owner.
func (w *world) check(t *rapid.T, cidr netip.Prefix) {
	shown := map[netip.Addr]types.UID{}
	for uid, o := range w.owners {
		for _, a := range o.Shown {
			if other, twice := shown[a]; twice {
				t.Fatalf("%s is given to %s and %s", a, other, uid)
			}
			shown[a] = uid
			if !cidr.Contains(a) || a == cidr.Addr() || !cidr.Contains(a.Next()) {
				t.Fatalf("%s is not usable", a)
			}
			if c := w.claims[a]; c.Owner != uid || !c.ReleasedAt.IsZero() {
				t.Fatalf("%s is shown by %s, its claim is %+v", a, uid, c)
			}
		}
	}
}

// Crashes between any two writes, slow caches, and several agents at once never give an address to
// two owners; and when the crashes end, everybody has what the pool can give.
func TestNoCrashGivesTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cidr := netip.MustParsePrefix("120.1.0.0/27")
		w := &world{claims: map[netip.Addr]AddressClaim{}, owners: map[types.UID]*AddressOwner{}, now: now}
		agents := []*Pool{NewPool(cidr), NewPool(cidr)}
		uids := func() []types.UID {
			all := maps.Collect(func(yield func(types.UID, bool) bool) {
				for uid := range w.owners {
					yield(uid, true)
				}
				for _, c := range w.claims {
					yield(c.Owner, true)
				}
			})
			return slices.Sorted(maps.Keys(all))
		}
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"create": func(t *rapid.T) {
				next++
				w.owners[types.UID(fmt.Sprintf("u%03d", next))] = &AddressOwner{
					UID: types.UID(fmt.Sprintf("u%03d", next)), Count: rapid.IntRange(0, 8).Draw(t, "count"),
				}
			},
			"resize or delete": func(t *rapid.T) {
				if len(w.owners) == 0 {
					t.Skip()
				}
				uid := rapid.SampledFrom(slices.Sorted(maps.Keys(w.owners))).Draw(t, "owner")
				if rapid.Bool().Draw(t, "delete") {
					delete(w.owners, uid)
				} else {
					w.owners[uid].Count = rapid.IntRange(0, 8).Draw(t, "count")
				}
			},
			"reconcile, perhaps crash": func(t *rapid.T) {
				if len(uids()) == 0 {
					t.Skip()
				}
				uid := rapid.SampledFrom(uids()).Draw(t, "owner")
				agent := rapid.IntRange(0, 1).Draw(t, "agent")
				unseen := map[netip.Addr]bool{}
				for _, a := range slices.SortedFunc(maps.Keys(w.claims), netip.Addr.Compare) {
					// What an agent made itself it knows, whatever its cache shows.
					unseen[a] = !agents[agent].Taken(a) && rapid.Bool().Draw(t, "unseen")
				}
				writes := rapid.IntRange(0, 12).Draw(t, "writes before the crash")
				w.step(t, agents[agent], uid, writes, unseen)
				if writes < 12 {
					agents[agent] = NewPool(cidr)
				}
			},
			"time passes": func(t *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 200).Draw(t, "seconds")) * time.Second)
			},
			"": func(t *rapid.T) { w.check(t, cidr) },
		})
		// No crashes any more: all is settled after every claim has rested.
		for range 3 {
			for _, uid := range uids() {
				w.step(t, freshPool(cidr, w.claims), uid, 1000, nil)
				w.check(t, cidr)
			}
			w.now = w.now.Add(2 * AddressRest)
		}
		free := freshPool(cidr, w.claims).Free()
		for uid, o := range w.owners {
			if missing := o.Count - len(o.Shown); missing < 0 || missing > 0 && missing <= free {
				t.Fatalf("%s has %d of %d addresses, %d are free", uid, len(o.Shown), o.Count, free)
			}
		}
	})
}

func freshPool(cidr netip.Prefix, claims map[netip.Addr]AddressClaim) *Pool {
	p := NewPool(cidr)
	for a := range claims {
		p.Take(a)
	}
	return p
}
