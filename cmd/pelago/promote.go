package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/cmd/pelago/internal/migrate"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// promote are the flags of promote.
type promote struct {
	access
	cluster string
	dryRun  bool
}

func promoteCommand() *cobra.Command {
	var p promote
	cmd := &cobra.Command{
		Use:   "promote KIND NAME -C CLUSTER",
		Short: "Make an object of a cluster a template at the hub, which manages it from then on",
		Long: `promote reads an object of a cluster and creates it at the hub, with a policy that selects this
cluster alone. The hub adopts the object in the cluster without creating it again: its pods keep running.
Afterwards change it at the hub; other clusters in the policy get it as well.

Another object of that name at the hub is never replaced; an interrupted promote can be run again. The
namespace must exist there; the kind must be served. Owner references, status, and what controllers have
set are left out.`,
		Example: `  pelago promote deployment web -n shop -C m1 --dry-run -o yaml
  pelago promote deployment web -n shop -C m1
  pelago promote clusterrole viewer -C m1`,
		Args: cobra.ExactArgs(2),
	}
	cmd.RunE = p.run(p.promote)
	f := cmd.Flags()
	p.addFlags(f)
	p.addNamespace(f)
	f.StringVarP(&p.cluster, "clusters", "C", "", "the cluster that has the object")
	f.BoolVar(&p.dryRun, "dry-run", false, "print the objects that would be created at the hub")
	f.StringVarP(&p.output, "output", "o", "yaml", "format of --dry-run: yaml or json")
	// Both fail only without such a flag.
	_ = cmd.MarkFlagRequired("clusters")
	_ = cmd.RegisterFlagCompletionFunc("clusters", p.complete(func(ctx context.Context, h *cluster, _ []string, _ string) []string {
		return clusterNames(ctx, h, nil, "")
	}))
	return cmd
}

func (p *promote) promote(ctx context.Context, h *cluster, args []string, out io.Writer) error {
	if p.output != "yaml" && p.output != "json" {
		return fmt.Errorf("--output %q: use yaml or json", p.output)
	}
	all, err := h.clusters(ctx, p.cluster)
	if err != nil {
		return err
	}
	cfg, err := h.memberConfig(ctx, &all[0], &p.access, nil)
	if err != nil {
		return fmt.Errorf("cluster %s: %w", p.cluster, err)
	}
	m, err := openCluster(cfg)
	if err != nil {
		return err
	}
	mapping, err := m.kind(args[0])
	if err != nil {
		return fmt.Errorf("cluster %s: %w", p.cluster, err)
	}
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(mapping.GroupVersionKind)
	key := client.ObjectKey{Name: args[1]}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		key.Namespace = h.namespace
	}
	title := mapping.GroupVersionKind.Kind + " " + manifests.Title(key)
	if err := m.Client.Get(ctx, key, o); err != nil {
		return fmt.Errorf("get %s of cluster %s: %w", title, p.cluster, err)
	}
	if o.GetLabels()[workv1alpha1.LabelManaged] == "true" {
		return fmt.Errorf("%s of cluster %s is propagated by a hub already: see `pelago explain`", title, p.cluster)
	}
	policy, err := promoted(o, p.cluster)
	if err != nil {
		return fmt.Errorf("promote %s: %w", title, err)
	}
	if p.dryRun {
		list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List"}}
		list.Items = []unstructured.Unstructured{*policy, *o}
		text, err := list.MarshalJSON()
		if err == nil && p.output == "yaml" {
			text, err = yaml.JSONToYAML(text)
		}
		if err != nil {
			return fmt.Errorf("print %s: %w", title, err)
		}
		_, err = out.Write(text)
		return err
	}
	if err := migrate.Promote(ctx, h.Client, applyManager, policy, o, out); err != nil {
		return fmt.Errorf("promote %s of cluster %s: %w", title, p.cluster, err)
	}
	return nil
}

// promoted makes an object of a member a template, and returns the policy that sends it to this
// cluster alone.
func promoted(o *unstructured.Unstructured, cluster string) (*unstructured.Unstructured, error) {
	if workv1alpha2.ReservedNamespace(o.GetNamespace()) {
		return nil, fmt.Errorf("namespace %s is the system's, nothing in it is sent to clusters", o.GetNamespace())
	}
	policy := policyFor(o, []string{cluster})
	if policy == nil {
		return nil, fmt.Errorf("the hub propagates no %s by a policy", o.GetKind())
	}
	if err := kinds.New().Prune(o); err != nil {
		return nil, err
	}
	unstructured.RemoveNestedField(o.Object, "metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration")
	// fails only if spec is no map
	return policy, unstructured.SetNestedField(policy.Object, string(policyv1alpha1.ConflictOverwrite), "spec", "conflictResolution")
}
