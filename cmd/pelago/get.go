package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// Values of --operation-scope.
const (
	scopeHub     = "hub"
	scopeMembers = "members"
	scopeAll     = "all"
)

// membersAtOnce is how many members are asked at the same time.
const membersAtOnce = 16

// get are the flags of get.
type get struct {
	hubFlags
	named    []string
	scope    string
	contexts map[string]string
	selection
}

// selection is which objects are asked for.
type selection struct {
	kind          string
	namespace     string // "" if allNamespaces
	allNamespaces bool
	name          string // "": all
	// group and object kind are known once the hub has told.
	group, objectKind string
}

// selects says whether a manifest is asked for.
func (s selection) selects(o *unstructured.Unstructured) bool {
	gvk := o.GroupVersionKind()
	return gvk.Group == s.group && gvk.Kind == s.objectKind && (s.name == "" || s.name == o.GetName()) &&
		(s.allNamespaces || o.GetNamespace() == "" || s.namespace == o.GetNamespace())
}

func getCommand() *cobra.Command {
	var g get
	cmd := &cobra.Command{
		Use:   "get KIND [NAME]",
		Short: "List objects of the hub and of the clusters",
		Long: `get lists objects of the hub, of the clusters, or of both. The column CLUSTER says where an object
is; ADOPTION is Y if the object came to the cluster from the hub, N if not.

Push members are reached as the hub reaches them: with their Secret, which you must be allowed to
read. Pull members are reached through a context of the kubeconfig that --member-context names;
without one, what their Works say is shown in a table of its own.

` + "`get clusters`" + ` lists the clusters themselves.`,
		Example: `  pelago get clusters -o wide
  pelago get deployments -n shop                         # at the hub
  pelago get deployments -n shop --clusters m1,m2
  pelago get pods -A --operation-scope members --member-context m2=kind-m2
  pelago get deployment nginx --operation-scope all -o json`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			g.selection.kind = args[0]
			if len(args) == 2 {
				g.name = args[1]
			} else if kindName, name, ok := strings.Cut(args[0], "/"); ok {
				g.selection.kind, g.name = kindName, name
			}
			return g.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.ValidArgsFunction = g.completeObject
	g.addNamespaced(cmd)
	addOutputFlag(cmd, &g.output)
	f := cmd.Flags()
	f.BoolVarP(&g.allNamespaces, "all-namespaces", "A", false, "of all namespaces")
	f.StringSliceVarP(&g.named, "clusters", "C", nil, "objects of these clusters")
	f.StringVar(&g.scope, "operation-scope", scopeHub, "hub, members or all")
	f.StringToStringVar(&g.contexts, "member-context", nil,
		"CLUSTER=CONTEXT: reach this cluster through this context of the kubeconfig")
	cmd.MarkFlagsMutuallyExclusive("clusters", "operation-scope")
	scopes := cobra.FixedCompletions([]string{scopeHub, scopeMembers, scopeAll}, cobra.ShellCompDirectiveNoFileComp)
	_ = cmd.RegisterFlagCompletionFunc("clusters", g.completeClusters) // fails only without such a flag
	_ = cmd.RegisterFlagCompletionFunc("operation-scope", scopes)      // likewise
	return cmd
}

func (g *get) run(ctx context.Context, out, complaints io.Writer) error {
	switch g.scope {
	case scopeHub, scopeMembers, scopeAll:
	case "karmada": // what users of Karmada call it
		g.scope = scopeHub
	default:
		return fmt.Errorf("--operation-scope %q: use hub, members or all", g.scope)
	}
	if len(g.named) > 0 {
		g.scope = scopeMembers
	}
	h, err := g.open()
	if err != nil {
		return err
	}
	g.selection.namespace = g.hubFlags.namespace
	if g.allNamespaces {
		g.selection.namespace = ""
	}
	if k := strings.ToLower(g.selection.kind); g.scope == scopeHub && (k == "clusters" || k == "cluster") {
		return g.clusters(ctx, h, out)
	}
	found, err := g.collect(ctx, h)
	if err != nil {
		return err
	}
	return g.print(found, out, complaints)
}

// clusters prints the clusters.
func (g *get) clusters(ctx context.Context, h *hub, out io.Writer) error {
	all, err := h.clusters(ctx)
	if err != nil {
		return err
	}
	if g.name != "" {
		if all, err = clustersNamed(all, []string{g.name}); err != nil {
			return err
		}
	}
	return printTables(out, g.output, clusterListing(all, time.Now()))
}

// found is what the hub and the clusters have answered.
type found struct {
	listings []listing
	works    []worksOf
	errs     []error // of clusters
}

// collect asks all of them, clusters at the same time.
func (g *get) collect(ctx context.Context, h *hub) (*found, error) {
	out := &found{}
	if g.scope != scopeMembers {
		l, err := list(ctx, h.config, "", g.selection)
		if err != nil {
			return nil, err
		}
		out.listings = append(out.listings, l)
		if g.scope == scopeHub {
			return out, nil
		}
	}
	all, err := h.clusters(ctx)
	if err != nil {
		return nil, err
	}
	if all, err = clustersNamed(all, g.named); err != nil {
		return nil, err
	}
	answers := make([]listing, len(all))
	var mu sync.Mutex // of the rest
	works := map[string]worksOf{}
	failed := map[string]error{}
	group := errgroup.Group{}
	group.SetLimit(membersAtOnce)
	for i := range all {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, lookTimeout)
			defer cancel()
			l, err := g.member(ctx, h, &all[i])
			var w worksOf
			if errors.Is(err, errNoWay) {
				w, err = g.reported(ctx, h, all[i].Name)
			}
			mu.Lock()
			defer mu.Unlock()
			answers[i] = l
			if w.cluster != "" {
				works[all[i].Name] = w
			}
			if err != nil {
				failed[all[i].Name] = fmt.Errorf("cluster %s: %w", all[i].Name, err)
			}
			return nil // one cluster does not hide the others
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for i := range all {
		if err := failed[all[i].Name]; err != nil {
			out.errs = append(out.errs, err)
			continue
		}
		if w, ok := works[all[i].Name]; ok {
			out.works = append(out.works, w)
			continue
		}
		out.listings = append(out.listings, answers[i])
	}
	return out, g.learnKind(h, out)
}

// learnKind finds out what objects of the kind are called in manifests, if Works have to be looked through.
func (g *get) learnKind(h *hub, f *found) error {
	if len(f.works) == 0 {
		return nil
	}
	mapping, err := kind(h.mapper, g.selection.kind)
	if err != nil {
		return err
	}
	g.group, g.objectKind = mapping.GroupVersionKind.Group, mapping.GroupVersionKind.Kind
	return nil
}

func (g *get) member(ctx context.Context, h *hub, c *clusterv1alpha1.Cluster) (listing, error) {
	cfg, err := h.memberConfig(ctx, c, &g.access, g.contexts)
	if err != nil {
		return listing{}, err
	}
	return list(ctx, cfg, c.Name, g.selection)
}

func (g *get) reported(ctx context.Context, h *hub, cluster string) (worksOf, error) {
	var works workv1alpha1.WorkList
	if err := h.client.List(ctx, &works, client.InNamespace(workv1alpha2.ExecutionNamespace(cluster))); err != nil {
		return worksOf{}, fmt.Errorf("list its Works: %w", err)
	}
	return worksOf{cluster, works.Items}, nil
}

// list asks an API server for a table of objects, with the objects in it. A cluster that does not have the named object has none.
func list(ctx context.Context, cfg *rest.Config, cluster string, s selection) (listing, error) {
	mapper, err := openMapper(cfg)
	if err != nil {
		return listing{}, err
	}
	mapping, err := kind(mapper, s.kind)
	if err != nil {
		return listing{}, err
	}
	gv := mapping.GroupVersionKind.GroupVersion()
	cfg = rest.CopyConfig(cfg)
	cfg.GroupVersion, cfg.APIPath = &gv, "/apis"
	if gv.Group == "" {
		cfg.APIPath = "/api"
	}
	cfg.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	c, err := rest.RESTClientFor(cfg)
	if err != nil {
		return listing{}, fmt.Errorf("reach the API server at %s: %w", cfg.Host, err)
	}
	namespaced := mapping.Scope.Name() == meta.RESTScopeNameNamespace
	if namespaced && s.name != "" && s.namespace == "" {
		return listing{}, errors.New("a name needs a namespace: leave out --all-namespaces, or the name")
	}
	request := c.Get().NamespaceIfScoped(s.namespace, namespaced && s.namespace != "").Resource(mapping.Resource.Resource).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Param("includeObject", "Object")
	if s.name != "" {
		request = request.Name(s.name)
	}
	out := listing{cluster: cluster}
	raw, err := request.Do(ctx).Raw()
	switch {
	case cluster != "" && s.name != "" && apierrors.IsNotFound(err):
		return out, nil
	case apierrors.IsNotFound(err):
		return out, fmt.Errorf("the hub has no %s %s: name one of `pelago get %s`, or another namespace with -n",
			mapping.GroupVersionKind.Kind, title(client.ObjectKey{Namespace: s.namespace, Name: s.name}), mapping.Resource.Resource)
	case err != nil:
		return out, fmt.Errorf("list %s: %w", mapping.Resource.Resource, err)
	}
	if err := json.Unmarshal(raw, &out.table); err != nil {
		return out, fmt.Errorf("read the list of %s: %w", mapping.Resource.Resource, err)
	}
	return out, nil
}

// print shows what was found, and what went wrong: that is an error if the user has named the clusters.
func (g *get) print(f *found, out, complaints io.Writer) error {
	objects, err := listings(f.listings, "No objects found.", g.allNamespaces)
	if err != nil {
		return err
	}
	tables := []table{objects}
	if len(f.works) > 0 {
		byWorks := workListing(f.works, g.selection)
		byWorks.title = "Clusters without access, as their Works say (--member-context CLUSTER=CONTEXT gives access):"
		tables = append(tables, byWorks)
		if len(f.listings) == 0 {
			tables = tables[1:]
		}
	}
	if err := printTables(out, g.output, tables...); err != nil {
		return err
	}
	if len(g.named) > 0 || g.scope == scopeHub {
		return errors.Join(f.errs...)
	}
	for _, err := range f.errs {
		fmt.Fprintln(complaints, "warning:", err)
	}
	return nil
}

// printTables writes tables, or the list of their objects.
func printTables(out io.Writer, output string, tables ...table) error {
	objects := []any{}
	for _, t := range tables {
		for _, r := range t.rows {
			objects = append(objects, r.object)
		}
	}
	if output == "json" || output == "yaml" {
		return encode(out, output, objects)
	}
	for _, t := range tables {
		if t.title != "" {
			fmt.Fprintln(out, t.title)
		}
		if err := t.print(out, output == "wide"); err != nil {
			return err
		}
	}
	return nil
}
