package status

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/dataplane/liveness"
	"github.com/pelago-net/pelago/test/clusterset"
)

var begin = time.Unix(1_700_000_000, 0)

func lossy() liveness.Path { p := clusterset.Answering(); p.Loss = 0.12; return p }

// The message reports lost GSO packets on a connected path, together with an MTU black hole.
func TestLostGSOPackets(t *testing.T) {
	for want, size := range map[string]liveness.Size{
		"": {Full: 1390, Passes: 1390},
		"large TCP transfers from there to pods of this node stall: its firewall drops UDP 4800 of packets that the network card or GRO has merged " +
			"(condition Firewall of its NodeIndex)": {Full: 1390, Passes: 1390, GSOLost: true},
		"packets of more than 1330 bytes are lost on the way (with headers 1330; the uplinks allow 1390), so pods are told to send none: " +
			"let packets of 1390 bytes pass on every link between the nodes, or set the MTU of the uplinks to 1330; " +
			"large TCP transfers from there to pods of this node stall: its firewall drops UDP 4800 of packets that the network card or GRO has merged " +
			"(condition Firewall of its NodeIndex)": {Full: 1390, Passes: 1330, GSOLost: true},
	} {
		s := trackedPath{answered: true, path: clusterset.Answering(), size: size}
		if got := s.message("UDP 4500"); got != want {
			t.Errorf("%+v: %q; want %q", size, got, want)
		}
	}
}

// A connection is dead at once, and connected again after three seconds without a gap.
func TestConnectionIsDamped(t *testing.T) {
	var l trackedPath
	unready := clusterset.Answering()
	unready.Ready = false
	suspect := clusterset.Silent(100 * time.Millisecond)
	suspect.Loss = 0
	for _, step := range []struct {
		what   string
		at     time.Duration
		path   liveness.Path
		absent bool
		status submarinerv1.ConnectionStatus
		says   string
	}{
		{"new", 0, liveness.Path{Probes: 1}, false, submarinerv1.Connecting, "waiting for the first answer"},
		{"not all tables there", 100, unready, false, submarinerv1.Connecting, "its tables are not complete yet"},
		{"first good answer", 200, clusterset.Answering(), false, submarinerv1.Connected, ""},
		{"suspect", 300, suspect, false, submarinerv1.Connected, ""},
		{"dead", 1000, clusterset.Silent(2 * time.Second), false, submarinerv1.ConnectionError, "not answered any more: does the node run, and does UDP 4500 pass?"},
		{"answers", 2000, clusterset.Answering(), false, submarinerv1.Connecting, "answers again; connected after 3s"},
		{"still", 4900, clusterset.Answering(), false, submarinerv1.Connecting, "answers again"},
		{"a gap", 4950, suspect, false, submarinerv1.ConnectionError, "not answered"},
		{"answers anew", 5000, clusterset.Answering(), false, submarinerv1.Connecting, "answers again"},
		{"long enough after the first, not after the gap", 5100, clusterset.Answering(), false, submarinerv1.Connecting, "answers again"},
		{"steady", 8000, lossy(), false, submarinerv1.Connected, ""},
		{"the loss of the outage", 8100, lossy(), false, submarinerv1.Connected, ""},
		{"is forgotten", 8900, clusterset.Answering(), false, submarinerv1.Connected, ""},
		{"loses", 9000, lossy(), false, submarinerv1.Connected, "degraded: 12 % of the probes are lost"},
		{"loses less for a moment", 9100, clusterset.Answering(), false, submarinerv1.Connected, "degraded: 12 %"},
		{"loses less for long", 12100, clusterset.Answering(), false, submarinerv1.Connected, ""},
		{"the tunnel is gone", 13000, liveness.Path{}, true, submarinerv1.ConnectionError, "not answered any more"},
		{"it still is", 13100, liveness.Path{}, true, submarinerv1.ConnectionError, "not answered any more"},
		{"the tunnel is back, nobody answered yet", 14000, liveness.Path{Probes: 1}, false, submarinerv1.ConnectionError, "not answered any more"},
		{"it answers, with loss", 15000, lossy(), false, submarinerv1.Connecting, "answers again"},
		{"with loss, steadily", 18000, lossy(), false, submarinerv1.Connected, ""},
		{"the loss is not that of the outage", 50000, lossy(), false, submarinerv1.Connected, "degraded"},
	} {
		l.update(step.path, !step.absent, begin.Add(step.at*time.Millisecond))
		if said := l.message("UDP 4500"); l.status != step.status || !strings.Contains(said, step.says) || (step.says == "") != (said == "") {
			t.Errorf("%s: %s %q, want %s %q", step.what, l.status, said, step.status, step.says)
		}
	}
}

func TestNeverAnswered(t *testing.T) {
	var l trackedPath
	never := liveness.Path{Probes: 40, Open: 40, OldestOpen: time.Minute, Seen: time.Hour}
	l.update(never, true, begin)
	if l.status != submarinerv1.Connecting {
		t.Errorf("at the first look: %s", l.status)
	}
	l.update(never, true, begin.Add(firstAnswer))
	if l.status != submarinerv1.ConnectionError || !strings.Contains(l.message("UDP 4500 to x"), "does UDP 4500 to x pass in both directions") {
		t.Errorf("after %s: %s %q", firstAnswer, l.status, l.message("UDP 4500 to x"))
	}
}

func TestLatencyWindow(t *testing.T) {
	var w rttWindow
	p := clusterset.Answering()
	for i, rtt := range []time.Duration{time.Millisecond, 3 * time.Millisecond, 2 * time.Millisecond} {
		p.Replies, p.RTT = uint64(i+1), rtt
		w.update(p)
		w.update(p) // the same answer is counted once
	}
	want := &submarinerv1.LatencyRTTSpec{Last: "2ms", Min: "1ms", Average: "2ms", Max: "3ms", StdDev: "1ms"}
	if diff := cmp.Diff(want, w.spec()); diff != "" {
		t.Error(diff)
	}
	for i := range rttSamples {
		p.Replies, p.RTT = uint64(i+10), 5*time.Millisecond
		w.update(p)
	}
	if got := w.spec(); got.Min != "5ms" || got.StdDev != "0s" {
		t.Errorf("old samples are counted after %d new ones: %+v", rttSamples, got)
	}
}

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }
