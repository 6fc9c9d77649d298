package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/install"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// access holds the flags of kubectl: which cluster, which namespace, and how objects are printed.
type access struct {
	kubeconfig string
	overrides  clientcmd.ConfigOverrides
	output     string
	// warnings is where warnings of the API server are written, each once; nil: nowhere.
	warnings io.Writer
}

func (a *access) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&a.kubeconfig, "kubeconfig", "", "kubeconfig file (default: $KUBECONFIG or ~/.kube/config)")
	fs.StringVar(&a.overrides.CurrentContext, "context", "", "context of the kubeconfig (default: its current one)")
	fs.StringVar(&a.overrides.Context.Cluster, "cluster", "", "cluster of the kubeconfig")
	fs.StringVar(&a.overrides.Context.AuthInfo, "user", "", "user of the kubeconfig")
}

func (a *access) loader(context string) clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.kubeconfig
	overrides := a.overrides
	if context != "" {
		overrides.CurrentContext = context
	}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &overrides)
}

// config is the access to the cluster of a context, "" for the one that the flags name. Its CA is
// in CAData.
func (a *access) config(context string) (*rest.Config, error) {
	cfg, err := a.loader(context).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w (choose one with --kubeconfig and --context)", err)
	}
	if err := rest.LoadTLSFiles(cfg); err != nil {
		return nil, fmt.Errorf("read the certificates of the kubeconfig: %w", err)
	}
	if a.warnings != nil {
		cfg.WarningHandler = rest.NewWarningWriter(a.warnings, rest.WarningWriterOptions{Deduplicate: true})
	}
	return cfg, nil
}

func (a *access) addNamespace(fs *pflag.FlagSet) {
	fs.StringVarP(&a.overrides.Context.Namespace, "namespace", "n", "", "namespace (default: the context's)")
}

// open opens the cluster that the flags name.
func (a *access) open() (*cluster, error) {
	cfg, err := a.config("")
	if err != nil {
		return nil, err
	}
	c, err := openCluster(cfg)
	if err != nil {
		return nil, err
	}
	if c.namespace, _, err = a.loader("").Namespace(); err != nil {
		return nil, fmt.Errorf("read the namespace of the kubeconfig: %w", err)
	}
	return c, nil
}

// AddFlags and Open are the access of package inspect.

func (a *access) AddFlags(fs *pflag.FlagSet) { a.addFlags(fs) }

// Open opens the cluster of a context, "" for the one that the flags name, and returns the
// namespace of the context.
func (a *access) Open(context string) (view.Member, string, error) {
	cfg, err := a.config(context)
	if err != nil {
		return view.Member{}, "", err
	}
	c, err := openCluster(cfg)
	if err != nil {
		return view.Member{}, "", err
	}
	namespace, _, err := a.loader(context).Namespace()
	if err != nil {
		return view.Member{}, "", fmt.Errorf("read the namespace of the kubeconfig: %w", err)
	}
	return c.Member, namespace, nil
}

// action is what a command does in an open cluster.
type action func(ctx context.Context, c *cluster, args []string, out io.Writer) error

// run returns the function of a command that opens the cluster of the flags first.
func (a *access) run(do action) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.open()
		if err != nil {
			return err
		}
		return do(cmd.Context(), c, args, cmd.OutOrStdout())
	}
}

// contexts lists the named contexts, else that of --context, else all, sorted.
func (a *access) contexts(named []string) ([]string, error) {
	raw, err := a.loader("").RawConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	all := slices.Sorted(maps.Keys(raw.Contexts))
	if len(named) == 0 && a.overrides.CurrentContext != "" {
		named = []string{a.overrides.CurrentContext}
	}
	if len(named) == 0 {
		return all, nil
	}
	for _, name := range named {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("context %q is not in the kubeconfig, which has %q", name, all)
		}
	}
	return named, nil
}

// cluster is an open hub or member.
type cluster struct {
	view.Member
	mapper    meta.RESTMapper // knows short names
	namespace string          // of the flags
}

func openCluster(cfg *rest.Config) (*cluster, error) {
	c, err := manifests.Open(cfg)
	if err != nil {
		return nil, err
	}
	cached := memory.NewMemCacheClient(c.Typed.Discovery())
	ignore := func(string) {} // warnings of ambiguous short names
	mapper := restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(cached), cached, ignore)
	return &cluster{Member: view.Member(c), mapper: mapper}, nil
}

// kind finds what a user calls deployments, deploy, deployment.apps or deployments.v1.apps.
func (c *cluster) kind(name string) (*meta.RESTMapping, error) {
	full, short := schema.ParseResourceArg(strings.ToLower(name))
	resource := short.WithVersion("")
	if full != nil {
		resource = *full
	}
	gvk, err := c.mapper.KindFor(resource)
	if meta.IsNoMatchError(err) && full != nil {
		gvk, err = c.mapper.KindFor(short.WithVersion(""))
	}
	if meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("kind %q is not served: name one of `kubectl api-resources`", name)
	}
	var mapping *meta.RESTMapping
	if err == nil {
		mapping, err = c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	}
	if err != nil {
		return nil, fmt.Errorf("find kind %q: %w", name, err)
	}
	return mapping, nil
}

