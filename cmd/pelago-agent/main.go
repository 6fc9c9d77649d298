// Command pelago-agent runs the controllers of one member cluster. With --roles=network these are addresses, port
// blocks, peers and service discovery; it writes no workload.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Limits of requests to the member's API server, per second: an export makes about a dozen writes. The server's own
// priority and fairness protects it from more.
const (
	memberQPS   = 200
	memberBurst = 400
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		slog.Error("pelago-agent ends", "error", err)
		os.Exit(1)
	}
}

// run is the whole program; it ends with ctx, or when the configuration has changed.
func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: o.logLevel}))
	slog.SetDefault(log)
	klog.SetSlogLogger(log)
	ctrllog.SetLogger(logr.FromSlogHandler(log.Handler()))
	member, err := connect(o.kubeconfig)
	if err != nil {
		return err
	}
	a, err := open(ctx, member, o)
	if err != nil {
		return err
	}
	if err := metrics.Registry.Register(a.hub.Metrics()); err != nil {
		return fmt.Errorf("register the metrics of the hub: %w", err)
	}
	return a.run(ctx)
}

// connect reads the access to the member's API server: the named file, or without one the pod's own.
func connect(kubeconfig string) (*rest.Config, error) {
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read access to the API server (outside a pod give --kubeconfig): %w", err)
	}
	c.UserAgent, c.QPS, c.Burst = "pelago-agent", memberQPS, memberBurst
	return c, nil
}
