package main

import (
	"maps"
	"slices"
	"strings"

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
	// reference is the variant that ratios refer to; ratio rows carry it as a suffix of the metric.
	reference   = "iptables"
	ratioSuffix = "_vs_" + reference
	// directSuffix is of the ratios of a ClusterSetIP, whose variants end in vipSuffix, to the
	// service's own address.
	directSuffix = "_vs_direct"
	vipSuffix    = "-vip"
	ratioUnit    = "ratio"

	// metricProgram is the time in BPF programs: the case is the program and its node for a run of
	// one program, and the case of the path for all programs by packet.
	metricProgram = "prog_ns"
	allPrograms   = ""

	// metricConnection is the same for a connection: connect, one byte there and back, reset.
	metricConnection = "prog_ns_per_connection"
)

type metric struct{ name, unit string }

// metrics lists all metrics with their units in the order of the tables.
var metrics = []metric{
	{metricCPU, "ns"}, {metricUDP, "1/s"}, {metricTCP, "Gbit/s"},
	{metricRRp50, "us"}, {metricRRp99, "us"}, {metricCRR, "1/s"}, {metricCRRp50, "us"},
}

// Values holds what the measurements of one round gave: metric name → value in the metric's unit.
// What failed is missing.
type Values map[string]float64

// Sample is what was measured of one path.
type Sample struct {
	Case, Variant string
	Rounds        []Values
	Programs      []Values // per slice: label → ns per run; allPrograms → ns per packet
	Connections   []Values // per slice: label or allPrograms → ns per connection
}

// Samples are all paths of a run, in the order of the tables.
type Samples []*Sample

// find is the sample of a variant; nil if it was not measured.
func (all Samples) find(name, variant string) *Sample {
	if i := slices.IndexFunc(all, func(s *Sample) bool { return s.Case == name && s.Variant == variant }); i >= 0 {
		return all[i]
	}
	return nil
}

// paired are the ratios of a metric to another path, one a round in which both were measured.
func (s *Sample) paired(to *Sample, metric string) (ratios []float64) {
	if to == nil || to == s {
		return nil
	}
	for round, got := range s.Rounds {
		x, measured := got[metric]
		if base, ok := to.Rounds[round][metric]; ok && measured {
			ratios = append(ratios, x/base)
		}
	}
	return ratios
}

// rows turns the samples into rows: first the metrics, then their paired ratios to the reference,
// then the programs. A ratio is taken within each round, where both slices were less than a second
// apart, and the median is taken after that: the machine's speed changes from minute to minute, and
// this way it cancels out. What was not measured has no row.
func (all Samples) rows() []resultfile.Row {
	var out, ratios, programs []resultfile.Row
	for _, s := range all {
		references := map[string]*Sample{ratioSuffix: all.find(s.Case, reference)}
		if direct, ok := strings.CutSuffix(s.Variant, vipSuffix); ok {
			references[directSuffix] = all.find(s.Case, direct)
		}
		for _, m := range metrics {
			var values []float64
			for _, got := range s.Rounds {
				if x, ok := got[m.name]; ok {
					values = append(values, x)
				}
			}
			if len(values) > 0 {
				out = append(out, row(s.Case, s.Variant, m.name, m.unit, values))
			}
			for _, suffix := range slices.Sorted(maps.Keys(references)) {
				if paired := s.paired(references[suffix], m.name); len(paired) > 0 {
					ratios = append(ratios, row(s.Case, s.Variant, m.name+suffix, ratioUnit, paired))
				}
			}
		}
		for _, m := range []struct {
			metric string
			slices []Values
		}{{metricProgram, s.Programs}, {metricConnection, s.Connections}} {
			labels := map[string][]float64{}
			for _, slice := range m.slices {
				for label, ns := range slice {
					labels[label] = append(labels[label], ns)
				}
			}
			for _, label := range slices.Sorted(maps.Keys(labels)) {
				if label == allPrograms {
					out = append(out, row(s.Case, s.Variant, m.metric, "ns", labels[label]))
				} else if s.Case == caseGatewayPath {
					programs = append(programs, row(label, s.Variant, m.metric, "ns", labels[label]))
				}
			}
		}
	}
	return slices.Concat(out, ratios, programs)
}

func row(name, variant, metric, unit string, values []float64) resultfile.Row {
	return resultfile.Row{
		Case: name, Variant: variant, Metric: metric, Unit: unit, N: len(values),
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
