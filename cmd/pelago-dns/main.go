// Command pelago-dns answers the clusterset's names, such as
// <service>.<namespace>.svc.clusterset.local, from the ServiceImports and
// EndpointSlices of its cluster. CoreDNS forwards to it.
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
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	klog.SetSlogLogger(log)
	ctrllog.SetLogger(logr.FromSlogHandler(log.Handler()))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], log); err != nil && !errors.Is(err, flag.ErrHelp) {
		log.Error("pelago-dns ends", "error", err)
		os.Exit(1)
	}
}

// run is the whole program; it ends with ctx.
func run(ctx context.Context, args []string, log *slog.Logger) error {
	o, err := parse(args, os.Getenv)
	if err != nil {
		return err
	}
	api, err := connect(o.kubeconfig)
	if err != nil {
		return err
	}
	d, err := open(o, log)
	if err != nil {
		return err
	}
	return d.serve(ctx, api)
}

// connect reads the access to the API server: the named file, or without one
// the pod's own.
func connect(kubeconfig string) (*rest.Config, error) {
	// With an empty name the library takes the pod's ServiceAccount.
	api, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read access to the API server (outside a pod give --kubeconfig): %w", err)
	}
	api.UserAgent = "pelago-dns"
	return api, nil
}
