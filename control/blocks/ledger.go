package blocks

import (
	"net/netip"
	"sync"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

// ledger is what the controller knows between two reconciles. All of it can be lost: it saves attempts and wakes
// waiting nodes, the API server decides. Event handlers and the one worker share it.
type ledger struct {
	mu    sync.Mutex
	space Space
	// made are leases of this process that its cache has not shown yet.
	made map[Ports]pelagov1alpha1.PortBlock
	// starving nodes lack blocks that their pool does not have.
	starving map[request]struct{}
}

func newLedger() *ledger {
	return &ledger{made: map[Ports]pelagov1alpha1.PortBlock{}, starving: map[request]struct{}{}}
}

// seen records that the cache shows a lease.
func (l *ledger) seen(p Ports) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.space.Take(p)
	delete(l.made, p)
}

// gone records that a lease was deleted and returns who waits for a block of the pool.
func (l *ledger) gone(p Ports, pool pelagov1alpha1.EgressPool) []request {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.space.Release(p)
	delete(l.made, p)
	return l.starvingOf(pool)
}

// hungry lists who waits for a block of the pool.
func (l *ledger) hungry(pool pelagov1alpha1.EgressPool) []request {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.starvingOf(pool)
}

func (l *ledger) starvingOf(pool pelagov1alpha1.EgressPool) []request {
	var waiting []request
	for req := range l.starving {
		if req.Pool == pool {
			waiting = append(waiting, req)
		}
	}
	return waiting
}

// reserve picks up to n free blocks and keeps them from being picked again.
func (l *ledger) reserve(order []netip.Addr, n int) []Ports {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.space.Next(order, n)
}

// unreserve takes reservations back whose leases were not made.
func (l *ledger) unreserve(ports ...Ports) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range ports {
		l.space.Release(p)
	}
}

// leased records that this process made a lease.
func (l *ledger) leased(p Ports, b pelagov1alpha1.PortBlock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made[p] = b
}

// unseen lists the leases for a request that the cache has not shown yet.
func (l *ledger) unseen(req request) []pelagov1alpha1.PortBlock {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []pelagov1alpha1.PortBlock
	for _, b := range l.made {
		if requestOf(&b) == req {
			list = append(list, b)
		}
	}
	return list
}

// starve records whether a node lacks blocks, and says whether it did before.
func (l *ledger) starve(req request, lacks bool) (before bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, before = l.starving[req]
	if lacks {
		l.starving[req] = struct{}{}
	} else {
		delete(l.starving, req)
	}
	return before
}

func (l *ledger) free(ips []netip.Addr) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.space.Free(ips)
}
