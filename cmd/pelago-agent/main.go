// Command pelago-agent runs the controllers of one member cluster. With --roles=network they manage
// addresses, port blocks, peers and service discovery, and write no workloads. With
// --roles=execution they run what the hub propagates to the cluster, and report the cluster's
// status. With --roles=operator they install Pelago as Broker and Submariner objects request.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/control/operator"
)

// Limits of requests to the member's API server, per second: an export makes about a dozen writes.
// The server's own priority and fairness protects it from more.
const (
	memberQPS   = 200
	memberBurst = 400
)

func main() { kube.Main("pelago-agent", run) }

// run is the whole program; it ends with ctx, or when the configuration has changed.
func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	kube.LogAbove(o.logLevel)
	member, err := kube.Connect(o.kubeconfig, "pelago-agent", "")
	if err != nil {
		return err
	}
	member.QPS, member.Burst = memberQPS, memberBurst
	construct := open
	if o.roles.operator {
		construct = openOperator
	}
	a, err := construct(ctx, member, o)
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

// options are the flags.
type options struct {
	kubeconfig     string
	metricsAddress string
	healthAddress  string
	leaderElect    bool
	roles          roles
	logLevel       slog.Level
	namespace      string // of the role operator

	// The rest is set by tests only.

	// hubPause holds the minimum and the maximum pause between attempts to reach an unreachable
	// hub.
	hubPause [2]time.Duration
	// interval is that of hubaddress.Options and ranges.Options.
	interval time.Duration
	// several agents may run in one process.
	several bool
	// image is the role operator's own.
	image string
	// giveUp replaces giveUpAfter, retry the interval after a failure.
	giveUp, retry time.Duration
}

// Roles of an agent. In a member each runs as a process with a ServiceAccount of its own.
const (
	roleNetwork   = "network"
	roleExecution = "execution"
	roleOperator  = "operator"
)

// roles are what one process does, at least one of them.
type roles struct{ network, execution, operator bool }

// lease names the Lease that the process holds while it works. A process with both roles uses the
// Lease of the role network.
func (r roles) lease() string {
	switch {
	case r.operator:
		return operator.Deployment
	case !r.network:
		return "pelago-agent-execution"
	}
	return "pelago-agent"
}

func parse(args []string) (options, error) {
	o := options{hubPause: [2]time.Duration{time.Second, 5 * time.Second}}
	flags := flag.NewFlagSet("pelago-agent", flag.ContinueOnError)
	names := flags.String("roles", roleNetwork, "what this process does: network, execution (the hub's workloads), or both, "+
		"separated by a comma; or operator (installs what Broker and Submariner objects ask for)")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "file with the access to the member's API server; empty: the pod's own")
	flags.StringVar(&o.metricsAddress, "metrics-address", ":8082", "address of /metrics, /healthz and /readyz; 0 turns it off")
	flags.StringVar(&o.healthAddress, "health-address", ":8081", "another address of /healthz and /readyz; 0 turns it off")
	flags.StringVar(&o.namespace, "namespace", cmp.Or(os.Getenv("POD_NAMESPACE"), "submariner-operator"), "of the role operator: its namespace, and that "+
		"of the objects that it reconciles")
	flags.BoolVar(&o.leaderElect, "leader-elect", true, "work only while holding the lease pelago-agent, or pelago-agent-execution "+
		"for that role alone, or pelago-operator")
	flags.TextVar(&o.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("read the command line: unexpected argument %q", flags.Arg(0))
	}
	var err error
	o.roles, err = parseRoles(strings.Split(*names, ","))
	return o, err
}

func parseRoles(names []string) (roles, error) {
	var r roles
	for _, name := range names {
		var role *bool
		switch name {
		case roleNetwork:
			role = &r.network
		case roleExecution:
			role = &r.execution
		case roleOperator:
			role = &r.operator
		default:
			return r, fmt.Errorf("role %q is unknown: use --roles=%s, --roles=%s or both, or --roles=%s", name, roleNetwork, roleExecution, roleOperator)
		}
		if *role {
			return r, fmt.Errorf("roles %s: give each role once", strings.Join(names, ","))
		}
		*role = true
	}
	if r.operator && (r.network || r.execution) {
		return r, fmt.Errorf("roles %s: %s has rights of its own: run it as a process of its own", strings.Join(names, ","), roleOperator)
	}
	return r, nil
}

// mcsVersions are the versions of the MCS API that the agent can work with, the best first. Their
// schemas are the same.
var mcsVersions = []string{"v1beta1", "v1alpha1"}

// mcsVersion is the version in which the member serves the MCS API: another tool may have installed
// it.
func mcsVersion(member *rest.Config) (string, error) {
	client, err := discovery.NewDiscoveryClientForConfig(member)
	if err != nil {
		return "", fmt.Errorf("ask for the version of the MCS API: %w", err)
	}
	for _, version := range mcsVersions {
		list, err := client.ServerResourcesForGroupVersion(schema.GroupVersion{Group: mcs.GroupName, Version: version}.String())
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("ask for the version of the MCS API: %w", err)
		}
		served := map[string]bool{}
		for _, r := range list.APIResources {
			served[r.Name] = true
		}
		if served[mcs.ServiceExportPluralName] && served[mcs.ServiceImportPluralName] {
			return version, nil
		}
	}
	return "", errors.New("the cluster serves neither version of ServiceExport and ServiceImport (multicluster.x-k8s.io): run `pelago join`, which installs them")
}

// scheme is that of the kinds that the roles need: those of the MCS API, which every member in the
// network has, only for that role.
func (r roles) scheme(member *rest.Config) (*runtime.Scheme, error) {
	if !r.network {
		return newScheme(mcsVersions[0])
	}
	version, err := mcsVersion(member)
	if err != nil {
		return nil, err
	}
	return newScheme(version)
}

// newScheme returns a scheme of the kinds that the agent reads and writes. The Go types of the MCS
// API are registered under whichever version is served.
func newScheme(mcsVersion string) (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	gv := schema.GroupVersion{Group: mcs.GroupName, Version: mcsVersion}
	s.AddKnownTypes(gv, &mcs.ServiceExport{}, &mcs.ServiceExportList{}, &mcs.ServiceImport{}, &mcs.ServiceImportList{})
	metav1.AddToGroupVersion(s, gv)
	if err := errors.Join(scheme.AddToScheme(s), submarinerv1.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		return nil, fmt.Errorf("collect the kinds: %w", err)
	}
	return s, nil
}
