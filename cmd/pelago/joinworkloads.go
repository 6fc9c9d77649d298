package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/install"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy"
	"github.com/pelago-net/pelago/deploy/broker"
)

// place are the flags of join about where a cluster is; the scheduler spreads by them.
type place struct {
	provider, region string
	zones            []string
}

func (l *place) add(f *pflag.FlagSet) {
	f.StringVar(&l.provider, "cluster-provider", "", "provider of the cluster, by which workloads are spread")
	f.StringVar(&l.region, "cluster-region", "", "region of the cluster, by which workloads are spread")
	f.StringSliceVar(&l.zones, "cluster-zones", nil, "zones of the cluster, by which workloads are spread")
}

// refused refuses the flags at a pull member, whose place an administrator of the hub sets.
func (l *place) refused(cluster string) error {
	if l.provider == "" && l.region == "" && len(l.zones) == 0 {
		return nil
	}
	return fmt.Errorf("--cluster-provider, --cluster-region and --cluster-zones are for push members; the place of this cluster is set "+
		"at the hub: pelago clusters accept %s --provider, --region, --zone", cluster)
}

// apply writes the values of the flags that are set.
func (l *place) apply(spec *clusterv1alpha1.ClusterSpec) {
	if l.provider != "" {
		spec.Provider = l.provider
	}
	if l.region != "" {
		spec.Region = l.region
	}
	if len(l.zones) > 0 {
		spec.Zones, spec.Zone = l.zones, ""
	}
}

// kubeconfigFile are the flags that name the access to a push member.
type kubeconfigFile struct{ file, context string }

func (k *kubeconfigFile) add(f *pflag.FlagSet) {
	f.StringVar(&k.file, "cluster-kubeconfig", "", "kubeconfig of the cluster, of an administrator; the kubeconfig of --kubeconfig "+
		"and --context is the hub's")
	f.StringVar(&k.context, "cluster-context", "", "context of that kubeconfig (default: its current one)")
}

// config is the access to the cluster, and the proxy on the way to it, nil for none.
func (k *kubeconfigFile) config() (cfg *rest.Config, proxy *url.URL, err error) {
	a := access{kubeconfig: k.file}
	if cfg, err = a.config(k.context); err != nil {
		return nil, nil, fmt.Errorf("reach the cluster by --cluster-kubeconfig %s: %w", k.file, err)
	}
	if !strings.HasPrefix(cfg.Host, "https://") {
		return nil, nil, fmt.Errorf("reach the cluster by --cluster-kubeconfig %s: the hub sends a token there, so its server must "+
			"begin with https://, and is %s", k.file, cfg.Host)
	}
	if cfg.ServerName != "" {
		return nil, nil, fmt.Errorf("reach the cluster by --cluster-kubeconfig %s: tls-server-name cannot be handed to the hub: use a "+
			"server name that the certificate has", k.file)
	}
	if cfg.Proxy != nil {
		if proxy, err = cfg.Proxy(nil); err != nil { // clientcmd's takes no part of the request
			return nil, nil, fmt.Errorf("read the proxy of --cluster-kubeconfig %s: %w", k.file, err)
		}
	}
	return cfg, proxy, nil
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
	remote, proxy, err := j.cluster.config()
	if err != nil {
		return err
	}
	p := newProgress(out)
	hub, hubID, err := openPropagatingHub(ctx, &j.access)
	if err != nil {
		return err
	}
	p.step("Reading the cluster at %s", remote.Host)
	m, err := openCluster(remote)
	if err != nil {
		return err
	}
	if err := m.requireVersion("the cluster", "1.27", "the oldest supported version"); err != nil {
		return err
	}
	uid, err := broker.ClusterUID(ctx, m.Client)
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
	have, err := install.CheckIdentity(ctx, hub, name, uid)
	if err != nil {
		return err
	}
	if have != nil && have.Spec.SyncMode == clusterv1alpha1.Pull {
		return fmt.Errorf("cluster %q is a pull member: its agent asks the hub. To change that, remove it first with `pelago unjoin "+
			"%s`", name, name)
	}
	token, ca, err := deploy.PushAccount{Cluster: name, HubID: hubID}.Install(ctx, m.Client, p.step)
	if err != nil {
		return err
	}
	switch { // the CA of the kubeconfig, else the one that the member publishes
	case remote.Insecure:
		ca = nil
	case len(remote.CAData) > 0:
		ca = remote.CAData
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: clusterv1alpha1.SecretNamespace, Name: name}}
	p.step("Writing Secret %s/%s at the hub", secret.Namespace, secret.Name)
	if err := deploy.Put(ctx, hub, secret, func() {
		secret.Data = map[string][]byte{clusterv1alpha1.SecretKeyToken: token, clusterv1alpha1.SecretKeyCA: ca}
		// By this label it is deleted with the Cluster. With an owner reference the garbage collector of a hub that was restored with
		// new UIDs would delete it.
		metav1.SetMetaDataLabel(&secret.ObjectMeta, pelagov1alpha1.LabelManagedBy, pelagov1alpha1.ManagedBy)
		secret.OwnerReferences = nil
	}); err != nil {
		return err
	}
	member := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.step("Registering cluster %s at the hub", name)
	if err := deploy.Put(ctx, hub, member, func() {
		s := &member.Spec
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

// openPropagatingHub opens the hub of the kubeconfig, on which `pelago init` was run, and returns its id.
func openPropagatingHub(ctx context.Context, a *access) (client.Client, string, error) {
	hub, err := a.open()
	if err != nil {
		return nil, "", err
	}
	id, err := broker.HubID(ctx, hub.Client)
	if err != nil {
		return nil, "", fmt.Errorf("reach the hub at %s: %w", hub.config.Host, err)
	}
	ok, err := install.Propagates(hub.Client)
	if err != nil {
		return nil, "", err
	}
	if !ok {
		return nil, "", fmt.Errorf("the API server at %s is no hub for workloads: run `pelago init` there, or name the hub with "+
			"--context", hub.config.Host)
	}
	return hub.Client, id, nil
}

// grantTime bounds the wait until the hub accepts writes of the cluster itself, after it has registered.
const grantTime = 10 * time.Second

// pull registers the cluster for workloads with its new token, and reports whether it did: not with --network-only, and not at a
// hub that propagates no workloads.
func (j *join) pull(ctx context.Context, info broker.Info, set broker.Clusterset, token, uid string, p *progress) (bool, error) {
	if j.NetworkOnly {
		return false, nil
	}
	cfg := info.Config()
	cfg.BearerToken = token
	hub, err := deploy.NewClient(cfg)
	if err != nil {
		return false, err
	}
	ok, err := install.Propagates(hub)
	if err != nil {
		return false, err
	}
	if !ok {
		p.step("The hub propagates no workloads (`pelago init` was not run there): cluster %s takes part in the network only",
			j.ClusterID)
		return false, nil
	}
	p.step("Registering cluster %s for workloads", j.ClusterID)
	cluster := &clusterv1alpha1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: j.ClusterID},
		Spec:       clusterv1alpha1.ClusterSpec{ID: uid, SyncMode: clusterv1alpha1.Pull},
	}
	if !set.AutoAccept {
		cluster.Spec.Taints = []clusterv1alpha1.Taint{unapprovedTaint}
	}
	var last error
	err = wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, grantTime, true, func(context.Context) (bool, error) {
		last = hub.Create(ctx, cluster.DeepCopy()) // not the limited context: the last request completes
		return !apierrors.IsForbidden(last), nil
	})
	if ctx.Err() != nil {
		return false, fmt.Errorf("register cluster %q for workloads: %w", j.ClusterID, err)
	}
	switch {
	case last == nil:
		j.reportAcceptance(cluster, p)
		return true, nil
	case apierrors.IsAlreadyExists(last):
		return true, j.checkPull(ctx, hub, uid, p)
	case apierrors.IsForbidden(last):
		return false, fmt.Errorf("register cluster %q for workloads: %w: run `pelago deploy-broker` at the hub again, which gives "+
			"members that right, or join with --network-only", j.ClusterID, last)
	}
	return false, fmt.Errorf("register cluster %q for workloads: %w", j.ClusterID, last)
}

