package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/install"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy"
	"github.com/pelago-net/pelago/deploy/broker"
)

// Components of a clusterset.
const (
	componentConnectivity     = "connectivity"
	componentServiceDiscovery = "service-discovery"
)

// deployBroker are the flags of deploy-broker.
type deployBroker struct {
	access
	flags       *pflag.FlagSet
	set         broker.Clusterset
	book        broker.Book // empty
	globalnet   bool
	globalRange netip.Prefix
	globalSize  uint64
	vipRange    netip.Prefix
	pskFrom     string
	file        string
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
domains once they join again.`,
		Example: `  # clusters whose pod and service ranges differ
  pelago deploy-broker --context hub

  # clusters with the same ranges: each gets addresses of 120.0.0.0/8
  pelago deploy-broker --context hub --globalnet --globalnet-cidr-range 120.0.0.0/8

  # one address for a service in all clusters
  pelago deploy-broker --context hub --enable-clusterset-ip`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return d.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	d.flags = f
	d.addFlags(f)
	f.BoolVar(&d.globalnet, "globalnet", false, "give every cluster addresses of its own, so that pod and service ranges may overlap")
	f.TextVar(&d.globalRange, "globalnet-cidr-range", netip.MustParsePrefix("242.0.0.0/8"), "`CIDR` that the clusters' GlobalCIDRs are taken from")
	f.Uint64Var(&d.globalSize, "globalnet-cluster-size", 65536, "addresses of a cluster's GlobalCIDR unless join says otherwise; rounded up to a power of two")
	f.BoolVar(&d.set.ClusterSetIPs, "enable-clusterset-ip", false, "give exported services a ClusterSetIP, one address in all clusters, unless their "+
		"ServiceExport has the annotation "+submarinerv1.AnnotationUseClusterSetIP+"=false; always so in mode mcs")
	f.TextVar(&d.vipRange, "clusterset-ip-cidr-range", netip.MustParsePrefix(config.DefaultClusterSetIPRange), "`CIDR` that the clusters' ranges of ClusterSetIPs are taken from")
	f.TextVar(&d.set.Fabric, "fabric-cidr", netip.MustParsePrefix(config.DefaultFabricCIDR), "an unused /8 `CIDR` for the nodes' addresses between clusters")
	f.StringVar(&d.pskFrom, "ipsec-psk-from", "", "take the pre-shared key of the cables between gateways from this broker-info.subm instead of generating one")
	f.StringSliceVar(&d.set.CustomDomains, "custom-domains", nil, "DNS zones that are served in addition to clusterset.local")
	f.StringSliceVar(&d.set.Components, "components", []string{componentServiceDiscovery, componentConnectivity}, "components to enable; only both together are supported")
	f.StringVar(&d.set.BrokerURL, "broker-url", "", "URL under which clusters reach the hub's API server (default: the kubeconfig's)")
	view.AddChoice(f, &d.set.Mode, "mode", string(config.ModeSubmariner), "rules of service discovery: submariner (the local cluster's "+
		"address first) or mcs (a ClusterSetIP)", string(config.ModeSubmariner), string(config.ModeMCS))
	f.BoolVar(&d.set.AutoAccept, "auto-accept", false, "send workloads to members without \"pelago clusters accept\"")
	f.StringVar(&d.file, "output", broker.InfoFile, "file to write")
	return cmd
}

func (d *deployBroker) run(ctx context.Context, out io.Writer) error {
	progress := newProgress(out)
	var former map[string]string // flags of an earlier run
	hub, err := d.openKept(ctx, d.flags, d.check, func(ctx context.Context, hub *cluster) (map[string]string, error) {
		if err := hub.requireHubVersion(); err != nil {
			return nil, err
		}
		set, book, ok, err := broker.Former(ctx, hub.Client)
		if ok && err == nil {
			former = install.BrokerFlags(set, book)
		}
		return former, err
	})
	if err != nil {
		return err
	}
	if former != nil {
		for _, change := range view.Changes(former, install.BrokerFlags(d.set, d.book)) {
			progress("Changing %s", change)
		}
	}
	if d.pskFrom != "" {
		progress("Using the pre-shared key of %s", d.pskFrom)
	}
	if err := deploy.HubBase(ctx, hub.Client, progress); err != nil {
		return err
	}
	if d.set.HubID, err = broker.HubID(ctx, hub.Client); err != nil {
		return err
	}
	psk, err := d.psk()
	if err != nil {
		return err
	}
	progress("Writing the settings of the clusterset")
	if d.set.Hub, err = broker.HubAddresses(ctx, hub.Client, cmp.Or(d.set.BrokerURL, hub.Config.Host)); err != nil {
		return err
	}
	pskSecret, err := broker.Setup(ctx, hub.Client, d.book, d.set, psk)
	if err != nil {
		return err
	}
	if err := deploy.Hub(ctx, hub.Client, progress); err != nil {
		return err
	}
	info, err := d.info(ctx, hub, pskSecret)
	if err != nil {
		return err
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
	d.next(out, info)
	return nil
}

// check validates the flags and makes the empty book that they describe.
func (d *deployBroker) check() (err error) {
	components := d.set.Components
	for _, c := range components {
		if c != componentConnectivity && c != componentServiceDiscovery {
			return fmt.Errorf("--components %q: use %s, %s or both", c, componentServiceDiscovery, componentConnectivity)
		}
	}
	if !slices.Contains(components, componentConnectivity) || !slices.Contains(components, componentServiceDiscovery) {
		return fmt.Errorf("--components %s: a single component is not supported; leave the flag out, which means both", strings.Join(components, ","))
	}
	for _, domain := range d.set.CustomDomains {
		if len(validation.IsDNS1123Subdomain(strings.ToLower(strings.TrimSuffix(domain, ".")))) > 0 {
			return fmt.Errorf("--custom-domains %q is no domain name", domain)
		}
	}
	if err := config.CheckFabric(d.set.Fabric); err != nil {
		return fmt.Errorf("--fabric-cidr: %w", err)
	}
	if d.vipRange.Overlaps(d.set.Fabric) {
		return fmt.Errorf("--clusterset-ip-cidr-range %s overlaps --fabric-cidr %s: choose another of one of them", d.vipRange, d.set.Fabric)
	}
	if d.globalnet && d.globalRange.Overlaps(d.set.Fabric) {
		return fmt.Errorf("--globalnet-cidr-range %s overlaps --fabric-cidr %s: choose another of one of them", d.globalRange, d.set.Fabric)
	}
	if d.book, err = broker.NewBook(d.globalnet, d.globalRange, d.globalSize); err != nil {
		return err
	}
	d.book, err = d.book.WithClusterSetIPs(d.vipRange)
	return err
}

// psk is the key of --ipsec-psk-from, nil without that flag.
func (d *deployBroker) psk() ([]byte, error) {
	if d.pskFrom == "" {
		return nil, nil
	}
	info, err := readInfo(d.pskFrom)
	if err != nil {
		return nil, err
	}
	return info.IPSecPSK.Data["psk"], nil
}

// info issues a new credential and returns the content of the file.
func (d *deployBroker) info(ctx context.Context, hub *cluster, psk *corev1.Secret) (broker.Info, error) {
	ca, err := hub.ca(ctx)
	if err != nil {
		return broker.Info{}, err
	}
	token, err := broker.Credential(ctx, hub.Client, ca)
	if err != nil {
		return broker.Info{}, err
	}
	return broker.Info{
		BrokerURL:        cmp.Or(d.set.BrokerURL, hub.Config.Host),
		ClientToken:      token,
		IPSecPSK:         &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: psk.Name, Namespace: psk.Namespace}, Data: psk.Data},
		ServiceDiscovery: slices.Contains(d.set.Components, componentServiceDiscovery),
		Components:       d.set.Components,
		CustomDomains:    d.set.CustomDomains,
	}, nil
}

// readInfo reads a broker-info.subm.
func readInfo(file string) (broker.Info, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return broker.Info{}, fmt.Errorf("read %s: %w: run `pelago deploy-broker` at the hub and bring its file here; to make a push "+
			"member of that name give --cluster-kubeconfig", file, err)
	}
	info, err := broker.DecodeInfo(content)
	if err != nil {
		return broker.Info{}, fmt.Errorf("read %s: %w", file, err)
	}
	return info, nil
}

// next prints the next steps.
func (d *deployBroker) next(out io.Writer, info broker.Info) {
	expiry, ok, err := info.Expiry()
	fmt.Fprintf(out, "\nThe broker is ready. Join each cluster:\n\n  pelago join %s --context CONTEXT --clusterid ID\n\n", d.file)
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
