package dns

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	miekg "github.com/miekg/dns"
)

const (
	arpa4 = "in-addr.arpa"
	arpa6 = "ip6.arpa"
)

// ReverseZones are the zones of a range's addresses (RFC 1035 §3.5, RFC 3596
// §2.5): one if the range ends at an octet, in IPv6 at half an octet, else
// several.
func ReverseZones(p netip.Prefix) []string {
	p = p.Masked()
	width, base, zone := 8, 10, arpa4
	if p.Addr().Is6() {
		width, base, zone = 4, 16, arpa6
	}
	whole, rest := p.Bits()/width, p.Bits()%width
	octets := p.Addr().AsSlice()
	digit := func(i int) int {
		if width == 8 {
			return int(octets[i])
		}
		return int(octets[i/2]>>(4*(1-i%2))) & 0xf
	}
	for i := range whole {
		zone = strconv.FormatInt(int64(digit(i)), base) + "." + zone
	}
	if rest == 0 {
		return []string{zone}
	}
	var out []string
	for i := range 1 << (width - rest) {
		out = append(out, strconv.FormatInt(int64(digit(whole)+i), base)+"."+zone)
	}
	return out
}

func (z *zone) reverse() bool {
	name := strings.TrimSuffix(z.name, ".")
	return strings.HasSuffix(name, "."+arpa4) || strings.HasSuffix(name, "."+arpa6)
}

// named is the owner of a lower-case name in a reverse zone.
func (x *index) named(name []byte) *owner {
	ip, whole, ok := reversed(name)
	switch {
	case !ok:
		return nil
	case !whole:
		return empty // a range: names are below it, or could be (RFC 8020)
	}
	return x.names[ip]
}

// reversed parses a name below in-addr.arpa or ip6.arpa. It is not whole if it
// has too few labels for an address.
func reversed(name []byte) (_ netip.Addr, whole, ok bool) {
	width, base := 8, 10
	labels, ok := bytes.CutSuffix(name, []byte("."+arpa4+"."))
	octets := make([]byte, 0, 16)
	if !ok {
		if labels, ok = bytes.CutSuffix(name, []byte("."+arpa6+".")); !ok {
			return netip.Addr{}, false, false
		}
		width, base = 4, 16
	}
	size := map[int]int{8: 4, 4: 32}[width] // labels of an address
	n := 0
	for len(labels) > 0 {
		at := bytes.LastIndexByte(labels, '.')
		label := string(labels[at+1:])
		digit, err := strconv.ParseUint(label, base, width)
		if err != nil || len(label) > 1 && (label[0] == '0' || width == 4) || n == size {
			return netip.Addr{}, false, false
		}
		if width == 8 || n%2 == 0 {
			octets = append(octets, byte(digit)<<(8-width))
		} else {
			octets[n/2] |= byte(digit)
		}
		n++
		labels = labels[:max(at, 0)]
	}
	ip, whole := netip.AddrFromSlice(octets)
	return ip, whole && n == size, true
}

// packPTR packs a PTR record for each address in a reverse zone that one of the
// service's names has. A name that is too long is left out: it could not be
// queried either.
func (b *builder) packPTR() {
	b.names = map[netip.Addr]*owner{}
	for ip, prefix := range b.longest {
		address, err := miekg.ReverseAddr(ip.String())
		if err != nil || !slices.ContainsFunc(b.x.reverse, func(z zone) bool { _, in := z.relative([]byte(address)); return in }) {
			continue
		}
		name := fmt.Sprintf("%s.%s.svc.%s", b.from.Name, b.from.Namespace, b.x.target.name)
		if prefix != "" {
			name = prefix + "." + name
		}
		if wire, err := packName(name); err == nil {
			b.names[ip] = &owner{ptr: &set{records: [][]byte{record(miekg.TypePTR, b.x.ttl, wire)}}}
		}
	}
}

// nameAddresses collects the PTR records of all services. Two headless services
// may select one pod, whose address then has two names. A range that ends within
// the last octet has a zone for each address, whose PTR record is at the apex.
func (x *index) nameAddresses() {
	x.names = make(map[netip.Addr]*owner)
	for _, s := range x.services {
		for ip, o := range s.names {
			// both stay as they are: an index in use has them
			if other := x.names[ip]; other != nil {
				o = &owner{ptr: &set{records: slices.Concat(other.ptr.records, o.ptr.records)}}
				tidy(o.ptr)
			}
			x.names[ip] = o
		}
	}
	for i := range x.reverse {
		if ip, whole, ok := reversed([]byte(x.reverse[i].name)); ok && whole && x.names[ip] != nil {
			x.reverse[i].owners[""].ptr = x.names[ip].ptr
		}
	}
}
