package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// applyManager is the field manager of what apply writes.
const applyManager = "pelago-apply"

// apply are the flags of apply.
type apply struct {
	access
	files       []string
	named       []string
	recursive   bool
	allClusters bool
	force       bool
}

func applyCommand() *cobra.Command {
	var a apply
	cmd := &cobra.Command{
		Use:   "apply -f FILE|DIRECTORY [--all-clusters | --clusters a,b]",
		Short: "Apply workloads at the hub and propagate them to clusters",
		Long: `apply writes the objects of manifests to the hub (server-side apply) and, for each of them, a
PropagationPolicy, or a ClusterPropagationPolicy for objects without a namespace, that propagates it
to all clusters or to the named ones. Running it again changes nothing; other clusters change the
policy. The hub propagates namespaces to all clusters; policies and other objects of the hub stay there.

Without clusters it writes no policy: policies that are there decide where the objects go.`,
		Example: `  pelago apply -f nginx.yaml --all-clusters
  pelago apply -f nginx.yaml --clusters m1,m2
  pelago apply -f shop/ -R --all-clusters
  kustomize build . | pelago apply -f - --all-clusters`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.warnings = cmd.ErrOrStderr()
			return a.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	a.addFlags(f)
	a.addNamespace(f)
	f.StringSliceVarP(&a.files, "filename", "f", nil, "file, directory or URL with manifests, - for standard input")
	f.BoolVarP(&a.recursive, "recursive", "R", false, "read directories of --filename with those in them")
	a.addClusters(cmd, &a.named, "propagate to these clusters")
	f.BoolVar(&a.allClusters, "all-clusters", false, "propagate to all clusters, also those that join later")
	f.BoolVar(&a.force, "force-conflicts", false, "take over fields of other field managers")
	cmd.MarkFlagsMutuallyExclusive("clusters", "all-clusters")
	_ = cmd.MarkFlagRequired("filename") // fails only without such a flag
	return cmd
}

func (a *apply) run(ctx context.Context, in io.Reader, out io.Writer) error {
	objects, err := a.read(in)
	if err != nil {
		return err
	}
	h, err := a.open()
	if err != nil {
		return err
	}
	if _, err := h.clusters(ctx, a.named...); err != nil {
		return err
	}
	var errs []error
	for _, o := range objects { // continues after an error
		if err := a.object(ctx, h, o, out); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// read returns the objects of all files and directories; lists are flattened.
func (a *apply) read(in io.Reader) (out []*unstructured.Unstructured, err error) {
	b := resource.NewLocalBuilder().Unstructured()
	files := slices.DeleteFunc(slices.Clone(a.files), func(name string) bool { return name == "-" })
	if len(files) > 0 {
		b.FilenameParam(false, &resource.FilenameOptions{Filenames: files, Recursive: a.recursive})
	}
	if len(files) < len(a.files) {
		b.Stream(in, "standard input")
	}
	infos, err := b.Flatten().Do().Infos()
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	for _, info := range infos {
		o := info.Object.(*unstructured.Unstructured)
		if o.GetName() == "" {
			return nil, fmt.Errorf("read manifests of %s: a %s lacks metadata.name", info.Source, o.GetKind())
		}
		out = append(out, o)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("read manifests: there is no object in %s", strings.Join(a.files, ", "))
	}
	return out, nil
}

// object applies one object, and its policy.
func (a *apply) object(ctx context.Context, h *cluster, o *unstructured.Unstructured, out io.Writer) error {
	gvk := o.GroupVersionKind()
	mapping, err := h.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("apply %s %s: the hub does not serve %s of %s: install its CustomResourceDefinition there",
			gvk.Kind, o.GetName(), gvk.Kind, gvk.GroupVersion())
	}
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", gvk.Kind, o.GetName(), err)
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace && o.GetNamespace() == "" {
		o.SetNamespace(h.namespace)
	}
	name := fmt.Sprintf("%s %s", gvk.Kind, manifests.Title(client.ObjectKeyFromObject(o)))
	if workv1alpha2.ReservedNamespace(o.GetNamespace()) {
		return fmt.Errorf("apply %s: namespace %s is the system's, nothing in it is sent to clusters: use another one",
			name, o.GetNamespace())
	}
	done, err := h.apply(ctx, o.DeepCopy(), a.force, false)
	if apierrors.IsConflict(err) {
		return fmt.Errorf("apply %s: %w; use --force-conflicts to take the fields over", name, err)
	}
	if err != nil {
		return fmt.Errorf("apply %s: %w", name, err)
	}
	policy := policyFor(o, a.named)
	if policy == nil {
		fmt.Fprintf(out, "%s %s\n", name, done)
		return nil
	}
	if !a.allClusters && len(a.named) == 0 {
		fmt.Fprintf(out, "%s %s, no policy\n", name, done)
		return nil
	}
	what := fmt.Sprintf("%s %s", policy.GetKind(), manifests.Title(client.ObjectKeyFromObject(policy)))
	policyDone, err := h.apply(ctx, policy, true, true)
	if err != nil {
		return fmt.Errorf("send %s: apply %s: %w", name, what, err)
	}
	fmt.Fprintf(out, "%s %s, %s %s\n", name, done, what, policyDone)
	return nil
}

// staysAtHub are the API groups of the hub itself.
var staysAtHub = []string{"policy.karmada.io", "work.karmada.io", "cluster.karmada.io", "config.karmada.io", "apps.karmada.io",
	"autoscaling.karmada.io", "networking.karmada.io", "pelago.io", "submariner.io"}

// policyFor is the policy that sends an object to the named clusters, to all if none is named; nil:
// the object needs none. The name is derived from the object's kind, group and name, so that it is
// found again.
func policyFor(o *unstructured.Unstructured, clusters []string) *unstructured.Unstructured {
	gvk := o.GroupVersionKind()
	if gvk.Kind == "Namespace" && gvk.Group == "" || slices.Contains(staysAtHub, gvk.Group) {
		return nil
	}
	apiVersion, kindName := gvk.ToAPIVersionAndKind()
	selector := map[string]any{"apiVersion": apiVersion, "kind": kindName, "name": o.GetName()}
	policyKind := "ClusterPropagationPolicy"
	if ns := o.GetNamespace(); ns != "" {
		policyKind = "PropagationPolicy"
		selector["namespace"] = ns
	}
	policy := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"resourceSelectors": []any{selector}, "placement": map[string]any{"clusterAffinity": map[string]any{}}}}}
	if len(clusters) > 0 { // fails only if a field of the path is no map
		_ = unstructured.SetNestedStringSlice(policy.Object, clusters, "spec", "placement", "clusterAffinity", "clusterNames")
	}
	policy.SetGroupVersionKind(policyv1alpha1.GroupVersion.WithKind(policyKind))
	policy.SetNamespace(o.GetNamespace())
	policy.SetName(workv1alpha2.AlternateBindingName(workv1alpha2.ObjectReference{APIVersion: apiVersion, Kind: kindName, Name: o.GetName()}))
	policy.SetLabels(map[string]string{pelagov1alpha1.LabelManagedBy: pelagov1alpha1.ManagedBy})
	return policy
}

