package main

import (
	"bufio"
	"bytes"
	"cmp"
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
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/install"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy"
	"github.com/pelago-net/pelago/deploy/broker"
)

// join are the flags of join.
type join struct {
	install.Settings
	flags        *pflag.FlagSet
	access       access
	globalnet    bool
	globalCIDR   string
	globalSize   uint64
	clusterCIDR  []string
	serviceCIDR  []string
	gatewayNodes []string
	labelGateway bool
	image        string
	pullPolicy   string
	wait         bool
	timeout      time.Duration
	place        place
	cluster      kubeconfigFile
}

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
	j.access.addFlags(f)
	f.StringVar(&j.ClusterID, "clusterid", "", "id of the cluster: letters, digits and '-', at most 48; it never changes (default: prompt)")
	f.BoolVar(&j.globalnet, "globalnet", true, "take part in globalnet if the clusterset has it; all of its clusters do, or none")
	f.StringVar(&j.globalCIDR, "globalnet-cidr", "", "GlobalCIDR of the cluster (default: the first free one)")
	f.Uint64Var(&j.globalSize, "globalnet-cluster-size", 0, "addresses of the GlobalCIDR; rounded up to a power of two (default: the clusterset's)")
	f.StringSliceVar(&j.clusterCIDR, "clustercidr", nil, "pod ranges of the cluster (default: discovered)")
	f.StringSliceVar(&j.serviceCIDR, "servicecidr", nil, "service ranges of the cluster (default: discovered)")
	j.cluster.add(f)
	j.place.add(f)
	j.Settings.Add(f)
	f.StringArrayVar(&j.gatewayNodes, "gateway-node", nil, "node that becomes a gateway; may be repeated (default: those labelled "+submarinerv1.LabelGateway+", else prompt)")
	f.BoolVar(&j.labelGateway, "label-gateway", true, "label a node as gateway if none is")
	f.StringVar(&j.image, "image", deploy.DefaultImage, "image of all components")
	f.StringVar(&j.pullPolicy, "image-pull-policy", "IfNotPresent", "Always, IfNotPresent or Never")
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
	global, err := j.check(answers, out)
	if err != nil {
		return err
	}
	m, former, err := j.open(ctx)
	if err != nil {
		return err
	}
	p := newProgress(out)
	p.step("Reading the cluster at %s", m.config.Host)
	facts, err := j.look(ctx, m, former, p)
	if err != nil {
		return err
	}
	gateways, err := install.ChooseGateways(ctx, m.Typed, j.gatewayNodes, j.labelGateway, answers, out)
	if err != nil {
		return err
	}
	p.step("Reading the hub at %s", info.BrokerURL)
	hub, set, err := openHub(ctx, info)
	if err != nil {
		return err
	}
	entry, err := broker.Claim(ctx, hub, info.Namespace(), broker.Request{
		ClusterID: j.ClusterID, ClusterUID: facts.uid, GlobalCIDR: global, Size: j.globalSize, NoGlobalnet: !j.globalnet,
		Local: slices.Concat(facts.podCIDRs, facts.serviceCIDRs), Nodes: facts.nodes, Fabric: set.Fabric, Hub: set.Hub,
	})
	if err != nil {
		return fmt.Errorf("join as %q: %w", j.ClusterID, err)
	}
	share := ""
	if len(entry.GlobalCIDR) > 0 {
		share = fmt.Sprintf(" and GlobalCIDR %s", entry.GlobalCIDR[0])
	}
	p.step("Cluster %s has index %d%s", j.ClusterID, entry.ClusterIndex, share)
	c := j.Parsed()
	c.ClusterIndex, c.GlobalCIDRs = uint16(entry.ClusterIndex), entry.GlobalCIDR
	c.PodCIDRs, c.ServiceCIDRs, c.FabricCIDR = facts.podCIDRs, facts.serviceCIDRs, set.Fabric
	c.Mode, c.CustomDomains = config.Mode(set.Mode), set.CustomDomains
	c.HubID, c.HubServer, c.BrokerNamespace = set.HubID, info.BrokerURL, info.Namespace()
	if _, err := config.Parse(c.Data()); err != nil {
		return fmt.Errorf("the flags and the discovered settings make no valid configuration: %w", err)
	}
	if err := j.announce(ctx, m, info, former, c, p); err != nil {
		return err
	}
	if err := deploy.MemberBase(ctx, m.Client, p.step); err != nil {
		return err
	}
	token, err := register(ctx, hub, m, info, broker.Member{
		Entry: entry, PodCIDR: facts.podCIDRs, ServiceCIDR: facts.serviceCIDRs, Fabric: set.Fabric, NetworkOnly: j.NetworkOnly,
	}, p)
	if err != nil {
		return err
	}
	if err := install.Configure(ctx, m.Client, info, c); err != nil {
		return err
	}
	if err := install.LoadBalancer(ctx, m.Client, c); err != nil {
		return err
	}
	if err := install.LabelGateways(ctx, m.Typed, gateways, p.step); err != nil {
		return err
	}
	pull, err := j.pull(ctx, info, set, token, facts.uid, p)
	if err != nil {
		return err
	}
	if err := j.components(ctx, m.Client, pull, p); err != nil {
		return err
	}
	if j.wait {
		if err := install.AwaitRollout(ctx, m.Typed, j.timeout, p.step); err != nil {
			return err
		}
	}
	p.step("Cluster %s has joined", j.ClusterID)
	j.next(out)
	return nil
}

