package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/cmd/pelago/internal/inspect"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
)

// Values of --operation-scope.
const (
	scopeHub     = "hub"
	scopeMembers = "members"
	scopeAll     = "all"
)

// get are the flags of get.
type get struct {
	access
	named    []string
	scope    string
	contexts map[string]string
	selector string
	watch    bool
	view.Selection
}

func getCommand() *cobra.Command {
	var g get
	cmd := &cobra.Command{
		Use:   "get KIND [NAME...]",
		Short: "List objects of the hub and of the clusters",
		Long: `get lists objects of the hub, of the clusters, or of both. The column CLUSTER is the cluster of an
object; ADOPTION is Y if the object was propagated by the hub, N if not.

Push members are reached with their Secret, if you are allowed to read it. Others, and pull members,
are reached through the hub with your own name and rights there (proxy.pelago.io), or through the
context of the kubeconfig in --member-context. For an unreachable pull member that is not named, a
separate table shows the status in its Works.

` + "`get clusters`" + ` lists the clusters themselves.`,
		Example: `  pelago get clusters -o wide
  pelago get deployments -n shop                         # at the hub
  pelago get deployments -n shop --clusters m1,m2
  pelago get deployments web db -n shop -o name
  pelago get pods -n shop -l app=web --clusters m1
  pelago get deployments -n shop --operation-scope all -w
  pelago get pods -A --operation-scope members --member-context m2=kind-m2
  pelago get deployment nginx --operation-scope all -o json
  pelago get deployment nginx --operation-scope all -C m1   # at the hub and in m1`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			g.Kind, g.Names = args[0], args[1:]
			if kind, name, ok := strings.Cut(args[0], "/"); ok {
				g.Kind, g.Names = kind, append([]string{name}, g.Names...)
			}
			if g.Labels, err = labels.Parse(g.selector); err != nil {
				return fmt.Errorf("--selector %s: %w", g.selector, err)
			}
			if !g.Labels.Empty() && len(g.Names) > 0 {
				return errors.New("give either names or --selector")
			}
			if g.watch && len(g.Names) > 1 {
				return errors.New("--watch watches one object or all of a kind: name one, or use --selector")
			}
			if scoped := cmd.Flags().Changed("operation-scope"); len(g.named) > 0 && !scoped {
				g.scope = scopeMembers
			} else if len(g.named) > 0 && g.scope == scopeHub {
				return errors.New("--operation-scope hub reads no cluster: leave --clusters out")
			}
			return g.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.ValidArgsFunction = g.complete(objectNames)
	f := cmd.Flags()
	g.addFlags(f)
	g.addNamespace(f)
	view.AddOutputFlag(f, &g.output, "name")
	f.StringVarP(&g.selector, "selector", "l", "", "labels of the objects, as in kubectl")
	f.BoolVarP(&g.watch, "watch", "w", false, "then print each object that changes")
	f.BoolVarP(&g.AllNamespaces, "all-namespaces", "A", false, "of all namespaces")
	g.addClusters(cmd, &g.named, "objects of these clusters")
	scope := view.AddChoice(f, &g.scope, "operation-scope", scopeHub, "hub, members or all", scopeHub, scopeMembers, scopeAll)
	scope.Aliases = map[string]string{"karmada": scopeHub} // the value of Karmada's CLI
	f.StringToStringVar(&g.contexts, "member-context", nil,
		"CLUSTER=CONTEXT: reach this cluster through this context of the kubeconfig")
	return cmd
}

func (g *get) run(ctx context.Context, out, errOut io.Writer) error {
	h, err := g.open()
	if err != nil {
		return err
	}
	if !g.AllNamespaces {
		g.Namespace = h.namespace
	}
	if k := strings.ToLower(g.Kind); g.scope == scopeHub && !g.watch && (k == "clusters" || k == "cluster") {
		all, err := h.clusters(ctx, g.Names...)
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(c clusterv1alpha1.Cluster) bool { return !g.Labels.Matches(labels.Set(c.Labels)) })
		return view.PrintTables(out, g.output, view.ClusterListing(all, time.Now()))
	}
	var objects, works []view.Listing
	var failed []error
	if g.scope != scopeMembers {
		l, err := h.list(ctx, "", g.Selection)
		if err != nil {
			return err
		}
		objects = append(objects, l)
	}
	if g.scope != scopeHub {
		members, errs, err := g.members(ctx, h)
		if err != nil {
			return err
		}
		for i, l := range members {
			switch {
			case errs[i] != nil:
				failed = append(failed, errs[i])
			case l.Works != nil:
				works = append(works, l)
			default:
				objects = append(objects, l)
			}
		}
	}
	if len(works) > 0 {
		mapping, err := h.kind(g.Kind)
		if err != nil {
			return err
		}
		g.Group, g.ObjectKind = mapping.GroupVersionKind.Group, mapping.GroupVersionKind.Kind
	}
	if g.watch {
		for _, l := range works {
			failed = append(failed, fmt.Errorf("cluster %s is not watched: %w", l.Cluster, errPullMember))
		}
	} else if err := view.PrintListings(out, g.output, objects, works, g.Selection); err != nil {
		return err
	}
	if len(g.named) > 0 && len(failed) > 0 {
		return errors.Join(failed...)
	}
	for _, err := range failed {
		fmt.Fprintln(errOut, "warning:", err)
	}
	if g.watch {
		return view.Follow(ctx, out, g.output, objects, g.Selection)
	}
	return nil
}

