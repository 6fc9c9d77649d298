package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/pelago-net/pelago/control/agent/zone"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dns"
)

const (
	// maxSockets bounds the UDP loops on big machines: each one answers more
	// than 100,000 queries a second.
	maxSockets = 8
	// closing bounds the wait for queries under way.
	closing = 5 * time.Second
	// configRetry is the pause after the ConfigMap could not be read.
	configRetry = 2 * time.Second
)

// daemon is the running program: its sockets and its state.
type daemon struct {
	options options
	log     *slog.Logger
	handler *dns.Handler
	server  *dns.Server
	http    net.Listener
	pages   *http.ServeMux

	controller atomic.Pointer[zone.Controller] // nil until the configuration is known
	draining   atomic.Bool
}

// open opens the sockets. Queries get SERVFAIL until serve has seen the API.
func open(o options, log *slog.Logger) (*daemon, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	d := &daemon{options: o, log: log, handler: dns.NewHandler(registry), pages: http.NewServeMux()}
	d.pages.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	d.pages.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	d.pages.HandleFunc("/readyz", d.readyz)

	var err error
	if d.http, err = net.Listen("tcp", o.metrics); err != nil {
		return nil, fmt.Errorf("listen for metrics: %w", err)
	}
	if d.server, err = dns.Open(o.listen, min(runtime.GOMAXPROCS(0), maxSockets), d.handler); err != nil {
		return nil, errors.Join(err, d.http.Close())
	}
	return d, nil
}

// readyz says whether askers may be sent here. It does not ask whether the API
// server can be reached: the last answers are still right, or the best there is.
func (d *daemon) readyz(w http.ResponseWriter, _ *http.Request) {
	c := d.controller.Load()
	switch {
	case d.draining.Load():
		http.Error(w, "ending", http.StatusServiceUnavailable)
	case c == nil || !c.Synced():
		http.Error(w, "not synced with the API server yet", http.StatusServiceUnavailable)
	default:
		fmt.Fprintln(w, "ok")
	}
}

// serve answers until ctx ends, then for the time of drain, while the cluster
// learns that this server is not ready any more. It closes everything.
func (d *daemon) serve(ctx context.Context, api *rest.Config) error {
	d.log.Info("listening", "dns", d.server.Addr(), "http", d.http.Addr())
	pages := &http.Server{Handler: d.pages, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 2)
	go func() {
		if err := pages.Serve(d.http); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("serve metrics: %w", err)
		}
	}()
	// The table is kept up to date while draining.
	following, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		if err := d.follow(following, api); err != nil {
			failed <- err
		}
	}()

	var err error
	select {
	case err = <-failed:
	case err = <-d.server.Failed():
	case <-ctx.Done():
		d.draining.Store(true)
		d.log.Info("ending", "drain", d.options.drain)
		err = d.drain(failed)
	}
	end, cancel := context.WithTimeout(context.Background(), closing)
	defer cancel()
	return errors.Join(err, d.server.Close(end), pages.Shutdown(end))
}

// drain lets the server answer for its time, unless something of it fails before. ctx has ended already; who cannot
// wait gives a shorter time, or kills the process.
func (d *daemon) drain(failed <-chan error) error {
	timer := time.NewTimer(d.options.drain)
	defer timer.Stop()
	select {
	case err := <-failed:
		return err
	case err := <-d.server.Failed():
		return err
	case <-timer.C:
		return nil
	}
}

// follow keeps the handler's table in step with the API until ctx ends.
func (d *daemon) follow(ctx context.Context, api *rest.Config) error {
	c := d.options.zone
	for logged := ""; c.LocalCluster == ""; {
		found, err := readConfig(ctx, api)
		if err == nil {
			c = found
			break
		}
		if ctx.Err() != nil {
			return nil
		}
		if err.Error() != logged {
			d.log.Warn("cannot read the configuration yet", "error", err, "retry", configRetry)
			logged = err.Error()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(configRetry):
		}
	}
	d.log.Info("configured", "cluster", c.LocalCluster, "mode", c.Mode, "zones", c.Zones)
	controller := zone.New(api, c, d.handler.Set, d.log)
	d.controller.Store(controller)
	go topology.WatchDeadClusters(ctx, d.options.verdict, controller.SetDead, d.log)
	return controller.Run(ctx)
}

// readConfig reads the ConfigMap that `pelago join` writes.
func readConfig(ctx context.Context, api *rest.Config) (zone.Config, error) {
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		return zone.Config{}, fmt.Errorf("make client: %w", err)
	}
	cm, err := client.CoreV1().ConfigMaps(config.SystemNamespace).Get(ctx, config.ConfigMapName, metav1.GetOptions{})
	if err != nil {
		return zone.Config{}, fmt.Errorf("get ConfigMap %s/%s (written by `pelago join`): %w", config.SystemNamespace, config.ConfigMapName, err)
	}
	return clusterset(cm.Data)
}
