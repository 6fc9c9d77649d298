package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/cmd/pelago/internal/install"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy"
)

// initHub are the flags of init.
type initHub struct {
	access
	workloads bool
	image     imageFlags
	file      string
}

// imageFlags are the flags about the image that is installed.
type imageFlags struct{ name, pullPolicy string }

func (i *imageFlags) add(f *pflag.FlagSet, usage string) {
	f.StringVar(&i.name, "image", deploy.DefaultImage, usage)
	view.AddChoice(f, &i.pullPolicy, "image-pull-policy", string(corev1.PullIfNotPresent), "Always, IfNotPresent or Never",
		string(corev1.PullAlways), string(corev1.PullIfNotPresent), string(corev1.PullNever))
}

func initCommand() *cobra.Command {
	var i initHub
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make an API server the hub that propagates workloads",
		Long: `init installs what propagation needs into the API server of the kubeconfig:
namespaces, custom resource definitions, admission policies and the rights of
pelago-hub. Run it again to repair or upgrade; what a newer version has installed
stays.

A hub is an API server that runs no workloads of its own: etcd, kube-apiserver, and
kube-controller-manager without the controllers that make pods. init detects them by
a Deployment without replicas, which it removes. There it writes a kubeconfig for
pelago-hub, which runs as a process next to the API server.

Where workloads run, templates would run as well as in the members, so init refuses;
network and service discovery (deploy-broker) work there. With
--hub-runs-workloads-too it installs pelago-hub as a Deployment, and only namespaces
that ask for it go to members.`,
		Example: `  pelago init --kubeconfig hub.kubeconfig
  pelago-hub --kubeconfig pelago-hub.kubeconfig --proxy-address :8443 --proxy-host localhost

  # an API server that runs workloads too
  pelago init --context mgmt --hub-runs-workloads-too`,
		Args: cobra.NoArgs,
	}
	cmd.RunE = i.run(i.install)
	f := cmd.Flags()
	i.addFlags(f)
	f.BoolVar(&i.workloads, "hub-runs-workloads-too", false, "install although this API server runs workloads itself: every "+
		"template runs here too")
	i.image.add(f, "image of pelago-hub, where it runs as a Deployment")
	f.StringVar(&i.file, "output", "pelago-hub.kubeconfig", "kubeconfig to write for pelago-hub, where it does not run as a "+
		"Deployment")
	return cmd
}

func (i *initHub) install(ctx context.Context, hub *cluster, _ []string, out io.Writer) error {
	if err := hub.requireHubVersion(); err != nil {
		return err
	}
	progress := newProgress(out)
	if err := install.RefuseKarmada(ctx, hub.Client); err != nil {
		return err
	}
	progress("Checking whether %s runs workloads", hub.Config.Host)
	runs, err := install.RunsWorkloads(ctx, hub.Client)
	if err != nil {
		return err
	}
	if runs && !i.workloads {
		return fmt.Errorf("the API server at %s runs workloads itself: it would run every template in addition to the members. Use a "+
			"dedicated hub (etcd, kube-apiserver, and kube-controller-manager without workload controllers), or give "+
			"--hub-runs-workloads-too. Network and service discovery need neither: `pelago deploy-broker`", hub.Config.Host)
	}
	nodes := &corev1.NodeList{}
	if runs {
		if err := hub.Client.List(ctx, nodes, client.Limit(1)); err != nil {
			return fmt.Errorf("list the nodes of the hub: %w", err)
		}
	}
	pods := len(nodes.Items) > 0 // pelago-hub can run as a Deployment
	o := deploy.PropagationOptions{Workloads: pods, Image: i.image.name, PullPolicy: i.image.pullPolicy}
	if err := deploy.Propagation(ctx, hub.Client, o, progress); err != nil {
		return err
	}
	if !pods {
		text, err := install.HubKubeconfig(ctx, hub.Config, hub.Client)
		if err != nil {
			return err
		}
		if _, err := writeSecretFile(i.file, text, ""); err != nil {
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
			deploy.SystemNamespace, deploy.HubName)
	} else {
		flag := ""
		if runs {
			flag = " --hub-runs-workloads-too"
		}
		fmt.Fprintf(out, `
Run pelago-hub where it reaches this API server and the members; of several, one works:

  pelago-hub --kubeconfig %s%s --proxy-address :8443 --proxy-host localhost

The API server connects to --proxy-host for requests of users to members (pelago logs, exec, …).
The file does not expire and gives access to everything at the hub. To revoke it:

  kubectl -n %s delete secret %s
`, i.file, flag, deploy.SystemNamespace, deploy.HubName)
	}
	fmt.Fprint(out, `
Make clusters members. Push, the hub writes the cluster:

  pelago join NAME --cluster-kubeconfig FILE

Pull, an agent in the cluster watches the hub, and the clusters share a network as well:

  pelago deploy-broker
  pelago join broker-info.subm --context CLUSTER --clusterid NAME
`)
}
