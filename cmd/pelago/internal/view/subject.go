package view

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/deploy"
)

// Subject is one template and all objects of the hub that concern it.
type Subject struct {
	template        *unstructured.Unstructured
	policies        []policyv1alpha1.PropagationPolicy // of its namespace
	clusterPolicies []policyv1alpha1.ClusterPropagationPolicy
	overrides       policy.OverridePolicies
	clusters        []clusterv1alpha1.Cluster
	binding         *binding // nil: none
	works           []workv1alpha1.Work
	events          []corev1.Event // of template and binding, the oldest first
}

// binding is one of either kind.
type binding struct {
	kind string
	metav1.ObjectMeta
	spec   workv1alpha2.ResourceBindingSpec
	status workv1alpha2.ResourceBindingStatus
}

// ReadSubject reads it from the hub; the parts are not from one snapshot. clusters are those of the hub.
func ReadSubject(
	ctx context.Context, c client.Client, clusters []clusterv1alpha1.Cluster, mapping *meta.RESTMapping, key client.ObjectKey,
) (*Subject, error) {
	f := &Subject{template: &unstructured.Unstructured{}, clusters: clusters}
	f.template.SetGroupVersionKind(mapping.GroupVersionKind)
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		key.Namespace = ""
	}
	err := c.Get(ctx, key, f.template)
	if apierrors.IsNotFound(err) {
		return nil, NotAtHub(mapping, key)
	}
	if err != nil {
		return nil, fmt.Errorf("get %s %s: %w", mapping.GroupVersionKind.Kind, deploy.Title(key), err)
	}
	var policies policyv1alpha1.PropagationPolicyList
	var clusterPolicies policyv1alpha1.ClusterPropagationPolicyList
	var overrides policyv1alpha1.OverridePolicyList
	var clusterOverrides policyv1alpha1.ClusterOverridePolicyList
	wide := []client.ObjectList{&clusterPolicies, &clusterOverrides}
	if key.Namespace != "" {
		wide = append(wide, &policies, &overrides)
	}
	for _, list := range wide {
		if err := c.List(ctx, list, client.InNamespace(key.Namespace)); err != nil {
			return nil, fmt.Errorf("list policies: %w (is this the hub? name it with --context)", err)
		}
	}
	f.policies, f.clusterPolicies = policies.Items, clusterPolicies.Items
	f.overrides = policy.OverridePolicies{Cluster: clusterOverrides.Items, Namespaced: overrides.Items}
	if f.binding, err = bindingOf(ctx, c, f.template); err != nil {
		return nil, err
	}
	if f.works, err = worksOf(ctx, c, f.binding); err != nil {
		return nil, err
	}
	f.events, err = eventsOf(ctx, c, f)
	return f, err
}

// bindingOf finds the binding of a template by spec.resource, not by its name; nil: there is none.
func bindingOf(ctx context.Context, c client.Client, template *unstructured.Unstructured) (*binding, error) {
	var all []binding
	if ns := template.GetNamespace(); ns != "" {
		var list workv1alpha2.ResourceBindingList
		if err := c.List(ctx, &list, client.InNamespace(ns)); err != nil {
			return nil, fmt.Errorf("list ResourceBindings of %s: %w", ns, err)
		}
		for _, b := range list.Items {
			all = append(all, binding{"ResourceBinding", b.ObjectMeta, b.Spec, b.Status})
		}
	} else {
		var list workv1alpha2.ClusterResourceBindingList
		if err := c.List(ctx, &list); err != nil {
			return nil, fmt.Errorf("list ClusterResourceBindings: %w", err)
		}
		for _, b := range list.Items {
			all = append(all, binding{"ClusterResourceBinding", b.ObjectMeta, b.Spec, b.Status})
		}
	}
	apiVersion, kind := template.GroupVersionKind().ToAPIVersionAndKind()
	i := slices.IndexFunc(all, func(b binding) bool {
		r := b.spec.Resource
		return r.APIVersion == apiVersion && r.Kind == kind && r.Namespace == template.GetNamespace() && r.Name == template.GetName()
	})
	if i < 0 {
		return nil, nil
	}
	return &all[i], nil
}

// worksOf are those of a binding, by cluster.
func worksOf(ctx context.Context, c client.Client, b *binding) ([]workv1alpha1.Work, error) {
	if b == nil {
		return nil, nil
	}
	var opts []client.ListOption
	for _, label := range []string{workv1alpha2.LabelBindingID, workv1alpha2.LabelClusterBindingID} {
		if id := b.Labels[label]; id != "" {
			opts = append(opts, client.MatchingLabels{label: id})
		}
	}
	var list workv1alpha1.WorkList
	if err := c.List(ctx, &list, opts...); err != nil {
		return nil, fmt.Errorf("list Works: %w", err)
	}
	out := slices.DeleteFunc(list.Items, func(w workv1alpha1.Work) bool {
		a := w.Annotations
		if b.Namespace == "" {
			return a[workv1alpha2.AnnotationClusterBindingName] != b.Name
		}
		return a[workv1alpha2.AnnotationBindingNamespace] != b.Namespace || a[workv1alpha2.AnnotationBindingName] != b.Name
	})
	slices.SortFunc(out, func(a, b workv1alpha1.Work) int {
		return strings.Compare(a.Namespace+" "+a.Name, b.Namespace+" "+b.Name)
	})
	return out, nil
}

// eventsOf are those of the template and of its binding. Without the right to read them there are none.
func eventsOf(ctx context.Context, c client.Client, f *Subject) ([]corev1.Event, error) {
	objects := map[string]string{f.template.GetKind(): f.template.GetName()}
	if f.binding != nil {
		objects[f.binding.kind] = f.binding.Name
	}
	namespace := cmp.Or(f.template.GetNamespace(), metav1.NamespaceDefault) // of Events on objects without a namespace
	var out []corev1.Event
	for kind, name := range objects {
		var list corev1.EventList
		err := c.List(ctx, &list, client.InNamespace(namespace), client.MatchingFieldsSelector{
			Selector: fields.Set{"involvedObject.kind": kind, "involvedObject.name": name}.AsSelector()})
		if apierrors.IsForbidden(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list Events: %w", err)
		}
		out = append(out, list.Items...)
	}
	slices.SortStableFunc(out, func(a, b corev1.Event) int { return when(a).Compare(when(b).Time) })
	return out, nil
}

// when is the last time of an Event, whichever API it came through.
func when(e corev1.Event) metav1.Time {
	switch {
	case e.Series != nil:
		return metav1.NewTime(e.Series.LastObservedTime.Time)
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp
	}
	return metav1.NewTime(e.EventTime.Time)
}

// NotAtHub is the error for an object that the hub does not have.
func NotAtHub(mapping *meta.RESTMapping, key client.ObjectKey) error {
	return fmt.Errorf("the hub has no %s %s: name one of `pelago get %s`, or another namespace with -n",
		mapping.GroupVersionKind.Kind, deploy.Title(key), mapping.Resource.Resource)
}
