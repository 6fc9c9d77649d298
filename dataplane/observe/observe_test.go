package observe

import (
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pelago-net/pelago/dataplane/loader"
)

type source struct {
	counters []loader.Counter
	flows    []loader.Flow
	err      error
}

func (s source) Counters() ([]loader.Counter, error) { return s.counters, s.err }
func (s source) Flows() ([]loader.Flow, error)       { return s.flows, s.err }

func TestCollect(t *testing.T) {
	c := New(source{
		counters: []loader.Counter{{Hook: "edge-out", Verdict: "sent", Packets: 3, Bytes: 300}, {Hook: "uplink-in", Verdict: "drop-bad-token", Packets: 1, Bytes: 90}},
		flows: []loader.Flow{
			{Role: loader.RoleClient, Protocol: "tcp", State: "established"},
			{Role: loader.RoleClient, Protocol: "tcp", State: "established"},
			{Role: loader.RoleServer, Protocol: "udp", State: "active"},
		},
	})
	want := `
# HELP pelago_nat_flows Translated flows of this node.
# TYPE pelago_nat_flows gauge
pelago_nat_flows{protocol="tcp",role="client",state="established"} 2
pelago_nat_flows{protocol="udp",role="server",state="active"} 1
# HELP pelago_packets_total Packets by the hook that saw them and what became of them.
# TYPE pelago_packets_total counter
pelago_packets_total{hook="edge-out",verdict="sent"} 3
pelago_packets_total{hook="uplink-in",verdict="drop-bad-token"} 1
`
	if err := testutil.CollectAndCompare(c, strings.NewReader(want), "pelago_nat_flows", "pelago_packets_total"); err != nil {
		t.Error(err)
	}
	problems, err := testutil.CollectAndLint(c)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}

func TestUnreadableMapsShow(t *testing.T) {
	want := `
# HELP pelago_scrape_error 1 if the maps could not be read at this scrape.
# TYPE pelago_scrape_error gauge
pelago_scrape_error 1
`
	if err := testutil.CollectAndCompare(New(source{err: errors.New("gone")}), strings.NewReader(want), "pelago_scrape_error"); err != nil {
		t.Error(err)
	}
}
