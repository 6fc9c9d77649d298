package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// hub is an API server in which users name kinds as kubectl lets them.
type hub struct {
	config *rest.Config
	client client.Client
	mapper meta.RESTMapper
}

// hubFlags are what the commands at the hub share.
type hubFlags struct {
	access    access
	namespace string
	output    string
}

func (f *hubFlags) add(cmd *cobra.Command) { f.access.addFlags(cmd.Flags()) }

func (f *hubFlags) addNamespaced(cmd *cobra.Command) {
	f.add(cmd)
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "namespace (default: the context's)")
}

// open reaches the hub and fills in the namespace.
func (f *hubFlags) open() (*hub, error) {
	cfg, err := f.access.config()
	if err != nil {
		return nil, err
	}
	if f.namespace == "" {
		if f.namespace, _, err = f.access.loader("").Namespace(); err != nil {
			return nil, fmt.Errorf("read the namespace of the kubeconfig: %w", err)
		}
	}
	return newHub(cfg)
}

func newHub(cfg *rest.Config) (*hub, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, clusterv1alpha1.AddToScheme, policyv1alpha1.AddToScheme,
		workv1alpha1.AddToScheme, workv1alpha2.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("make a client: %w", err)
		}
	}
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("reach the API server at %s: %w", cfg.Host, err)
	}
	mapper, err := openMapper(cfg)
	if err != nil {
		return nil, err
	}
	return &hub{config: cfg, client: c, mapper: mapper}, nil
}

// openMapper knows the kinds of an API server, with their short names.
func openMapper(cfg *rest.Config) (meta.RESTMapper, error) {
	d, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("reach the API server at %s: %w", cfg.Host, err)
	}
	cached := memory.NewMemCacheClient(d)
	ignore := func(string) {} // warnings of ambiguous short names
	return restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(cached), cached, ignore), nil
}

// kind finds what a user calls deployments, deploy, deployment.apps or deployments.v1.apps.
func kind(mapper meta.RESTMapper, name string) (*meta.RESTMapping, error) {
	full, short := schema.ParseResourceArg(strings.ToLower(name))
	resource := short.WithVersion("")
	if full != nil {
		resource = *full
	}
	gvk, err := mapper.KindFor(resource)
	if meta.IsNoMatchError(err) && full != nil {
		gvk, err = mapper.KindFor(short.WithVersion(""))
	}
	if meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("kind %q is not served: name one of `kubectl api-resources`", name)
	}
	if err != nil {
		return nil, fmt.Errorf("look for the kind %q: %w", name, err)
	}
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, fmt.Errorf("look for the kind %q: %w", name, err)
	}
	return mapping, nil
}

// clusters are the hub's, by name.
func (h *hub) clusters(ctx context.Context) ([]clusterv1alpha1.Cluster, error) {
	var list clusterv1alpha1.ClusterList
	err := h.client.List(ctx, &list)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("the API server at %s has no kind Cluster of %s: name the hub with --context",
			h.config.Host, clusterv1alpha1.GroupVersion.Group)
	}
	if err != nil {
		return nil, fmt.Errorf("list Clusters: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b clusterv1alpha1.Cluster) int { return strings.Compare(a.Name, b.Name) })
	return list.Items, nil
}

// clustersNamed are the named ones of the clusters, or all if none is named.
func clustersNamed(all []clusterv1alpha1.Cluster, named []string) ([]clusterv1alpha1.Cluster, error) {
	if len(named) == 0 {
		return all, nil
	}
	var out []clusterv1alpha1.Cluster
	for _, name := range named {
		i := slices.IndexFunc(all, func(c clusterv1alpha1.Cluster) bool { return c.Name == name })
		if i < 0 {
			return nil, unknownCluster(name, all)
		}
		out = append(out, all[i])
	}
	return out, nil
}

func unknownCluster(name string, all []clusterv1alpha1.Cluster) error {
	var have []string
	for i := range all {
		have = append(have, all[i].Name)
	}
	if len(have) == 0 {
		return fmt.Errorf("cluster %q is not known: no cluster has joined the hub yet, see `pelago join --help`", name)
	}
	return fmt.Errorf("cluster %q is not known: the hub has %s", name, strings.Join(have, ", "))
}
