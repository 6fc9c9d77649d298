// Command pelago-dns answers the clusterset's names, such as
// <service>.<namespace>.svc.clusterset.local, from the ServiceImports and
// EndpointSlices of its cluster. CoreDNS forwards to it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/pelago-net/pelago/control/agent/clusterdns"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dns"
)

func main() { kube.Main("pelago-dns", run) }

// run serves until ctx ends.
func run(ctx context.Context, args []string) error {
	o, err := parse(args, os.Getenv)
	if err != nil {
		return err
	}
	api, err := kube.Connect(o.kubeconfig, "pelago-dns", "")
	if err != nil {
		return err
	}
	d, err := open(o, slog.Default())
	if err != nil {
		return err
	}
	return d.serve(ctx, api)
}

// options are the flags; each can also be given in the environment, as
// --cluster-id in PELAGO_CLUSTER_ID.
type options struct {
	// zone is complete if --cluster-id was given; else pelago-config is read.
	zone       clusterdns.TableConfig
	listen     string
	metrics    string
	kubeconfig string
	verdict    string
	drain      time.Duration
}

// parse reads flags and environment, flags first.
func parse(args []string, getenv func(string) string) (options, error) {
	var o options
	var mode, zones string
	flags := flag.NewFlagSet("pelago-dns", flag.ContinueOnError)
	flags.StringVar(&o.zone.LocalCluster, "cluster-id", "", "id of this cluster; empty: everything about the clusterset is read from ConfigMap "+config.ConfigMapName)
	flags.StringVar(&mode, "mode", string(dns.ModeSubmariner), "rules of the answers, submariner or mcs; with --cluster-id")
	flags.StringVar(&zones, "zones", clusterdns.DefaultZone, "served domains, separated by commas; those below in-addr.arpa and ip6.arpa answer PTR; with --cluster-id")
	flags.DurationVar(&o.zone.TTL, "ttl", 0, "TTL of the answers, in whole seconds (default: "+dns.DefaultTTL.String()+"; or what `pelago join --dns-ttl` has set)")
	flags.StringVar(&o.listen, "listen", ":53", "address for queries, UDP and TCP")
	flags.StringVar(&o.metrics, "metrics", ":9153", "address for /metrics, /healthz and /readyz")
	flags.StringVar(&o.verdict, "verdict-socket", topology.UnreachableClustersSocket, "Unix socket on which the node's pelago-node reports dead clusters")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "access to the API server; empty: the pod's own")
	flags.DurationVar(&o.drain, "drain", 3*time.Second, "time between not ready and the end, for endpoint slices to propagate")

	flags.SetOutput(io.Discard) // errors are returned, and logged once
	flags.Usage = func() {
		flags.SetOutput(os.Stderr)
		fmt.Fprintln(os.Stderr, "pelago-dns answers the clusterset's names. Flags, also as PELAGO_… in the environment:")
		flags.PrintDefaults()
		flags.SetOutput(io.Discard)
	}
	var wrong error
	flags.VisitAll(func(f *flag.Flag) {
		name := "PELAGO_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if value := getenv(name); value != "" && wrong == nil {
			if err := flags.Set(f.Name, value); err != nil {
				wrong = fmt.Errorf("read environment variable %s=%q: %w", name, value, err)
			}
		}
	})
	if wrong != nil {
		return o, wrong
	}
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: there are only flags", flags.Arg(0))
	}
	if ttl := o.zone.TTL; ttl < 0 || ttl > config.MaxDNSSeconds*time.Second || ttl%time.Second != 0 {
		return o, fmt.Errorf("--ttl %s: use whole seconds, at most %s", ttl, config.MaxDNSSeconds*time.Second)
	}
	if o.zone.LocalCluster == "" {
		return o, nil
	}
	if err := config.CheckClusterID(o.zone.LocalCluster); err != nil {
		return o, fmt.Errorf("--cluster-id: %w", err)
	}
	var err error
	if o.zone.Mode, err = dns.ParseMode(mode); err != nil {
		return o, fmt.Errorf("--mode: %w", err)
	}
	for _, z := range strings.Split(zones, ",") {
		if z, err = dns.ParseZone(z); err != nil {
			return o, fmt.Errorf("--zones: %w", err)
		}
		o.zone.Zones = append(o.zone.Zones, z)
	}
	return o, nil
}

// clusterset is the zone configuration that `pelago join` wrote.
func clusterset(data map[string]string) (clusterdns.TableConfig, error) {
	c, err := config.Parse(data)
	if err != nil {
		return clusterdns.TableConfig{}, err
	}
	return clusterdns.TableConfig{
		LocalCluster: c.ClusterID,
		Mode:         dns.Mode(c.Mode),
		Zones:        clusterdns.Zones(c),
		TTL:          c.DNSTTL,
	}, nil
}
