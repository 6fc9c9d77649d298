package dns

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	miekg "github.com/miekg/dns"
)

// schemaVersion is the Multicluster DNS schema that dns-version.<zone> names.
// Its TTL is the specification's.
const (
	schemaVersion    = "1.0.0"
	schemaVersionTTL = 28800
)

// index is a Table compiled for answering; immutable but for the counters.
type index struct {
	mode  Mode
	local string
	ttl   uint32
	zones []zone // longest name first
	// reverse are the zones below in-addr.arpa and ip6.arpa, and names the owners
	// of their PTR records, by address.
	reverse []zone
	names   map[netip.Addr]*owner
	target  zone   // of the names that PTR records name
	any     []byte // the answer to ANY: the HINFO of RFC 8482
	// services by "<service>.<namespace>".
	services map[string]*service
	// namespaces that hold a service: empty non-terminals (RFC 8020).
	namespaces map[string]struct{}
}

// zone is one served domain.
type zone struct {
	name string // lower case, fully qualified
	wire []byte
	soa  []byte // see soaRecord
	// owners are the zone's fixed names, relative to it; "" is the apex.
	owners map[string]*owner
}

// owner is one existing name. All nil is an empty non-terminal.
type owner struct {
	a, aaaa, txt, soa, ns, ptr *set
	srv                        []*srvSet // by zone; nil without SRV records
}

// empty is a name that exists without records of its own.
var empty = &owner{}

// compile builds the index of a table. Services that are unchanged since prev
// (which may be nil) are reused, so one change costs one service.
func compile(t Table, prev *index, m *metrics) (*index, error) {
	x := &index{mode: t.Mode, local: t.LocalCluster, ttl: uint32(t.TTL.Seconds())}
	if t.TTL == 0 {
		x.ttl = uint32(DefaultTTL.Seconds())
	}
	x.any = record(miekg.TypeHINFO, x.ttl, []byte("\x07RFC8482\x00"))
	if _, err := ParseMode(string(t.Mode)); err != nil {
		return nil, err
	}
	if len(t.Zones) == 0 {
		return nil, errors.New("compile table: no zone: add at least clusterset.local")
	}
	for _, name := range t.Zones {
		z, err := newZone(name, x.ttl)
		if err != nil {
			return nil, err
		}
		if z.reverse() {
			x.reverse = append(x.reverse, z)
			continue
		}
		if x.target.name == "" {
			x.target = z
		}
		x.zones = append(x.zones, z)
	}
	if x.target.name == "" {
		return nil, fmt.Errorf("compile table: only reverse zones %v: add at least clusterset.local", t.Zones)
	}
	x.zones, x.reverse = longestFirst(x.zones), longestFirst(x.reverse)

	reusable := prev != nil && prev.mode == x.mode && prev.local == x.local && prev.ttl == x.ttl && prev.target.name == x.target.name &&
		slices.EqualFunc(prev.zones, x.zones, sameName) && slices.EqualFunc(prev.reverse, x.reverse, sameName)
	x.services = make(map[string]*service, len(t.Services))
	x.namespaces = make(map[string]struct{})
	for _, from := range t.Services {
		key := from.Name + "." + from.Namespace
		var old *service
		if prev != nil {
			old = prev.services[key]
		}
		if old == nil || !reusable || !old.from.equal(from) {
			old = compileService(from, x, m, old)
		}
		if len(old.owners) == 0 {
			continue // MCS: a headless service without ready endpoints does not exist
		}
		x.services[key] = old
		x.namespaces[from.Namespace] = struct{}{}
	}
	x.nameAddresses()
	return x, nil
}

func sameName(a, b zone) bool { return a.name == b.name }

// longestFirst sorts zones, and drops duplicates.
func longestFirst(zones []zone) []zone {
	slices.SortFunc(zones, func(a, b zone) int {
		return cmp.Or(cmp.Compare(len(b.name), len(a.name)), strings.Compare(a.name, b.name))
	})
	return slices.CompactFunc(zones, sameName)
}

func newZone(domain string, ttl uint32) (zone, error) {
	name, err := ParseZone(domain)
	if err != nil {
		return zone{}, err
	}
	wire, err := packName(name)
	if err != nil {
		return zone{}, fmt.Errorf("compile zone %s: %w", name, err)
	}
	z := zone{name: name, wire: wire, soa: soaRecord(ttl)}
	version := append([]byte{byte(len(schemaVersion))}, schemaVersion...)
	z.owners = map[string]*owner{
		"": {
			soa: &set{records: [][]byte{z.soa}},
			ns:  &set{records: [][]byte{record(miekg.TypeNS, ttl, append([]byte(nameServer), pointer(headerLen)...))}},
		},
		"dns":    empty,
		"ns.dns": empty,
	}
	if !z.reverse() {
		z.owners["dns-version"] = &owner{txt: &set{records: [][]byte{record(miekg.TypeTXT, schemaVersionTTL, version)}}}
		z.owners["svc"] = empty
	}
	return z, nil
}

// nameServer and hostmaster are the left parts of names in wire form; a
// pointer to the zone follows.
const (
	nameServer = "\x02ns\x03dns"
	hostmaster = "\x0ahostmaster"
)

func pointer(offset int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(0xc000|offset)) }

