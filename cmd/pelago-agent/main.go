// Command pelago-agent runs the controllers of one member cluster. With --roles=network these are addresses, port
// blocks, peers and service discovery; it writes no workload. With --roles=execution it runs what the hub propagates to
// the cluster, and reports on the cluster.
package main

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/pelago-net/pelago/cmd/internal/program"
)

// Limits of requests to the member's API server, per second: an export makes about a dozen writes. The server's own
// priority and fairness protects it from more.
const (
	memberQPS   = 200
	memberBurst = 400
)

func main() { program.Main("pelago-agent", run) }

// run is the whole program; it ends with ctx, or when the configuration has changed.
func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	program.LogAbove(o.logLevel)
	member, err := program.Connect(o.kubeconfig, "pelago-agent", "")
	if err != nil {
		return err
	}
	member.QPS, member.Burst = memberQPS, memberBurst
	a, err := open(ctx, member, o)
	if err != nil {
		return err
	}
	for _, c := range a.metrics {
		if err := metrics.Registry.Register(c); err != nil {
			return fmt.Errorf("register the metrics of the hub: %w", err)
		}
	}
	return a.run(ctx)
}
