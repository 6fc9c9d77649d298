package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pelago-net/pelago/cmd/pelago/internal/install"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/member"
	"github.com/pelago-net/pelago/deploy/rollout"
	"github.com/pelago-net/pelago/deploy/spec"
)

// join are the flags of join.
type join struct {
	access
	member     spec.Member
	bound      *spec.MemberFlags
	flags      *pflag.FlagSet
	dryRun     bool
	components bool
	skipChecks bool
	registered bool
	wait       bool
	yes        bool
	timeout    time.Duration
	place      member.Place
	cluster    kubeconfigFile
	// discoveryOnly is refused with the remedy.
	discoveryOnly bool
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
--cable-driver. Its ranges of pods and services may grow: --clustercidr and
--servicecidr take ranges that contain the former ones. What changes is printed first. An image of localhost/pelago,
the repository of local builds, becomes the default of --image again; another
stays until --image is given.`,
		Example: `  pelago join broker-info.subm --context c1 --clusterid c1

  # with globalnet, a given range
  pelago join broker-info.subm --context g1 --clusterid g1 --globalnet-cidr 120.1.0.0/24

  # another cable driver than WireGuard, the same in all clusters
  pelago join broker-info.subm --context c1 --clusterid c1 --cable-driver libreswan

  # up to four cores for a pair of gateways
  pelago join broker-info.subm --context c1 --clusterid c1 --cable-tunnels 4

  # three gateways, which the agent keeps while nodes come and go
  pelago join broker-info.subm --context c1 --clusterid c1 --gateways 3

  # two gateways by name
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
			j.warnings = cmd.ErrOrStderr()
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

// addMemberFlags adds the flags about a cluster that joins itself; id is the name of the one for
// its id.
func (j *join) addMemberFlags(cmd *cobra.Command, id string) {
	f := cmd.Flags()
	j.flags = f
	j.addFlags(f)
	j.bound = j.member.AddFlags(f, id)
	f.BoolVar(&j.dryRun, "dry-run", false, "print all objects that would be written into the cluster, and write none, neither there nor at the hub; what "+
		"join gets from the hub, such as the token, is left out")
	f.StringVarP(&j.output, "output", "o", "yaml", "with --dry-run: yaml or json")
	f.BoolVar(&j.components, "components", true, "install the components; false: only register and write the configuration (a Helm chart installs them)")
	f.BoolVar(&j.registered, "keep-registration", false, "update an existing member without contacting the hub; the credential of the file may have expired")
	f.BoolVar(&j.yes, "yes", false, "take pod ranges that only the present nodes have, or that lack running pods")
	f.BoolVar(&j.wait, "wait", true, "wait until all components run")
	f.BoolVar(&j.skipChecks, "skip-checks", false, "do not run the checks of pelago check --pre, by which join refuses a cluster that cannot work")
	f.DurationVar(&j.timeout, "timeout", 5*time.Minute, "how long to wait for them without progress: each pod that becomes ready begins the wait again")
	f.BoolVar(&j.discoveryOnly, "discovery-only", false, "not supported")
	f.Lookup("discovery-only").Hidden = true // refused with the remedy
	cmd.MarkFlagsMutuallyExclusive("network-only", "workloads-only")
	cmd.MarkFlagsMutuallyExclusive("globalnet-cidr", "globalnet-cluster-size")
}

// run joins the cluster by a broker-info.subm.
func (j *join) run(ctx context.Context, file string, answers *view.Answers, out, errOut io.Writer) error {
	info, err := install.ReadInfo(file)
	if err != nil {
		return err
	}
	if err := info.CheckExpiry(time.Now()); err != nil && !j.registered {
		return fmt.Errorf("use %s: %w", file, err)
	}
	return j.join(ctx, info, answers, out, errOut)
}

// join joins the cluster with the credential of info.
func (j *join) join(ctx context.Context, info broker.Info, answers *view.Answers, out, errOut io.Writer) error {
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
	m, plan, err := j.plan(ctx)
	if err != nil {
		return err
	}
	record := &manifests.Recorder{Client: m.Client}
	progress := newProgress(out)
	progress("Reading the cluster at %s", m.Config.Host)
	if err := m.RequireMemberVersion("this cluster"); err != nil {
		return err
	}
	// a chart's Job may not read what the checks read, and its components are there
	if !j.skipChecks && j.components && !plan.Member.WorkloadsOnly {
		if err := preflight(ctx, view.Member(m), progress); err != nil {
			return err
		}
	}
	if j.dryRun {
		m.Client = record
	}
	o := member.Options{Info: info, DryRun: j.dryRun, RegisterOnly: !j.components, AcceptRanges: j.yes, Progress: progress}
	if answers != nil {
		o.Choose = func(candidates []string) ([]string, error) {
			return install.PromptGateways(ctx, candidates, answers, out)
		}
	}
	if err := plan.Apply(ctx, m, o); err != nil {
		return j.bound.Names().Error(err)
	}
	if j.dryRun {
		return record.Print(objects, j.output)
	}
	if j.wait {
		if err := rollout.AwaitMember(ctx, m.Typed, plan.Member.WorkloadsOnly, j.timeout, progress); err != nil {
			return err
		}
	}
	progress("Cluster %s has joined", plan.Member.ClusterID)
	if plan.Member.WorkloadsOnly {
		return nil
	}
	if j.wait {
		awaitConnections(ctx, m.Client, progress)
	}
	fmt.Fprint(out, `
Check the clusterset once another cluster has joined, then export a service:

  pelago check
  pelago export service NAME --namespace NAMESPACE

Clusters reach it as NAME.NAMESPACE.svc.clusterset.local.
`)
	return nil
}

// plan opens the cluster and plans the join. Flags that are wrong are refused even if the cluster
// is unreachable, unless those of an earlier join could make them right.
func (j *join) plan(ctx context.Context) (m manifests.Cluster, p member.Plan, err error) {
	names := j.bound.Names()
	malformed := names.Error(spec.Join(j.bound.Read()))
	invalid := cmp.Or(malformed, names.Error(spec.Join(j.member.Validate())))
	c, err := j.open()
	var have member.Have
	if err == nil {
		have, err = member.Read(ctx, c.Client)
	}
	if err != nil {
		return m, p, cmp.Or(invalid, err)
	}
	if malformed != nil {
		return m, p, malformed
	}
	if j.discoveryOnly {
		return m, p, errors.New("--discovery-only is not supported: names and imports follow the health of the gateways. Join without it, " +
			"and without globalnet where the pods of all clusters reach each other already: the clusters then keep their addresses")
	}
	p, err = member.NewPlan(j.member, j.bound.Given, have, j.registered)
	return manifests.Cluster(c.Member), p, names.Error(err)
}

// checkID validates the id, which is not kept from an earlier join, and prompts for a missing one.
func (j *join) checkID(ctx context.Context, answers *view.Answers, out io.Writer) error {
	if j.member.ClusterID == "" {
		if answers == nil {
			return errors.New("no cluster id is given: set --clusterid")
		}
		fmt.Fprint(out, "Id of this cluster (lower-case letters, digits and '-'): ")
		line, err := answers.Line(ctx)
		if err != nil {
			return fmt.Errorf("read the cluster id: %w", err)
		}
		j.member.ClusterID = strings.TrimSpace(line)
	}
	if err := config.CheckClusterID(j.member.ClusterID); err != nil {
		return err
	}
	if j.place.Provider != "" || j.place.Region != "" || len(j.place.Zones) > 0 {
		return fmt.Errorf("--cluster-provider, --cluster-region and --cluster-zones are for push members; the place of this cluster is set "+
			"at the hub: pelago clusters accept %s --provider, --region, --zone", j.member.ClusterID)
	}
	return nil
}
