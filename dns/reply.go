package dns

import (
	"encoding/binary"

	miekg "github.com/miekg/dns"
)

// reply packs the answer to q into out, from its beginning, and returns it
// with its rcode. limit is the largest message that the transport takes, in
// octets.
func (x *index) reply(out []byte, q *query, limit int) ([]byte, int) {
	if q.edns {
		limit -= optLen
	}
	out = append(out[:0], make([]byte, headerLen)...)
	out = append(out, q.question...)
	b := answer{msg: out, limit: limit}
	b.rcode = x.answer(&b, q)

	flags := uint16(bitQR) | b.flags | uint16(b.rcode&0xf)
	if q.recursionDesired {
		flags |= bitRD
	}
	if q.edns {
		b.additional++
		b.msg = append(b.msg, 0)
		b.msg = binary.BigEndian.AppendUint16(b.msg, miekg.TypeOPT)
		b.msg = binary.BigEndian.AppendUint16(b.msg, maxUDP)
		b.msg = append(b.msg, byte(b.rcode>>4), 0) // extended rcode, version
		var do uint16
		if q.dnssecOK {
			do = bitDO
		}
		b.msg = binary.BigEndian.AppendUint16(b.msg, do)
		b.msg = binary.BigEndian.AppendUint16(b.msg, 0)
	}
	questions := uint16(0)
	if len(q.question) > 0 {
		questions = 1
	}
	for i, v := range [...]uint16{q.id, flags, questions, b.answers, b.authority, b.additional} {
		binary.BigEndian.PutUint16(b.msg[2*i:], v)
	}
	return b.msg, b.rcode
}

// answer is a message being built.
type answer struct {
	msg                            []byte
	limit                          int
	flags                          uint16
	rcode                          int
	answers, authority, additional uint16
}

// answer decides and packs all but the header and the OPT record, and returns
// the rcode.
func (x *index) answer(b *answer, q *query) int {
	switch {
	case q.rcode != miekg.RcodeSuccess:
		return q.rcode
	case q.version > 0:
		return miekg.RcodeBadVers
	case q.class != miekg.ClassINET: // CHAOS included: no data about the server
		return miekg.RcodeRefused
	case q.qtype == miekg.TypeAXFR || q.qtype == miekg.TypeIXFR:
		return miekg.RcodeRefused
	case x == nil: // not synced yet: the client tries another server
		return miekg.RcodeServerFailure
	}
	z, zoneIndex, o := x.find(q.name)
	if z == nil {
		return miekg.RcodeRefused
	}
	b.flags = bitAA
	if o == nil {
		b.denial(z, q)
		return miekg.RcodeNameError
	}
	if q.qtype == miekg.TypeANY { // RFC 8482 §4.2
		b.msg, b.answers = append(b.msg, x.any...), 1
		return miekg.RcodeSuccess
	}
	s := o.records(q.qtype, zoneIndex)
	if s == nil {
		b.denial(z, q)
		return miekg.RcodeSuccess
	}
	b.records(s)
	if q.qtype == miekg.TypeSRV && b.flags&bitTC == 0 {
		b.glue(o.srv[zoneIndex].glue)
	}
	return miekg.RcodeSuccess
}

// denial adds the SOA that NXDOMAIN and NODATA carry (RFC 2308 §3). It always
// fits: names are at most 255 octets and the SOA's are compressed.
func (b *answer) denial(z *zone, q *query) {
	nameLen := len(q.question) - 4
	b.msg = z.appendSOA(b.msg, headerLen+nameLen-len(z.wire))
	b.authority = 1
}

// records adds one answer of a set. What does not fit is left out and TC set:
// a resolver without TCP can still use the part.
func (b *answer) records(s *set) {
	start, n := s.next()
	s.count(start)
	for i := range n {
		rec := s.records[(start+i)%len(s.records)]
		if len(b.msg)+len(rec) > b.limit {
			b.flags |= bitTC
			return
		}
		b.msg = append(b.msg, rec...)
		b.answers++
	}
}

// glue adds the addresses of SRV targets, all or none: a partial additional
// section would pass for the whole.
func (b *answer) glue(targets []glue) {
	end, before := len(b.msg), b.additional
	for _, t := range targets {
		for _, s := range [...]*set{t.of.a, t.of.aaaa} {
			if s == nil {
				continue
			}
			start, n := s.peek()
			for i := range n {
				rec := s.records[(start+i)%len(s.records)]
				if len(b.msg)+len(t.name)+len(rec)-pointerLen > b.limit {
					b.msg, b.additional = b.msg[:end], before
					return
				}
				b.msg = append(b.msg, t.name...)
				b.msg = append(b.msg, rec[pointerLen:]...)
				b.additional++
			}
		}
	}
}
