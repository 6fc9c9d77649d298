package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/install"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy"
	"github.com/pelago-net/pelago/deploy/broker"
)

// join are the flags of join.
type join struct {
	access
	install.Settings
	flags        *pflag.FlagSet
	globalnet    bool
	globalCIDR   netip.Prefix
	globalSize   uint64
	vipCIDR      netip.Prefix
	clusterCIDR  []string
	serviceCIDR  []string
	gatewayNodes []string
	labelGateway bool
	image        imageFlags
	wait         bool
	timeout      time.Duration
	place        install.Place
	cluster      kubeconfigFile
}

// memberVersion is the oldest version of Kubernetes of a member.
const memberVersion = "1.27"

func joinCommand() *cobra.Command {
	var j join
	cmd := &cobra.Command{
		Use:   "join broker-info.subm | NAME",
		Short: "Join a cluster to a clusterset",
		Long: `join registers the cluster of the kubeconfig with the hub that wrote
broker-info.subm, installs Pelago in it and waits until it runs. Settings
without a flag are discovered. Where the hub propagates workloads (pelago init), an
agent in the cluster runs them (pull), unless --network-only says otherwise.

With --cluster-kubeconfig the argument is a name, and the kubeconfig is the hub's:
the hub writes the cluster itself (push). The cluster gets a ServiceAccount for the
hub, which may read and write everything in it, and nothing else is installed; the
network is not joined.

Run again with the same id it repairs and updates; the cluster keeps its
addresses, its identity and every setting whose flag is not given again, such as
--cable-driver. What changes is printed first. An image of the default repository
is updated to the version of this command; another stays until --image is given.`,
		Example: `  pelago join broker-info.subm --context c1 --clusterid c1

  # with globalnet, a given range
  pelago join broker-info.subm --context g1 --clusterid g1 --globalnet-cidr 120.1.0.0/24

  # another wire between gateways than WireGuard, the same in all clusters
  pelago join broker-info.subm --context c1 --clusterid c1 --cable-driver libreswan

  # up to four cores for a pair of gateways
  pelago join broker-info.subm --context c1 --clusterid c1 --cable-tunnels 4

  # two gateways
  pelago join broker-info.subm --context c1 --clusterid c1 --gateway-node worker1 --gateway-node worker2

  # hosts outside the cluster reach other clusters by a gateway node
  pelago join broker-info.subm --context c1 --clusterid c1 --external-cidr 192.0.2.0/25

  # network and services, no workloads
  pelago join broker-info.subm --context c1 --clusterid c1 --network-only

  # workloads only, written by the hub
  pelago join c2 --context hub --cluster-kubeconfig c2.kubeconfig --cluster-region eu`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			push, err := j.isPush(args[0])
			if err != nil {
				return err
			}
			if push {
				if err := refuseNetworkFlags(cmd); err != nil {
					return err
				}
				return j.push(cmd.Context(), args[0], cmd.OutOrStdout())
			}
			return j.run(cmd.Context(), args[0], terminal(cmd.InOrStdin()), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	j.flags = f
	j.addFlags(f)
	f.StringVar(&j.ClusterID, "clusterid", "", "id of the cluster: letters, digits and '-', at most 48; it never changes (default: prompt)")
	f.BoolVar(&j.globalnet, "globalnet", true, "take part in globalnet if the clusterset has it; all of its clusters do, or none")
	f.TextVar(&j.globalCIDR, "globalnet-cidr", netip.Prefix{}, "GlobalCIDR of the cluster, a `CIDR` (default: the first free one)")
	f.Uint64Var(&j.globalSize, "globalnet-cluster-size", 0, "addresses of the GlobalCIDR; rounded up to a power of two (default: the clusterset's)")
	f.TextVar(&j.vipCIDR, "clusterset-ip-cidr", netip.Prefix{}, "range of ClusterSetIPs that this cluster allocates from, a `CIDR` (default: the first free /20)")
	f.StringSliceVar(&j.clusterCIDR, "clustercidr", nil, "pod ranges of the cluster (default: discovered)")
	f.StringSliceVar(&j.serviceCIDR, "servicecidr", nil, "service ranges of the cluster (default: discovered)")
	j.cluster.add(f)
	f.StringVar(&j.place.Provider, "cluster-provider", "", "provider of the cluster, by which workloads are spread")
	f.StringVar(&j.place.Region, "cluster-region", "", "region of the cluster, by which workloads are spread")
	f.StringSliceVar(&j.place.Zones, "cluster-zones", nil, "zones of the cluster, by which workloads are spread")
	j.Settings.Add(f)
	f.StringArrayVar(&j.gatewayNodes, "gateway-node", nil, "node that becomes a gateway; may be repeated (default: those labelled "+submarinerv1.LabelGateway+", else prompt)")
	f.BoolVar(&j.labelGateway, "label-gateway", true, "label a node as gateway if none is")
	j.image.add(f, "image of all components")
	f.BoolVar(&j.wait, "wait", true, "wait until all components run")
	f.DurationVar(&j.timeout, "timeout", 5*time.Minute, "how long to wait for them")
	cmd.MarkFlagsMutuallyExclusive("globalnet-cidr", "globalnet-cluster-size")
	return cmd
}

// terminal returns a reader of answers, nil if the input is no terminal.
func terminal(in io.Reader) *bufio.Reader {
	if f, ok := in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return bufio.NewReader(in)
	}
	return nil
}

func (j *join) run(ctx context.Context, file string, answers *bufio.Reader, out io.Writer) error {
	info, err := readInfo(file)
	if err != nil {
		return err
	}
	if err := info.CheckExpiry(time.Now()); err != nil {
		return fmt.Errorf("use %s: %w", file, err)
	}
	if err := j.checkID(answers, out); err != nil {
		return err
	}
	m, former, err := j.openMember(ctx)
	if err != nil {
		return err
	}
	progress := newProgress(out)
	progress("Reading the cluster at %s", m.Config.Host)
	if err := m.requireVersion("this cluster", memberVersion, "the oldest supported version"); err != nil {
		return err
	}
	facts, err := install.ReadFacts(ctx, m.Member, j.ClusterID, former, j.clusterCIDR, j.serviceCIDR, progress)
	if err != nil {
		return err
	}
	gateways, err := install.ChooseGateways(facts.Nodes, j.gatewayNodes, j.labelGateway, answers, out)
	if err != nil {
		return err
	}
	progress("Reading the hub at %s", info.BrokerURL)
	hub, set, err := openHub(ctx, info)
	if err != nil {
		return err
	}
	entry, err := broker.Claim(ctx, hub, info.Namespace(), broker.Request{
		ClusterID: j.ClusterID, ClusterUID: facts.UID, GlobalCIDR: j.globalCIDR, Size: j.globalSize, NoGlobalnet: !j.globalnet,
		ClusterSetIPCIDR: j.vipCIDR,
		Local:            slices.Concat(facts.PodCIDRs, facts.ServiceCIDRs), External: j.ExternalCIDRs, Nodes: facts.NodeAddresses(), Fabric: set.Fabric, Hub: set.Hub,
	})
	if err != nil {
		return fmt.Errorf("join as %q: %w", j.ClusterID, err)
	}
	share := ""
	if len(entry.GlobalCIDR) > 0 {
		share = fmt.Sprintf(" and GlobalCIDR %s", entry.GlobalCIDR[0])
	}
	progress("Cluster %s has index %d%s", j.ClusterID, entry.ClusterIndex, share)
	c := j.Parsed()
	c.ClusterIndex, c.GlobalCIDRs = uint16(entry.ClusterIndex), entry.GlobalCIDR
	c.PodCIDRs, c.ServiceCIDRs, c.FabricCIDR = facts.PodCIDRs, facts.ServiceCIDRs, set.Fabric
	c.Mode, c.CustomDomains = config.Mode(set.Mode), set.CustomDomains
	c.ClusterSetIPs, c.ClusterSetIPCIDRs = c.ClusterSetIPs || set.ClusterSetIPs, entry.ClusterSetIPCIDR
	if c.GlobalRange, c.ClusterSetIPRange, err = broker.Ranges(ctx, hub, info.Namespace()); err != nil {
		return err
	}
	if c.CoreDNSCustom == "" && !j.flags.Changed("coredns-custom-configmap") {
		if c.CoreDNSCustom, err = install.CoreDNSCustom(ctx, m.Client); err != nil {
			return err
		}
	}
	c.HubID, c.HubServer, c.BrokerNamespace = set.HubID, info.BrokerURL, info.Namespace()
	if _, err := config.Parse(c.Data()); err != nil {
		return fmt.Errorf("the flags and the discovered settings make no valid configuration: %w", err)
	}
	if err := announce(ctx, m, info, former, c, progress); err != nil {
		return err
	}
	if err := deploy.MemberBase(ctx, m.Client, progress); err != nil {
		return err
	}
	token, err := install.RegisterNetwork(ctx, hub, m.Client, info, broker.Member{
		Entry: entry, PodCIDR: c.RoutedPodCIDRs(), ServiceCIDR: facts.ServiceCIDRs, Fabric: set.Fabric, NetworkOnly: j.NetworkOnly,
	}, progress)
	if err != nil {
		return err
	}
	if err := install.Configure(ctx, m.Client, info, c); err != nil {
		return err
	}
	if err := install.MoveForward(ctx, m.Client, former.CoreDNSCustom, c.CoreDNSCustom, progress); err != nil {
		return err
	}
	if err := install.LoadBalancer(ctx, m.Client, c); err != nil {
		return err
	}
	if err := install.LabelGateways(ctx, m.Typed, gateways, progress); err != nil {
		return err
	}
	pull := false
	if !j.NetworkOnly {
		if pull, err = install.RegisterPull(ctx, info, set, token, j.ClusterID, facts.UID, progress); err != nil {
			return err
		}
	}
	if err := j.components(ctx, m.Client, c, pull, progress); err != nil {
		return err
	}
	if j.wait {
		if err := install.AwaitRollout(ctx, m.Typed, j.timeout, progress); err != nil {
			return err
		}
	}
	progress("Cluster %s has joined", j.ClusterID)
	fmt.Fprint(out, `
Check the connections once another cluster has joined, then export a service:

  pelago show connections
  pelago export service NAME --namespace NAMESPACE

Clusters reach it as NAME.NAMESPACE.svc.clusterset.local.
`)
	return nil
}

// openMember opens the cluster and sets the flags that were not given to those of an earlier join.
func (j *join) openMember(ctx context.Context) (m *cluster, former config.Config, err error) {
	m, err = j.openKept(ctx, j.flags, j.Check, func(ctx context.Context, m *cluster) (map[string]string, error) {
		var err error
		if former, err = install.Former(ctx, m.Client); err != nil || former.ClusterID == "" {
			return nil, err
		}
		kept := install.JoinFlags(former)
		images, err := install.ImageFlags(ctx, m.Client)
		maps.Copy(kept, images)
		return kept, err
	})
	return m, former, err
}

// announce prints what another join of a member changes.
func announce(ctx context.Context, m *cluster, info broker.Info, former, c config.Config, progress deploy.Progress) error {
	if former.ClusterID == "" {
		return nil
	}
	for _, change := range install.Changes(former.Data(), c.Data()) {
		progress("Changing %s", change)
	}
	psk, err := install.SecretKey(ctx, m.Client, config.PSKSecretName, config.KeyPSK)
	if err == nil && len(psk) > 0 && !bytes.Equal(psk, info.IPSecPSK.Data["psk"]) {
		progress("Changing the pre-shared key of the wire: members that do not join again lose the connection")
	}
	return err
}

// components installs the components, with pull also the agent for workloads.
func (j *join) components(ctx context.Context, c client.Client, settings config.Config, pull bool, progress deploy.Progress) error {
	o := deploy.MemberOptions{Image: j.image.name, PullPolicy: j.image.pullPolicy, IKE: settings.CableDriver == config.CableLibreswan, CoreDNSCustom: settings.CoreDNSCustom}
	if err := deploy.Member(ctx, c, o, progress); err != nil {
		return err
	}
	if pull {
		return deploy.Execution(ctx, c, o, progress)
	}
	return deploy.RemoveExecution(ctx, c, progress)
}

// checkID validates the flags of which nothing is kept, and prompts for a missing id.
func (j *join) checkID(answers *bufio.Reader, out io.Writer) error {
	if j.ClusterID == "" {
		if answers == nil {
			return errors.New("no cluster id is given: set --clusterid")
		}
		fmt.Fprint(out, "Id of this cluster (lower-case letters, digits and '-'): ")
		line, err := answers.ReadString('\n')
		if err != nil {
			return fmt.Errorf("read the cluster id: %w", err)
		}
		j.ClusterID = strings.TrimSpace(line)
	}
	if err := config.CheckClusterID(j.ClusterID); err != nil {
		return err
	}
	if j.place.Provider != "" || j.place.Region != "" || len(j.place.Zones) > 0 {
		return fmt.Errorf("--cluster-provider, --cluster-region and --cluster-zones are for push members; the place of this cluster is set "+
			"at the hub: pelago clusters accept %s --provider, --region, --zone", j.ClusterID)
	}
	return nil
}

// openHub opens the hub with the credential of the file and reads the settings of the clusterset.
func openHub(ctx context.Context, info broker.Info) (client.Client, broker.Clusterset, error) {
	hub, err := openCluster(info.Config())
	if err != nil {
		return nil, broker.Clusterset{}, err
	}
	if err := hub.requireHubVersion(); err != nil {
		return nil, broker.Clusterset{}, err
	}
	set, err := broker.ReadClusterset(ctx, hub.Client, info.Namespace())
	if err != nil {
		return nil, broker.Clusterset{}, fmt.Errorf("%w: was the broker deployed by `pelago deploy-broker`, and does its file come from there?", err)
	}
	return hub.Client, set, nil
}

// kubeconfigFile are the flags that name the access to a push member.
type kubeconfigFile struct{ file, context string }

func (k *kubeconfigFile) add(f *pflag.FlagSet) {
	f.StringVar(&k.file, "cluster-kubeconfig", "", "kubeconfig of the cluster, of an administrator; the kubeconfig of --kubeconfig "+
		"and --context is the hub's")
	f.StringVar(&k.context, "cluster-context", "", "context of that kubeconfig (default: its current one)")
}

// open returns the cluster, and the URL of the proxy on the way to it, empty for none.
func (k *kubeconfigFile) open() (m *cluster, proxy string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("reach the cluster by --cluster-kubeconfig %s: %w", k.file, err)
		}
	}()
	a := access{kubeconfig: k.file}
	cfg, err := a.config(k.context)
	if err != nil {
		return nil, "", err
	}
	if !strings.HasPrefix(cfg.Host, "https://") {
		return nil, "", fmt.Errorf("the hub sends a token there, so its server must begin with https://, and is %s", cfg.Host)
	}
	if cfg.ServerName != "" {
		return nil, "", errors.New("tls-server-name cannot be passed to the hub: use a server name that the certificate has")
	}
	if cfg.Proxy != nil {
		u, err := cfg.Proxy(nil) // clientcmd's uses no part of the request
		if err != nil {
			return nil, "", fmt.Errorf("read its proxy: %w", err)
		}
		proxy = u.String()
	}
	m, err = openCluster(cfg)
	return m, proxy, err
}