// clusters are the named Clusters of the hub, all by name if none is named.
func (c *cluster) clusters(ctx context.Context, named ...string) ([]clusterv1alpha1.Cluster, error) {
	var list clusterv1alpha1.ClusterList
	err := c.Client.List(ctx, &list)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("the API server at %s has no kind Cluster of %s: name the hub with --context, or run `pelago init` there",
			c.Config.Host, clusterv1alpha1.GroupVersion.Group)
	}
	if err != nil {
		return nil, fmt.Errorf("list Clusters: %w", err)
	}
	all := list.Items
	slices.SortFunc(all, func(a, b clusterv1alpha1.Cluster) int { return strings.Compare(a.Name, b.Name) })
	if len(named) == 0 {
		return all, nil
	}
	var out []clusterv1alpha1.Cluster
	for _, name := range named {
		i := slices.IndexFunc(all, func(c clusterv1alpha1.Cluster) bool { return c.Name == name })
		switch {
		case len(all) == 0:
			return nil, fmt.Errorf("cluster %q is not known: no cluster has joined the hub yet, see `pelago join --help`", name)
		case i < 0:
			return nil, fmt.Errorf("cluster %q is not known: the hub has %s", name, strings.Join(names(kube.Pointers(all)), ", "))
		}
		out = append(out, all[i])
	}
	return out, nil
}

func names[T metav1.Object](objects []T) []string {
	var out []string
	for _, o := range objects {
		out = append(out, o.GetName())
	}
	return out
}

// completionTimeout bounds the time for one completion.
const completionTimeout = 3 * time.Second

// complete returns the completion of a command by what list finds in the cluster of the flags; args
// precede the word begun. Errors complete nothing, since a shell cannot show them.
func (a *access) complete(list func(ctx context.Context, c *cluster, args []string, begun string) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		c, err := a.open()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		return list(ctx, c, args, begun), cobra.ShellCompDirectiveNoFileComp
	}
}

// clusterNames completes one name of a cluster.
func clusterNames(ctx context.Context, c *cluster, args []string, _ string) []string {
	all, err := c.clusters(ctx)
	if err != nil || len(args) > 0 {
		return nil
	}
	return names(kube.Pointers(all))
}

// addClusters adds the flag --clusters. Of several names, separated by commas, the last is
// completed.
func (a *access) addClusters(cmd *cobra.Command, named *[]string, usage string) {
	cmd.Flags().StringSliceVarP(named, "clusters", "C", nil, usage)
	last := a.complete(func(ctx context.Context, c *cluster, _ []string, begun string) []string {
		return view.CompleteLast(begun, clusterNames(ctx, c, nil, ""))
	})
	// Fails only without such a flag.
	_ = cmd.RegisterFlagCompletionFunc("clusters", func(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		out, directive := last(c, args, begun)
		return out, directive | cobra.ShellCompDirectiveNoSpace
	})
}

// completeContexts completes the flags that name contexts by those of the kubeconfig.
func completeContexts(cmd *cobra.Command) {
	for flag, file := range map[string]string{"context": "kubeconfig", "contexts": "kubeconfig", "host-context": "kubeconfig",
		"broker-context": "kubeconfig", "remote-context": "kubeconfig", "cluster-context": "cluster-kubeconfig"} {
		complete := func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
			a := access{kubeconfig: cmd.Flag(file).Value.String()}
			all, err := a.contexts(nil)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return view.CompleteLast(begun, all), cobra.ShellCompDirectiveNoFileComp
		}
		// fails only without such a flag, or where a parent has it
		_ = cmd.RegisterFlagCompletionFunc(flag, complete)
	}
	for _, sub := range cmd.Commands() {
		completeContexts(sub)
	}
}

// objectNames completes a kind, then the name of an object of the hub.
func objectNames(ctx context.Context, c *cluster, args []string, _ string) []string {
	switch len(args) {
	case 0:
		return c.kinds()
	case 1:
		return c.objects(ctx, args[0])
	}
	return nil
}

// objects are the names of the objects of a kind, in the namespace of the flags.
func (c *cluster) objects(ctx context.Context, kind string) []string {
	mapping, err := c.kind(kind)
	if err != nil {
		return nil
	}
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(mapping.GroupVersionKind)
	var opts []client.ListOption
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		opts = append(opts, client.InNamespace(c.namespace))
	}
	if c.Client.List(ctx, &list, opts...) != nil {
		return nil
	}
	return names(kube.Pointers(list.Items))
}

// kinds are the plural names of all kinds that can be listed, with the group unless it is one of
// Kubernetes.
func (c *cluster) kinds() []string {
	// with an error, those of the available groups
	lists, _ := c.Typed.Discovery().ServerPreferredResources()
	var out []string
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list"}}, lists) {
		group, _, versioned := strings.Cut(list.GroupVersion, "/")
		for _, r := range list.APIResources {
			if versioned && strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io") {
				r.Name += "." + group
			}
			out = append(out, r.Name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func newProgress(out io.Writer) manifests.Progress { return install.NewProgress(out) }
