package dns

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync/atomic"

	miekg "github.com/miekg/dns"
)

// Every record is packed once, when the table is compiled. Its owner is always
// the queried name, so it starts with a compression pointer to the question
// (RFC 1035 §4.1.4), which also preserves the client's letter case (0x20).
const (
	headerLen   = 12
	toQuestion  = 0xc000 | headerLen
	pointerLen  = 2
	srvTargetAt = pointerLen + 8 + 2 + 6 // type, class, TTL; length; priority, weight, port
)

// record packs one resource record of class IN whose owner is the question.
// The TTL is in seconds.
func record(rrtype uint16, ttl uint32, rdata []byte) []byte {
	b := make([]byte, 0, srvTargetAt+len(rdata))
	b = binary.BigEndian.AppendUint16(b, toQuestion)
	b = binary.BigEndian.AppendUint16(b, rrtype)
	b = binary.BigEndian.AppendUint16(b, miekg.ClassINET)
	b = binary.BigEndian.AppendUint32(b, ttl)
	b = binary.BigEndian.AppendUint16(b, uint16(len(rdata)))
	return append(b, rdata...)
}

func addressRecord(ip netip.Addr, ttl uint32) []byte {
	if ip.Is4() {
		return record(miekg.TypeA, ttl, ip.AsSlice())
	}
	return record(miekg.TypeAAAA, ttl, ip.AsSlice())
}

// srvRecord packs an SRV record (RFC 2782). Priority 0 and weight 50 are what
// Submariner answers; MCS requires only equal weights. The target is never
// compressed.
func srvRecord(port uint16, target []byte, ttl uint32) []byte {
	rdata := binary.BigEndian.AppendUint16(nil, 0)
	rdata = binary.BigEndian.AppendUint16(rdata, 50)
	rdata = binary.BigEndian.AppendUint16(rdata, port)
	return record(miekg.TypeSRV, ttl, append(rdata, target...))
}

// packName turns a fully qualified name into wire form. It fails for names and
// labels that are too long for a query.
func packName(fqdn string) ([]byte, error) {
	buf := make([]byte, 256)
	n, err := miekg.PackDomainName(fqdn, buf, 0, nil, false)
	if err != nil {
		return nil, fmt.Errorf("pack name %s: %w", fqdn, err)
	}
	return buf[:n], nil
}

// order is which of its records a set gives in one answer.
type order uint8

const (
	inOrder  order = iota
	rotated        // all, each answer starting one further
	oneByOne       // one, each answer the next
)

// set is one RRset in wire form.
type set struct {
	records [][]byte
	order   order
	// turn is shared by all sets of one service.
	turn *atomic.Uint32
	// to are the clusters named in the answer: one per record if oneByOne,
	// else each cluster once.
	to []*destination
}

// next gives the records of one answer as a starting index and a number.
func (s *set) next() (start, n int) {
	n = len(s.records)
	if n < 2 || s.order == inOrder {
		return 0, n
	}
	start = int((s.turn.Add(1) - 1) % uint32(n))
	if s.order == oneByOne {
		n = 1
	}
	return start, n
}

// count adds the answer to the per-cluster query counters.
func (s *set) count(start int) {
	if s.order == oneByOne {
		s.to[start].inc()
		return
	}
	for _, d := range s.to {
		d.inc()
	}
}