// open opens the cluster and sets the flags that were not given to those of an earlier join.
func (j *join) open(ctx context.Context) (*cluster, config.Config, error) {
	var former config.Config
	invalid := j.checkSettings() // it may still be valid with what is kept
	m, err := j.access.open()
	if err == nil {
		former, err = install.Former(ctx, m.Client)
	}
	if err == nil && former.ClusterID != "" {
		var images map[string]string
		if images, err = install.ImageFlags(ctx, m.Client); err == nil {
			kept := install.JoinFlags(former)
			maps.Copy(kept, images)
			err = install.KeepFlags(j.flags, kept)
		}
	}
	if err != nil {
		return nil, former, cmp.Or(invalid, err)
	}
	return m, former, j.checkSettings()
}

// announce prints what another join of a member changes.
func (j *join) announce(ctx context.Context, m *cluster, info broker.Info, former, c config.Config, p *progress) error {
	if former.ClusterID == "" {
		return nil
	}
	for _, change := range install.Changes(former.Data(), c.Data()) {
		p.step("Changing %s", change)
	}
	psk, err := install.SecretKey(ctx, m.Client, config.PSKSecretName, config.KeyPSK)
	if err == nil && len(psk) > 0 && !bytes.Equal(psk, info.IPSecPSK.Data["psk"]) {
		p.step("Changing the pre-shared key of the wire: members that do not join again lose the connection")
	}
	return err
}

// components installs the components, with pull also the agent for workloads.
func (j *join) components(ctx context.Context, c client.Client, pull bool, p *progress) error {
	o := deploy.MemberOptions{Image: j.image, PullPolicy: j.pullPolicy, IKE: j.CableDriver == config.CableLibreswan}
	if err := deploy.Member(ctx, c, o, p.step); err != nil {
		return err
	}
	if pull {
		return deploy.Execution(ctx, c, o, p.step)
	}
	return deploy.RemoveExecution(ctx, c, p.step)
}

// check validates the flags of which nothing is kept, asks for a missing id, and returns the requested GlobalCIDR.
func (j *join) check(answers *bufio.Reader, out io.Writer) (global netip.Prefix, err error) {
	if j.ClusterID == "" {
		if answers == nil {
			return global, errors.New("no cluster id is given: set --clusterid")
		}
		fmt.Fprint(out, "Id of this cluster (lower-case letters, digits and '-'): ")
		line, err := answers.ReadString('\n')
		if err != nil {
			return global, fmt.Errorf("read the cluster id: %w", err)
		}
		j.ClusterID = strings.TrimSpace(line)
	}
	if err := config.CheckClusterID(j.ClusterID); err != nil {
		return global, err
	}
	if err := j.place.refused(j.ClusterID); err != nil {
		return global, err
	}
	if j.globalCIDR == "" {
		return global, nil
	}
	if global, err = netip.ParsePrefix(j.globalCIDR); err != nil {
		return global, fmt.Errorf("--globalnet-cidr: %w", err)
	}
	return global, nil
}

