package propagate

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kube"
)

// template is the newest state of a template that is known; nil if there is none.
func (r *reconciler) template(ctx context.Context, key Key) (*unstructured.Unstructured, error) {
	cached, err := r.kinds.get(ctx, key)
	if err != nil {
		return nil, err
	}
	var shown client.Object // no nil pointer in an interface
	if cached != nil {
		shown = cached
	}
	t, _ := r.templates.Latest(key, shown, time.Now()).(*unstructured.Unstructured) // nil: there is none
	return t, nil
}

// binding is the newest state of a template's binding that is known, a copy.
func (r *reconciler) binding(ctx context.Context, key Key) (kube.Binding, error) {
	found, err := bindingsOf(ctx, r.cache, key.GVK.GroupKind(), key.Namespace, key.Name)
	if err != nil {
		return kube.Binding{}, err
	}
	var cached client.Object
	if len(found) > 0 {
		cached = found[0].Object
	}
	if o := r.bindings.Latest(key, cached, time.Now()); o != nil {
		return kube.BindingOf(o).Copy(), nil
	}
	return kube.Binding{}, nil
}

// bindingsOf are the bindings of a template in a cache, sorted by name; not to be changed.
func bindingsOf(ctx context.Context, cache client.Reader, kind schema.GroupKind, namespace, name string) (found []kube.Binding, err error) {
	err = kube.EachBinding(ctx, cache, func(b kube.Binding) { found = append(found, b) },
		client.MatchingFields{indexTemplate: entry(kind, namespace, name)})
	sortBindings(found)
	return found, err
}

// bindingName is the name of a template's new binding: that of its kind, but for a template whose namesake of another kind or
// group has it.
func (r *reconciler) bindingName(ctx context.Context, t *unstructured.Unstructured) (string, error) {
	ref := workv1alpha2.ObjectReference{APIVersion: t.GetAPIVersion(), Kind: t.GetKind(), Name: t.GetName()}
	name := workv1alpha2.BindingName(ref)
	other := kube.NewBinding(client.ObjectKey{Namespace: t.GetNamespace(), Name: name})
	err := r.cache.Get(ctx, client.ObjectKeyFromObject(other), other.Object)
	switch {
	case apierrors.IsNotFound(err):
		return name, nil
	case err != nil:
		return "", fmt.Errorf("read binding %s of %s: %w", name, keyOf(t), err)
	case ofTemplate(other, t):
		return "", kube.StaleCache(other.Object, "none of this template", other.GetResourceVersion())
	}
	return workv1alpha2.AlternateBindingName(ref), nil
}

// policies are all policies, or those that an index holds; not to be changed.
func (r *reconciler) policies(ctx context.Context, by ...client.ListOption) ([]*propagationPolicy, error) {
	out, err := r.namespacedPolicies(ctx, by...)
	if err != nil {
		return nil, err
	}
	wide, err := r.widePolicies(ctx, by...)
	return append(out, wide...), err
}

func (r *reconciler) namespacedPolicies(ctx context.Context, by ...client.ListOption) ([]*propagationPolicy, error) {
	var list policyv1alpha1.PropagationPolicyList
	if err := r.cache.List(ctx, &list, append(by, client.UnsafeDisableDeepCopy)...); err != nil {
		return nil, fmt.Errorf("list PropagationPolicies: %w", err)
	}
	var out []*propagationPolicy
	for i := range list.Items {
		out = append(out, policyOf(&list.Items[i]))
	}
	return out, nil
}

func (r *reconciler) widePolicies(ctx context.Context, by ...client.ListOption) ([]*propagationPolicy, error) {
	var list policyv1alpha1.ClusterPropagationPolicyList
	if err := r.cache.List(ctx, &list, append(by, client.UnsafeDisableDeepCopy)...); err != nil {
		return nil, fmt.Errorf("list ClusterPropagationPolicies: %w", err)
	}
	var out []*propagationPolicy
	for i := range list.Items {
		out = append(out, policyOf(&list.Items[i]))
	}
	return out, nil
}

// selecting are the policies that may select a template.
func (r *reconciler) selecting(ctx context.Context, t *unstructured.Unstructured) ([]*propagationPolicy, error) {
	gk := t.GroupVersionKind().GroupKind()
	var out []*propagationPolicy
	for _, name := range []string{t.GetName(), anyName} {
		in := client.InNamespace(t.GetNamespace())
		here, err := r.namespacedPolicies(ctx, client.MatchingFields{indexSelects: entry(gk, t.GetNamespace(), name)}, in)
		if err != nil {
			return nil, err
		}
		out = append(out, here...)
		for _, namespace := range slices.Compact([]string{"", t.GetNamespace()}) {
			wide, err := r.widePolicies(ctx, client.MatchingFields{indexSelects: entry(gk, namespace, name)})
			if err != nil {
				return nil, err
			}
			out = append(out, wide...)
		}
	}
	return out, nil
}

// holder is the policy that a claim names; nil if it is gone, or another one of the same name.
func (r *reconciler) holder(ctx context.Context, c claim) (*propagationPolicy, error) {
	if c.id == "" || c.name == "" {
		return nil, nil
	}
	var o client.Object = &policyv1alpha1.PropagationPolicy{}
	if c.clusterWide {
		o = &policyv1alpha1.ClusterPropagationPolicy{}
	}
	err := r.cache.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: c.name}, o)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read policy %s: %w", c.name, err)
	}
	if p := policyOf(o); c.of(p) {
		return p, nil
	}
	return nil, nil
}

// missingOverride names an override without which a policy is to wait; "": there is none.
func (r *reconciler) missingOverride(ctx context.Context, p *propagationPolicy) (string, error) {
	for _, name := range p.Spec.DependentOverrides {
		var o client.Object = &policyv1alpha1.OverridePolicy{}
		if p.clusterWide {
			o = &policyv1alpha1.ClusterOverridePolicy{}
		}
		err := r.live.Get(ctx, client.ObjectKey{Namespace: p.GetNamespace(), Name: name}, o)
		switch {
		case apierrors.IsNotFound(err):
			return name, nil
		case err != nil:
			return "", fmt.Errorf("read override policy %s, on which %s depends: %w", name, p, err)
		}
	}
	return "", nil
}

// parents are the bindings whose templates depend on a template, sorted; not to be changed.
func (r *reconciler) parents(ctx context.Context, t *unstructured.Unstructured) ([]kube.Binding, error) {
	gk := t.GroupVersionKind().GroupKind()
	found := map[string]kube.Binding{}
	for _, name := range []string{t.GetName(), anyName} {
		err := kube.EachBinding(ctx, r.cache, func(b kube.Binding) {
			if dependsOn(b, t) && !ofTemplate(b, t) {
				found[capacityKey(b)] = b
			}
		}, client.MatchingFields{indexDependency: entry(gk, t.GetNamespace(), name)})
		if err != nil {
			return nil, err
		}
	}
	out := make([]kube.Binding, 0, len(found))
	for _, b := range found {
		out = append(out, b)
	}
	sortBindings(out)
	return out, nil
}

func ofTemplate(b kube.Binding, t *unstructured.Unstructured) bool {
	key, _ := keyOfReference(b.Spec.Resource) // one without kind is of no template
	return key.GVK.GroupKind() == t.GroupVersionKind().GroupKind() && key.Namespace == t.GetNamespace() && key.Name == t.GetName()
}