// pushFlags are the flags of join that a push member takes besides those of access.
var pushFlags = []string{"cluster-kubeconfig", "cluster-context", "cluster-provider", "cluster-region", "cluster-zones"}

// isPush decides what the argument of join is: a file that can be read is a broker-info.subm, anything else with
// --cluster-kubeconfig the name of a push member.
func (j *join) isPush(argument string) (bool, error) {
	info, err := os.Stat(argument)
	file := err == nil && info.Mode().IsRegular()
	given := j.cluster.file != "" || j.cluster.context != ""
	if file && given {
		return false, fmt.Errorf("%s is a file here, so it is taken as broker-info.subm, and joining by it takes no "+
			"--cluster-kubeconfig and --cluster-context: "+
			"leave them out, or run this in another directory if %s is the name of a push member", argument, argument)
	}
	if !file && j.cluster.file == "" && j.cluster.context != "" {
		return false, fmt.Errorf("--cluster-context %s: give --cluster-kubeconfig as well", j.cluster.context)
	}
	return !file && given, nil
}

// refuseNetworkFlags refuses flags that mean nothing for a push member.
func refuseNetworkFlags(cmd *cobra.Command) error {
	allowed := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(access).addFlags(allowed)
	var wrong []string
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if allowed.Lookup(f.Name) == nil && !slices.Contains(pushFlags, f.Name) {
			wrong = append(wrong, "--"+f.Name)
		}
	})
	if len(wrong) > 0 {
		return fmt.Errorf("%s: joining with --cluster-kubeconfig makes a push member, which needs no such flag; a cluster joins the "+
			"network with its broker-info.subm", wrong)
	}
	return nil
}

// push makes a cluster a member that the hub writes.
func (j *join) push(ctx context.Context, name string, out io.Writer) error {
	if err := config.CheckClusterID(name); err != nil {
		return err
	}
	m, proxy, err := j.cluster.open()
	if err != nil {
		return err
	}
	progress := newProgress(out)
	hub, err := j.open()
	if err != nil {
		return err
	}
	hubID, err := hub.propagates(ctx)
	if err != nil {
		return err
	}
	progress("Reading the cluster at %s", m.Config.Host)
	if err := m.requireVersion("the cluster", memberVersion, "the oldest supported version"); err != nil {
		return err
	}
	p := install.Push{Name: name, HubID: hubID, Config: m.Config, Proxy: proxy, Place: j.place}
	if err := p.Register(ctx, hub.Client, m.Client, progress); err != nil {
		return err
	}
	progress("Cluster %s has joined", name)
	fmt.Fprintf(out, "\nCheck whether the hub reaches it:\n\n  kubectl get clusters.cluster.karmada.io %s\n", name)
	return nil
}
