package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pelago-net/pelago/cmd/pelago/internal/install"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/spec"
)

// deployBroker are the flags of deploy-broker.
type deployBroker struct {
	access
	flags   *pflag.FlagSet
	broker  spec.Broker
	pskFrom string
	caFile  string
	file    string
	// skipChecks leaves out preflightHub.
	skipChecks bool
}

func deployBrokerCommand() *cobra.Command {
	var d deployBroker
	cmd := &cobra.Command{
		Use:   "deploy-broker",
		Short: "Make a cluster the hub of a clusterset",
		Long: `deploy-broker installs the broker in the cluster of the kubeconfig: a namespace,
custom resource definitions, rights and admission policies, no pods. It writes
broker-info.subm, with which clusters join for the next 24 hours. An existing
file is renamed.

Run it again for a new file; what is registered stays, and so does every setting
whose flag is not given again. What changes is printed first. Mode, key, fabric and
globalnet cannot change while clusters are registered, nor the range of ClusterSetIPs. Members use changed custom
domains once they join again, and a changed --broker-url and --broker-ca by
themselves: those that do not follow yet are listed.`,
		Example: `  # clusters whose pod and service ranges differ
  pelago deploy-broker --context hub

  # clusters with the same ranges: each gets addresses of 120.0.0.0/8
  pelago deploy-broker --context hub --globalnet --globalnet-cidr-range 120.0.0.0/8

  # one address for a service in all clusters
  pelago deploy-broker --context hub --enable-clusterset-ip

  # the hub moves: announce its next address and CA while the present ones work
  pelago deploy-broker --context hub --broker-url https://next.example.com:6443 --broker-ca next-ca.crt`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return d.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	d.flags = f
	d.addFlags(f)
	d.broker.AddFlags(f)
	f.StringVar(&d.pskFrom, "ipsec-psk-from", "", "take the pre-shared key of the cables between gateways from this broker-info.subm instead of generating one")
	f.StringVar(&d.caFile, "broker-ca", "", "PEM file with CAs of --broker-url that members trust besides that of the kubeconfig (default: those announced before)")
	f.StringVar(&d.file, "output", broker.InfoFile, "file to write")
	f.BoolVar(&d.skipChecks, "skip-checks", false, "do not run the checks of pelago check --pre --hub, by which deploy-broker refuses an API server that cannot be a hub")
	return cmd
}

func (d *deployBroker) run(ctx context.Context, out io.Writer) error {
	progress, names := newProgress(out), spec.Flags(spec.Broker{})
	_, _, invalid := broker.From(d.broker) // may become valid with what an earlier run has left
	hub, err := d.open()
	var plan broker.Plan
	if err == nil {
		plan, err = d.plan(ctx, hub)
	}
	if err != nil {
		return names.Error(cmp.Or(invalid, err))
	}
	if !d.skipChecks {
		if err := preflightHub(ctx, hub.Member, progress); err != nil {
			return err
		}
	}
	if plan.PSK, err = d.psk(); err != nil {
		return err
	}
	if plan.CA, err = d.ca(); err != nil {
		return err
	}
	for _, change := range plan.Changes {
		progress("Changing %s", change)
	}
	if d.pskFrom != "" {
		progress("Using the pre-shared key of %s", d.pskFrom)
	}
	info, err := plan.Apply(ctx, manifests.Cluster(hub.Member), progress)
	if err != nil {
		return names.Error(err)
	}
	content, err := info.Encode()
	if err != nil {
		return err
	}
	kept, err := install.WriteSecretFile(d.file, content, d.file+"."+time.Now().UTC().Format("2006-01-02T15_04_05.000Z"))
	if err != nil {
		return err
	}
	if kept != "" {
		progress("Renamed the former %s to %s", d.file, kept)
	}
	progress("Wrote %s", d.file)
	d.next(out, info, plan.Asks())
	return d.follow(ctx, hub, out)
}

// follow lists the members that do not use the announced address.
func (d *deployBroker) follow(ctx context.Context, hub *cluster, out io.Writer) error {
	left, err := broker.NotFollowing(ctx, hub.Client, manifests.BrokerNamespace)
	if err != nil || len(left) == 0 {
		return err
	}
	fmt.Fprintln(out, "\nThese members do not use the announced address of the hub yet; keep their present one until a further run lists none:")
	for _, f := range left {
		fmt.Fprintln(out, "  "+f.String())
	}
	return nil
}

// ca are the certificates of --broker-ca, nil without that flag.
func (d *deployBroker) ca() ([]byte, error) {
	if d.caFile == "" {
		return nil, nil
	}
	text, err := os.ReadFile(d.caFile)
	if err != nil {
		return nil, fmt.Errorf("read --broker-ca: %w", err)
	}
	if ca := config.MergeCA(text); len(ca) > 0 {
		return ca, nil
	}
	return nil, fmt.Errorf("--broker-ca %s holds no certificate in PEM form", d.caFile)
}

func (d *deployBroker) plan(ctx context.Context, hub *cluster) (broker.Plan, error) {
	if err := manifests.Cluster(hub.Member).RequireHubVersion(); err != nil {
		return broker.Plan{}, err
	}
	flags := spec.Flags(spec.Broker{})
	given := func(path string) bool { return d.flags.Changed(strings.TrimPrefix(flags[path], "--")) }
	return broker.NewPlan(ctx, hub.Client, d.broker, given)
}

// psk is the key of --ipsec-psk-from, nil without that flag.
func (d *deployBroker) psk() ([]byte, error) {
	if d.pskFrom == "" {
		return nil, nil
	}
	info, err := install.ReadInfo(d.pskFrom)
	if err != nil {
		return nil, err
	}
	return info.IPSecPSK.Data["psk"], nil
}

// next prints the next steps. asks: each cluster has to be accepted.
func (d *deployBroker) next(out io.Writer, info broker.Info, asks bool) {
	expiry, ok, err := info.Expiry()
	fmt.Fprintf(out, "\nThe broker is ready. Join each cluster:\n\n  pelago join %s --context CONTEXT --clusterid ID\n\n", d.file)
	if asks {
		fmt.Fprint(out, "Accept it at the hub, so that others connect to it:\n\n  pelago clusters accept ID\n\n")
	}
	if ok && err == nil {
		fmt.Fprintf(out, "%s can register clusters until %s; keep it secret. ", d.file, expiry.UTC().Format(time.RFC3339))
		fmt.Fprintln(out, "Run this command again for a new one.")
	}
	if u, err := url.Parse(info.BrokerURL); err == nil {
		if ip, err := netip.ParseAddr(u.Hostname()); u.Hostname() == "localhost" || (err == nil && ip.IsLoopback()) {
			fmt.Fprintf(out, "Warning: pods of other clusters cannot reach %s; give the hub's address with --broker-url.\n", info.BrokerURL)
		}
	}
}