// apply returns whether the object was created, configured or unchanged. With force it takes over
// fields of other field managers. With own it does not replace an existing object that this command
// has not created.
func (h *cluster) apply(ctx context.Context, o *unstructured.Unstructured, force, own bool) (string, error) {
	before := &unstructured.Unstructured{}
	before.SetGroupVersionKind(o.GroupVersionKind())
	missing := h.Client.Get(ctx, client.ObjectKeyFromObject(o), before)
	if client.IgnoreNotFound(missing) != nil {
		return "", missing
	}
	if own && missing == nil && before.GetLabels()[pelagov1alpha1.LabelManagedBy] != pelagov1alpha1.ManagedBy {
		return "", errors.New("it is there and was not made by this command: change it yourself, or delete it")
	}
	opts := []client.ApplyOption{client.FieldOwner(applyManager)}
	if force {
		opts = append(opts, client.ForceOwnership)
	}
	if err := h.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), opts...); err != nil {
		return "", err
	}
	if missing != nil {
		return "created", nil
	}
	// these may change although the content does not
	for _, u := range []*unstructured.Unstructured{before, o} {
		u.SetManagedFields(nil)
		u.SetResourceVersion("")
	}
	if equality.Semantic.DeepEqual(before.Object, o.Object) {
		return "unchanged", nil
	}
	return "configured", nil
}
