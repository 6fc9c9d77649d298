package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	miekg "github.com/miekg/dns"

	"github.com/pelago-net/pelago/test/netns"
)

// listening serves a table on loopback sockets and returns their address.
func listening(t *testing.T, addr string, table Table) string {
	t.Helper()
	h := serving(t, table)
	s, err := Open(addr, 2, h)
	// The port that the kernel has picked for UDP may be in use for TCP.
	for tries := 0; errors.Is(err, syscall.EADDRINUSE) && strings.HasSuffix(addr, ":0") && tries < 10; tries++ {
		s, err = Open(addr, 2, h)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return s.Addr().String()
}

func dial(t *testing.T, network, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// send writes messages to a connection at once, framed as the transport asks.
func send(t *testing.T, conn net.Conn, messages ...[]byte) {
	t.Helper()
	var out []byte
	for _, m := range messages {
		if conn.LocalAddr().Network() == "tcp" {
			out = binary.BigEndian.AppendUint16(out, uint16(len(m)))
		}
		out = append(out, m...)
	}
	if _, err := conn.Write(out); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, conn net.Conn) []byte {
	t.Helper()
	buf := make([]byte, maxTCP)
	if conn.LocalAddr().Network() == "udp" {
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return buf[:n]
	}
	if _, err := io.ReadFull(conn, buf[:2]); err != nil {
		t.Fatal(err)
	}
	buf = buf[:binary.BigEndian.Uint16(buf)]
	if _, err := io.ReadFull(conn, buf); err != nil {
		t.Fatal(err)
	}
	return buf
}

func pack(t testing.TB, m *miekg.Msg) []byte {
	t.Helper()
	out, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// outcome describes a reply in the words of the RFC 8906 tests: rcode, header
// flags, sections, EDNS.
func outcome(t *testing.T, raw []byte) string {
	t.Helper()
	if len(raw) == headerLen {
		bits := binary.BigEndian.Uint16(raw[2:])
		return fmt.Sprintf("%s, header only", miekg.RcodeToString[int(bits&0xf)])
	}
	r := new(miekg.Msg)
	if err := r.Unpack(raw); err != nil {
		t.Fatalf("reply does not parse: %v", err)
	}
	rcode := miekg.RcodeToString[r.Rcode]
	if r.Rcode == miekg.RcodeBadVers {
		rcode = "BADVERS"
	}
	out := []string{rcode}
	for _, f := range []struct {
		set  bool
		name string
	}{{r.Authoritative, "aa"}, {r.Truncated, "tc"}, {r.RecursionDesired, "rd"}, {r.RecursionAvailable, "ra"}, {r.Zero, "z"}, {r.AuthenticatedData, "ad"}, {r.CheckingDisabled, "cd"}} {
		if f.set {
			out = append(out, f.name)
		}
	}
	var types []string
	for _, rr := range slices.Concat(r.Answer, r.Ns) {
		types = append(types, miekg.TypeToString[rr.Header().Rrtype])
	}
	if len(types) > 0 {
		out = append(out, strings.Join(slices.Compact(types), " "))
	}
	if opt := r.IsEdns0(); opt != nil {
		out = append(out, fmt.Sprintf("EDNS%d flags %#x options %d", opt.Version(), opt.Hdr.Ttl&0xffff, len(opt.Option)))
	}
	return strings.Join(out, ", ")
}

// TestRFC8906 is the table of RFC 8906 §8 (and of ISC's EDNS compliance
// tests), over both transports.
func TestRFC8906(t *testing.T) {
	addr := listening(t, "127.0.0.1:0", sample(ModeSubmariner, Service{Ports: http, Clusters: []Cluster{in("g2", ready("120.2.0.1"))}}))
	const zone, web, none = "clusterset.local.", "web.sample.svc.clusterset.local.", "none.sample.svc.clusterset.local."

	question := func(name string, qtype uint16, change func(*miekg.Msg)) []byte {
		m := new(miekg.Msg).SetQuestion(name, qtype)
		m.RecursionDesired = false
		if change != nil {
			change(m)
		}
		return pack(t, m)
	}
	edns := func(size uint16, version uint8, flags uint16, options ...miekg.EDNS0) func(*miekg.Msg) {
		return func(m *miekg.Msg) {
			opt := &miekg.OPT{Hdr: miekg.RR_Header{Name: ".", Rrtype: miekg.TypeOPT}, Option: options}
			opt.SetUDPSize(size)
			opt.Hdr.Ttl = uint32(version)<<16 | uint32(flags)
			m.Extra = append(m.Extra, opt)
		}
	}
	headerOnly := func(opcode int) []byte {
		m := &miekg.Msg{}
		m.Id, m.Opcode = 7, opcode
		return pack(t, m)
	}
	unknown := &miekg.EDNS0_LOCAL{Code: 100}
	var many = []miekg.EDNS0{
		&miekg.EDNS0_NSID{Code: miekg.EDNS0NSID},
		&miekg.EDNS0_SUBNET{Code: miekg.EDNS0SUBNET, Family: 1, Address: net.IPv4zero},
		&miekg.EDNS0_EXPIRE{Code: miekg.EDNS0EXPIRE, Empty: true},
		&miekg.EDNS0_COOKIE{Code: miekg.EDNS0COOKIE, Cookie: "0123456789abcdef"},
	}
	const edns0, do = "EDNS0 flags 0x0 options 0", "EDNS0 flags 0x8000 options 0"

	for _, c := range []struct {
		about string
		query []byte
		want  string
	}{
		{"plain", question(zone, miekg.TypeSOA, nil), "NOERROR, aa, SOA"},
		{"plain, NS", question(zone, miekg.TypeNS, nil), "NOERROR, aa, NS"},
		{"unknown type at an existing name", question(web, 666, nil), "NOERROR, aa, SOA"},
		{"unknown type at the apex", question(zone, 666, nil), "NOERROR, aa, SOA"},
		{"unknown type at an unknown name", question(none, 666, nil), "NXDOMAIN, aa, SOA"},
		{"reserved header bit", question(zone, miekg.TypeSOA, func(m *miekg.Msg) { m.Zero = true }), "NOERROR, aa, SOA"},
		{"AD bit", question(zone, miekg.TypeSOA, func(m *miekg.Msg) { m.AuthenticatedData = true }), "NOERROR, aa, SOA"},
		{"CD bit", question(zone, miekg.TypeSOA, func(m *miekg.Msg) { m.CheckingDisabled = true }), "NOERROR, aa, SOA"},
		{"RD bit", question(zone, miekg.TypeSOA, func(m *miekg.Msg) { m.RecursionDesired = true }), "NOERROR, aa, rd, SOA"},
		{"RA, TC and AA bits in a query", question(zone, miekg.TypeSOA, func(m *miekg.Msg) { m.RecursionAvailable, m.Truncated, m.Authoritative = true, true, true }), "NOERROR, aa, SOA"},
		{"opcode 15, header only", headerOnly(15), "NOTIMP, header only"},
		{"opcode IQUERY, header only", headerOnly(miekg.OpcodeIQuery), "NOTIMP, header only"},
		{"opcode NOTIFY", question(zone, miekg.TypeSOA, func(m *miekg.Msg) { m.Opcode = miekg.OpcodeNotify }), "NOTIMP, header only"},
		{"opcode UPDATE", question(zone, miekg.TypeSOA, func(m *miekg.Msg) { m.Opcode = miekg.OpcodeUpdate }), "NOTIMP, header only"},
		{"no question", headerOnly(miekg.OpcodeQuery), "FORMERR, header only"},
		{"two questions", question(zone, miekg.TypeSOA, func(m *miekg.Msg) { m.Question = append(m.Question, m.Question[0]) }), "FORMERR, header only"},
		{"EDNS0", question(zone, miekg.TypeSOA, edns(4096, 0, 0)), "NOERROR, aa, SOA, " + edns0},
		{"EDNS0, NXDOMAIN", question(none, miekg.TypeA, edns(4096, 0, 0)), "NXDOMAIN, aa, SOA, " + edns0},
		{"EDNS0, REFUSED", question("example.com.", miekg.TypeA, edns(4096, 0, 0)), "REFUSED, " + edns0},
		{"EDNS1", question(zone, miekg.TypeSOA, edns(4096, 1, 0)), "BADVERS, " + edns0},
		{"EDNS0, unknown option", question(zone, miekg.TypeSOA, edns(4096, 0, 0, unknown)), "NOERROR, aa, SOA, " + edns0},
		{"EDNS1, unknown option", question(zone, miekg.TypeSOA, edns(4096, 1, 0, unknown)), "BADVERS, " + edns0},
		{"EDNS0, unknown flag", question(zone, miekg.TypeSOA, edns(4096, 0, 0x80)), "NOERROR, aa, SOA, " + edns0},
		{"EDNS1, unknown flag", question(zone, miekg.TypeSOA, edns(4096, 1, 0x80)), "BADVERS, " + edns0},
		{"DO", question(zone, miekg.TypeSOA, edns(4096, 0, bitDO)), "NOERROR, aa, SOA, " + do},
		{"DO with EDNS1", question(zone, miekg.TypeSOA, edns(4096, 1, bitDO)), "BADVERS, " + do},
		{"many options", question(zone, miekg.TypeSOA, edns(4096, 0, 0, many...)), "NOERROR, aa, SOA, " + edns0},
		{"two OPT records", question(zone, miekg.TypeSOA, func(m *miekg.Msg) { edns(4096, 0, 0)(m); edns(4096, 0, 0)(m) }), "FORMERR, " + edns0},
		{"class CHAOS", question("version.bind.", miekg.TypeTXT, func(m *miekg.Msg) { m.Question[0].Qclass = miekg.ClassCHAOS }), "REFUSED"},
		{"class CHAOS in our zone", question(zone, miekg.TypeSOA, func(m *miekg.Msg) { m.Question[0].Qclass = miekg.ClassCHAOS }), "REFUSED"},
		{"outside our zones", question("example.com.", miekg.TypeA, nil), "REFUSED"},
		{"ANY", question(web, miekg.TypeANY, nil), "NOERROR, aa, HINFO"},
		{"garbage after the header", append(headerOnly(miekg.OpcodeQuery)[:5], 1, 0, 0, 0, 0, 0, 0, 0xff, 0xff), "FORMERR, header only"},
	} {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(c.about+"/"+network, func(t *testing.T) {
				conn := dial(t, network, addr)
				send(t, conn, c.query)
				raw := receive(t, conn)
				if got, want := raw[:2], c.query[:2]; !slices.Equal(got, want) {
					t.Errorf("reply has id %x, query %x", got, want)
				}
				if got := outcome(t, raw); got != c.want {
					t.Errorf("got  %s\nwant %s", got, c.want)
				}
			})
		}
	}
}

// TestSilence: what is no query gets no answer, and the next query does.
func TestSilence(t *testing.T) {
	addr := listening(t, "127.0.0.1:0", sample(ModeSubmariner, Service{Clusters: []Cluster{in("g2", ready("120.2.0.1"))}}))
	conn := dial(t, "udp", addr)
	response := new(miekg.Msg).SetQuestion("clusterset.local.", miekg.TypeSOA)
	response.Response = true
	good := new(miekg.Msg).SetQuestion("clusterset.local.", miekg.TypeSOA)
	for _, m := range [][]byte{pack(t, response), {1, 2, 3}, pack(t, good)} {
		send(t, conn, m)
	}
	if got, want := receive(t, conn)[:2], pack(t, good)[:2]; !slices.Equal(got, want) {
		t.Errorf("first answer has id %x, want %x: the good query's", got, want)
	}
}

func TestTruncation(t *testing.T) {
	many := Service{Name: "many", Type: Headless}
	c := Cluster{ID: "g2"}
	for i := range 200 {
		c.Endpoints = append(c.Endpoints, ready(fmt.Sprintf("120.2.0.%d", i)))
	}
	many.Clusters = []Cluster{c}
	few := Service{Name: "few", Type: Headless, Clusters: []Cluster{{ID: "g2", Endpoints: c.Endpoints[:70]}}}
	addr := listening(t, "127.0.0.1:0", sample(ModeSubmariner, many, few))

	for _, c := range []struct {
		about, network, service string
		bufsize                 uint16 // 0: no EDNS
		largest, answers        int
		truncated               bool
	}{
		{"no EDNS", "udp", "many", 0, 512, 28, true},
		{"less than the least", "udp", "many", 100, 512, 28, true},
		{"the asker's size", "udp", "many", 1000, 1000, 58, true},
		{"never above 1232", "udp", "many", 4096, 1232, 73, true},
		{"fits", "udp", "few", 1232, 1232, 70, false},
		{"TCP has all", "tcp", "many", 0, maxTCP, 200, false},
		{"TCP does not mind the UDP size", "tcp", "many", 512, maxTCP, 200, false},
	} {
		t.Run(c.about, func(t *testing.T) {
			m := new(miekg.Msg).SetQuestion(c.service+zoneSuffix+".", miekg.TypeA)
			if c.bufsize > 0 {
				m.SetEdns0(c.bufsize, false)
			}
			conn := dial(t, c.network, addr)
			send(t, conn, pack(t, m))
			raw := receive(t, conn)
			r := new(miekg.Msg)
			if err := r.Unpack(raw); err != nil {
				t.Fatal(err)
			}
			if len(raw) > c.largest || len(r.Answer) != c.answers || r.Truncated != c.truncated {
				t.Errorf("%d octets, %d answers, tc %v; want at most %d, %d, %v", len(raw), len(r.Answer), r.Truncated, c.largest, c.answers, c.truncated)
			}
			if (r.IsEdns0() != nil) != (c.bufsize > 0) {
				t.Errorf("OPT record in the reply: %v", r.IsEdns0())
			}
		})
	}
}

// TestManyQueriesOnOneConnection also writes two before it reads (RFC 7766
// §6.2.1.1).
func TestManyQueriesOnOneConnection(t *testing.T) {
	addr := listening(t, "127.0.0.1:0", sample(ModeSubmariner, Service{Clusters: []Cluster{in("g2", ready("120.2.0.1"))}}))
	conn := dial(t, "tcp", addr)
	for range 200 {
		a := pack(t, new(miekg.Msg).SetQuestion("web"+zoneSuffix+".", miekg.TypeA))
		b := pack(t, new(miekg.Msg).SetQuestion("none"+zoneSuffix+".", miekg.TypeA))
		send(t, conn, a, b)
		for _, q := range [][]byte{a, b} {
			if got := receive(t, conn); !slices.Equal(got[:2], q[:2]) {
				t.Fatalf("reply has id %x, want %x", got[:2], q[:2])
			}
		}
	}
}

// TestAnswerComesFromTheAskedAddress: a connected socket takes no answer from
// any other.
func TestAnswerComesFromTheAskedAddress(t *testing.T) {
	table := sample(ModeSubmariner, Service{Clusters: []Cluster{in("g2", ready("120.2.0.1"))}})
	for _, wildcard := range []string{"0.0.0.0:0", ":0"} {
		_, port, err := net.SplitHostPort(listening(t, wildcard, table))
		if err != nil {
			t.Fatal(err)
		}
		conn := dial(t, "udp", net.JoinHostPort("127.0.0.2", port))
		q := pack(t, new(miekg.Msg).SetQuestion("web"+zoneSuffix+".", miekg.TypeA))
		send(t, conn, q)
		if got := receive(t, conn); !slices.Equal(got[:2], q[:2]) {
			t.Errorf("%s: reply has id %x, want %x", wildcard, got[:2], q[:2])
		}
	}
}

func TestOpenFails(t *testing.T) {
	h := NewHandler(newRegistry())
	taken := listening(t, "127.0.0.1:0", Table{Mode: ModeMCS, Zones: []string{"clusterset.local"}})
	blocker, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer blocker.Close()
	for _, c := range []struct {
		about, addr string
		sockets     int
		want        string
	}{
		{"no sockets", "127.0.0.1:0", 0, "at least 1"},
		{"another server's TCP port", taken, 1, "/tcp"},
		{"a TCP port in use", blocker.Addr().String(), 1, "/tcp"},
		{"no such address", "192.0.2.1:0", 1, "192.0.2.1:0/udp"},
	} {
		t.Run(c.about, func(t *testing.T) {
			if _, err := Open(c.addr, c.sockets, h); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one with %q", err, c.want)
			}
		})
	}
}

// The port that the kernel gives a UDP socket may be in use for TCP: both get another one.
func TestOpenTakesAPortThatIsFreeForBoth(t *testing.T) {
	ns := netns.ForTest(t, "dns")
	if err := ns.Sysctl("net/ipv4/ip_local_port_range", "40000 40001"); err != nil {
		t.Fatal(err)
	}
	if err := ns.Do(func() error {
		blocker, err := net.Listen("tcp", "127.0.0.1:40000")
		if err != nil {
			return err
		}
		defer blocker.Close()
		for range 8 {
			s, err := Open("127.0.0.1:0", 2, NewHandler(newRegistry()))
			if err != nil {
				return err
			}
			if port := s.Addr().Port(); port != 40001 {
				t.Errorf("the server listens on port %d, want 40001", port)
			}
			if err := s.Close(t.Context()); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
