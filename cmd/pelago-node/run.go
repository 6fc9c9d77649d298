package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/node"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/observe"
)

// portRetry is the pause before a port that is taken is tried again.
const portRetry = 2 * time.Second

// niceness gives the daemon priority over the pods of a busy node: where it encrypts the wire
// itself, packets wait for it.
const niceness = -10

// gcPercent is GOGC's default of the daemon: most of its heap are the objects of a large cluster,
// which stay, so collecting at half of the usual growth saves more memory than it costs time.
const gcPercent = 50

type runOptions struct {
	metricsAddr, healthAddr                                             string
	verbose                                                             bool
	cgroupDir, overlayTokenDir, pskDir, stateDir, ikeDir, verdictSocket string
	nodeName, namespace, pins, xdp, datapath                            string
}

func runCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the node daemon",
		Example: `  # as the DaemonSet does it
  NODE_NAME=worker-1 pelago-node run`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.nodeName, "node-name", os.Getenv("NODE_NAME"), "name of this node's Node object (default: $NODE_NAME)")
	f.StringVar(&o.namespace, "namespace", config.SystemNamespace, "namespace of Pelago's own objects")
	f.StringVar(&o.pins, "pin-path", dataplane.DefaultPinPath, "directory on a bpffs for maps and links")
	f.StringVar(&o.cgroupDir, "cgroup-dir", "/host/sys/fs/cgroup", "the node's /sys/fs/cgroup, for its processes that use ClusterSetIPs")
	f.StringVar(&o.overlayTokenDir, "overlay-token-dir", "/etc/pelago/overlay-token", "mounted Secret "+config.OverlayTokenSecretName)
	f.StringVar(&o.pskDir, "psk-dir", "/etc/pelago/ipsec-psk", "mounted Secret "+config.PSKSecretName)
	f.StringVar(&o.stateDir, "state-dir", defaultStateDir, stateDirHelp)
	f.StringVar(&o.ikeDir, "ike-dir", ikeDir, "directory that is shared with the IKE daemon (pelago-node ike)")
	f.StringVar(&o.verdictSocket, "verdict-socket", topology.UnreachableClustersSocket, "Unix socket on which the name server hears which clusters are unreachable")
	f.StringVar(&o.xdp, "xdp", "", "where a gateway uses XDP: off, auto (uplinks that are network cards), on (all uplinks) (default: as the cluster joined)")
	f.StringVar(&o.datapath, "datapath", "", "way of packets between pods and other clusters: strict, hybrid, fast, auto (default: as the cluster joined); the label "+pelagov1alpha1.LabelDatapath+" of the node or a namespace overrides it")
	f.StringVar(&o.metricsAddr, "metrics-addr", ":32780", "where /metrics is served")
	f.StringVar(&o.healthAddr, "health-addr", "127.0.0.1:8089", "where /healthz and /readyz are served")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log debug messages")
	return cmd
}

func run(ctx context.Context, o runOptions) error {
	level := slog.LevelInfo
	if o.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
	if o.nodeName == "" {
		return errors.New("the node name is required: set --node-name or $NODE_NAME")
	}
	raisePriority(log)
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	xdp, err := node.ParseXDP(o.xdp)
	if err != nil {
		return err
	}
	if o.datapath != "" && !slices.Contains(config.Datapaths(), o.datapath) {
		return fmt.Errorf("--datapath %q: use one of %s", o.datapath, strings.Join(config.Datapaths(), ", "))
	}
	l, err := loader.Open(loader.Options{PinPath: o.pins, Sockets: true})
	if err != nil {
		return err
	}
	defer l.Close()

	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, submarinerv1.AddToScheme, pelagov1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("register API types: %w", err)
		}
	}
	rest, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	rest.QPS, rest.Burst = 50, 100
	opts, err := node.CacheOptions(o.nodeName, o.namespace)
	if err != nil {
		return err
	}
	opts.Scheme = scheme
	c, err := cache.New(rest, opts)
	if err != nil {
		return fmt.Errorf("set up the cache of API objects: %w", err)
	}
	cl, err := client.New(rest, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("set up the API client: %w", err)
	}
	typed, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return fmt.Errorf("set up the API client: %w", err)
	}
	unreachableClusters := topology.NewUnreachableClustersServer()
	events := record.NewBroadcaster()
	defer events.Shutdown()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: typed.CoreV1().Events("")})
	daemon := node.New(node.Options{
		Events: events.NewRecorder(scheme, corev1.EventSource{Component: "pelago-node", Host: o.nodeName}),
		Pods:   node.PodsOfCluster(typed), APIServer: rest.Host, NodeName: o.nodeName, Namespace: o.namespace, PinPath: o.pins,
		CacheFile: cacheFile(o.stateDir), CNIDir: node.CNIDir, Cgroup: loader.CgroupRoot(o.cgroupDir), OverlayTokenDir: o.overlayTokenDir, PSKDir: o.pskDir,
		UnreachableClusters: unreachableClusters, OpenWire: openWire(o.stateDir, o.ikeDir, log), XDP: xdp, Datapath: o.datapath, Version: version, Logger: log,
	}, c, cl, l)
	// A second set of descriptors for the scrapes: the daemon's loader is not safe for concurrent
	// use.
	reader, err := loader.OpenMaps(o.pins)
	if err != nil {
		return err
	}
	defer reader.Close()

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.Start(ctx) })
	group.Go(func() error { return daemon.Run(ctx) })
	group.Go(func() error { return unreachableClusters.Run(ctx, o.verdictSocket) })
	group.Go(func() error { return serve(ctx, o.metricsAddr, metrics(reader, daemon)) })
	group.Go(func() error { return serve(ctx, o.healthAddr, health(daemon)) })
	log.Info("started", "node", o.nodeName, "version", version, "pins", o.pins)
	return group.Wait()
}

func metrics(kernel observe.Source, d *node.Daemon) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(observe.New(kernel, d.View), fromCache(d))
	mux := http.NewServeMux()
	// A metric that cannot be collected does not hide the others.
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	return mux
}

func health(d *node.Daemon) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := d.Alive(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !d.Ready() {
			http.Error(w, "the first full set of tables is not in the kernel yet", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}

func serve(ctx context.Context, addr string, h http.Handler) error {
	s := &http.Server{Addr: addr, Handler: h, ReadHeaderTimeout: 5 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	go func() {
		<-ctx.Done()
		// Nothing is in flight that would be worth waiting for.
		_ = s.Close()
	}()
	for {
		err := s.ListenAndServe()
		if err == nil || errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("serve on %s: %w", addr, err)
		}
		// A connection of the node happens to use the port, which is no reason to exit.
		slog.Warn("the port is taken, trying again", "address", addr)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(portRetry):
		}
	}
}
