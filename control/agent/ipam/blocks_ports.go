package ipam

import (
	"net/netip"
	"slices"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

// PortSpace is the ports First … First+255 of an egress IP.
type PortSpace struct {
	IP    netip.Addr
	First int32
}

// Space caches which ports are leased. A stale cache costs an attempt, not a lease: the API server
// lets each PortBlock be created once. It is not safe for concurrent use; the zero value is empty.
type Space struct {
	leased map[netip.Addr]*[pelagov1alpha1.BlocksPerIP]bool
}

// slot is the number of a block within its IP, -1 if there is no such block.
func slot(first int32) int32 {
	n := (first - pelagov1alpha1.FirstBlockPort) / pelagov1alpha1.BlockPorts
	if first != firstPort(n) || n < 0 || n >= pelagov1alpha1.BlocksPerIP {
		return -1
	}
	return n
}

func firstPort(slot int32) int32 {
	return pelagov1alpha1.FirstBlockPort + slot*pelagov1alpha1.BlockPorts
}

// Take marks ports as leased and reports whether they were free.
func (s *Space) Take(p PortSpace) bool {
	n := slot(p.First)
	if n < 0 {
		return false
	}
	if s.leased == nil {
		s.leased = map[netip.Addr]*[pelagov1alpha1.BlocksPerIP]bool{}
	}
	leased := s.leased[p.IP]
	if leased == nil {
		leased = new([pelagov1alpha1.BlocksPerIP]bool)
		s.leased[p.IP] = leased
	}
	if leased[n] {
		return false
	}
	leased[n] = true
	return true
}

// Release marks ports as free.
func (s *Space) Release(p PortSpace) {
	leased, n := s.leased[p.IP], slot(p.First)
	if leased == nil || n < 0 {
		return
	}
	leased[n] = false
	if !slices.Contains(leased[:], true) {
		delete(s.leased, p.IP)
	}
}

// Free is the number of free blocks of the IPs.
func (s *Space) Free(ips []netip.Addr) int {
	free := 0
	for _, ip := range ips {
		free += pelagov1alpha1.BlocksPerIP
		if leased := s.leased[ip]; leased != nil {
			for _, taken := range leased {
				if taken {
					free--
				}
			}
		}
	}
	return free
}

// Next takes up to n blocks: the lowest free ones of the first IP that has any, then of the next.
func (s *Space) Next(ips []netip.Addr, n int) []PortSpace {
	var found []PortSpace
	for _, ip := range ips {
		for i := int32(0); i < pelagov1alpha1.BlocksPerIP && len(found) < n; i++ {
			if p := (PortSpace{IP: ip, First: firstPort(i)}); s.Take(p) {
				found = append(found, p)
			}
		}
	}
	return found
}
