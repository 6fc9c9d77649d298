package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy"
	"github.com/pelago-net/pelago/deploy/broker"
)

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
	remote, proxy, err := j.cluster.config()
	if err != nil {
		return err
	}
	cfg, err := j.access.config()
	if err != nil {
		return err
	}
	p := newProgress(out)
	hub, hubID, err := openPropagatingHub(ctx, cfg)
	if err != nil {
		return err
	}
	p.step("Looking at the cluster at %s", remote.Host)
	if err := requireVersion(remote, "the cluster", "1.27", "the oldest version that Pelago is made for"); err != nil {
		return err
	}
	m, err := openMember(remote)
	if err != nil {
		return err
	}
	uid, err := broker.ClusterUID(ctx, m.client)
	if err != nil {
		return err
	}
	own, err := broker.ClusterUID(ctx, hub)
	if err != nil {
		return err
	}
	if uid == own {
		return fmt.Errorf("the cluster at %s is the hub itself: a hub is no member of its own", remote.Host)
	}
	have, err := checkIdentity(ctx, hub, name, uid)
	if err != nil {
		return err
	}
	if have != nil && have.Spec.SyncMode == clusterv1alpha1.Pull {
		return fmt.Errorf("cluster %q is a pull member: its agent asks the hub. To change that, remove it first with `pelago unjoin "+
			"%s`", name, name)
	}
	token, ca, err := deploy.PushAccount{Cluster: name, HubID: hubID}.Install(ctx, remote, p.step)
	if err != nil {
		return err
	}
	if ca, err = memberCA(remote, ca); err != nil {
		return err
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: clusterv1alpha1.SecretNamespace, Name: name}}
	p.step("Writing Secret %s/%s at the hub", secret.Namespace, secret.Name)
	at := &member{client: hub}
	if err := at.put(ctx, secret, func() {
		secret.Data = map[string][]byte{clusterv1alpha1.SecretKeyToken: token, clusterv1alpha1.SecretKeyCA: ca}
		// It goes with the Cluster by this label. An owner reference would have the garbage collector of a hub that was restored with
		// new UIDs take it away.
		metav1.SetMetaDataLabel(&secret.ObjectMeta, pelagov1alpha1.LabelManagedBy, pelagov1alpha1.ManagedBy)
		secret.OwnerReferences = nil
	}); err != nil {
		return err
	}
	cluster := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.step("Registering cluster %s at the hub", name)
	if err := at.put(ctx, cluster, func() {
		s := &cluster.Spec
		s.ID, s.SyncMode, s.APIEndpoint, s.InsecureSkipTLSVerification = uid, clusterv1alpha1.Push, remote.Host, remote.Insecure
		s.SecretRef = &clusterv1alpha1.SecretReference{Namespace: secret.Namespace, Name: secret.Name}
		s.ProxyURL = ""
		if proxy != nil {
			s.ProxyURL = proxy.String()
		}
		j.place.apply(s)
	}); err != nil {
		return err
	}
	p.step("Cluster %s has joined", name)
	fmt.Fprintf(out, "\nLook whether the hub reaches it:\n\n  kubectl get clusters.cluster.karmada.io %s\n", name)
	return nil
}

// openPropagatingHub opens a hub on which `pelago init` was run, and returns its id.
func openPropagatingHub(ctx context.Context, cfg *rest.Config) (client.Client, string, error) {
	hub, err := clusterClient(cfg)
	if err != nil {
		return nil, "", err
	}
	id, err := broker.HubID(ctx, hub)
	if err != nil {
		return nil, "", fmt.Errorf("reach the hub at %s: %w", cfg.Host, err)
	}
	ok, err := propagates(hub)
	if err != nil {
		return nil, "", err
	}
	if !ok {
		return nil, "", fmt.Errorf("the API server at %s is no hub for workloads: run `pelago init` there, or name the hub with "+
			"--context", cfg.Host)
	}
	return hub, id, nil
}

// memberCA is what the hub checks the member's certificate against: the kubeconfig's, else what the member publishes.
func memberCA(cfg *rest.Config, published []byte) ([]byte, error) {
	switch {
	case cfg.Insecure:
		return nil, nil
	case len(cfg.CAData) > 0:
		return cfg.CAData, nil
	case cfg.CAFile != "":
		ca, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read the CA of the cluster: %w", err)
		}
		return ca, nil
	}
	return published, nil
}
