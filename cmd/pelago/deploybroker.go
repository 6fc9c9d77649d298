package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pelago-net/pelago/cmd/pelago/internal/install"
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
	flags         *pflag.FlagSet
	access        access
	globalnet     bool
	globalRange   string
	globalSize    uint64
	fabric        string
	pskFrom       string
	customDomains []string
	components    []string
	brokerURL     string
	mode          string
	output        string
	autoAccept    bool
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
globalnet cannot change while clusters are registered. Members use changed custom
domains once they join again.`,
		Example: `  # clusters whose pod and service ranges differ
  pelago deploy-broker --context hub

  # clusters with the same ranges: each gets addresses of 120.0.0.0/8
  pelago deploy-broker --context hub --globalnet --globalnet-cidr-range 120.0.0.0/8`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return d.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	d.flags = f
	d.access.addFlags(f)
	f.BoolVar(&d.globalnet, "globalnet", false, "give every cluster addresses of its own, so that pod and service ranges may overlap")
	f.StringVar(&d.globalRange, "globalnet-cidr-range", "242.0.0.0/8", "range that the clusters' GlobalCIDRs are taken from")
	f.Uint64Var(&d.globalSize, "globalnet-cluster-size", 65536, "addresses of a cluster's GlobalCIDR unless join says otherwise; rounded up to a power of two")
	f.StringVar(&d.fabric, "fabric-cidr", config.DefaultFabricCIDR, "an unused /8 for the nodes' addresses between clusters")
	f.StringVar(&d.pskFrom, "ipsec-psk-from", "", "take the pre-shared key of the wires between gateways from this broker-info.subm instead of generating one")
	f.StringSliceVar(&d.customDomains, "custom-domains", nil, "DNS zones that are served in addition to clusterset.local")
	f.StringSliceVar(&d.components, "components", []string{componentServiceDiscovery, componentConnectivity}, "what the clusterset is for")
	f.StringVar(&d.brokerURL, "broker-url", "", "URL under which clusters reach the hub's API server (default: the kubeconfig's)")
	f.StringVar(&d.mode, "mode", "submariner", "rules of service discovery: submariner (the local cluster's address first) or mcs (a ClusterSetIP)")
	f.BoolVar(&d.autoAccept, "auto-accept", false, "send workloads to members without `pelago clusters accept`")
	f.StringVar(&d.output, "output", broker.InfoFile, "file to write")
	return cmd
}

func (d *deployBroker) run(ctx context.Context, out io.Writer) error {
	p := newProgress(out)
	hub, former, err := d.open(ctx)
	if err != nil {
		return err
	}
	set, book, err := d.check()
	if err != nil {
		return err
	}
	if former != nil {
		for _, change := range install.Changes(former, install.BrokerFlags(set, book)) {
			p.step("Changing %s", change)
		}
	}
	if d.pskFrom != "" {
		p.step("Using the pre-shared key of %s", d.pskFrom)
	}
	if err := deploy.HubBase(ctx, hub.Client, p.step); err != nil {
		return err
	}
	if set.HubID, err = broker.HubID(ctx, hub.Client); err != nil {
		return err
	}
	psk, err := d.psk()
	if err != nil {
		return err
	}
	p.step("Writing the settings of the clusterset")
	if set.Hub, err = broker.HubAddresses(ctx, hub.Client, cmp.Or(d.brokerURL, hub.config.Host)); err != nil {
		return err
	}
	pskSecret, err := broker.Setup(ctx, hub.Client, book, set, psk)
	if err != nil {
		return err
	}
	if err := deploy.Hub(ctx, hub.Client, p.step); err != nil {
		return err
	}
	info, err := d.info(ctx, hub, pskSecret)
	if err != nil {
		return err
	}
	kept, err := writeInfo(d.output, info)
	if err != nil {
		return err
	}
	if kept != "" {
		p.step("Renamed the former %s to %s", d.output, kept)
	}
	p.step("Wrote %s", d.output)
	d.next(out, info)
	return nil
}

// open opens the hub and sets the flags that were not given to those of an earlier run. former are the flags of that run, nil
// if there was none.
func (d *deployBroker) open(ctx context.Context) (hub *cluster, former map[string]string, err error) {
	_, _, invalid := d.check() // it may still be valid with what is kept
	if hub, err = d.access.open(); err == nil {
		err = hub.requireHubVersion()
	}
	var set broker.Clusterset
	var book broker.Book
	var ok bool
	if err == nil {
		set, book, ok, err = broker.Former(ctx, hub.Client)
	}
	if err != nil {
		return nil, nil, cmp.Or(invalid, err)
	}
	if ok {
		former = install.BrokerFlags(set, book)
		err = install.KeepFlags(d.flags, former)
	}
	return hub, former, err
}

// check validates the flags and returns the settings and the empty book that they describe.
func (d *deployBroker) check() (set broker.Clusterset, book broker.Book, err error) {
	set = broker.Clusterset{Mode: d.mode, CustomDomains: d.customDomains, Components: d.components, BrokerURL: d.brokerURL, AutoAccept: d.autoAccept}
	if d.mode != string(config.ModeSubmariner) && d.mode != string(config.ModeMCS) {
		return set, book, fmt.Errorf("--mode %q: use submariner or mcs", d.mode)
	}
	for _, c := range d.components {
		if c != componentConnectivity && c != componentServiceDiscovery {
			return set, book, fmt.Errorf("--components %q: use %s, %s or both", c, componentServiceDiscovery, componentConnectivity)
		}
	}
	if !slices.Contains(d.components, componentConnectivity) || !slices.Contains(d.components, componentServiceDiscovery) {
		return set, book, fmt.Errorf("--components %s: a part is not built yet in this version; leave the flag out, which means both", strings.Join(d.components, ","))
	}
	for _, domain := range d.customDomains {
		if len(validation.IsDNS1123Subdomain(strings.ToLower(strings.TrimSuffix(domain, ".")))) > 0 {
			return set, book, fmt.Errorf("--custom-domains %q is no domain name", domain)
		}
	}
	if set.Fabric, err = netip.ParsePrefix(d.fabric); err == nil {
		err = config.CheckFabric(set.Fabric)
	}
	if err != nil {
		return set, book, fmt.Errorf("--fabric-cidr: %w", err)
	}
	if !d.globalnet {
		book, err = broker.NewBook(false, netip.Prefix{}, 0)
		return set, book, err
	}
	cidr, err := netip.ParsePrefix(d.globalRange)
	if err != nil {
		return set, book, fmt.Errorf("--globalnet-cidr-range: %w", err)
	}
	if cidr.Overlaps(set.Fabric) {
		return set, book, fmt.Errorf("--globalnet-cidr-range %s overlaps --fabric-cidr %s: choose another of one of them", cidr, set.Fabric)
	}
	book, err = broker.NewBook(true, cidr, d.globalSize)
	return set, book, err
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
	ca := hub.config.CAData
	if len(ca) == 0 {
		var err error
		if ca, err = deploy.PublishedCA(ctx, hub.Client, deploy.BrokerNamespace); err != nil {
			return broker.Info{}, err
		}
	}
	token, err := broker.Credential(ctx, hub.Client, ca)
	if err != nil {
		return broker.Info{}, err
	}
	return broker.Info{
		BrokerURL:        cmp.Or(d.brokerURL, hub.config.Host),
		ClientToken:      token,
		IPSecPSK:         &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: psk.Name, Namespace: psk.Namespace}, Data: psk.Data},
		ServiceDiscovery: slices.Contains(d.components, componentServiceDiscovery),
		Components:       d.components,
		CustomDomains:    d.customDomains,
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

// writeInfo writes the file and returns the new name of an earlier one.
func writeInfo(file string, info broker.Info) (kept string, err error) {
	content, err := info.Encode()
	if err != nil {
		return "", err
	}
	return writeSecretFile(file, content, file+"."+time.Now().UTC().Format("2006-01-02T15_04_05.000Z"))
}

// writeSecretFile replaces a file by one that its owner alone can read. An existing one is renamed to keep, unless that is empty;
// kept is its new name.
func writeSecretFile(file string, content []byte, keep string) (kept string, err error) {
	tmp, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-") // mode 0600
	if err != nil {
		return "", fmt.Errorf("write %s: %w", file, err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(content)
	if err = errors.Join(err, tmp.Close()); err != nil {
		return "", fmt.Errorf("write %s: %w", file, err)
	}
	if keep != "" {
		switch err := os.Rename(file, keep); {
		case err == nil:
			kept = keep
		case !errors.Is(err, fs.ErrNotExist):
			return "", fmt.Errorf("keep the former %s: %w", file, err)
		}
	}
	if err := os.Rename(tmp.Name(), file); err != nil {
		return "", fmt.Errorf("write %s: %w", file, err)
	}
	return kept, nil
}

// next prints the next steps.
func (d *deployBroker) next(out io.Writer, info broker.Info) {
	expiry, ok, err := info.Expiry()
	fmt.Fprintf(out, "\nThe broker is ready. Join each cluster:\n\n  pelago join %s --context CONTEXT --clusterid ID\n\n", d.output)
	if ok && err == nil {
		fmt.Fprintf(out, "%s can register clusters until %s; keep it secret. ", d.output, expiry.UTC().Format(time.RFC3339))
		fmt.Fprintln(out, "Run this command again for a new one.")
	}
	if u, err := url.Parse(info.BrokerURL); err == nil {
		if ip, err := netip.ParseAddr(u.Hostname()); u.Hostname() == "localhost" || (err == nil && ip.IsLoopback()) {
			fmt.Fprintf(out, "Warning: pods of other clusters cannot reach %s; give the hub's address with --broker-url.\n", info.BrokerURL)
		}
	}
}
