package main

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelago-net/pelago/test/resultfile"
	"pgregory.net/rapid"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{7}, 7},
		{[]float64{9, 1, 5}, 5},
		{[]float64{8, 2, 4, 100}, 6},
	} {
		if got := median(c.values); got != c.want {
			t.Errorf("median(%v) = %g, want %g", c.values, got, c.want)
		}
	}
}

func TestMedianIsInTheMiddle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(-1e9, 1e9), 1, 50).Draw(t, "values")
		before := slices.Clone(values)
		m := median(values)
		if !slices.Equal(before, values) {
			t.Fatal("the values were reordered")
		}
		var below, above int
		for _, v := range values {
			if v < m {
				below++
			}
			if v > m {
				above++
			}
		}
		if 2*below > len(values) || 2*above > len(values) {
			t.Fatalf("median %g of %v: %d below, %d above", m, values, below, above)
		}
	})
}

// The machine halves its speed in the second repetition; the paired ratios do not notice, ratios of
// medians would.
func TestRatiosArePaired(t *testing.T) {
	s := Samples{
		{Case: "c", Variant: "limit", Rounds: []Values{nil, nil, {metricUDP: 5}}},
		{Case: "c", Variant: "floor", Rounds: []Values{{metricCPU: 300}, {metricCPU: 600}, nil}},
		{Case: "c", Variant: "iptables", Rounds: []Values{{metricCPU: 1000}, {metricCPU: 2000}, {metricCPU: 1000}}},
		{Case: "c", Variant: "floor-vip", Rounds: []Values{{metricCPU: 330}, nil, {metricCPU: 330}}},
		{Case: "d", Variant: "floor", Rounds: []Values{nil, {metricCPU: 100}, nil}, Programs: []Values{{allPrograms: 7, "p@na": 3}}},
		{Case: caseGatewayPath, Variant: "floor", Rounds: nil, Programs: []Values{{"p@na": 3}, {"p@na": 5}}},
	}
	want := []resultfile.Row{
		{Case: "c", Variant: "limit", Metric: "udp_pps", Unit: "1/s", N: 1, Median: 5, Min: 5, Max: 5},
		{Case: "c", Variant: "floor", Metric: "cpu_ns_per_packet", Unit: "ns", N: 2, Median: 450, Min: 300, Max: 600},
		{Case: "c", Variant: "iptables", Metric: "cpu_ns_per_packet", Unit: "ns", N: 3, Median: 1000, Min: 1000, Max: 2000},
		{Case: "c", Variant: "floor-vip", Metric: "cpu_ns_per_packet", Unit: "ns", N: 2, Median: 330, Min: 330, Max: 330},
		{Case: "d", Variant: "floor", Metric: "cpu_ns_per_packet", Unit: "ns", N: 1, Median: 100, Min: 100, Max: 100},
		{Case: "d", Variant: "floor", Metric: "prog_ns", Unit: "ns", N: 1, Median: 7, Min: 7, Max: 7},
		{Case: "c", Variant: "floor", Metric: "cpu_ns_per_packet_vs_iptables", Unit: "ratio", N: 2, Median: 0.3, Min: 0.3, Max: 0.3},
		{Case: "c", Variant: "floor-vip", Metric: "cpu_ns_per_packet_vs_direct", Unit: "ratio", N: 1, Median: 1.1, Min: 1.1, Max: 1.1},
		{Case: "c", Variant: "floor-vip", Metric: "cpu_ns_per_packet_vs_iptables", Unit: "ratio", N: 2, Median: 0.33, Min: 0.33, Max: 0.33},
		{Case: "p@na", Variant: "floor", Metric: "prog_ns", Unit: "ns", N: 2, Median: 4, Min: 3, Max: 5},
	}
	if diff := cmp.Diff(want, s.rows()); diff != "" {
		t.Error(diff)
	}
}

// Ratios do not change when a repetition as a whole is faster or slower.
func TestRatiosCancelTheMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "n")
		positive := rapid.Float64Range(0.001, 1e6)
		sample := func() Samples { return Samples{{Case: "c", Variant: "plain"}, {Case: "c", Variant: "iptables"}} }
		s, scaled := sample(), sample()
		for range n {
			ref, v, f := positive.Draw(t, "iptables"), positive.Draw(t, "plain"), positive.Draw(t, "speed")
			s[0].Rounds = append(s[0].Rounds, Values{metricTCP: v})
			s[1].Rounds = append(s[1].Rounds, Values{metricTCP: ref})
			scaled[0].Rounds = append(scaled[0].Rounds, Values{metricTCP: v * f})
			scaled[1].Rounds = append(scaled[1].Rounds, Values{metricTCP: ref * f})
		}
		ratio := func(s Samples) float64 {
			all := s.rows()
			i := slices.IndexFunc(all, func(r resultfile.Row) bool { return r.Unit == ratioUnit })
			return all[i].Median
		}
		if a, b := ratio(s), ratio(scaled); math.Abs(a-b) > 1e-9*math.Abs(a) {
			t.Fatalf("ratio %g became %g", a, b)
		}
	})
}

func TestTables(t *testing.T) {
	s := Samples{
		{Case: "c", Variant: "iptables", Rounds: []Values{{metricCPU: 1000}}},
		{Case: "c", Variant: "floor", Rounds: []Values{{metricCPU: 250}}, Programs: []Values{{allPrograms: 77}}},
		{Case: "c", Variant: "floor-vip", Rounds: []Values{{metricCPU: 260}}},
	}
	var out strings.Builder
	if err := printTables(&out, s.rows()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"medians\n", "paired ratios to iptables", "0.25 (0.25-0.25)", "paired ratios to the service's own address", "1.04 (1.04-1.04)", " - ", "ns a packet", "77"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the tables lack %q:\n%s", want, out.String())
		}
	}
}
