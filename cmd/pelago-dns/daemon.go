package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/pelago-net/pelago/control/agent/clusterdns"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dns"
)

const (
	// maxSockets bounds the UDP loops on big machines: each one answers more
	// than 100,000 queries a second.
	maxSockets = 8
	// closeTimeout bounds the wait for queries under way.
	closeTimeout = 5 * time.Second
	// configRetry is the interval between attempts to read the ConfigMap.
	configRetry = 2 * time.Second
	// configPoll is the interval between reads of one that is in use.
	configPoll = 5 * time.Second
	// reconcileTimeout bounds one reconcile of the table, after which it is
	// reported as hung: 250,000 endpoints take 1.6 s.
	reconcileTimeout = 2 * time.Minute
)

// daemon is the running program: its sockets and its state.
type daemon struct {
	options options
	log     *slog.Logger
	handler *dns.Handler
	server  *dns.Server
	http    net.Listener
	pages   *http.ServeMux

	controller atomic.Pointer[clusterdns.TableController] // nil until the configuration is known
	synced     atomic.Bool                                // a whole table has been set
	draining   atomic.Bool
	hung       time.Duration // reconcileTimeout; another one in tests
}

// open opens the sockets. Queries get SERVFAIL until serve has set a table.
func open(o options, log *slog.Logger) (*daemon, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	d := &daemon{options: o, log: log, handler: dns.NewHandler(registry), pages: http.NewServeMux(), hung: reconcileTimeout}
	d.pages.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	d.pages.HandleFunc("/healthz", d.healthz)
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

// healthz fails only if a restart helps: a socket or the reconcile loop hangs.
// An API server that is away is no reason, because a restart would lose the
// table.
func (d *daemon) healthz(w http.ResponseWriter, _ *http.Request) {
	err := d.server.Alive()
	if c := d.controller.Load(); c != nil {
		if age := c.Busy(); age > d.hung {
			err = errors.Join(err, fmt.Errorf("a reconcile of the table has been running for %s", age.Round(time.Second)))
		}
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// readyz reports whether clients may be sent here. It does not depend on the
// API server: the last table is right, or the best there is.
func (d *daemon) readyz(w http.ResponseWriter, _ *http.Request) {
	switch {
	case d.draining.Load():
		http.Error(w, "ending", http.StatusServiceUnavailable)
	case !d.synced.Load():
		http.Error(w, "not synced with the API server yet", http.StatusServiceUnavailable)
	default:
		fmt.Fprintln(w, "ok")
	}
}

// serve answers until ctx ends, then for the time of drain, while endpoint
// slices propagate that this pod is no longer ready. It closes everything.
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
	case <-ctx.Done():
		d.draining.Store(true)
		d.log.Info("ending", "drain", d.options.drain)
		err = d.drain(failed)
	}
	end, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return errors.Join(err, d.server.Close(end), pages.Shutdown(end))
}

// drain keeps the server answering for the time of --drain, unless a part of it fails before.
func (d *daemon) drain(failed <-chan error) error {
	timer := time.NewTimer(d.options.drain)
	defer timer.Stop()
	select {
	case err := <-failed:
		return err
	case <-timer.C:
		return nil
	}
}

// follow keeps the handler's table in sync with the API until ctx ends.
func (d *daemon) follow(ctx context.Context, api *rest.Config) error {
	if d.options.zone.LocalCluster != "" {
		return d.serveZones(ctx, api, d.options.zone)
	}
	var c clusterdns.TableConfig
	if !d.awaitConfig(ctx, api, &c) {
		return nil
	}
	for ctx.Err() == nil {
		// The table stays until the controller of another configuration has set its
		// own: no query is lost.
		same, cancel := context.WithCancel(ctx)
		next, watched := c, make(chan struct{})
		go func() {
			defer close(watched)
			defer cancel()
			d.awaitConfig(same, api, &next)
		}()
		err := d.serveZones(same, api, c)
		cancel()
		if err != nil {
			return err
		}
		<-watched
		c = next
	}
	return nil
}

func (d *daemon) serveZones(ctx context.Context, api *rest.Config, c clusterdns.TableConfig) error {
	d.log.Info("configured", "cluster", c.LocalCluster, "mode", c.Mode, "zones", c.Zones, "ttl", cmp.Or(c.TTL, dns.DefaultTTL))
	controller := clusterdns.NewTableController(api, c, d.set, d.log)
	d.controller.Store(controller)
	go topology.WatchUnreachableClusters(ctx, d.options.verdict, controller.SetDead, d.log)
	return controller.Run(ctx)
}

func (d *daemon) set(t dns.Table) error {
	if err := d.handler.Set(t); err != nil {
		return err
	}
	d.synced.Store(true)
	return nil
}

// awaitConfig polls until the configuration differs from c, and sets c. It
// returns false if ctx ended before.
func (d *daemon) awaitConfig(ctx context.Context, api *rest.Config, c *clusterdns.TableConfig) bool {
	interval := configRetry
	if c.LocalCluster != "" {
		interval = configPoll
	}
	logged := ""
	err := wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		found, err := readConfig(ctx, api)
		if err != nil {
			if ctx.Err() == nil && err.Error() != logged {
				d.log.Warn("cannot read the configuration", "error", err, "retry", interval)
				logged = err.Error()
			}
			return false, nil
		}
		found.TTL = cmp.Or(d.options.zone.TTL, found.TTL)
		if reflect.DeepEqual(found, *c) {
			return false, nil
		}
		*c = found
		return true, nil
	})
	return err == nil
}

// readConfig reads the ConfigMap that `pelago join` writes.
func readConfig(ctx context.Context, api *rest.Config) (clusterdns.TableConfig, error) {
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		return clusterdns.TableConfig{}, fmt.Errorf("make client: %w", err)
	}
	cm, err := client.CoreV1().ConfigMaps(config.SystemNamespace).Get(ctx, config.ConfigMapName, metav1.GetOptions{})
	if err != nil {
		return clusterdns.TableConfig{}, fmt.Errorf("get ConfigMap %s/%s (written by `pelago join`): %w", config.SystemNamespace, config.ConfigMapName, err)
	}
	return clusterset(cm.Data)
}
