// Command pelago-hub runs the hub's controllers and the scheduler: it turns templates and policies
// into Works for each member, writes them into push members, and brings their status back. Several
// may run at one hub; one works, the others wait for its lease.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/pelago-net/pelago/control/hub/access"
	"github.com/pelago-net/pelago/control/hub/placement"
	"github.com/pelago-net/pelago/control/kube"
)

func main() { kube.Main("pelago-hub", run) }

// run is the whole program; it ends with ctx, or when the lease is lost.
func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	kube.LogAbove(o.logLevel)
	cfg, err := kube.Connect(o.kubeconfig, "pelago-hub", ", for example the file that `pelago init` writes")
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

// options are those of the command line.
type options struct {
	kubeconfig     string
	metricsAddress string
	healthAddress  string
	profileAddress string
	leaderElect    bool
	// identity is the holder identity in the lease; "": a new one for each process.
	identity string
	logLevel slog.Level
	// workloads: the hub's API server runs workloads, so only namespaces that request it are
	// propagated.
	workloads bool
	workers   workers
	// grace is the time without a renewal of its Lease after which the status of a pull member is
	// unknown.
	grace    time.Duration
	eviction placement.EvictionOptions
	rttHold  time.Duration
	// events is eventsFailures or eventsAll.
	events string
	// syncReplicas: Deployments follow the autoscalers of members.
	syncReplicas bool
	// emptyWorkloads: see scheduler.Request.Empty.
	emptyWorkloads bool
	// proxyAddress is where proxy.pelago.io is served, "" or "0": nowhere; proxyHost is how the
	// hub's API server reaches it.
	proxyAddress, proxyHost string
	// karmada is where Karmada's tools reach the hub; no address: nowhere.
	karmada access.Front

	// several hubs may run in one process; set by tests only.
	several bool
}

// Values of --events.
const eventsFailures, eventsAll = "failures", "all"

