package dns

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	miekg "github.com/miekg/dns"
)

// FuzzPacket holds the server to three things for any packet: it survives, its
// answer is a well-formed answer to that packet within the allowed size, and
// the short way of reading a query finds what the library finds.
func FuzzPacket(f *testing.F) {
	for _, c := range []struct {
		name  string
		qtype uint16
	}{
		{"web.sample.svc.clusterset.local.", miekg.TypeA},
		{"g2.WEB.sample.svc.clusterset.local.", miekg.TypeAAAA},
		{"_http._tcp.db.sample.svc.clusterset.local.", miekg.TypeSRV},
		{"db-0.g2.db.sample.svc.clusterset.local.", miekg.TypeA},
		{"clusterset.local.", miekg.TypeSOA},
		{`odd\.label.\007.clusterset.local.`, miekg.TypeANY},
		{".", miekg.TypeNS},
		{"1.0.2.120.in-addr.arpa.", miekg.TypePTR},
		{"2.120.in-addr.arpa.", miekg.TypePTR},
		{"1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.", miekg.TypePTR},
	} {
		m := new(miekg.Msg).SetQuestion(c.name, c.qtype)
		f.Add(pack(f, m))
		m.SetEdns0(1232, true)
		f.Add(pack(f, m))
		m.IsEdns0().Option = append(m.IsEdns0().Option, &miekg.EDNS0_LOCAL{Code: 100, Data: []byte{1}})
		f.Add(pack(f, m))
	}
	f.Add([]byte{0, 1, 0x78, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 0x0c, 0, 1, 0, 1})
	table := sample(ModeSubmariner, statefulSet(), Service{Ports: http, Clusters: []Cluster{in("g2", ready("120.2.0.1")), in("g3", ready("120.3.0.1"))}})
	table.Zones = append(table.Zones, "120.in-addr.arpa", "d.f.ip6.arpa")
	h := serving(f, table)

	f.Fuzz(func(t *testing.T, in []byte) {
		var b buffer
		if !h.packet(&b, in) {
			return
		}
		var r miekg.Msg
		if err := r.Unpack(b.out); err != nil {
			t.Fatalf("answer does not parse: %v\n%x", err, b.out)
		}
		if !r.Response || r.RecursionAvailable || r.Zero || b.out[0] != in[0] || b.out[1] != in[1] {
			t.Errorf("not an answer to the packet:\n%s", &r)
		}
		if len(b.out) > maxUDP {
			t.Errorf("answer has %d octets", len(b.out))
		}

		var short, long query
		if !short.parsePlain(in) {
			return
		}
		var m miekg.Msg
		if err := m.Unpack(in); err != nil {
			t.Fatalf("the library refuses what parsePlain took: %v", err)
		}
		if action := h.accept(miekg.Header{Bits: uint16(in[2])<<8 | uint16(in[3]), Qdcount: 1, Arcount: uint16(in[11])}); action != miekg.MsgAccept {
			t.Errorf("parsePlain took what accept refuses: %v", action)
		}
		long.parse(&m)
		type visible struct {
			ID, Type, Class     uint16
			RD, EDNS, DO        bool
			Version             uint8
			Size, Rcode         int
			Question, LowerName string
		}
		see := func(q *query) visible {
			return visible{q.id, q.qtype, q.class, q.recursionDesired, q.edns, q.dnssecOK, q.version, q.size, q.rcode, string(q.question), string(q.name)}
		}
		if diff := cmp.Diff(see(&long), see(&short)); diff != "" {
			t.Errorf("parsePlain differs from the library (-library +plain):\n%s", diff)
		}
	})
}
