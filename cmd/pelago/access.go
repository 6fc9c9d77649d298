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
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy"
)

// access holds the flags of kubectl that name a cluster.
type access struct {
	kubeconfig string
	overrides  clientcmd.ConfigOverrides
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

// config is the access to the cluster of a context, "" for the one that the flags name. Its CA is in CAData.
func (a *access) config(context string) (*rest.Config, error) {
	cfg, err := a.loader(context).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w (choose one with --kubeconfig and --context)", err)
	}
	if err := rest.LoadTLSFiles(cfg); err != nil {
		return nil, fmt.Errorf("read the certificates of the kubeconfig: %w", err)
	}
	cfg.QPS, cfg.Burst = 50, 100
	cfg.Timeout = 30 * time.Second
	cfg.WarningHandler = rest.NoWarnings{}
	return cfg, nil
}

// open opens the cluster that the flags name.
func (a *access) open() (*cluster, error) {
	cfg, err := a.config("")
	if err != nil {
		return nil, err
	}
	return openCluster(cfg)
}

// namespace is the given one, or that of the context if it is empty.
func (a *access) namespace(given string) (string, error) {
	if given != "" {
		return given, nil
	}
	namespace, _, err := a.loader("").Namespace()
	if err != nil {
		return "", fmt.Errorf("read the namespace of the kubeconfig: %w", err)
	}
	return namespace, nil
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
	config *rest.Config
	mapper meta.RESTMapper // knows short names
}

func openCluster(cfg *rest.Config) (*cluster, error) {
	c, err := deploy.NewClient(cfg)
	if err != nil {
		return nil, err
	}
	typed, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("reach the API server at %s: %w", cfg.Host, err)
	}
	cached := memory.NewMemCacheClient(typed.Discovery())
	ignore := func(string) {} // warnings of ambiguous short names
	mapper := restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(cached), cached, ignore)
	return &cluster{Member: view.Member{Client: c, Typed: typed}, config: cfg, mapper: mapper}, nil
}

// requireVersion refuses an API server that is too old.
func (c *cluster) requireVersion(what, minimum, why string) error {
	info, err := c.Typed.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("get the version of %s at %s: %w", what, c.config.Host, err)
	}
	have, err := utilversion.ParseGeneric(info.GitVersion)
	if err != nil {
		return fmt.Errorf("read the version of %s: %w", what, err)
	}
	if have.LessThan(utilversion.MustParseGeneric(minimum)) {
		return fmt.Errorf("%s runs Kubernetes %s: at least %s is needed (%s)", what, info.GitVersion, minimum, why)
	}
	return nil
}

func (c *cluster) requireHubVersion() error {
	return c.requireVersion("the hub", "1.31", "admission policies with functions of IP addresses")
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

// clusters are those of the hub, by name.
func (c *cluster) clusters(ctx context.Context) ([]clusterv1alpha1.Cluster, error) {
	var list clusterv1alpha1.ClusterList
	err := c.Client.List(ctx, &list)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("the API server at %s has no kind Cluster of %s: name the hub with --context",
			c.config.Host, clusterv1alpha1.GroupVersion.Group)
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
	if len(all) == 0 {
		return fmt.Errorf("cluster %q is not known: no cluster has joined the hub yet, see `pelago join --help`", name)
	}
	return fmt.Errorf("cluster %q is not known: the hub has %s", name, strings.Join(names(all), ", "))
}

func names(clusters []clusterv1alpha1.Cluster) []string {
	var out []string
	for i := range clusters {
		out = append(out, clusters[i].Name)
	}
	return out
}

// hubFlags are the common flags of the commands at the hub.
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

// open opens the hub and fills in the namespace.
func (f *hubFlags) open() (*cluster, error) {
	var err error
	if f.namespace, err = f.access.namespace(f.namespace); err != nil {
		return nil, err
	}
	return f.access.open()
}

// command adds the flags to a command whose first argument is the name of a cluster of the hub, and runs it with the open hub.
func (f *hubFlags) command(cmd *cobra.Command, run func(context.Context, *cluster, []string, io.Writer) error) *cobra.Command {
	f.add(cmd)
	cmd.ValidArgsFunction = f.completeCluster
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		h, err := f.open()
		if err != nil {
			return err
		}
		return run(cmd.Context(), h, args, cmd.OutOrStdout())
	}
	return cmd
}

// noCompletion is the directive of all completions; errors complete nothing, since a shell cannot show them.
const noCompletion = cobra.ShellCompDirectiveNoFileComp

// completeCluster completes one name of a cluster.
func (f *hubFlags) completeCluster(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, noCompletion
	}
	return f.clusterNames(cmd), noCompletion
}

// completeClusters completes the last of several names, separated by commas.
func (f *hubFlags) completeClusters(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	before := begun[:strings.LastIndex(begun, ",")+1]
	named := strings.Split(before, ",")
	var out []string
	for _, name := range f.clusterNames(cmd) {
		if !slices.Contains(named, name) {
			out = append(out, before+name)
		}
	}
	return out, noCompletion | cobra.ShellCompDirectiveNoSpace
}

func (f *hubFlags) clusterNames(cmd *cobra.Command) []string {
	h, err := f.open()
	if err != nil {
		return nil
	}
	all, err := h.clusters(cmd.Context())
	if err != nil {
		return nil
	}
	return names(all)
}

// completeObject completes a kind, then the name of an object of the hub.
func (f *hubFlags) completeObject(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	h, err := f.open()
	if err != nil || len(args) > 1 {
		return nil, noCompletion
	}
	if len(args) == 0 {
		return h.kinds(), noCompletion
	}
	mapping, err := h.kind(args[0])
	if err != nil {
		return nil, noCompletion
	}
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(mapping.GroupVersionKind.GroupVersion().WithKind(mapping.GroupVersionKind.Kind + "List"))
	var opts []client.ListOption
	if mapping.Scope.Name() == "namespace" {
		opts = append(opts, client.InNamespace(f.namespace))
	}
	if h.Client.List(cmd.Context(), &list, opts...) != nil {
		return nil, noCompletion
	}
	var out []string
	for i := range list.Items {
		out = append(out, list.Items[i].Name)
	}
	return out, noCompletion
}

// kinds are the plural names of all kinds that can be listed, with the group unless it is one of Kubernetes.
func (h *cluster) kinds() []string {
	lists, _ := h.Typed.Discovery().ServerPreferredResources() // with an error, those of the available groups
	var out []string
	for _, list := range lists {
		group, _, versioned := strings.Cut(list.GroupVersion, "/")
		for _, r := range list.APIResources {
			switch {
			case !slices.Contains(r.Verbs, "list"):
			case versioned && strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io"):
				out = append(out, r.Name+"."+group)
			default:
				out = append(out, r.Name)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// progress prints steps, one line each, with the seconds since the start.
type progress struct {
	out   io.Writer
	start time.Time
}

func newProgress(out io.Writer) *progress { return &progress{out: out, start: time.Now()} }

// step is a deploy.Progress.
func (p *progress) step(format string, args ...any) {
	fmt.Fprintf(p.out, "%6.1fs  %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, args...))
}