// members lists the objects of the clusters concurrently; errs has the error of each.
func (g *get) members(ctx context.Context, h *cluster) (found []view.Listing, errs []error, err error) {
	all, err := h.clusters(ctx, g.named...)
	if err != nil {
		return nil, nil, err
	}
	found, errs = make([]view.Listing, len(all)), make([]error, len(all))
	var group errgroup.Group
	group.SetLimit(view.MaxMembers)
	for i := range all {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, clusterTimeout)
			defer cancel()
			if found[i], errs[i] = g.member(ctx, h, &all[i]); errs[i] != nil {
				errs[i] = fmt.Errorf("cluster %s: %w", all[i].Name, errs[i])
			}
			return nil
		})
	}
	return found, errs, group.Wait()
}

// member lists the objects of a cluster, or its Works if it is not reachable from the hub.
func (g *get) member(ctx context.Context, h *cluster, c *clusterv1alpha1.Cluster) (view.Listing, error) {
	cfg, err := h.memberConfig(ctx, c, &g.access, g.contexts)
	var found view.Listing
	if err == nil {
		var m *cluster
		if m, err = openCluster(cfg); err == nil {
			found, err = m.list(ctx, c.Name, g.Selection)
		}
	}
	pull := c.Spec.SyncMode == clusterv1alpha1.Pull && g.contexts[c.Name] == ""
	if errors.Is(err, errPullMember) || err != nil && pull && len(g.named) == 0 {
		works := &workv1alpha1.WorkList{}
		if err := h.Client.List(ctx, works, client.InNamespace(workv1alpha2.ExecutionNamespace(c.Name))); err != nil {
			return view.Listing{}, fmt.Errorf("list its Works: %w", err)
		}
		return view.Listing{Cluster: c.Name, Works: works}, nil
	}
	return found, err
}

// list reads the selected objects of a member, name, or of the hub.
func (c *cluster) list(ctx context.Context, name string, s view.Selection) (view.Listing, error) {
	mapping, err := c.kind(s.Kind)
	if err != nil {
		return view.Listing{Cluster: name}, err
	}
	return view.List(ctx, c.Member, mapping, name, s)
}

// errPullMember: the hub has no access to a pull member.
var errPullMember = errors.New("pull members are not reached from the hub: it does not serve proxy.pelago.io, see `pelago-hub --proxy-address`")

// memberConfig is the access to a member: a context of the kubeconfig if the user names one; the
// Secret by which the hub itself reaches a push member, if the user may read it; else through the
// hub, with the rights of the user.
func (h *cluster) memberConfig(
	ctx context.Context, c *clusterv1alpha1.Cluster, a *access, contexts map[string]string,
) (*rest.Config, error) {
	if name, ok := contexts[c.Name]; ok {
		return a.config(name)
	}
	if c.Spec.SyncMode == clusterv1alpha1.Pull {
		if !h.proxies() {
			return nil, errPullMember
		}
		return h.through(ctx, c.Name)
	}
	ref := c.Spec.SecretRef
	if ref == nil || c.Spec.APIEndpoint == "" {
		return nil, fmt.Errorf("the hub has no Secret or no address of it: name a context with --member-context %s=CONTEXT", c.Name)
	}
	secret := &corev1.Secret{}
	err := h.Client.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, secret)
	if apierrors.IsForbidden(err) && h.proxies() {
		return h.through(ctx, c.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("get Secret %s/%s: %w (or name a context with --member-context %s=CONTEXT)",
			ref.Namespace, ref.Name, err, c.Name)
	}
	return inspect.Direct(&c.Spec, secret.Data)
}

// proxies reports whether members are reached through the hub.
func (c *cluster) proxies() bool {
	_, err := c.Typed.Discovery().ServerResourcesForGroupVersion(pelagov1alpha1.ProxyGroup + "/" + pelagov1alpha1.ProxyVersion)
	return err == nil
}

// through returns access to a member through the hub. It sends one request first, because the
// discovery that follows would drop the reason why a member is unreachable.
func (c *cluster) through(ctx context.Context, member string) (*rest.Config, error) {
	err := c.Typed.Discovery().RESTClient().Get().MaxRetries(0).AbsPath(pelagov1alpha1.ProxyPath(member, "proxy"), "version").Do(ctx).Error()
	return inspect.Through(c.Config, member), err
}