// checkSettings validates the flags that another join keeps.
func (j *join) checkSettings() error {
	return cmp.Or(j.Settings.Check(), checkPullPolicy(j.pullPolicy))
}

// openHub opens the hub with the credential of the file and reads the settings of the clusterset.
func openHub(ctx context.Context, info broker.Info) (client.Client, broker.Clusterset, error) {
	cfg := info.Config()
	cfg.WarningHandler = rest.NoWarnings{}
	hub, err := openCluster(cfg)
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

// register gets the member's identity at the hub and returns its token. Its proof is stored in the member before anything
// depends on it, so that an interrupted join can be repeated.
func register(ctx context.Context, hub client.Client, m *cluster, info broker.Info, who broker.Member,
	p *progress) (token string, err error) {
	p.step("Registering at the hub")
	known, err := install.Proof(ctx, m.Client)
	if err != nil {
		return "", err
	}
	proof, err := broker.Identity(ctx, hub, info.Namespace(), who.ClusterID, known)
	if err != nil {
		return "", err
	}
	if err := install.KeepProof(ctx, m.Client, info, proof); err != nil {
		return "", err
	}
	if token, err = broker.Token(ctx, hub, info.Namespace(), who.ClusterID, proof); err != nil {
		return "", err
	}
	if err := install.KeepToken(ctx, m.Client, token); err != nil {
		return "", err
	}
	return token, broker.Admit(ctx, hub, info.Namespace(), who)
}

// facts are the properties of the cluster that join needs.
type facts struct {
	// uid is the UID of the namespace kube-system.
	uid                    string
	podCIDRs, serviceCIDRs []netip.Prefix
	// nodes are the present addresses of the nodes.
	nodes []netip.Addr
}

// look reads the facts of the cluster. Ranges that an earlier join has found stay, so that a node added since does not change
// them.
func (j *join) look(ctx context.Context, m *cluster, former config.Config, p *progress) (facts, error) {
	if err := m.requireVersion("this cluster", "1.27", "the oldest supported version"); err != nil {
		return facts{}, err
	}
	if err := install.RefuseSubmariner(ctx, m.Typed); err != nil {
		return facts{}, err
	}
	uid, err := broker.ClusterUID(ctx, m.Client)
	if err != nil {
		return facts{}, err
	}
	f := facts{uid: uid}
	if f.nodes, err = install.NodeAddresses(ctx, m.Typed); err != nil {
		return facts{}, err
	}
	if former.ClusterID != "" && former.ClusterID != j.ClusterID {
		return facts{}, fmt.Errorf("this cluster has joined as %q: use that id, or remove it first with `pelago unjoin`", former.ClusterID)
	}
	if f.podCIDRs, err = j.ranges(ctx, m.Typed, "pod", "clustercidr", j.clusterCIDR, former.PodCIDRs, install.PodCIDRs, p); err != nil {
		return facts{}, err
	}
	f.serviceCIDRs, err = j.ranges(ctx, m.Typed, "service", "servicecidr", j.serviceCIDR, former.ServiceCIDRs, install.ServiceCIDRs, p)
	return f, err
}

// ranges are those of the flag, else those of an earlier join, else those of find.
func (j *join) ranges(ctx context.Context, c kubernetes.Interface, what, flag string, given []string, former []netip.Prefix,
	find func(context.Context, kubernetes.Interface) ([]netip.Prefix, string, error), p *progress) ([]netip.Prefix, error) {
	if len(given) > 0 {
		prefixes, err := install.ParsePrefixes(given)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", flag, err)
		}
		return prefixes, nil
	}
	if len(former) > 0 {
		return former, nil
	}
	prefixes, source, err := find(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("find the cluster's %s ranges: %w: give them with --%s", what, err, flag)
	}
	p.step("The cluster's %s ranges are %s (%s)", what, install.JoinPrefixes(prefixes), source)
	return prefixes, nil
}

// next prints the next steps.
func (j *join) next(out io.Writer) {
	fmt.Fprintf(out, `
Check the connections once another cluster has joined, then export a service:

  pelago show connections
  pelago export service NAME --namespace NAMESPACE

Clusters reach it as NAME.NAMESPACE.svc.clusterset.local.
`)
}
