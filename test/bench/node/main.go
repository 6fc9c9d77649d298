// Command node measures the node daemon by size of the cluster: duration of the start, memory,
// processor time idle and under endpoint changes, and the latency from a write at the API server to
// the BPF map. It runs pelago-node in a network namespace, against a real API server: `make
// bench-node`.
//
//	go run ./test/bench/node -out out/node.json
//	go run ./test/bench/node -nodes 100 -rates 10 -period 10s    # a short run
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/pelago-net/pelago/test/program"
	"github.com/pelago-net/pelago/test/resultfile"
)

func main() {
	program.QuietClients()
	program.Main("bench of the node daemon", run)
}

type options struct {
	bin, dir string
	gateway  bool
	period   time.Duration
	rates    []float64
}

func run(args []string, out io.Writer) error {
	var o options
	flags := flag.NewFlagSet("node", flag.ExitOnError)
	flags.StringVar(&o.bin, "bin", "bin", "directory of the product's programs")
	file := flags.String("out", "out/node.json", "result file")
	flags.StringVar(&o.dir, "dir", "out/node", "directory for the daemon's log and state, emptied at the start")
	sizes := flags.String("nodes", "10,100,1000,5000", "sizes of the cluster, separated by commas; there are 50 endpoints per node")
	rates := flags.String("rates", "10,325", "changes of endpoints per second, separated by commas")
	flags.DurationVar(&o.period, "period", 30*time.Second, "how long each figure is measured")
	flags.BoolVar(&o.gateway, "gateway", true, "the node is a gateway")
	if err := flags.Parse(args); err != nil {
		return err
	}
	nodes, err := numbers("nodes", *sizes)
	if err != nil {
		return err
	}
	if o.rates, err = numbers("rates", *rates); err != nil {
		return err
	}
	if o.dir, err = program.Emptied(o.dir); err != nil {
		return err
	}
	ctx, cancel := program.Context()
	defer cancel()
	var rows []resultfile.Row
	for _, n := range nodes {
		c := clusterOf(int(n))
		slog.Info("cluster", "nodes", c.nodes, "services", c.services, "endpoints", c.services*endpointsPerService, "peers", c.clusters*gatewaysPerCluster)
		measured, err := measure(ctx, o, c)
		if err != nil {
			return errors.Join(fmt.Errorf("a cluster of %d nodes: %w", c.nodes, err), context.Cause(ctx))
		}
		rows = append(rows, measured...)
	}
	report, err := resultfile.New("node", rows)
	if err != nil {
		return err
	}
	return errors.Join(printTable(out, rows), report.Write(*file))
}

// numbers parses positive numbers that commas separate.
func numbers(flagName, text string) (out []float64, err error) {
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseFloat(field, 64)
		if err != nil || n <= 0 {
			return nil, fmt.Errorf("-%s: %q is no positive number", flagName, field)
		}
		out = append(out, n)
	}
	return out, nil
}
