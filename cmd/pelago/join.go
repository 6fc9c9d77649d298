package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/install"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
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
	image        install.Image
	pods         install.Pods
	record       *deploy.Recorder // with --dry-run
	dryRun       bool
	components   bool
	registered   bool
	wait, adopt  bool // adopt: although Submariner runs, which migrate submariner stops
	timeout      time.Duration
	place        install.Place
	cluster      kubeconfigFile
	// discoveryOnly is refused with the remedy.
	discoveryOnly bool
}

// memberVersion is the oldest version of Kubernetes of a member.
const memberVersion = "1.27"

// adopt is join for migrate submariner, with the access of that command's flags.
func adopt(of install.Access) *cobra.Command {
	j := &join{adopt: true}
	cmd := j.command()
	j.kubeconfig, j.overrides = of.(*access).kubeconfig, of.(*access).overrides
	return cmd
}

func (j *join) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "join broker-info.subm | NAME",
		Short: "Join a cluster to a clusterset",
		Long: `join registers the cluster of the kubeconfig with the hub that wrote
broker-info.subm, installs Pelago in it and waits until it runs. Settings
without a flag are discovered. Where the hub propagates workloads (pelago init), an
agent in the cluster runs them (pull), unless --network-only says otherwise. With
--workloads-only that agent is all that is installed: the cluster has no part in the
network, and nothing on its nodes changes.

With --cluster-kubeconfig the argument is a name, and the kubeconfig is the hub's:
the hub writes the cluster itself (push). The cluster gets a ServiceAccount for the
hub, which may read and write everything in it, and nothing else is installed; the
network is not joined.

Run again with the same id it repairs and updates; the cluster keeps its
addresses, its identity and every setting whose flag is not given again, such as
--cable-driver. What changes is printed first. An image of localhost/pelago,
the repository of local builds, becomes the default of --image again; another
stays until --image is given.`,
		Example: `  pelago join broker-info.subm --context c1 --clusterid c1

  # with globalnet, a given range
  pelago join broker-info.subm --context g1 --clusterid g1 --globalnet-cidr 120.1.0.0/24

  # another cable driver than WireGuard, the same in all clusters
  pelago join broker-info.subm --context c1 --clusterid c1 --cable-driver libreswan

  # up to four cores for a pair of gateways
  pelago join broker-info.subm --context c1 --clusterid c1 --cable-tunnels 4

  # two gateways
  pelago join broker-info.subm --context c1 --clusterid c1 --gateway-node worker1 --gateway-node worker2

  # hosts outside the cluster reach other clusters by a gateway node
  pelago join broker-info.subm --context c1 --clusterid c1 --external-cidr 192.0.2.0/25

  # network and services, no workloads
  pelago join broker-info.subm --context c1 --clusterid c1 --network-only

  # what it would write
  pelago join broker-info.subm --context c1 --clusterid c1 --dry-run -o yaml

  # another version of the components, without a new broker-info.subm
  pelago join broker-info.subm --context c1 --clusterid c1 --image IMAGE --keep-registration

  # workloads only, by an agent in the cluster
  pelago join broker-info.subm --context c1 --clusterid c1 --workloads-only

  # workloads only, written by the hub
  pelago join c2 --context hub --cluster-kubeconfig c2.kubeconfig --cluster-region eu`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			push, err := j.isPush(args[0])
			if err != nil {
				return err
			}
			if push {
				if err := refuseFlags(j.flags, pushFlags, pushRefusal); err != nil {
					return err
				}
				return j.push(cmd.Context(), args[0], cmd.OutOrStdout())
			}
			return j.run(cmd.Context(), args[0], view.Terminal(cmd.InOrStdin()), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	j.addMemberFlags(cmd, "clusterid")
	j.cluster.add(cmd.Flags())
	j.addPlace(cmd.Flags())
	return cmd
}

// addPlace adds the flags about the place of a push member.
func (j *join) addPlace(f *pflag.FlagSet) {
	f.StringVar(&j.place.Provider, "cluster-provider", "", "provider of the cluster, by which workloads are spread")
	f.StringVar(&j.place.Region, "cluster-region", "", "region of the cluster, by which workloads are spread")
	f.StringSliceVar(&j.place.Zones, "cluster-zones", nil, "zones of the cluster, by which workloads are spread")
}