// checkPull checks the existing Cluster of this name. Only administrators of the hub and this cluster can have created it.
func (j *join) checkPull(ctx context.Context, hub client.Client, uid string, p *progress) error {
	have := &clusterv1alpha1.Cluster{}
	err := hub.Get(ctx, client.ObjectKey{Name: j.ClusterID}, have)
	if apierrors.IsForbidden(err) {
		p.step("Cluster %s is registered; pelago-hub has not given it its rights yet", j.ClusterID)
		return nil
	}
	if err != nil {
		return fmt.Errorf("get Cluster %s at the hub: %w", j.ClusterID, err)
	}
	remedy := fmt.Sprintf("run `pelago unjoin %s` at the hub first, or join with --network-only", j.ClusterID)
	switch {
	case have.DeletionTimestamp != nil:
		return fmt.Errorf("cluster %q is being removed from the hub: wait until it is gone, then join again", j.ClusterID)
	case have.Spec.SyncMode != clusterv1alpha1.Pull:
		return fmt.Errorf("cluster %q is a push member: the hub writes to it already: %s", j.ClusterID, remedy)
	case have.Spec.ID != uid:
		return fmt.Errorf("name %q belongs to another cluster for workloads (its namespace kube-system has UID %s): %s", j.ClusterID,
			have.Spec.ID, remedy)
	}
	j.reportAcceptance(have, p)
	return nil
}

// reportAcceptance prints what an administrator of the hub has to do before workloads come to the cluster.
func (j *join) reportAcceptance(cluster *clusterv1alpha1.Cluster, p *progress) {
	if !cluster.Accepted() {
		p.step("Cluster %s gets no workloads before an administrator of the hub accepts it: pelago clusters accept %s", j.ClusterID, j.ClusterID)
	}
}

func checkPullPolicy(policy string) error {
	all := []string{string(corev1.PullAlways), string(corev1.PullIfNotPresent), string(corev1.PullNever)}
	if !slices.Contains(all, policy) {
		return fmt.Errorf("--image-pull-policy %q: use Always, IfNotPresent or Never", policy)
	}
	return nil
}
