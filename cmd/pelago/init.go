package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/cmd/pelago/internal/install"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy/hub"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// initHub are the flags of init.
type initHub struct {
	access
	workloads bool
	file      string
	hosted    install.Hosted
	local     install.Local
	dryRun    bool
	// skipChecks leaves out preflightHub and preflightHost.
	skipChecks bool
}

func initCommand() *cobra.Command {
	var i initHub
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make a hub that propagates workloads",
		Long: `init makes a hub: an API server that runs no workloads of its own, with the
controllers of Pelago. There are three ways.

--host-context names an ordinary cluster, in which the hub runs as pods: etcd,
kube-apiserver, kube-controller-manager with the controllers of a hub, two
pelago-hub. Secrets, and Works, are encrypted in etcd; the API server writes an audit
log to the log of its pod. A CronJob renews certificates, which the programs read
again without an outage. init writes the kubeconfig of the hub's administrator, which is
valid for a year and renewed by running it again.

--local runs the same programs on this machine: as systemd units or, with
--foreground, until the command ends.

Without either, init installs what propagation needs into the API server of the
kubeconfig: etcd, kube-apiserver, and kube-controller-manager without the controllers
that make pods. It detects those by a Deployment without replicas, which it removes.
It writes a kubeconfig for pelago-hub, which runs as a process next to the API server.
Where workloads run, templates would run as well as in the members, so init refuses;
network and service discovery (deploy-broker) work there. With
--hub-runs-workloads-too it installs pelago-hub as a Deployment, and only namespaces
that ask for it go to members.

Run it again to repair, upgrade or renew: existing keys and data stay and, with
--host-context, the settings whose flags are not given again.`,
		Example: `  # a hub in the cluster of context mgmt, its data in volumes of class fast
  pelago init --host-context mgmt --etcd-replicas 3 --storage-class fast --api-address hub.example.org \
    --service-type LoadBalancer --output hub.kubeconfig

  # what that installs, but Secrets
  pelago init --host-context mgmt --dry-run

  # a hub on this machine, for a trial
  pelago init --local --foreground --dir ./hub --bin-dir /opt/kubernetes/bin --output hub.kubeconfig

  # an API server that exists
  pelago init --kubeconfig hub.kubeconfig
  pelago-hub --kubeconfig pelago-hub.kubeconfig --proxy-address :8443 --proxy-host localhost

  # an API server that runs workloads too
  pelago init --context mgmt --hub-runs-workloads-too`,
		Args: cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		i.local.Address, i.local.Timeout, i.local.KarmadaTools = i.hosted.APIAddress, i.hosted.Timeout, i.hosted.KarmadaTools
		if err := errors.Join(i.hosted.CheckMode(cmd.Flags()), i.local.CheckMode(cmd.Flags())); err != nil {
			return err
		}
		switch {
		case i.hosted.Context != "":
			return i.hosted.Init(cmd.Context(), i.openHost(cmd.Context(), newProgress(cmd.ErrOrStderr())), i.dryRun, i.file, cmd.OutOrStdout())
		case i.local.On:
			return i.local.Init(cmd.Context(), i.file, cmd.OutOrStdout())
		case i.hosted.KarmadaTools:
			return errors.New("--karmada-tools needs --host-context or --local: elsewhere give pelago-hub --karmada-address, " +
				"with a certificate")
		}
		return i.run(i.install)(cmd, args)
	}
	f := cmd.Flags()
	i.addFlags(f)
	f.BoolVar(&i.workloads, "hub-runs-workloads-too", false, "install although this API server runs workloads itself: every "+
		"template runs here too")
	f.StringVar(&i.file, "output", "pelago-hub.kubeconfig", "kubeconfig to write: of the hub's administrator with --host-context and "+
		"--local, else of pelago-hub, where it does not run as a Deployment")
	f.BoolVar(&i.dryRun, "dry-run", false, "with --host-context: print the objects as YAML, without Secrets, and write nothing")
	f.BoolVar(&i.skipChecks, "skip-checks", false, "do not run the checks of pelago check --pre --hub, by which init refuses an API server that cannot be a hub")
	i.hosted.Add(f)
	i.hosted.AddHost(f)
	i.local.AddDir(f)
	i.local.Add(f)
	for _, hosted := range []string{"host-context", "namespace", "dry-run"} {
		cmd.MarkFlagsMutuallyExclusive("local", hosted, "hub-runs-workloads-too")
	}
	i.hosted.ExcludeLocal(cmd)
	return cmd
}

