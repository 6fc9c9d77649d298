package ipam

import (
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// AddressRest is the time between the release of an address and its next allocation (RFC 6888
// REQ-8).
const AddressRest = 120 * time.Second

// AddressOwner is what an egress or ingress object requests. The zero value, of a deleted object,
// requests nothing.
type AddressOwner struct {
	UID   types.UID
	Count int
	// Shown are the addresses of its status: other components rely on these.
	Shown []netip.Addr
}

// AddressClaim is a GlobalAddress that was created for an object of the owner's kind and name.
type AddressClaim struct {
	IP         netip.Addr
	Owner      types.UID
	ReleasedAt time.Time // zero: not released
	// Leased: port blocks of the address are leased to nodes.
	Leased bool
}

// AddressPlan is the difference between the current and the desired addresses of an owner.
type AddressPlan struct {
	// Have are the addresses that the owner keeps, in order.
	Have []netip.Addr
	// Missing is how many addresses to claim; Lost are addresses of the status without a claim, to
	// be tried first.
	Missing int
	Lost    []netip.Addr
	// Rest are claims to be marked as released, Free claims that have rested long enough to be
	// deleted.
	Rest, Free []netip.Addr
	// Wait is the time until the next claim has rested; 0 if none rests.
	Wait time.Duration
}

// DesiredAddresses plans an owner's addresses. Addresses that other components already know are
// kept first, then the lowest. A surplus claim is released only once no node leases port blocks of
// it: until then, packets of live flows carry the address. usable reports whether an address
// belongs to the pool at all.
func DesiredAddresses(o AddressOwner, claims []AddressClaim, usable func(netip.Addr) bool, now time.Time) AddressPlan {
	var p AddressPlan
	var held []AddressClaim
	known := map[netip.Addr]bool{}
	for _, c := range claims {
		known[c.IP] = true
		switch {
		case !c.ReleasedAt.IsZero():
			p.rest(c, now)
		case o.UID != "" && c.Owner == o.UID && usable(c.IP):
			held = append(held, c)
		case !c.Leased:
			p.Rest = append(p.Rest, c.IP)
		}
	}
	slices.SortFunc(held, func(a, b AddressClaim) int {
		if as, bs := slices.Contains(o.Shown, a.IP), slices.Contains(o.Shown, b.IP); as != bs {
			if as {
				return -1
			}
			return 1
		}
		return a.IP.Compare(b.IP)
	})
	for i, c := range held {
		switch {
		case i < o.Count:
			p.Have = append(p.Have, c.IP)
		case !c.Leased:
			p.Rest = append(p.Rest, c.IP)
		}
	}
	slices.SortFunc(p.Have, netip.Addr.Compare)
	p.Missing = max(0, o.Count-len(p.Have))
	for _, ip := range o.Shown {
		if len(p.Lost) < p.Missing && !known[ip] && usable(ip) {
			p.Lost = append(p.Lost, ip)
		}
	}
	return p
}

// rest plans a claim that was released earlier.
func (p *AddressPlan) rest(c AddressClaim, now time.Time) {
	left := c.ReleasedAt.Add(AddressRest).Sub(now)
	switch {
	case left > 0:
		if p.Wait == 0 || left < p.Wait {
			p.Wait = left
		}
	case !c.Leased:
		p.Free = append(p.Free, c.IP)
	}
}
