package member

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	hubcluster "github.com/pelago-net/pelago/control/hub/cluster"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// grantTimeout bounds the wait until the hub accepts writes of a cluster itself, after it has
// registered.
const grantTimeout = 30 * time.Second

// UnapprovedTaint keeps workloads away from a cluster until an administrator of the hub accepts it.
var UnapprovedTaint = clusterv1alpha1.Taint{Key: clusterv1alpha1.TaintUnapproved, Effect: corev1.TaintEffectNoSchedule}

// Place is the location of a cluster; the scheduler spreads by it.
type Place struct {
	Provider, Region string
	Zones            []string
}

// Apply writes the values that are set.
func (p Place) Apply(spec *clusterv1alpha1.ClusterSpec) {
	spec.Provider, spec.Region = cmp.Or(p.Provider, spec.Provider), cmp.Or(p.Region, spec.Region)
	if len(p.Zones) > 0 {
		spec.Zones, spec.Zone = p.Zones, ""
	}
}

// registerNetwork gets the member's identity at the hub and returns its token. Its proof is stored
// in the member before anything depends on it, so that an interrupted join can be repeated.
func registerNetwork(
	ctx context.Context, hub, member client.Client, info broker.Info, who broker.Member, progress manifests.Progress,
) (token string, err error) {
	progress("Registering at the hub")
	known, err := SecretKey(ctx, member, config.BrokerSecretName, manifests.KeyProof)
	if err != nil {
		return "", err
	}
	proof, err := broker.Identity(ctx, hub, info.Namespace(), who.ClusterID, types.UID(known))
	if err != nil {
		return "", err
	}
	if err := changeSecret(ctx, member, config.BrokerSecretName, func(data map[string][]byte) {
		data[config.KeyBrokerCA] = info.CA()
		data[config.KeyNamespace] = []byte(info.Namespace())
		data[config.KeyBrokerServer] = []byte(info.BrokerURL)
		delete(data, config.KeyOtherServer) // that of an earlier registration
		data[manifests.KeyProof] = []byte(proof)
	}); err != nil {
		return "", err
	}
	if token, err = broker.Token(ctx, hub, info.Namespace(), who.ClusterID, proof); err != nil {
		return "", err
	}
	if err := changeSecret(ctx, member, config.BrokerSecretName, func(data map[string][]byte) {
		data[config.KeyBrokerToken] = []byte(token)
		delete(data, config.KeyReturnToken) // that of an earlier registration
	}); err != nil {
		return "", err
	}
	if err := broker.Admit(ctx, hub, info.Namespace(), who); err != nil {
		return "", err
	}
	waits, err := broker.Unapproved(ctx, hub, info.Namespace(), who.ClusterID)
	if waits && !who.WorkloadsOnly {
		progress("Cluster %s is connected to no other one before an administrator of the hub accepts it: pelago clusters accept %s", who.ClusterID, who.ClusterID)
	}
	return token, err
}

// Propagates reports whether `pelago init` was run at the hub.
func Propagates(hub client.Client) (bool, error) {
	kind := clusterv1alpha1.GroupVersion.WithKind("Cluster")
	_, err := hub.RESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get the kind Cluster of %s: %w", kind.GroupVersion(), err)
	}
	return true, nil
}

