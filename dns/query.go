package dns

import (
	"encoding/binary"

	miekg "github.com/miekg/dns"
)

// query is what an answer depends on.
type query struct {
	id               uint16
	recursionDesired bool
	qtype, class     uint16
	// question is the received question section, to be echoed.
	question []byte
	// name is the queried name in presentation form and lower case.
	name []byte
	// rcode is FORMERR if the query cannot be answered at all.
	rcode int

	edns     bool
	version  uint8
	dnssecOK bool
	size     int // octets that the client accepts over UDP

	nameBuf     [256]byte
	questionBuf [256 + 4]byte
}

// Header bits and sizes of RFC 1035 §4.1.1 and RFC 6891 §6.1.
const (
	bitQR  = 1 << 15
	bitAA  = 1 << 10
	bitTC  = 1 << 9
	bitRD  = 1 << 8
	bitDO  = 1 << 15
	optLen = 11 // root, type, class, TTL, length; we send no options

	minUDP = 512
	// maxUDP is the flag day 2020 size: it fits a 1280-octet IPv6 packet, so
	// answers are never fragmented.
	maxUDP = 1232
	maxTCP = 65535
)

// parsePlain reads a query of the usual form straight from the wire: one
// question with a host name, nothing else but an OPT record without options.
// It returns false for everything else, valid or not, which parse handles.
// A fuzz test compares the results of both.
func (q *query) parsePlain(msg []byte) bool {
	if len(msg) < headerLen || msg[2]&0xf8 != 0 { // QR, opcode
		return false
	}
	additional := msg[11]
	if binary.BigEndian.Uint64(msg[4:12])&^1 != 1<<48 { // 1 question, 0, 0, 0 or 1 additional
		return false
	}
	q.name = q.nameBuf[:0]
	at := headerLen
	for {
		if at >= len(msg) {
			return false
		}
		n := int(msg[at])
		if n == 0 {
			break
		}
		if n > 63 || at+1+n >= len(msg) || len(q.name)+n+2 > 255 {
			return false
		}
		for _, c := range msg[at+1 : at+1+n] {
			switch {
			case 'A' <= c && c <= 'Z':
				c += 'a' - 'A'
			case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
			default:
				return false
			}
			q.name = append(q.name, c)
		}
		q.name = append(q.name, '.')
		at += 1 + n
	}
	at++
	if len(q.name) == 0 || len(msg) < at+4 {
		return false
	}
	q.qtype = binary.BigEndian.Uint16(msg[at:])
	q.class = binary.BigEndian.Uint16(msg[at+2:])
	at += 4
	q.question = msg[headerLen:at]
	q.edns, q.version, q.dnssecOK, q.size = false, 0, false, minUDP
	if additional == 1 {
		opt := msg[at:]
		if len(opt) != optLen || opt[0] != 0 || binary.BigEndian.Uint16(opt[1:]) != miekg.TypeOPT || opt[9] != 0 || opt[10] != 0 {
			return false
		}
		q.setEDNS(int(binary.BigEndian.Uint16(opt[3:])), opt[6], opt[7]&(bitDO>>8) != 0)
	} else if len(msg) != at {
		return false
	}
	q.id = binary.BigEndian.Uint16(msg)
	q.recursionDesired = msg[2]&(bitRD>>8) != 0
	q.rcode = miekg.RcodeSuccess
	return true
}

// parse reads a query that the library has unpacked.
func (q *query) parse(m *miekg.Msg) {
	q.id, q.recursionDesired = m.Id, m.RecursionDesired
	q.question, q.name, q.rcode = nil, nil, miekg.RcodeSuccess
	q.qtype, q.class = miekg.TypeNone, 0
	q.edns, q.version, q.dnssecOK, q.size = false, 0, false, minUDP
	for _, rr := range m.Extra {
		opt, ok := rr.(*miekg.OPT)
		if !ok {
			continue
		}
		if q.edns || opt.Hdr.Name != "." { // RFC 6891 §6.1.1: one, at the root
			q.rcode = miekg.RcodeFormatError
		}
		q.setEDNS(int(opt.UDPSize()), opt.Version(), opt.Do())
	}
	if len(m.Question) != 1 {
		q.rcode = miekg.RcodeFormatError
		return
	}
	first := m.Question[0]
	q.qtype, q.class = first.Qtype, first.Qclass
	n, err := miekg.PackDomainName(miekg.Fqdn(first.Name), q.questionBuf[:256], 0, nil, false)
	if err != nil {
		q.rcode = miekg.RcodeFormatError
		return
	}
	q.question = binary.BigEndian.AppendUint16(q.questionBuf[:n], first.Qtype)
	q.question = binary.BigEndian.AppendUint16(q.question, first.Qclass)
	q.name = append(q.nameBuf[:0], first.Name...)
	for i, c := range q.name {
		if 'A' <= c && c <= 'Z' {
			q.name[i] = c + 'a' - 'A'
		}
	}
}

func (q *query) setEDNS(size int, version uint8, dnssecOK bool) {
	q.edns, q.version, q.dnssecOK = true, version, dnssecOK
	q.size = min(max(size, minUDP), maxUDP)
}