// addMemberFlags adds the flags about a cluster that joins itself; id is the name of the one for its id.
func (j *join) addMemberFlags(cmd *cobra.Command, id string) {
	f := cmd.Flags()
	j.flags = f
	j.addFlags(f)
	f.StringVar(&j.ClusterID, id, "", "id of the cluster: letters, digits and '-', at most 48; it never changes (default: prompt)")
	f.BoolVar(&j.globalnet, "globalnet", true, "take part in globalnet if the clusterset has it; all of its clusters do, or none")
	f.TextVar(&j.globalCIDR, "globalnet-cidr", netip.Prefix{}, "GlobalCIDR of the cluster, a `CIDR` (default: the first free one)")
	f.Uint64Var(&j.globalSize, "globalnet-cluster-size", 0, "addresses of the GlobalCIDR; rounded up to a power of two (default: the clusterset's)")
	f.TextVar(&j.vipCIDR, "clusterset-ip-cidr", netip.Prefix{}, "range of ClusterSetIPs that this cluster allocates from, a `CIDR` (default: the first free /20)")
	f.StringSliceVar(&j.clusterCIDR, "clustercidr", nil, "pod ranges of the cluster (default: discovered)")
	f.StringSliceVar(&j.serviceCIDR, "servicecidr", nil, "service ranges of the cluster (default: discovered)")
	j.Settings.Add(f)
	f.StringArrayVar(&j.gatewayNodes, "gateway-node", nil, "node that becomes a gateway; may be repeated (default: those labelled "+submarinerv1.LabelGateway+", else prompt)")
	f.BoolVar(&j.labelGateway, "label-gateway", true, "label a node as gateway if none is")
	j.image.Add(f)
	j.pods.Add(f)
	f.BoolVar(&j.dryRun, "dry-run", false, "print all objects that would be written into the cluster, and write none, neither there nor at the hub; what "+
		"join gets from the hub, such as the token, is left out")
	f.StringVarP(&j.output, "output", "o", "yaml", "with --dry-run: yaml or json")
	f.BoolVar(&j.components, "components", true, "install the components; false: only register and write the configuration (a Helm chart installs them)")
	f.BoolVar(&j.registered, "keep-registration", false, "update an existing member without contacting the hub; the credential of the file may have expired")
	f.BoolVar(&j.wait, "wait", true, "wait until all components run")
	f.DurationVar(&j.timeout, "timeout", 5*time.Minute, "how long to wait for them")
	f.BoolVar(&j.discoveryOnly, "discovery-only", false, "not supported")
	f.Lookup("discovery-only").Hidden = true // refused with the remedy
	cmd.MarkFlagsMutuallyExclusive("network-only", "workloads-only")
	cmd.MarkFlagsMutuallyExclusive("globalnet-cidr", "globalnet-cluster-size")
}

// run joins the cluster by a broker-info.subm.
func (j *join) run(ctx context.Context, file string, answers *view.Answers, out, errOut io.Writer) error {
	info, err := readInfo(file)
	if err != nil {
		return err
	}
	if err := info.CheckExpiry(time.Now()); err != nil && !j.registered {
		return fmt.Errorf("use %s: %w", file, err)
	}
	return j.member(ctx, info, answers, out, errOut)
}