// registerPull registers a cluster, whose UID is uid, for workloads with its token, and reports
// whether it did: not at a hub that propagates no workloads.
func registerPull(
	ctx context.Context, info broker.Info, set broker.Clusterset, token, name, uid string, progress manifests.Progress,
) (bool, error) {
	cfg := info.Config()
	cfg.BearerToken = token
	hub, err := manifests.NewClient(cfg)
	if err != nil {
		return false, err
	}
	ok, err := Propagates(hub)
	if err != nil {
		return false, err
	}
	if !ok {
		progress("The hub propagates no workloads (`pelago init` was not run there): cluster %s takes part in the network only", name)
		return false, nil
	}
	progress("Registering cluster %s for workloads", name)
	cluster := &clusterv1alpha1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       clusterv1alpha1.ClusterSpec{ID: uid, SyncMode: clusterv1alpha1.Pull},
	}
	if !set.AutoAccept {
		cluster.Spec.Taints = []clusterv1alpha1.Taint{UnapprovedTaint}
	}
	var last error
	err = wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, grantTimeout, true, func(context.Context) (bool, error) {
		// not the limited context: the last request completes
		last = hub.Create(ctx, cluster.DeepCopy())
		return !apierrors.IsForbidden(last), nil
	})
	switch {
	case err == nil && last == nil:
	case ctx.Err() == nil && apierrors.IsAlreadyExists(last):
		// only administrators of the hub and this cluster can have created it
		err := hub.Get(ctx, client.ObjectKeyFromObject(cluster), cluster)
		if apierrors.IsForbidden(err) {
			progress("Cluster %s is registered; pelago-hub has not given it its rights yet", name)
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("get Cluster %s at the hub: %w", name, err)
		}
		if err := checkCluster(cluster, uid, clusterv1alpha1.Pull); err != nil {
			return false, fmt.Errorf("%w, or join with --network-only", err)
		}
	case ctx.Err() == nil && apierrors.IsForbidden(last):
		return false, fmt.Errorf("register cluster %q for workloads: %w: run `pelago deploy-broker` at the hub again, which gives "+
			"members that right, or join with --network-only", name, last)
	default:
		return false, fmt.Errorf("register cluster %q for workloads: %w", name, cmp.Or(err, last))
	}
	if !cluster.Accepted() {
		progress("Cluster %s gets no workloads before an administrator of the hub accepts it: pelago clusters accept %s", name, name)
	}
	return true, nil
}

// Push is a push member to be registered.
type Push struct {
	Name   string
	Access string // names the kubeconfig and its context in errors
	Proxy  string // URL; empty: none
	Place  Place

	hubID  string
	config *rest.Config // of the member
}

// OpenPush opens a cluster that a hub is to write, and returns the URL of the proxy on the way to
// it, empty for none.
func OpenPush(cfg *rest.Config) (c manifests.Cluster, proxy string, err error) {
	if !strings.HasPrefix(cfg.Host, "https://") {
		return c, "", fmt.Errorf("the hub sends a token there, so its server must begin with https://, and is %s", cfg.Host)
	}
	if cfg.ServerName != "" {
		return c, "", errors.New("tls-server-name cannot be passed to the hub: use a server name that the certificate has")
	}
	if cfg.Proxy != nil {
		u, err := cfg.Proxy(nil) // clientcmd's uses no part of the request
		if err != nil {
			return c, "", fmt.Errorf("read its proxy: %w", err)
		}
		proxy = u.String()
	}
	c, err = manifests.Open(cfg)
	return c, proxy, err
}

// Join makes the cluster a member that the hub writes.
func (p Push) Join(ctx context.Context, hub, c manifests.Cluster, progress manifests.Progress) (err error) {
	if p.hubID, err = HubID(ctx, hub); err != nil {
		return err
	}
	progress("Reading the cluster at %s", c.Config.Host)
	if err := c.RequireMemberVersion("the cluster"); err != nil {
		return err
	}
	p.config = c.Config
	return p.register(ctx, hub.Client, c.Client, progress)
}

