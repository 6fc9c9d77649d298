package main

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/deploy"
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
	if cfg, err = a.configOf(k.context); err != nil {
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

// clusterClient makes a client of the hub for Clusters, Works and what belongs to them.
func clusterClient(cfg *rest.Config) (client.Client, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, clusterv1alpha1.AddToScheme, workv1alpha1.AddToScheme, submarinerv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("make a client for the hub: %w", err)
		}
	}
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("reach the hub at %s: %w", cfg.Host, err)
	}
	return c, nil
}

// propagates says whether `pelago init` was run at the hub.
func propagates(hub client.Client) (bool, error) {
	_, err := hub.RESTMapper().RESTMapping(clusterv1alpha1.GroupVersion.WithKind("Cluster").GroupKind(),
		clusterv1alpha1.GroupVersion.Version)
	if meta.IsNoMatchError(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask the hub for the kind Cluster of %s: %w", clusterv1alpha1.GroupVersion, err)
	}
	return true, nil
}

// checkIdentity refuses a second registration: of another cluster under the name, and of the cluster under another name, be it for
// workloads or for the network. It returns the Cluster of that name, nil if there is none.
func checkIdentity(ctx context.Context, hub client.Client, name, uid string) (*clusterv1alpha1.Cluster, error) {
	unjoin := func(name string) string {
		return fmt.Sprintf("remove it first with `pelago unjoin %s` at the hub", name)
	}
	list := &clusterv1alpha1.ClusterList{}
	if err := hub.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list the Clusters at the hub: %w", err)
	}
	var have *clusterv1alpha1.Cluster
	for i := range list.Items {
		c := &list.Items[i]
		switch {
		case c.Name == name && c.DeletionTimestamp != nil:
			return nil, fmt.Errorf("cluster %q is being removed: wait until `kubectl get cluster.cluster.karmada.io %s` does not find it "+
				"any more", name, name)
		case c.Name == name && c.Spec.ID != "" && c.Spec.ID != uid:
			return nil, fmt.Errorf("name %q belongs to another cluster (its namespace kube-system has UID %s, this one's has %s): choose "+
				"another name, or %s", name, c.Spec.ID, uid, unjoin(name))
		case c.Name != name && c.Spec.ID == uid:
			return nil, fmt.Errorf("this cluster is registered as %q: use that name, or %s", c.Name, unjoin(c.Name))
		case c.Name == name:
			have = c
		}
	}
	registered := &submarinerv1.ClusterList{}
	if err := hub.List(ctx, registered, client.InNamespace(deploy.BrokerNamespace)); err != nil {
		if meta.IsNoMatchError(err) {
			return have, nil // no broker
		}
		return nil, fmt.Errorf("list the Clusters of the broker: %w", err)
	}
	for _, c := range registered.Items {
		if same := c.Annotations[pelagov1alpha1.AnnotationClusterUID] == uid; same != (c.Name == name) {
			return nil, fmt.Errorf("the cluster is to be called %q, but in the network that name and this cluster (UID %s) do not belong "+
				"together, see %q: a cluster has one name", name, uid, c.Name)
		}
	}
	return have, nil
}

func checkPullPolicy(policy string) error {
	all := []string{string(corev1.PullAlways), string(corev1.PullIfNotPresent), string(corev1.PullNever)}
	if !slices.Contains(all, policy) {
		return fmt.Errorf("--image-pull-policy %q: use Always, IfNotPresent or Never", policy)
	}
	return nil
}
