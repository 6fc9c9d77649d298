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

// The machine halves its speed in the second repetition; the paired ratios do not notice, ratios of medians would.
func TestRatiosArePaired(t *testing.T) {
	s := Samples{
		"iptables": {{metricCPU: 1000}, {metricCPU: 2000}, {metricCPU: 1000}},
		"floor":    {{metricCPU: 300}, {metricCPU: 600}, nil},
		"limit":    {nil, nil, {metricUDP: 5}},
	}
	want := []resultfile.Row{
		{Case: "gateway-path", Variant: "limit", Metric: "udp_pps", Unit: "1/s", N: 1, Median: 5, Min: 5, Max: 5},
		{Case: "gateway-path", Variant: "floor", Metric: "cpu_ns_per_packet", Unit: "ns", N: 2, Median: 450, Min: 300, Max: 600},
		{Case: "gateway-path", Variant: "iptables", Metric: "cpu_ns_per_packet", Unit: "ns", N: 3, Median: 1000, Min: 1000, Max: 2000},
		{Case: "gateway-path", Variant: "floor", Metric: "cpu_ns_per_packet_vs_iptables", Unit: "ratio", N: 2, Median: 0.3, Min: 0.3, Max: 0.3},
	}
	if diff := cmp.Diff(want, rows([]string{"limit", "floor", "iptables"}, s)); diff != "" {
		t.Error(diff)
	}
}

// Ratios do not change when a repetition as a whole is faster or slower.
func TestRatiosCancelTheMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "n")
		positive := rapid.Float64Range(0.001, 1e6)
		s, scaled := Samples{}, Samples{}
		for range n {
			ref, v, f := positive.Draw(t, "iptables"), positive.Draw(t, "plain"), positive.Draw(t, "speed")
			s["iptables"] = append(s["iptables"], Values{metricTCP: ref})
			s["plain"] = append(s["plain"], Values{metricTCP: v})
			scaled["iptables"] = append(scaled["iptables"], Values{metricTCP: ref * f})
			scaled["plain"] = append(scaled["plain"], Values{metricTCP: v * f})
		}
		ratio := func(s Samples) float64 {
			all := rows([]string{"plain", "iptables"}, s)
			i := slices.IndexFunc(all, func(r resultfile.Row) bool { return r.Unit == ratioUnit })
			return all[i].Median
		}
		if a, b := ratio(s), ratio(scaled); math.Abs(a-b) > 1e-9*math.Abs(a) {
			t.Fatalf("ratio %g became %g", a, b)
		}
	})
}

func TestTables(t *testing.T) {
	names := []string{"floor", "iptables"}
	s := Samples{"iptables": {{metricCPU: 1000}}, "floor": {{metricCPU: 250}}}
	var out strings.Builder
	if err := printTables(&out, names, rows(names, s)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"medians\n", "paired ratios to iptables", "0.25 (0.25-0.25)", " - "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the tables lack %q:\n%s", want, out.String())
		}
	}
}
