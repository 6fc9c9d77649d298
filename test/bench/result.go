package main

import (
	"slices"

	"github.com/pelago-net/pelago/test/resultfile"
)

// Metric names of the result file.
const (
	metricUDP    = "udp_pps"
	metricCPU    = "cpu_ns_per_packet"
	metricTCP    = "tcp_gbps"
	metricRRp50  = "rr_p50_us"
	metricRRp99  = "rr_p99_us"
	metricCRR    = "crr_per_s"
	metricCRRp50 = "crr_p50_us"
)

const (
	caseGatewayPath = "gateway-path"

	// reference is the variant that ratios refer to; ratio rows carry it as a suffix of the metric.
	reference   = "iptables"
	ratioSuffix = "_vs_" + reference
	ratioUnit   = "ratio"
)

// metrics lists all metrics with their units in the order of the tables.
var metrics = []struct{ name, unit string }{
	{metricCPU, "ns"}, {metricUDP, "1/s"}, {metricTCP, "Gbit/s"},
	{metricRRp50, "us"}, {metricRRp99, "us"}, {metricCRR, "1/s"}, {metricCRRp50, "us"},
}

// Samples holds all repetitions: variant → repetition → values. A variant that failed as a whole has nil there.
type Samples map[string][]Values

// rows turns the samples into rows: first the metrics, then their paired ratios to the reference. A ratio is taken
// within each repetition, where both ran seconds apart, and only then summed up: the machine's speed changes from minute
// to minute, and this way it cancels out. What was not measured has no row.
func rows(names []string, s Samples) []resultfile.Row {
	var out, ratios []resultfile.Row
	for _, v := range names {
		for _, m := range metrics {
			var values, paired []float64
			for rep, got := range s[v] {
				x, ok := got[m.name]
				if !ok {
					continue
				}
				values = append(values, x)
				if rep < len(s[reference]) {
					if ref, ok := s[reference][rep][m.name]; ok {
						paired = append(paired, x/ref)
					}
				}
			}
			if len(values) > 0 {
				out = append(out, row(v, m.name, m.unit, values))
			}
			if len(paired) > 0 && v != reference {
				ratios = append(ratios, row(v, m.name+ratioSuffix, ratioUnit, paired))
			}
		}
	}
	return append(out, ratios...)
}

func row(variant, metric, unit string, values []float64) resultfile.Row {
	return resultfile.Row{
		Case: caseGatewayPath, Variant: variant, Metric: metric, Unit: unit, N: len(values),
		Median: median(values), Min: slices.Min(values), Max: slices.Max(values),
	}
}

// median of at least one value; the mean of the middle two of an even number.
func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	mid := len(v) / 2
	if len(v)%2 == 1 {
		return v[mid]
	}
	return (v[mid-1] + v[mid]) / 2
}