// workers are numbers of objects that are worked on at the same time.
type workers struct {
	// propagate: templates and bindings. works: bindings. status: bindings. execution: Works of
	// each push member.
	propagate, works, status, execution int
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("pelago-hub", flag.ContinueOnError)
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "file with the access to the hub's API server, as `pelago init` writes one; "+
		"empty: the pod's own")
	flags.StringVar(&o.metricsAddress, "metrics-address", ":8080", "address of /metrics; 0 turns it off")
	flags.StringVar(&o.healthAddress, "health-address", ":8081", "address of /healthz and /readyz; 0 turns it off")
	flags.StringVar(&o.profileAddress, "profile-address", "0", "address of /debug/pprof, such as 127.0.0.1:6060; 0 turns it off")
	flags.BoolVar(&o.leaderElect, "leader-elect", true, "work only while holding the lease pelago-hub")
	flags.StringVar(&o.identity, "identity", "", "name under which the lease is held, such as that of the pod: a process that begins "+
		"anew under the same name need not wait until the lease of the former runs out. No two at a time may have it; empty: a "+
		"new one each time")
	flags.BoolVar(&o.workloads, "hub-runs-workloads-too", false, "the hub's API server runs workloads itself: templates run there "+
		"as well, and only namespaces that ask for it are propagated")
	flags.IntVar(&o.workers.propagate, "propagate-workers", 16, "templates and bindings that are decided on at the same time")
	flags.IntVar(&o.workers.works, "works-workers", 16, "bindings whose Works are written at the same time")
	flags.IntVar(&o.workers.status, "status-workers", 8, "bindings whose status is summed up at the same time")
	flags.IntVar(&o.workers.execution, "execution-workers", 8, "Works that are written at the same time into one push member")
	flags.DurationVar(&o.grace, "cluster-monitor-grace-period", 15*time.Second, "time without a renewal of its Lease after which the status of a "+
		"pull member is unknown")
	eviction := placement.EvictionOptions{}.Defaulted()
	flags.DurationVar(&o.eviction.ClusterFailure, "cluster-failover-after", eviction.ClusterFailure, "time for which a cluster must not have been ready before "+
		"workloads whose policy has failover.cluster leave it")
	flags.DurationVar(&o.eviction.ReachableClusterFailure, "reachable-cluster-failover-after", eviction.ReachableClusterFailure, "the same for a cluster that other "+
		"clusters reach in the data plane (condition DataPlaneReachable): it may only be cut off from the hub")
	flags.DurationVar(&o.eviction.Timeout, "graceful-eviction-timeout", eviction.Timeout, "time after which a workload is removed from the cluster that "+
		"it leaves, healthy elsewhere or not")
	flags.Float64Var(&o.eviction.Rate, "resource-eviction-rate", eviction.Rate, "workloads that leave one cluster per second at most")
	flags.Float64Var(&o.eviction.HaltedAbove, "eviction-halted-above", eviction.HaltedAbove, "share of clusters that are not ready at once above which no workload leaves "+
		"them, from 0 to 1")
	flags.DurationVar(&o.eviction.UnschedulableAfter, "unschedulable-threshold", eviction.UnschedulableAfter, "time for which no node of a cluster must have been "+
		"able to run replicas of a Deployment that is divided by capacity before they move to other clusters; below 0: they stay")
	flags.DurationVar(&o.rttHold, "rtt-hold", time.Minute, "time for which the round-trip time between two clusters must have changed before workloads whose "+
		"policy has the annotation pelago.io/near are placed by the new one")
	flags.StringVar(&o.events, "events", eventsFailures, "Events: failures and changes, or all, which adds those of Karmada "+
		"about successes on templates, bindings, Works and quotas: several writes more for each change")
	flags.BoolVar(&o.syncReplicas, "deployment-replicas-syncer", false, "a Deployment with the label "+
		"resourcetemplate.karmada.io/retain-replicas=true and divided replicas gets, at the hub, the sum of the replicas that autoscalers have set in the members; the targets of propagated HorizontalPodAutoscalers get the label")
	flags.BoolVar(&o.emptyWorkloads, "enable-empty-workload-propagation", false, "a workload that is created with 0 replicas, to be divided, goes to all selected "+
		"clusters; otherwise it goes nowhere until it has replicas. One that is scaled to 0 stays where it is in both cases")
	flags.StringVar(&o.proxyAddress, "proxy-address", "0", "address, such as :8443, where requests of users to members arrive from the hub's API "+
		"server (proxy.pelago.io), and the tunnels of pull members; 0 turns it off")
	flags.StringVar(&o.proxyHost, "proxy-host", "", "host name or address, with or without port, under which the hub's API server reaches "+
		"--proxy-address, such as localhost: of all replicas, if there are several; its kube-apiserver must not have --enable-aggregator-routing; "+
		"empty: the Service of the Deployment")
	flags.StringVar(&o.karmada.Address, "karmada-address", "", "address, such as :6444, that serves the hub's whole API as "+
		"Karmada's API server does, with clusters/NAME/proxy of cluster.karmada.io: for karmadactl, Karmada's dashboard and "+
		"Argo CD. It needs --proxy-address; empty turns it off")
	flags.StringVar(&o.karmada.CertFile, "karmada-tls-cert-file", "", "certificate of --karmada-address, PEM; read again "+
		"when it changes")
	flags.StringVar(&o.karmada.KeyFile, "karmada-tls-private-key-file", "", "its key")
	flags.TextVar(&o.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("read the command line: unexpected argument %q", flags.Arg(0))
	}
	if o.events != eventsFailures && o.events != eventsAll {
		return o, fmt.Errorf("read the command line: --events=%s: it is %s or %s", o.events, eventsFailures, eventsAll)
	}
	if k := o.karmada; k.Address != "" && (k.CertFile == "" || k.KeyFile == "" || !o.proxied()) {
		return o, errors.New("read the command line: --karmada-address needs --karmada-tls-cert-file, " +
			"--karmada-tls-private-key-file and --proxy-address")
	}
	if e := o.eviction; e.Rate <= 0 || e.HaltedAbove <= 0 || e.HaltedAbove > 1 || e.ClusterFailure <= 0 || e.ReachableClusterFailure <= 0 || e.Timeout <= 0 || o.grace <= 0 || o.rttHold <= 0 || e.UnschedulableAfter == 0 {
		return o, errors.New("read the command line: --resource-eviction-rate, --cluster-failover-after, --reachable-cluster-failover-after, --graceful-eviction-timeout, " +
			"--cluster-monitor-grace-period and --rtt-hold must be above 0, --eviction-halted-above at most 1 and above 0, " +
			"--unschedulable-threshold above 0, or below 0: replicas stay")
	}
	for name, n := range map[string]int{"propagate": o.workers.propagate, "works": o.workers.works, "status": o.workers.status,
		"execution": o.workers.execution} {
		if n < 1 {
			return o, fmt.Errorf("read the command line: --%s-workers %d: at least 1 is needed", name, n)
		}
	}
	return o, nil
}

// How much memory the program may use, in bytes, before it collects garbage more often: plenty for
// a small hub, where frequent collection would only waste CPU time; with a large live heap,
// somewhat more than the live heap.
const (
	roomy = 416 << 20
	// less: above roomy, garbage may grow to the live heap minus this: a hub with 5,000 templates
	// on 100 members stays below 500 MiB.
	less = 176 << 20
	// mostGrowth is the growth of the heap over the live heap (GOGC), in percent, below that limit.
	mostGrowth = 300
	// lookAtHeap is the interval at which the live heap is measured.
	lookAtHeap = 2 * time.Second
)

// limit is the memory limit for a live heap of so many bytes.
func limit(live uint64) int64 { return max(roomy, 2*int64(live)-less) }

// paceCollector adapts the frequency of garbage collection to the live heap until ctx ends, unless
// GOGC or GOMEMLIMIT is set.
func paceCollector(ctx context.Context) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.SetGCPercent(mostGrowth)
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	tick := time.NewTicker(lookAtHeap)
	defer tick.Stop()
	for {
		metrics.Read(live)
		debug.SetMemoryLimit(limit(live[0].Value.Uint64()))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
