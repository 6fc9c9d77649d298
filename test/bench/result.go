package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// Report is the content of a result file; every suite writes this form.
type Report struct {
	Suite  string `json:"suite"`
	Commit string `json:"commit"` // "-dirty" at its end: the tree had changes
	Kernel string `json:"kernel"`
	CPUs   int    `json:"cpus"`
	Rows   []Row  `json:"rows"`
}

// Row is one metric of one variant over its repetitions.
type Row struct {
	Case    string  `json:"case"`
	Variant string  `json:"variant"`
	Metric  string  `json:"metric"`
	Unit    string  `json:"unit"`
	N       int     `json:"n"` // number of repetitions that count
	Median  float64 `json:"median"`
	Min     float64 `json:"min"`
	Max     float64 `json:"max"`
}

// Samples holds all repetitions: variant → repetition → values. A variant that failed as a whole has nil there.
type Samples map[string][]Values

// rows turns the samples into rows: first the metrics, then their paired ratios to the reference. A ratio is taken
// within each repetition, where both ran seconds apart, and only then summed up: the machine's speed changes from minute
// to minute, and this way it cancels out. What was not measured has no row.
func rows(names []string, s Samples) []Row {
	var out, ratios []Row
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

func row(variant, metric, unit string, values []float64) Row {
	return Row{
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

// write puts the report into a file, whose folder it makes.
func (r Report) write(name string) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("encode the report: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return os.WriteFile(name, append(b, '\n'), 0o644)
}
