package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/test/resultfile"
	"pgregory.net/rapid"
)

func TestPercentile(t *testing.T) {
	for _, tt := range []struct {
		n     int // values 1 to n
		share float64
		want  float64
	}{
		{1, 0.5, 1}, {1, 0.99, 1}, {2, 0.5, 1}, {3, 0.5, 2}, {10, 0.9, 9}, {100, 0.99, 99}, {101, 0.99, 100}, {20, 0.99, 20},
	} {
		var values []float64
		for i := range tt.n {
			values = append(values, float64(i+1))
		}
		if got := percentile(values, tt.share); got != tt.want {
			t.Errorf("percentile %g of 1…%d is %g, want %g", tt.share, tt.n, got, tt.want)
		}
	}
}

func TestPercentileProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(0, 1000), 1, 300).Draw(t, "values")
		share := rapid.Float64Range(0.01, 0.99).Draw(t, "share")
		slices.Sort(values)
		p := percentile(values, share)
		notAbove := 0
		for _, v := range values {
			if v <= p {
				notAbove++
			}
		}
		if !slices.Contains(values, p) || float64(notAbove) < share*float64(len(values))-0.001 {
			t.Fatalf("%g: %d of %d values are not above it, want a share of %g", p, notAbove, len(values), share)
		}
	})
}

func TestReport(t *testing.T) {
	chosen := []fault{{name: "cut", title: "a cut"}, {name: "drain", title: "a drain", planned: true}, {name: "absent", title: "not measured"}}
	results := map[string][]outcome{
		"cut": {
			{outages: []time.Duration{30 * time.Millisecond, 40 * time.Millisecond},
				certain: []time.Duration{30 * time.Millisecond, 35 * time.Millisecond}, lost: 70},
			{outages: []time.Duration{50 * time.Millisecond}, certain: []time.Duration{45 * time.Millisecond}, lost: 50, lostHealing: 2, failed: []failure{{}}},
		},
		"drain": {{}},
	}
	file := filepath.Join(t.TempDir(), "deep", "failover.json")
	var text bytes.Buffer
	if err := report(&text, options{file: file, wire: "vxlan", datapath: "strict"}, chosen, results); err != nil {
		t.Fatal(err)
	}
	var line []string
	for l := range strings.Lines(text.String()) {
		if fields := strings.Fields(l); len(fields) > 0 && fields[0] == "cut" {
			line = fields
		}
	}
	want := []string{"cut", "2", "3", "30", "40", "50", "50", "50", "45", "p50≤45", "p99≤60", "60", "70", "2", "0", "1", "0", "0", "0"}
	if diff := cmp.Diff(want, line); diff != "" {
		t.Errorf("row of the table: -want +got\n%s\n%s", diff, text.String())
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r resultfile.Report
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	if r.Suite != "failover" || r.Commit == "" || r.Kernel == "" || r.CPUs < 1 {
		t.Errorf("head of the report: %+v", r)
	}
	row := func(name, metric string) (out []resultfile.Row) {
		for _, row := range r.Rows {
			if row.Case == name && row.Metric == metric {
				out = append(out, row)
			}
		}
		return out
	}
	for _, tt := range []struct {
		name, metric string
		want         []resultfile.Row
	}{
		{"cut", "outage_ms_p50", []resultfile.Row{{Case: "cut", Variant: "pelago-vxlan-strict", Metric: "outage_ms_p50", Unit: "ms", N: 3, Median: 40, Min: 30, Max: 50}}},
		{"cut", "outage_ms_p99", []resultfile.Row{{Case: "cut", Variant: "pelago-vxlan-strict", Metric: "outage_ms_p99", Unit: "ms", N: 3, Median: 50, Min: 30, Max: 50}}},
		{"cut", "outage_certain_ms_p99", []resultfile.Row{{Case: "cut", Variant: "pelago-vxlan-strict", Metric: "outage_certain_ms_p99", Unit: "ms", N: 3, Median: 45, Min: 30, Max: 45}}},
		{"cut", "packets_lost", []resultfile.Row{{Case: "cut", Variant: "pelago-vxlan-strict", Metric: "packets_lost", Unit: "1", N: 2, Median: 50, Min: 50, Max: 70}}},
		{"cut", "connections_broken", []resultfile.Row{{Case: "cut", Variant: "pelago-vxlan-strict", Metric: "connections_broken", Unit: "1", N: 2, Median: 0, Min: 0, Max: 0}}},
		{"drain", "outage_ms_p50", nil},
		{"drain", "packets_lost", []resultfile.Row{{Case: "drain", Variant: "pelago-vxlan-strict", Metric: "packets_lost", Unit: "1", N: 1, Median: 0, Min: 0, Max: 0}}},
		{"absent", "packets_lost", nil},
	} {
		if diff := cmp.Diff(tt.want, row(tt.name, tt.metric)); diff != "" {
			t.Errorf("%s %s: -want +got\n%s", tt.name, tt.metric, diff)
		}
	}
}

func TestTargets(t *testing.T) {
	for _, tt := range []struct {
		f    fault
		want string
	}{
		{fault{}, "p50≤45 p99≤60"},
		{fault{rtt: 80 * time.Millisecond}, "p50≤125 p99≤140"},
		{fault{planned: true}, "0 lost"},
		{fault{name: nothing}, "-"},
	} {
		if got := tt.f.target(); got != tt.want {
			t.Errorf("target of %+v is %q, want %q", tt.f, got, tt.want)
		}
	}
}
