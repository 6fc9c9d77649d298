package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/deploy"
)

// initHub are the flags of init.
type initHub struct {
	access     access
	workloads  bool
	image      string
	pullPolicy string
	output     string
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
kube-controller-manager without the controllers that make pods. init finds out by a
Deployment without replicas, which it removes. There it writes a kubeconfig for
pelago-hub, which runs as a process beside the API server.

Where workloads run, templates would run as well as in the members, so init refuses;
network and service discovery (deploy-broker) work there. With
--hub-runs-workloads-too it installs pelago-hub as a Deployment, and only namespaces
that ask for it go to members.`,
		Example: `  pelago init --kubeconfig hub.kubeconfig
  pelago-hub --kubeconfig pelago-hub.kubeconfig

  # an API server that runs workloads too
  pelago init --context mgmt --hub-runs-workloads-too`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return i.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	i.access.addFlags(f)
	f.BoolVar(&i.workloads, "hub-runs-workloads-too", false, "install although this API server runs workloads itself: every "+
		"template runs here too")
	f.StringVar(&i.image, "image", deploy.DefaultImage, "image of pelago-hub, where it runs as a Deployment")
	f.StringVar(&i.pullPolicy, "image-pull-policy", "IfNotPresent", "Always, IfNotPresent or Never")
	f.StringVar(&i.output, "output", "pelago-hub.kubeconfig", "kubeconfig to write for pelago-hub, where it does not run as a "+
		"Deployment")
	return cmd
}

func (i *initHub) run(ctx context.Context, out io.Writer) error {
	if err := checkPullPolicy(i.pullPolicy); err != nil {
		return err
	}
	hub, err := i.access.open()
	if err != nil {
		return err
	}
	if err := hub.requireHubVersion(); err != nil {
		return err
	}
	p := newProgress(out)
	if err := refuseKarmada(ctx, hub.client); err != nil {
		return err
	}
	p.step("Checking whether %s runs workloads", hub.config.Host)
	runs, err := runsWorkloads(ctx, hub.client)
	if err != nil {
		return err
	}
	if runs && !i.workloads {
		return fmt.Errorf("the API server at %s runs workloads itself: it would run every template in addition to the members. Use a "+
			"dedicated hub (etcd, "+
			"kube-apiserver, and kube-controller-manager without workload controllers), or give --hub-runs-workloads-too. "+
			"Network and service discovery need neither: `pelago deploy-broker`", hub.config.Host)
	}
	nodes := &corev1.NodeList{}
	if runs {
		if err := hub.client.List(ctx, nodes, client.Limit(1)); err != nil {
			return fmt.Errorf("list the nodes of the hub: %w", err)
		}
	}
	pods := len(nodes.Items) > 0 // pelago-hub can run as a Deployment
	o := deploy.PropagationOptions{Workloads: pods, Image: i.image, PullPolicy: i.pullPolicy}
	if err := deploy.Propagation(ctx, hub.client, o, p.step); err != nil {
		return err
	}
	if !pods {
		text, err := hubKubeconfig(ctx, hub)
		if err != nil {
			return err
		}
		if _, err := writeSecretFile(i.output, text, ""); err != nil {
			return err
		}
		p.step("Wrote %s, by which pelago-hub reaches this API server", i.output)
	}
	p.step("The hub is ready")
	i.next(out, runs, pods)
	return nil
}

// hubKubeconfig is the access of pelago-hub as a process outside of the hub: the token of its ServiceAccount, which Secret
// pelago-system/pelago-hub holds. The token does not expire, since no component could renew it; deleting the Secret revokes it.
func hubKubeconfig(ctx context.Context, hub *cluster) ([]byte, error) {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: deploy.HubName, Namespace: deploy.SystemNamespace,
			Annotations: map[string]string{corev1.ServiceAccountNameKey: deploy.HubName}},
		Type: corev1.SecretTypeServiceAccountToken,
	}
	if err := hub.client.Create(ctx, secret); client.IgnoreAlreadyExists(err) != nil {
		return nil, fmt.Errorf("create Secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	token, _, err := deploy.AccountToken(ctx, hub.client, client.ObjectKeyFromObject(secret))
	if err != nil {
		return nil, err
	}
	const name = "hub"
	kc := clientcmdapi.NewConfig()
	kc.Clusters[name] = &clientcmdapi.Cluster{Server: hub.config.Host, CertificateAuthorityData: hub.config.CAData,
		InsecureSkipTLSVerify: hub.config.Insecure, TLSServerName: hub.config.ServerName}
	kc.AuthInfos[deploy.HubName] = &clientcmdapi.AuthInfo{Token: string(token)}
	kc.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: deploy.HubName}
	kc.CurrentContext = name
	text, err := clientcmd.Write(*kc)
	if err != nil {
		return nil, fmt.Errorf("write the kubeconfig of pelago-hub: %w", err)
	}
	return text, nil
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

  pelago-hub --kubeconfig %s%s

The file does not expire; whoever has it reads everything at the hub. To take it back:

  kubectl -n %s delete secret %s
`, i.output, flag, deploy.SystemNamespace, deploy.HubName)
	}
	fmt.Fprint(out, `
Make clusters members. Push, the hub writes the cluster:

  pelago join NAME --cluster-kubeconfig FILE

Pull, an agent in the cluster asks the hub, and the clusters share a network as well:

  pelago deploy-broker
  pelago join broker-info.subm --context CLUSTER --clusterid NAME
`)
}