// member joins the cluster with the credential of info.
func (j *join) member(ctx context.Context, info broker.Info, answers *view.Answers, out, errOut io.Writer) error {
	if j.flags.Changed("output") && !j.dryRun {
		return errors.New("--output: give --dry-run as well")
	}
	if j.output != "yaml" && j.output != "json" {
		return fmt.Errorf("--output %s: use yaml or json", j.output)
	}
	objects := out
	if j.dryRun {
		out = errOut // prompts and progress are no part of the objects
	}
	if err := j.checkID(ctx, answers, out); err != nil {
		return err
	}
	m, former, err := j.openMember(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(j.checkScope(former), j.pods.Apply(&deploy.MemberOptions{})); err != nil {
		return err
	}
	if j.dryRun {
		j.record, j.wait = &deploy.Recorder{Client: m.Client}, false
		m.Client = j.record
	}
	progress := newProgress(out)
	progress("Reading the cluster at %s", m.Config.Host)
	if err := m.requireVersion("this cluster", memberVersion, "the oldest supported version"); err != nil {
		return err
	}
	switch {
	case j.registered && former.ClusterID != j.ClusterID:
		err = fmt.Errorf("--keep-registration: the cluster has not joined as %q: leave the flag out", j.ClusterID)
	case j.WorkloadsOnly && j.registered:
		err = j.install(ctx, m.Client, former, true, progress)
	case j.WorkloadsOnly:
		err = j.workloads(ctx, m, info, progress)
	default:
		err = j.network(ctx, m, info, former, answers, out, progress)
	}
	if err != nil {
		return err
	}
	if j.dryRun {
		return j.record.Print(objects, j.output)
	}
	if j.wait {
		if err := install.AwaitRollout(ctx, m.Typed, j.WorkloadsOnly, j.timeout, progress); err != nil {
			return err
		}
	}
	progress("Cluster %s has joined", j.ClusterID)
	if j.WorkloadsOnly || j.adopt {
		return nil
	}
	fmt.Fprint(out, `
Check the connections once another cluster has joined, then export a service:

  pelago show connections
  pelago export service NAME --namespace NAMESPACE

Clusters reach it as NAME.NAMESPACE.svc.clusterset.local.
`)
	return nil
}

// workloadsFlags are the flags of join that have a meaning with --workloads-only, besides those of access.
var workloadsFlags = []string{"clusterid", "cluster-name", "token", "discovery-token-ca-cert-hash", "workloads-only", "image",
	"image-pull-policy", "keep-registration", "wait", "timeout", "dry-run", "output", "components"}

// checkScope refuses to move a joined cluster into or out of the network, and refuses flags that have no effect in its scope.
func (j *join) checkScope(former config.Config) error {
	if j.discoveryOnly {
		return errors.New("--discovery-only is not supported: names and imports follow the health of the gateways. Join without it, " +
			"and without globalnet where the pods of all clusters reach each other already: the clusters then keep their addresses")
	}
	if former.ClusterID != "" && former.WorkloadsOnly != j.WorkloadsOnly {
		return fmt.Errorf("this cluster has joined as %q %s: remove it first, at the hub with `pelago unjoin --clusterid %s` and here "+
			"with `pelago unjoin`", former.ClusterID, map[bool]string{true: "with --workloads-only", false: "with the network"}[former.WorkloadsOnly],
			former.ClusterID)
	}
	if !j.WorkloadsOnly {
		return nil
	}
	if former.ClusterID != "" && former.ClusterID != j.ClusterID {
		return fmt.Errorf("this cluster has joined as %q: use that id, or remove it first with `pelago unjoin`", former.ClusterID)
	}
	return refuseFlags(j.flags, slices.Concat(workloadsFlags, install.PodFlags), networkRefusal)
}

// workloads installs the agent for workloads alone.
func (j *join) workloads(ctx context.Context, m *cluster, info broker.Info, progress deploy.Progress) error {
	uid, err := broker.ClusterUID(ctx, m.Client)
	if err != nil {
		return err
	}
	progress("Reading the hub at %s", info.BrokerURL)
	hub, set, err := j.openHub(ctx, info)
	if err != nil {
		return err
	}
	if ok, err := install.Propagates(hub); err != nil || !ok {
		return cmp.Or(err, errors.New("the hub propagates no workloads: run `pelago init` there, or join without --workloads-only"))
	}
	entry, err := broker.Claim(ctx, hub, info.Namespace(), broker.Request{ClusterID: j.ClusterID, ClusterUID: uid, WorkloadsOnly: true})
	if err != nil {
		return fmt.Errorf("join as %q: %w", j.ClusterID, err)
	}
	c := config.Config{WorkloadsOnly: true, ClusterID: j.ClusterID, ClusterIndex: uint16(entry.ClusterIndex),
		HubID: set.HubID, HubServer: info.BrokerURL, BrokerNamespace: info.Namespace()}
	if err := deploy.ExecutionBase(ctx, m.Client, progress); err != nil {
		return err
	}
	token, err := install.RegisterNetwork(ctx, hub, m.Client, info, broker.Member{Entry: entry}, progress)
	if err != nil {
		return err
	}
	if err := install.Configure(ctx, m.Client, info, c); err != nil {
		return err
	}
	if !j.dryRun {
		if _, err := install.RegisterPull(ctx, info, set, token, j.ClusterID, uid, progress); err != nil {
			return err
		}
	}
	return j.install(ctx, m.Client, c, true, progress)
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

// install installs the components, with pull also the agent for workloads.
func (j *join) install(ctx context.Context, c client.Client, settings config.Config, pull bool, progress deploy.Progress) error {
	if !j.components {
		return nil
	}
	o := deploy.MemberOptions{Image: j.image.Name, PullPolicy: j.image.PullPolicy, IKE: settings.CableDriver == config.CableLibreswan, CoreDNSCustom: settings.CoreDNSCustom}
	if err := j.pods.Apply(&o); err != nil {
		return err
	}
	if settings.WorkloadsOnly {
		return deploy.Execution(ctx, c, o, progress)
	}
	if err := deploy.Member(ctx, c, o, progress); err != nil {
		return err
	}
	if pull {
		return deploy.Execution(ctx, c, o, progress)
	}
	return deploy.RemoveExecution(ctx, c, progress)
}

// checkID validates the flags that are not kept from an earlier join, and prompts for a missing id.
func (j *join) checkID(ctx context.Context, answers *view.Answers, out io.Writer) error {
	if j.ClusterID == "" {
		if answers == nil {
			return errors.New("no cluster id is given: set --clusterid")
		}
		fmt.Fprint(out, "Id of this cluster (lower-case letters, digits and '-'): ")
		line, err := answers.Line(ctx)
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
func (j *join) openHub(ctx context.Context, info broker.Info) (client.Client, broker.Clusterset, error) {
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
	if j.dryRun {
		return &deploy.Recorder{Client: hub.Client}, set, nil
	}
	return hub.Client, set, nil
}
