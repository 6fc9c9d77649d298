package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
	cluster      string
	dependencies bool
	dryRun       bool
}

func promoteCommand() *cobra.Command {
	var p promote
	cmd := &cobra.Command{
		Use:   "promote KIND NAME -C CLUSTER",
		Short: "Make an object of a cluster a template at the hub, which manages it from then on",
		Long: `promote reads an object of a cluster and creates it at the hub, with a policy that selects this
cluster alone. The hub adopts the object in the cluster without creating it again: its pods keep running.
Afterwards change it at the hub; other clusters in the policy get it as well.

With --dependencies the objects that it refers to come along, such as ConfigMaps, Secrets and
ServiceAccounts, and the policy sends them (propagateDeps). Its namespace is created at the hub if it is
missing there. A Namespace has no policy: the hub sends it to all clusters.

Another object of that name at the hub is never replaced; an interrupted promote can be run again. The
kind must be served there. Owner references, status, and what controllers have set are left out.`,
		Example: `  pelago promote deployment web -n shop -C m1 --dry-run -o yaml
  pelago promote deployment web -n shop -C m1 --dependencies
  pelago promote clusterrole viewer -C m1
  pelago promote namespace shop -C m1`,
		Args: cobra.ExactArgs(2),
	}
	cmd.RunE = p.run(p.promote)
	f := cmd.Flags()
	p.addFlags(f)
	p.addNamespace(f)
	f.StringVarP(&p.cluster, "clusters", "C", "", "the cluster that has the object")
	f.BoolVarP(&p.dependencies, "dependencies", "d", false, "promote as well what the object refers to")
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
	key := client.ObjectKey{Name: args[1]}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		key.Namespace = h.namespace
	}
	title := mapping.GroupVersionKind.Kind + " " + manifests.Title(key)
	o, err := m.template(ctx, mapping.GroupVersionKind, key)
	if err != nil {
		return fmt.Errorf("promote %s of cluster %s: %w", title, p.cluster, err)
	}
	policy, err := p.policy(o)
	if err != nil {
		return fmt.Errorf("promote %s: %w", title, err)
	}
	needs, err := p.needs(ctx, h, m, o)
	if err != nil {
		return fmt.Errorf("promote %s of cluster %s: %w", title, p.cluster, err)
	}
	if p.dryRun {
		list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List"}}
		for _, x := range append(needs, policy, o) {
			if x != nil {
				list.Items = append(list.Items, *x)
			}
		}
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
	if err := migrate.Promote(ctx, h.Client, applyManager, migrate.Promotion{Needs: needs, Policy: policy, Template: o}, out); err != nil {
		return fmt.Errorf("promote %s of cluster %s: %w", title, p.cluster, err)
	}
	return nil
}

// template reads an object as a template: without what the cluster has set.
func (c *cluster) template(ctx context.Context, gvk schema.GroupVersionKind, key client.ObjectKey) (*unstructured.Unstructured, error) {
	if workv1alpha2.ReservedNamespace(key.Namespace) || gvk.GroupKind() == namespaceKind && workv1alpha2.ReservedNamespace(key.Name) {
		return nil, fmt.Errorf("namespace %s is the system's, nothing in it is sent to clusters", cmp.Or(key.Namespace, key.Name))
	}
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(gvk)
	if err := c.Client.Get(ctx, key, o); err != nil {
		return nil, fmt.Errorf("get %s %s: %w", gvk.Kind, manifests.Title(key), err)
	}
	switch {
	case kinds.OfEachCluster(gvk.GroupKind(), o):
		return nil, fmt.Errorf("%s %s: %w", gvk.Kind, manifests.Title(key), errOfEachCluster)
	case o.GetLabels()[workv1alpha1.LabelManaged] == "true":
		return nil, fmt.Errorf("%s %s %w", gvk.Kind, manifests.Title(key), errPropagated)
	}
	if err := kinds.New().Prune(o); err != nil {
		return nil, err
	}
	unstructured.RemoveNestedField(o.Object, "metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration")
	if gvk.GroupKind() == namespaceKind {
		unstructured.RemoveNestedField(o.Object, "spec") // its finalizers
	}
	return o, nil
}

var namespaceKind = schema.GroupKind{Kind: "Namespace"}

// Why an object becomes no template; a reference to it is left out.
var (
	errOfEachCluster = errors.New("each cluster makes it itself, the hub sends none")
	errPropagated    = errors.New("is propagated by a hub already: see `pelago why`")
)

// needs are what the hub must have for a template: its namespace, if that is missing, and with
// --dependencies what it refers to, as far as the cluster has it and no hub sends it.
func (p *promote) needs(ctx context.Context, h, m *cluster, template *unstructured.Unstructured) (out []*unstructured.Unstructured, err error) {
	if name := template.GetNamespace(); name != "" {
		err := h.Client.Get(ctx, client.ObjectKey{Name: name}, &corev1.Namespace{})
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("get Namespace %s of the hub: %w", name, err)
		}
		if err != nil {
			ns, err := m.template(ctx, corev1.SchemeGroupVersion.WithKind(namespaceKind.Kind), client.ObjectKey{Name: name})
			if err != nil {
				return nil, err
			}
			out = append(out, ns)
		}
	}
	if !p.dependencies {
		return out, nil
	}
	references, err := kinds.New().Dependencies(template)
	if err != nil {
		return nil, fmt.Errorf("read what it refers to: %w", err)
	}
	for _, r := range references {
		keys, err := m.referred(ctx, r)
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			o, err := m.template(ctx, schema.FromAPIVersionAndKind(r.APIVersion, r.Kind), key)
			if apierrors.IsNotFound(err) || errors.Is(err, errOfEachCluster) || errors.Is(err, errPropagated) {
				continue
			}
			if err != nil {
				return nil, err
			}
			out = append(out, o)
		}
	}
	return out, nil
}

// referred are the objects of a reference: the one that it names, or those that it selects.
func (c *cluster) referred(ctx context.Context, r kinds.DependentReference) ([]client.ObjectKey, error) {
	if r.Name != "" {
		return []client.ObjectKey{{Namespace: r.Namespace, Name: r.Name}}, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(r.LabelSelector)
	if err != nil {
		return nil, fmt.Errorf("read the selector of a reference to %s: %w", r.Kind, err)
	}
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(schema.FromAPIVersionAndKind(r.APIVersion, r.Kind))
	if err := c.Client.List(ctx, &list, client.InNamespace(r.Namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, fmt.Errorf("list %s: %w", r.Kind, err)
	}
	var out []client.ObjectKey
	for i := range list.Items {
		out = append(out, client.ObjectKeyFromObject(&list.Items[i]))
	}
	return out, nil
}

// policy returns the policy that sends a template to this cluster alone; nil: the hub sends it to
// all clusters.
func (p *promote) policy(o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if o.GroupVersionKind().GroupKind() == namespaceKind {
		return nil, nil
	}
	policy := policyFor(o, []string{p.cluster})
	if policy == nil {
		return nil, fmt.Errorf("the hub propagates no %s by a policy", o.GetKind())
	}
	// these fail only if spec is no map
	err := unstructured.SetNestedField(policy.Object, string(policyv1alpha1.ConflictOverwrite), "spec", "conflictResolution")
	if err == nil && p.dependencies {
		err = unstructured.SetNestedField(policy.Object, true, "spec", "propagateDeps")
	}
	return policy, err
}
