// Command dns compares pelago-dns with CoreDNS and its kubernetes plugin: both serve the same
// services of one API server, and take turns in short slices. `make bench-dns` starts it:
//
//	go run ./test/bench/dns -rounds 20 -slice 200ms -out out/dns.json
//	go run ./test/bench/dns -cases clusterip -variants pelago,coredns
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/pelago-net/pelago/test/program"
	"github.com/pelago-net/pelago/test/resultfile"
)

func main() {
	program.QuietClients()
	program.Main("bench of the name servers", run)
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("dns", flag.ExitOnError)
	rounds := flags.Int("rounds", 20, "rounds; each measures every variant once, in rotating order")
	slice := flags.Duration("slice", 200*time.Millisecond, "length of one measurement; each variant has two in a round and case")
	services := flags.Int("services", 1000, "ClusterIP services, with a tenth as many headless ones of three pods")
	caseNames := flags.String("cases", "", "comma-separated cases (default: all)")
	variantNames := flags.String("variants", "", "comma-separated variants (default: all)")
	file := flags.String("out", "out/dns.json", "result file")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *rounds < 1 || *slice <= 0 || *services < 1 {
		return errors.New("--rounds, --slice and --services must be positive")
	}
	chosenCases, err := program.Choose("case", *caseNames, cases, func(c string) string { return c })
	if err != nil {
		return err
	}
	chosen, err := program.Choose("variant", *variantNames, variants, func(v variant) string { return v.name })
	if err != nil {
		return err
	}
	ctx, cancel := program.Context()
	defer cancel()
	s, err := openSetup(ctx, *services)
	if err != nil {
		return err
	}
	samples, err := s.measure(ctx, chosenCases, chosen, *rounds, *slice)
	if err = errors.Join(err, s.close()); err != nil {
		return err
	}
	rows := samples.rows()
	report, err := resultfile.New("dns", rows)
	if err != nil {
		return err
	}
	return errors.Join(report.Write(*file), printTable(out, rows))
}

// measure has the variants take turns. Every answer of every slice is checked.
func (s *setup) measure(ctx context.Context, cases []string, variants []variant, rounds int, slice time.Duration) (samples, error) {
	all := samples{}
	for round := range rounds {
		for _, c := range cases {
			for i := range variants {
				v := variants[(round+i)%len(variants)]
				questions := s.questions(c, v.zone)
				before, err := s.processorTime(v)
				if err != nil {
					return nil, err
				}
				answered, err := flood(ctx, s.address(v), questions, slice)
				if err != nil {
					return nil, fmt.Errorf("case %s, variant %s: %w", c, v.name, err)
				}
				after, err := s.processorTime(v)
				if err != nil {
					return nil, err
				}
				took, err := latency(ctx, s.address(v), questions, slice)
				if err != nil {
					return nil, fmt.Errorf("case %s, variant %s: %w", c, v.name, err)
				}
				end, err := s.processorTime(v)
				if err != nil {
					return nil, err
				}
				all.add(c, v.name, round, values{
					metricQPS:    float64(answered) / (after - before).Seconds(),
					metricSingle: float64(len(took)) / (end - after).Seconds(),
					metricP50:    took[len(took)/2].Seconds() * 1e6, metricP99: took[len(took)*99/100].Seconds() * 1e6,
				})
			}
		}
		slog.Info("measured", "round", round+1, "of", rounds)
	}
	for _, v := range variants {
		rss, err := s.residentMemory(v)
		if err != nil {
			return nil, err
		}
		all.add(caseMemory, v.name, 0, values{metricRSS: rss})
	}
	return all, nil
}