// register creates the hub's account in the member and writes its token and the Cluster at the hub.
func (p Push) register(ctx context.Context, hub, member client.Client, progress manifests.Progress) error {
	uid, err := broker.ClusterUID(ctx, member)
	if err != nil {
		return err
	}
	own, err := broker.ClusterUID(ctx, hub)
	if err != nil {
		return err
	}
	if uid == own {
		return fmt.Errorf("the cluster at %s is the hub itself: a hub is no member of its own", p.config.Host)
	}
	if err := checkIdentity(ctx, hub, p.Name, uid); err != nil {
		return err
	}
	token, ca, err := PushAccount{Cluster: p.Name, HubID: p.hubID}.Install(ctx, member, progress)
	if err != nil {
		return err
	}
	switch { // the CA of the kubeconfig, else the one that the member publishes
	case p.config.Insecure:
		if err := p.verify(ctx, token, ca); err != nil {
			return err
		}
	case len(p.config.CAData) > 0:
		ca = p.config.CAData
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: clusterv1alpha1.SecretNamespace, Name: p.Name}}
	progress("Writing Secret %s/%s at the hub", secret.Namespace, secret.Name)
	if err := manifests.Put(ctx, hub, secret, func() {
		secret.Data = map[string][]byte{clusterv1alpha1.SecretKeyToken: token, clusterv1alpha1.SecretKeyCA: ca}
		// By this label it is deleted with the Cluster. With an owner reference the garbage
		// collector of a hub that was restored with new UIDs would delete it.
		metav1.SetMetaDataLabel(&secret.ObjectMeta, pelagov1alpha1.LabelManagedBy, pelagov1alpha1.ManagedBy)
		secret.OwnerReferences = nil
	}); err != nil {
		return err
	}
	cluster := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: p.Name}}
	progress("Registering cluster %s at the hub", p.Name)
	return manifests.Put(ctx, hub, cluster, func() {
		s := &cluster.Spec
		s.ID, s.SyncMode, s.APIEndpoint, s.InsecureSkipTLSVerification = uid, clusterv1alpha1.Push, p.config.Host, false
		s.SecretRef = &clusterv1alpha1.SecretReference{Namespace: secret.Namespace, Name: secret.Name}
		s.ProxyURL = p.Proxy
		p.Place.Apply(s)
	})
}

// verify checks that the member's server has a certificate of the CA that the member publishes. The
// hub sends an administrator's token for as long as the cluster is a member: a kubeconfig that
// skips verification does so only for the join itself.
func (p Push) verify(ctx context.Context, token, ca []byte) error {
	cfg := rest.AnonymousClientConfig(p.config)
	cfg.Insecure, cfg.CAData, cfg.BearerToken = false, ca, string(token)
	typed, err := kubernetes.NewForConfig(cfg)
	if err == nil {
		err = typed.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Error()
	}
	if err != nil {
		return fmt.Errorf("%s has insecure-skip-tls-verify, but the hub verifies the certificate of %s, and the CA that the cluster publishes "+
			"does not: %w: give the CA of that server as certificate-authority-data instead, and a server name that the certificate has",
			p.Access, p.config.Host, err)
	}
	return nil
}

// checkCluster refuses to register a cluster over a Cluster that is being removed, is another
// cluster or is a member of the other mode.
func checkCluster(c *clusterv1alpha1.Cluster, uid string, mode clusterv1alpha1.SyncMode) error {
	switch {
	case c.DeletionTimestamp != nil:
		return fmt.Errorf("cluster %q is being removed: wait until the hub has none of that name, then join again", c.Name)
	case c.Spec.ID != uid && (c.Spec.ID != "" || mode == clusterv1alpha1.Pull):
		return fmt.Errorf("name %q belongs to another cluster (its namespace kube-system has UID %s, this one's has %s): choose another "+
			"name, or %s", c.Name, c.Spec.ID, uid, unjoinFirst(c.Name))
	case c.Spec.SyncMode != mode:
		return fmt.Errorf("cluster %q is a %s member already: %s", c.Name, strings.ToLower(string(c.Spec.SyncMode)), unjoinFirst(c.Name))
	}
	return nil
}

func unjoinFirst(name string) string {
	return fmt.Sprintf("remove it first with `pelago unjoin %s` at the hub", name)
}

