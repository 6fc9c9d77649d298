package kube

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

// Main runs a program with its arguments until it is done or gets a signal to end. Its exit code is
// 1 if it failed; help is no failure.
func Main(name string, run func(ctx context.Context, args []string) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	LogAbove(slog.LevelInfo)
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		slog.Error(name+" ends", "error", err)
		os.Exit(1)
	}
}

// LogAbove sends what is logged at that level and above, by client-go and controller-runtime too,
// to standard error as text.
func LogAbove(level slog.Level) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	slog.SetDefault(log)
	klog.SetSlogLogger(log)
	ctrllog.SetLogger(logr.FromSlogHandler(log.Handler()))
}

// Connect reads the access to an API server from a kubeconfig file, or without one the pod's own.
// hint, for the error, names the file to give.
func Connect(kubeconfig, userAgent, hint string) (*rest.Config, error) {
	// with an empty name that of the pod's ServiceAccount
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read access to the API server (outside a pod give --kubeconfig%s): %w", hint, err)
	}
	c.UserAgent = userAgent
	return c, nil
}