// openHost opens the host cluster, and checks it unless nothing is written.
func (i *initHub) openHost(ctx context.Context, progress manifests.Progress) func(string) (view.Member, string, error) {
	return func(name string) (view.Member, string, error) {
		m, namespace, err := i.Open(name)
		if err == nil && !i.skipChecks && !i.dryRun {
			err = preflightHost(ctx, m, progress)
		}
		return m, namespace, err
	}
}

func (i *initHub) install(ctx context.Context, c *cluster, _ []string, out io.Writer) error {
	options, err := i.hosted.Options()
	if err != nil {
		return err
	}
	if err := manifests.Cluster(c.Member).RequireHubVersion(); err != nil {
		return err
	}
	progress := newProgress(out)
	if err := hub.RefuseKarmada(ctx, c.Client); err != nil {
		return err
	}
	if !i.skipChecks {
		if err := preflightHub(ctx, c.Member, progress); err != nil {
			return err
		}
	}
	progress("Checking whether %s runs workloads", c.Config.Host)
	runs, err := hub.RunsWorkloads(ctx, c.Client)
	if err != nil {
		return err
	}
	if runs && !i.workloads {
		return fmt.Errorf("the API server at %s runs workloads itself: it would run every template in addition to the members. Use a "+
			"dedicated hub (etcd, kube-apiserver, and kube-controller-manager without workload controllers), or give "+
			"--hub-runs-workloads-too. Network and service discovery need neither: `pelago deploy-broker`", c.Config.Host)
	}
	nodes := &corev1.NodeList{}
	if runs {
		if err := c.Client.List(ctx, nodes, client.Limit(1)); err != nil {
			return fmt.Errorf("list the nodes of the hub: %w", err)
		}
	}
	pods := len(nodes.Items) > 0 // pelago-hub can run as a Deployment
	o := manifests.PropagationOptions{Workloads: pods, MemberOptions: options}
	if err := manifests.Propagation(ctx, c.Client, o, progress); err != nil {
		return err
	}
	if !pods {
		text, err := hub.Kubeconfig(ctx, c.Config, c.Client)
		if err != nil {
			return err
		}
		if _, err := install.WriteSecretFile(i.file, text, ""); err != nil {
			return err
		}
		progress("Wrote %s, by which pelago-hub reaches this API server", i.file)
	}
	progress("The hub is ready")
	i.next(out, runs, pods)
	return nil
}

// next prints the next steps.
func (i *initHub) next(out io.Writer, runs, pods bool) {
	if pods {
		fmt.Fprintf(out, "\npelago-hub runs as a Deployment:\n\n  kubectl -n %s rollout status deployment/%s\n",
			manifests.SystemNamespace, manifests.HubName)
	} else {
		flag := ""
		if runs {
			flag = " --hub-runs-workloads-too"
		}
		fmt.Fprintf(out, `
Run pelago-hub where it reaches this API server and the members; of several, one is active:

  pelago-hub --kubeconfig %s%s --proxy-address :8443 --proxy-host localhost

The API server connects to --proxy-host for requests of users to members (pelago logs, exec, …).
The file does not expire and gives access to everything at the hub. To revoke it:

  kubectl -n %s delete secret %s
`, i.file, flag, manifests.SystemNamespace, manifests.HubName)
	}
	fmt.Fprint(out, `
Make clusters members. Push, the hub writes the cluster:

  pelago join NAME --cluster-kubeconfig FILE

Pull, an agent in the cluster watches the hub, and the clusters share a network as well:

  pelago deploy-broker
  pelago join broker-info.subm --context CLUSTER --clusterid NAME

Clusters that have joined before get workloads once they join again.
`)
}