// soaRecord packs the zone's SOA with its three names ending in pointers to
// the zone's name in the question, as is correct if the question is for the
// apex. appendSOA adjusts them. The serial is constant, because the zone has no secondaries; the
// last field is the TTL of negative answers (RFC 2308).
func soaRecord(ttl uint32) []byte {
	rdata := append([]byte(nameServer), pointer(headerLen)...)
	rdata = append(rdata, hostmaster...)
	rdata = append(rdata, pointer(headerLen)...)
	// serial, refresh, retry, expire, minimum
	for _, v := range [...]uint32{1, 7200, 1800, 86400, ttl} {
		rdata = binary.BigEndian.AppendUint32(rdata, v)
	}
	return record(miekg.TypeSOA, ttl, rdata)
}

// appendSOA adds the zone's SOA to a message whose question holds the zone's
// name at offset.
func (z *zone) appendSOA(msg []byte, offset int) []byte {
	at := len(msg)
	msg = append(msg, z.soa...)
	const mname = pointerLen + 8 + 2 + len(nameServer)
	const rname = mname + pointerLen + len(hostmaster)
	for _, p := range [...]int{0, mname, rname} {
		binary.BigEndian.PutUint16(msg[at+p:], uint16(0xc000|offset))
	}
	return msg
}

// relative cuts the zone off a lower-case name in presentation form; false if
// the name is not in the zone.
func (z *zone) relative(name []byte) ([]byte, bool) {
	rel, found := bytes.CutSuffix(name, []byte(z.name))
	if !found || len(rel) == 0 {
		return rel, found
	}
	if rel[len(rel)-1] != '.' {
		return nil, false
	}
	rel = rel[:len(rel)-1]
	// A dot after an odd number of backslashes belongs to a label.
	escapes := len(rel) - len(bytes.TrimRight(rel, `\`))
	return rel, escapes%2 == 0
}

// find returns the zone of a lower-case name (nil: none), its index among the
// zones that hold services, and the name's owner (nil: it does not exist).
func (x *index) find(name []byte) (z *zone, zoneIndex int, _ *owner) {
	for i := range x.zones {
		z := &x.zones[i]
		if rel, ok := z.relative(name); ok {
			if o := z.owners[string(rel)]; o != nil {
				return z, i, o
			}
			return z, i, x.service(rel)
		}
	}
	for i := range x.reverse {
		z := &x.reverse[i]
		if rel, ok := z.relative(name); ok {
			if o := z.owners[string(rel)]; o != nil {
				return z, 0, o
			}
			return z, 0, x.named(name)
		}
	}
	return nil, 0, nil
}

// service finds [prefix.]<service>.<namespace>.svc and <namespace>.svc.
func (x *index) service(rel []byte) *owner {
	rel, ok := bytes.CutSuffix(rel, []byte(".svc"))
	if !ok {
		return nil
	}
	ns := bytes.LastIndexByte(rel, '.')
	if ns < 0 {
		if _, ok := x.namespaces[string(rel)]; ok {
			return empty
		}
		return nil
	}
	name := bytes.LastIndexByte(rel[:ns], '.')
	s := x.services[string(rel[name+1:])]
	if s == nil {
		return nil
	}
	return s.owners[string(rel[:max(name, 0)])]
}

// records picks the RRset for a query type; nil is NODATA.
func (o *owner) records(qtype uint16, zoneIndex int) *set {
	switch qtype {
	case miekg.TypeA:
		return o.a
	case miekg.TypeAAAA:
		return o.aaaa
	case miekg.TypeSRV:
		if o.srv != nil && len(o.srv[zoneIndex].records) > 0 { // else all targets are too long
			return &o.srv[zoneIndex].set
		}
	case miekg.TypeTXT:
		return o.txt
	case miekg.TypeSOA:
		return o.soa
	case miekg.TypeNS:
		return o.ns
	case miekg.TypePTR:
		return o.ptr
	}
	return nil
}

// turns are a service's rotations, one for each address family: a resolver that queries both would
// otherwise get the same first address of a family each time.
type turns struct{ a, aaaa atomic.Uint32 }

// turnsOf preserves the rotations of a service over an update.
func turnsOf(old *service) *turns {
	if old != nil {
		return old.turns
	}
	return new(turns)
}

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

// order is the selection and order of a set's records in one answer.
type order uint8

const (
	inOrder  order = iota
	rotated        // all, each answer starting one further
	oneByOne       // one, the next in each answer
)

// set is one RRset in wire form.
type set struct {
	records [][]byte
	order   order
	// turn is shared by all sets of one service and address family.
	turn *atomic.Uint32
	// to are the clusters named in the answer: one per record if oneByOne,
	// else each cluster once.
	to []*destination
}

// next returns the records of one answer as a starting index and a number.
func (s *set) next() (start, n int) {
	if len(s.records) < 2 || s.order == inOrder {
		return 0, len(s.records)
	}
	return s.at(s.turn.Add(1) - 1)
}

// peek is next without taking a turn.
func (s *set) peek() (start, n int) { return s.at(s.turn.Load()) }

func (s *set) at(turn uint32) (start, n int) {
	n = len(s.records)
	if n < 2 || s.order == inOrder {
		return 0, n
	}
	start = int(turn % uint32(n))
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
