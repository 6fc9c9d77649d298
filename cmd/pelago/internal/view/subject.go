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
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// Subject is one template and all objects of the hub that concern it.
type Subject struct {
	template        *unstructured.Unstructured
	policies        []policyv1alpha1.PropagationPolicy // of its namespace
	clusterPolicies []policyv1alpha1.ClusterPropagationPolicy
	overrides       policy.OverridePolicies
	clusters        []clusterv1alpha1.Cluster
	binding         binding.Binding
	works           []workv1alpha1.Work
	near            *explainedNear
	scores          []explainedScore
	events          []corev1.Event // of template and binding, the oldest first
}

// ReadSubject reads it from the hub; the parts are not from one snapshot. clusters are those of the
// hub.
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
		return nil, fmt.Errorf("get %s %s: %w", mapping.GroupVersionKind.Kind, manifests.Title(key), err)
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
	if f.near, err = readNear(ctx, c, clusters, f.binding); err != nil {
		return nil, err
	}
	if f.scores, err = readScores(ctx, c, clusters, f.binding); err != nil {
		return nil, err
	}
	f.events, err = eventsOf(ctx, c, f)
	return f, err
}

// bindingOf finds the binding of a template by spec.resource, not by its name.
func bindingOf(ctx context.Context, c client.Client, template *unstructured.Unstructured) (found binding.Binding, err error) {
	ns := template.GetNamespace()
	var list client.ObjectList = &workv1alpha2.ResourceBindingList{}
	if ns == "" {
		list = &workv1alpha2.ClusterResourceBindingList{}
	}
	if err := c.List(ctx, list, client.InNamespace(ns)); err != nil {
		return found, fmt.Errorf("list the bindings: %w", err)
	}
	apiVersion, kind := template.GroupVersionKind().ToAPIVersionAndKind()
	return found, meta.EachListItem(list, func(o runtime.Object) error {
		item, _ := o.(client.Object) // a binding
		b := binding.Of(item)
		r := b.Spec.Resource
		if r.APIVersion == apiVersion && r.Kind == kind && r.Namespace == ns && r.Name == template.GetName() {
			found = b
		}
		return nil
	})
}

// worksOf are those of a binding, by cluster.
func worksOf(ctx context.Context, c client.Client, b binding.Binding) ([]workv1alpha1.Work, error) {
	if !b.Exists() {
		return nil, nil
	}
	var opts []client.ListOption
	if id := b.GetLabels()[b.IDLabel()]; id != "" {
		opts = append(opts, client.MatchingLabels{b.IDLabel(): id})
	}
	var list workv1alpha1.WorkList
	if err := c.List(ctx, &list, opts...); err != nil {
		return nil, fmt.Errorf("list Works: %w", err)
	}
	out := slices.DeleteFunc(list.Items, func(w workv1alpha1.Work) bool {
		key, ok := binding.OfWork(&w)
		return !ok || key != client.ObjectKeyFromObject(b)
	})
	slices.SortFunc(out, func(a, b workv1alpha1.Work) int {
		return strings.Compare(a.Namespace+" "+a.Name, b.Namespace+" "+b.Name)
	})
	return out, nil
}

// eventsOf are those of the template and of its binding. Without the right to read them there are
// none.
func eventsOf(ctx context.Context, c client.Client, f *Subject) ([]corev1.Event, error) {
	objects := map[string]string{f.template.GetKind(): f.template.GetName()}
	if f.binding.Exists() {
		objects[manifests.Kind(c, f.binding.Object)] = f.binding.GetName()
	}
	// of Events on objects without a namespace
	namespace := cmp.Or(f.template.GetNamespace(), metav1.NamespaceDefault)
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
		mapping.GroupVersionKind.Kind, manifests.Title(key), mapping.Resource.Resource)
}
