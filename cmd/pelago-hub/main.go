// Command pelago-hub runs the hub's controllers and the scheduler: it turns templates and policies into Works for each member,
// writes them into push members, and brings their status back. Several may run at one hub; one works, the others wait for its
// lease.
package main

import (
	"context"
	"fmt"

	"github.com/pelago-net/pelago/cmd/internal/program"
)

func main() { program.Main("pelago-hub", run) }

// run is the whole program; it ends with ctx, or when the lease is lost.
func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	program.LogAbove(o.logLevel)
	cfg, err := program.Connect(o.kubeconfig, "pelago-hub", ", for example the file that `pelago init` writes")
	if err != nil {
		return err
	}
	cfg.QPS = -1 // no limit of the rate, but of what is under way at a time (bounded)
	mgr, err := open(ctx, cfg, o)
	if err != nil {
		return err
	}
	go paceCollector(ctx)
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the controllers: %w", err)
	}
	return nil
}