const (
	// probeTime is how long workload controllers may take to observe a Deployment.
	probeTime = 5 * time.Second
	// leaseAlive is how old a lease may be whose holder counts as running.
	leaseAlive = 2 * time.Minute
)

// runsWorkloads reports whether workload controllers run at the API server: they set the status of a Deployment, also of one
// without replicas. The Deployment is in a namespace that every API server has, and is removed again.
func runsWorkloads(ctx context.Context, c client.Client) (runs bool, err error) {
	const namespace = metav1.NamespaceDefault
	labels := map[string]string{"app": "pelago-init-probe"}
	probe := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pelago-init-probe-", Namespace: namespace},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](0), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "none", Image: deploy.DefaultImage}}}},
		},
	}
	if err := c.Create(ctx, probe); err != nil {
		return false, fmt.Errorf("create a Deployment without replicas in namespace %s, to find out whether its controller runs: %w",
			namespace, err)
	}
	defer func() {
		if failed := c.Delete(ctx, probe); failed != nil {
			err = errors.Join(err, fmt.Errorf("remove the probe, Deployment %s/%s: %w", namespace, probe.Name, failed))
		}
	}()
	var failed error
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, probeTime, true, func(context.Context) (bool, error) {
		failed = c.Get(ctx, client.ObjectKeyFromObject(probe), probe) // not the limited context: the last request completes
		return probe.Status.ObservedGeneration >= 1, failed
	})
	if ctx.Err() != nil || failed != nil {
		return false, fmt.Errorf("get Deployment %s/%s: %w", namespace, probe.Name, err)
	}
	return err == nil, nil
}

// refuseKarmada refuses an API server that Karmada uses: two controllers would write the same objects, and where its
// aggregated API is registered, Clusters of ours are not served.
func refuseKarmada(ctx context.Context, c client.Client) error {
	service := &unstructured.Unstructured{}
	service.SetAPIVersion("apiregistration.k8s.io/v1")
	service.SetKind("APIService")
	const name = "v1alpha1.cluster.karmada.io"
	switch err := c.Get(ctx, client.ObjectKey{Name: name}, service); {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("get APIService %s: %w", name, err)
	default:
		// The API server makes one without service for each custom resource definition.
		if spec, ok, err := unstructured.NestedMap(service.Object, "spec", "service"); err == nil && ok && spec != nil {
			return fmt.Errorf("this API server belongs to Karmada: APIService %s leads to its service %v/%v. Use another API server, or "+
				"remove Karmada first with `karmadactl deinit`",
				name, spec["namespace"], spec["name"])
		}
	}
	leases := &coordinationv1.LeaseList{}
	const namespace = "karmada-system"
	if err := c.List(ctx, leases, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("list the Leases of namespace %s: %w", namespace, err)
	}
	for _, l := range leases.Items {
		if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" || l.Spec.RenewTime == nil {
			continue
		}
		if age := time.Since(l.Spec.RenewTime.Time); age < leaseAlive {
			return fmt.Errorf("this API server is used by Karmada: Lease %s/%s of %s was renewed %s ago. Stop its controllers first; its "+
				"policies and bindings may stay",
				namespace, l.Name, *l.Spec.HolderIdentity, age.Round(time.Second))
		}
	}
	return nil
}
