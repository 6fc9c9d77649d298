// Command pelago-dns answers the clusterset's names, such as
// <service>.<namespace>.svc.clusterset.local, from the ServiceImports and
// EndpointSlices of its cluster. CoreDNS forwards to it.
package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/pelago-net/pelago/cmd/internal/program"
)

func main() { program.Main("pelago-dns", run) }

// run serves until ctx ends.
func run(ctx context.Context, args []string) error {
	o, err := parse(args, os.Getenv)
	if err != nil {
		return err
	}
	api, err := program.Connect(o.kubeconfig, "pelago-dns", "")
	if err != nil {
		return err
	}
	d, err := open(o, slog.Default())
	if err != nil {
		return err
	}
	return d.serve(ctx, api)
}
