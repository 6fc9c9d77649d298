package ipam

import (
	"net/netip"
	"slices"
	"strings"
)

// Pool is a set of addresses, some of them taken. It is not safe for concurrent use.
type Pool struct {
	ranges []span
	taken  map[netip.Addr]struct{} // addresses of ranges only
}

// span is the usable part of one prefix.
type span struct {
	prefix      netip.Prefix
	first, last netip.Addr
	size        int        // number of addresses
	low         netip.Addr // no address below it is free
}

// maxSize bounds the counted size of one prefix; a prefix with more addresses counts as this many.
const maxSize = 1 << 30

// NewPool makes a pool of the usable addresses of the prefixes. The first and the last address of a
// prefix (network and broadcast) are never allocated, so a prefix of two addresses or one has none.
func NewPool(prefixes ...netip.Prefix) *Pool {
	p := &Pool{taken: map[netip.Addr]struct{}{}}
	for _, prefix := range prefixes {
		prefix = prefix.Masked()
		host := prefix.Addr().BitLen() - prefix.Bits()
		if host < 2 {
			continue
		}
		s := span{prefix: prefix, first: prefix.Addr().Next(), last: lastOf(prefix).Prev(), size: maxSize}
		if host < 30 {
			s.size = 1<<host - 2
		}
		s.low = s.first
		p.ranges = append(p.ranges, s)
	}
	return p
}

// lastOf is the highest address of a prefix.
func lastOf(prefix netip.Prefix) netip.Addr {
	bytes := prefix.Addr().AsSlice()
	for bit := prefix.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 1 << (7 - bit%8)
	}
	last, _ := netip.AddrFromSlice(bytes) // as long as before
	return last
}

// String is the list of prefixes.
func (p *Pool) String() string {
	var texts []string
	for _, s := range p.ranges {
		texts = append(texts, s.prefix.String())
	}
	return strings.Join(texts, ", ")
}

// Size is the number of addresses that can be allocated.
func (p *Pool) Size() int {
	n := 0
	for _, s := range p.ranges {
		n += s.size
	}
	return n
}

// Free is the number of addresses that are not taken.
func (p *Pool) Free() int { return p.Size() - len(p.taken) }

// Contains reports whether ip belongs to the pool.
func (p *Pool) Contains(ip netip.Addr) bool { return p.find(ip) != nil }

// Taken reports whether ip is taken.
func (p *Pool) Taken(ip netip.Addr) bool {
	_, taken := p.taken[ip]
	return taken
}

// Take marks ip as taken and reports whether it was free. An address outside of the pool is never
// free.
func (p *Pool) Take(ip netip.Addr) bool {
	s := p.find(ip)
	if s == nil || p.Taken(ip) {
		return false
	}
	p.taken[ip] = struct{}{}
	for s.low.Compare(s.last) <= 0 && p.Taken(s.low) {
		s.low = s.low.Next()
	}
	return true
}

// Release marks ip as free.
func (p *Pool) Release(ip netip.Addr) {
	s := p.find(ip)
	if s == nil {
		return
	}
	delete(p.taken, ip)
	if ip.Less(s.low) {
		s.low = ip
	}
}

// Next takes n addresses and lists them in order: the lowest contiguous run of n if there is one,
// else the lowest free ones. It takes none and reports false if fewer than n are free.
func (p *Pool) Next(n int) ([]netip.Addr, bool) {
	if n > p.Free() {
		return nil, false
	}
	ips := p.run(n)
	if ips == nil {
		ips = p.lowest(n)
	}
	for _, ip := range ips {
		p.Take(ip)
	}
	return ips, true
}

// run is the lowest contiguous run of n free addresses, or nil.
func (p *Pool) run(n int) []netip.Addr {
	for _, s := range p.ranges {
		var ips []netip.Addr
		for ip := s.low; len(ips) < n && ip.Compare(s.last) <= 0; ip = ip.Next() {
			if p.Taken(ip) {
				ips = ips[:0]
				continue
			}
			ips = append(ips, ip)
		}
		if len(ips) == n {
			return ips
		}
	}
	return nil
}

// lowest lists the n lowest free addresses; there are that many.
func (p *Pool) lowest(n int) []netip.Addr {
	var ips []netip.Addr
	for _, s := range p.ranges {
		for ip := s.low; len(ips) < n && ip.Compare(s.last) <= 0; ip = ip.Next() {
			if !p.Taken(ip) {
				ips = append(ips, ip)
			}
		}
	}
	return ips
}

func (p *Pool) find(ip netip.Addr) *span {
	i := slices.IndexFunc(p.ranges, func(s span) bool { return s.first.Compare(ip) <= 0 && ip.Compare(s.last) <= 0 })
	if i < 0 {
		return nil
	}
	return &p.ranges[i]
}