// checkIdentity refuses a second registration: of another cluster under the name, and of the
// cluster under another name, be it for workloads or for the network.
func checkIdentity(ctx context.Context, hub client.Client, name, uid string) error {
	list := &clusterv1alpha1.ClusterList{}
	if err := hub.List(ctx, list); err != nil {
		return fmt.Errorf("list the Clusters at the hub: %w", err)
	}
	for i := range list.Items {
		c := &list.Items[i]
		if c.Name != name && c.Spec.ID == uid {
			return fmt.Errorf("this cluster is registered as %q: use that name, or %s", c.Name, unjoinFirst(c.Name))
		}
		if c.Name == name {
			if err := checkCluster(c, uid, clusterv1alpha1.Push); err != nil {
				return err
			}
		}
	}
	registered := &submarinerv1.ClusterList{}
	err := hub.List(ctx, registered, client.InNamespace(manifests.BrokerNamespace))
	if err != nil && !meta.IsNoMatchError(err) { // without the kind there is no broker
		return fmt.Errorf("list the Clusters of the broker: %w", err)
	}
	for _, c := range registered.Items {
		if same := c.Annotations[pelagov1alpha1.AnnotationClusterUID] == uid; same != (c.Name == name) {
			return fmt.Errorf("the cluster is to be called %q, but in the network that name and this cluster (UID %s) do not belong "+
				"together, see %q: a cluster has one name", name, uid, c.Name)
		}
	}
	return nil
}

// withdraw deletes the Cluster at the hub and waits until it is gone, which takes as long as what
// was propagated to it is being removed. With force it waits only while the cluster is ready, then
// abandons what is left and reports the objects that stay there.
func withdraw(ctx context.Context, hub client.Client, name string, l Leaving) error {
	member := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	l.Progress("Removing what was propagated to cluster %s", name)
	if err := client.IgnoreNotFound(hub.Delete(ctx, member)); err != nil {
		return fmt.Errorf("delete Cluster %s at the hub: %w", name, err)
	}
	var last error
	var blocker string // what pelago-hub waits for
	poll := func(while func() bool) error {
		return wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, l.Timeout, true, func(context.Context) (bool, error) {
			// not the limited context: the last request completes
			last = hub.Get(ctx, client.ObjectKey{Name: name}, member)
			c := meta.FindStatusCondition(member.Status.Conditions, clusterv1alpha1.ConditionRemoved)
			if last == nil && c != nil && c.Status == metav1.ConditionFalse && c.Message != blocker {
				blocker = c.Message
				l.Progress("Cluster %s: %s", name, blocker)
			}
			return apierrors.IsNotFound(last) || last == nil && !while(), nil
		})
	}
	err := poll(func() bool {
		ready := member.Ready()
		return !l.Force || !l.abandon && ready != nil && ready.Status == metav1.ConditionTrue
	})
	if l.Force && ctx.Err() == nil && client.IgnoreNotFound(last) == nil {
		left, failed := hubcluster.Abandon(ctx, hub, name)
		for _, object := range left {
			l.Progress("%s stays in the cluster", object)
		}
		if failed != nil {
			return failed
		}
		err = poll(func() bool { return true })
	}
	if err == nil {
		return hubcluster.Forget(ctx, hub, hub, name) // pelago-hub has done so already, if it runs
	}
	if ctx.Err() != nil || last != nil {
		return fmt.Errorf("wait until Cluster %s is gone from the hub: %w", name, errors.Join(err, last))
	}
	if blocker != "" {
		return fmt.Errorf("after %s cluster %s is still being removed: %s; see `kubectl -n %s%s get works`, and run this again to wait for it",
			l.Timeout, name, blocker, clusterv1alpha1.ExecutionNamespacePrefix, name)
	}
	return fmt.Errorf("after %s cluster %s is still being removed: pelago-hub must run, and reach the cluster (push) or be reached by its "+
		"agent (pull); see `kubectl describe clusters.cluster.karmada.io %s` and `kubectl -n %s%s get works`. Run this again to wait "+
		"for it, or with --force if the cluster will not come back",
		l.Timeout, name, name, clusterv1alpha1.ExecutionNamespacePrefix, name)
}
