package main

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	miekg "github.com/miekg/dns"

	"github.com/pelago-net/pelago/test/resultfile"
)

// TestWrongAnswersFail: both senders accept what a right server answers, and refuse every other
// answer.
func TestWrongAnswersFail(t *testing.T) {
	address := netip.MustParseAddr("10.77.0.1")
	s := setup{services: services{"web-0": {address}, "db-0": {netip.MustParseAddr("10.7.0.1")}}}
	for _, c := range []struct {
		about  string
		answer func(*miekg.Msg)
		err    string
	}{
		{"right", func(*miekg.Msg) {}, ""},
		{"rcode", func(m *miekg.Msg) { m.Rcode = miekg.RcodeServerFailure }, "rcode 2, want 0"},
		{"nothing", func(m *miekg.Msg) { m.Answer = nil }, "0 records, want 1"},
		{"another address", func(m *miekg.Msg) { m.Answer[0].(*miekg.A).A = net.IPv4(10, 77, 0, 2) }, "address 10.77.0.2, want one of [10.77.0.1]"},
	} {
		t.Run(c.about, func(t *testing.T) {
			conn, err := net.ListenPacket("udp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			started := make(chan struct{})
			server := &miekg.Server{PacketConn: conn, NotifyStartedFunc: func() { close(started) }, Handler: miekg.HandlerFunc(func(w miekg.ResponseWriter, q *miekg.Msg) {
				m := new(miekg.Msg).SetReply(q)
				m.Answer = []miekg.RR{&miekg.A{Hdr: miekg.RR_Header{Name: q.Question[0].Name, Rrtype: miekg.TypeA, Class: miekg.ClassINET}, A: address.AsSlice()}}
				c.answer(m)
				_ = w.WriteMsg(m) // the sender reports what is missing
			})}
			go func() { _ = server.ActivateAndServe() }() // ends with Shutdown
			<-started
			defer func() {
				if err := server.Shutdown(); err != nil {
					t.Error(err)
				}
			}()
			addr := conn.LocalAddr().(*net.UDPAddr).AddrPort()
			questions := s.questions(caseClusterIP, clustersetZone)
			_, single := latency(t.Context(), addr, questions, 0)
			_, many := flood(t.Context(), addr, questions, time.Millisecond)
			for sender, err := range map[string]error{"latency": single, "flood": many} {
				if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
					t.Errorf("%s: got %v, want %q", sender, err, c.err)
				}
			}
		})
	}
}

// TestRows: ratios are paired by round, so a round in which the whole machine was slow changes
// none.
func TestRows(t *testing.T) {
	var all samples
	for round, speed := range []float64{1, 0.1, 1} {
		all.add(caseClusterIP, "coredns", round, values{metricQPS: 30_000 * speed})
		all.add(caseClusterIP, "pelago", round, values{metricQPS: 180_000 * speed})
	}
	want := []resultfile.Row{
		{Case: caseClusterIP, Variant: "coredns", Metric: metricQPS, Unit: "1/s", N: 3, Median: 30_000, Min: 3_000, Max: 30_000},
		{Case: caseClusterIP, Variant: "pelago", Metric: metricQPS, Unit: "1/s", N: 3, Median: 180_000, Min: 18_000, Max: 180_000},
		{Case: caseClusterIP, Variant: "pelago", Metric: metricQPS + "_vs_coredns", Unit: "ratio", N: 3, Median: 6, Min: 6, Max: 6},
	}
	if diff := cmp.Diff(want, all.rows()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
