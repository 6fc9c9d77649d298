package ipam

import (
	"net/netip"
	"sync"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

// ledger is what the controller knows between two reconciles. All of it can be lost: it saves attempts and wakes
// waiting nodes, the API server decides. Event handlers and the one worker share it.
type blockLedger struct {
	mu    sync.Mutex
	space Space
	// made are leases of this process that its cache has not shown yet.
	made map[PortSpace]pelagov1alpha1.PortBlock
	// starving nodes lack blocks that their pool does not have.
	starving map[blockRequest]struct{}
}

func blockNewLedger() *blockLedger {
	return &blockLedger{made: map[PortSpace]pelagov1alpha1.PortBlock{}, starving: map[blockRequest]struct{}{}}
}

// seen records that the cache shows a lease.
func (l *blockLedger) seen(p PortSpace) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.space.Take(p)
	delete(l.made, p)
}

// gone records that a lease was deleted and returns who waits for a block of the pool.
func (l *blockLedger) gone(p PortSpace, pool pelagov1alpha1.EgressPool) []blockRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.space.Release(p)
	delete(l.made, p)
	return l.starvingOf(pool)
}

// hungry lists who waits for a block of the pool.
func (l *blockLedger) hungry(pool pelagov1alpha1.EgressPool) []blockRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.starvingOf(pool)
}

func (l *blockLedger) starvingOf(pool pelagov1alpha1.EgressPool) []blockRequest {
	var waiting []blockRequest
	for req := range l.starving {
		if req.Pool == pool {
			waiting = append(waiting, req)
		}
	}
	return waiting
}

// reserve picks up to n free blocks and keeps them from being picked again.
func (l *blockLedger) reserve(order []netip.Addr, n int) []PortSpace {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.space.Next(order, n)
}

// unreserve takes reservations back whose leases were not made.
func (l *blockLedger) unreserve(ports ...PortSpace) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range ports {
		l.space.Release(p)
	}
}

// leased records that this process made a lease.
func (l *blockLedger) leased(p PortSpace, b pelagov1alpha1.PortBlock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made[p] = b
}

// unseen lists the leases for a request that the cache has not shown yet.
func (l *blockLedger) unseen(req blockRequest) []pelagov1alpha1.PortBlock {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []pelagov1alpha1.PortBlock
	for _, b := range l.made {
		if blockRequestOf(&b) == req {
			list = append(list, b)
		}
	}
	return list
}

// starve records whether a node lacks blocks, and says whether it did before.
func (l *blockLedger) starve(req blockRequest, lacks bool) (before bool) {
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

func (l *blockLedger) free(ips []netip.Addr) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.space.Free(ips)
}
