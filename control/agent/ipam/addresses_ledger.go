package ipam

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

// ledger is what the controller knows between two reconciles. All of it can be lost: it saves attempts and wakes
// waiting owners, the API server decides. Event handlers and the one worker share it.
type ledger struct {
	mu   sync.Mutex
	pool *Pool
	// made are claims of this process that its cache has not shown yet; without them the next look at the cache would
	// claim once more.
	made map[netip.Addr]pelagov1alpha1.AddressOwner
	// starving owners lack addresses, awaiting ones lack acknowledgements of gateways.
	starving, awaiting map[request]struct{}
}

func newLedger(p *Pool) *ledger {
	return &ledger{
		pool: p, made: map[netip.Addr]pelagov1alpha1.AddressOwner{},
		starving: map[request]struct{}{}, awaiting: map[request]struct{}{},
	}
}

// seen records that the cache shows a claim.
func (l *ledger) seen(ip netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pool.Take(ip)
	delete(l.made, ip)
}

// gone records that a claim was deleted and returns the owners that wait for an address.
func (l *ledger) gone(ip netip.Addr) []request {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pool.Release(ip)
	delete(l.made, ip)
	return slices.Collect(maps.Keys(l.starving))
}

// reserve picks n free addresses, those of prefer first, and keeps them from being picked again. It says false and
// picks none if there are not enough.
func (l *ledger) reserve(n int, prefer []netip.Addr) ([]netip.Addr, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > l.pool.Free() {
		return nil, false
	}
	var ips []netip.Addr
	for _, ip := range prefer {
		if len(ips) < n && l.pool.Take(ip) {
			ips = append(ips, ip)
		}
	}
	rest, ok := l.pool.Next(n - len(ips))
	return append(ips, rest...), ok
}

// unreserve takes a reservation back whose claim was not made.
func (l *ledger) unreserve(ips ...netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ip := range ips {
		l.pool.Release(ip)
	}
}

// claimed records that this process made a claim.
func (l *ledger) claimed(ip netip.Addr, owner pelagov1alpha1.AddressOwner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made[ip] = owner
}

// unseen lists the claims for an owner that the cache has not shown yet.
func (l *ledger) unseen(req request) []AddressClaim {
	l.mu.Lock()
	defer l.mu.Unlock()
	var claims []AddressClaim
	for ip, owner := range l.made {
		if requestOf(owner) == req {
			claims = append(claims, AddressClaim{IP: ip, Owner: types.UID(owner.UID)})
		}
	}
	return claims
}

func (l *ledger) supply() supply {
	l.mu.Lock()
	defer l.mu.Unlock()
	return supply{cidr: l.pool.String(), size: l.pool.Size()}
}

func (l *ledger) contains(ip netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pool.Contains(ip)
}

// waits records what an owner waits for.
func (l *ledger) waits(req request, forAddress, forGateways bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	mark(l.starving, req, forAddress)
	mark(l.awaiting, req, forGateways)
}

// pending lists the owners that wait for gateways.
func (l *ledger) pending() []request {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.awaiting))
}

func mark(set map[request]struct{}, req request, in bool) {
	if in {
		set[req] = struct{}{}
	} else {
		delete(set, req)
	}
}
