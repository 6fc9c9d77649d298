package propagate

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/kube"
)

// state is what becomes of a template.
type state int

const (
	propagates state = iota
	// templateGone, templateEnding: it does not exist, or is being deleted; templateIgnored: it is
	// none although its kind is watched.
	templateGone
	templateEnding
	templateIgnored
	// bindingEnding: its binding is being deleted, and is made again after that; bindingReplaced:
	// its binding belongs to a former object of its name, and is to be deleted first.
	bindingEnding
	bindingReplaced
)

// subject is all that is read of a template before a policy is chosen for it.
type subject struct {
	key      Key
	state    state
	template *unstructured.Unstructured
	// have is the present binding, if there is one.
	have binding.Binding
	// held is the policy that the template's claim names, nil if it does not exist; policies are
	// those that may select the template.
	held     *propagationPolicy
	policies []*propagationPolicy
	// parents are the bindings whose templates depend on this one, sorted.
	parents []binding.Binding
	// began is when the search for the policy began.
	began time.Time
}

// read reads a template, its binding and its policies. What follows state propagates is read in no
// other state, except for held of a template whose binding is being deleted, and held and parents
// of one that is being deleted itself.
func (r *reconciler) read(ctx context.Context, key Key) (subject, error) {
	s := subject{key: key}
	var err error
	if s.template, err = r.template(ctx, key); s.template == nil {
		r.forgetTemplate(key)
		s.state = templateGone
	}
	if err != nil {
		return s, err
	}
	if s.state != templateGone && s.template.GetDeletionTimestamp() != nil {
		s.state = templateEnding
		if s.have, err = r.binding(ctx, key); err != nil {
			return s, err
		}
		if s.held, err = r.holder(ctx, claimOf(s.template)); err != nil {
			return s, err
		}
		s.parents, err = r.parents(ctx, s.template)
		return s, err
	}
	if s.have, err = r.binding(ctx, key); err != nil || s.state == templateGone {
		return s, err
	}
	switch {
	case ignored(s.template, key.GVK.GroupKind()):
		s.state = templateIgnored
		return s, nil
	case s.have.Exists() && s.have.GetDeletionTimestamp() != nil:
		s.state = bindingEnding
		s.held, err = r.holder(ctx, claimOf(s.template))
		return s, err
	}
	if replaced, err := r.replaced(ctx, s.template, s.have); err != nil {
		return s, err
	} else if replaced {
		s.state = bindingReplaced
		return s, nil
	}
	if err := r.confirmVersion(ctx, s.template, s.have); err != nil {
		return s, err
	}
	if s.parents, err = r.parents(ctx, s.template); err != nil {
		return s, err
	}
	s.began = time.Now()
	if s.held, err = r.holder(ctx, claimOf(s.template)); err != nil {
		return s, err
	}
	s.policies, err = r.selecting(ctx, s.template)
	return s, err
}

// template is the newest known state of a template; nil if it does not exist.
func (r *reconciler) template(ctx context.Context, key Key) (*unstructured.Unstructured, error) {
	cached, err := r.kinds.get(ctx, key)
	if err != nil {
		return nil, err
	}
	var shown client.Object // no nil pointer in an interface
	if cached != nil {
		shown = cached
	}
	// nil: it does not exist
	t, _ := r.templates.Latest(key, shown, time.Now()).(*unstructured.Unstructured)
	return t, nil
}

// binding is the newest state of a template's binding that is known, a copy.
func (r *reconciler) binding(ctx context.Context, key Key) (binding.Binding, error) {
	found, err := bindingsOf(ctx, r.cache, key.GVK.GroupKind(), key.Namespace, key.Name)
	if err != nil {
		return binding.Binding{}, err
	}
	var cached client.Object
	if len(found) > 0 {
		cached = found[0].Object
	}
	if o := r.bindings.Latest(key, cached, time.Now()); o != nil {
		return binding.Of(o).Copy(), nil
	}
	return binding.Binding{}, nil
}

// bindingsOf are the bindings of a template in a cache, sorted by name; not to be changed.
func bindingsOf(ctx context.Context, cache client.Reader, kind schema.GroupKind, namespace, name string) (found []binding.Binding, err error) {
	err = binding.Each(ctx, cache, func(b binding.Binding) { found = append(found, b) },
		client.MatchingFields{indexTemplate: entry(kind, namespace, name)})
	sortBindings(found)
	return found, err
}

// replaced reports whether the binding belongs to a previous object with the template's name and
// must be deleted first (binding.Replaced). A binding without owner stays: its template was deleted
// with --cascade=orphan.
func (r *reconciler) replaced(ctx context.Context, t *unstructured.Unstructured, have binding.Binding) (bool, error) {
	if !have.Exists() || metav1.GetControllerOf(have) == nil {
		return false, nil
	}
	if is, err := binding.Replaced(ctx, r.live, have, t.GetUID()); err != nil || !is {
		return false, err
	}
	// the cached template may be the former one
	return true, r.confirmOne(ctx, t, example(t.GroupVersionKind()))
}

// confirmVersion is a StaleCacheError if the binding was written from a later version of the
// template than the cached one: after a change of the leader the informer of templates may lag
// behind that of bindings. If the API server has no later one either, the version in the binding
// dates from before a restore of the hub.
func (r *reconciler) confirmVersion(ctx context.Context, t *unstructured.Unstructured, have binding.Binding) error {
	if !have.Exists() || have.Spec.Resource.UID != t.GetUID() || !kube.OlderVersion(t.GetResourceVersion(), have.Spec.Resource.ResourceVersion) {
		return nil
	}
	return r.confirmOne(ctx, t, example(t.GroupVersionKind()))
}

// parents are the bindings whose templates depend on a template, sorted; not to be changed.
func (r *reconciler) parents(ctx context.Context, t *unstructured.Unstructured) ([]binding.Binding, error) {
	gk := t.GroupVersionKind().GroupKind()
	found := map[string]binding.Binding{}
	for _, name := range []string{t.GetName(), anyName} {
		err := binding.Each(ctx, r.cache, func(b binding.Binding) {
			if dependsOn(b, t) && !ofTemplate(b, t) {
				found[capacityKey(b)] = b
			}
		}, client.MatchingFields{indexDependency: entry(gk, t.GetNamespace(), name)})
		if err != nil {
			return nil, err
		}
	}
	out := make([]binding.Binding, 0, len(found))
	for _, b := range found {
		out = append(out, b)
	}
	sortBindings(out)
	return out, nil
}

// dependsOn reports whether the template of a binding refers to an object, by name or by its
// labels.
func dependsOn(b binding.Binding, t *unstructured.Unstructured) bool {
	for _, d := range dependenciesOf(b) {
		if d.Kind != t.GetKind() || groupOf(d.APIVersion) != groupOf(t.GetAPIVersion()) || d.Namespace != t.GetNamespace() {
			continue
		}
		if d.Name != "" {
			if d.Name == t.GetName() {
				return true
			}
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(d.LabelSelector)
		// one that cannot be evaluated selects nothing
		if err == nil && selector.Matches(labels.Set(t.GetLabels())) {
			return true
		}
	}
	return false
}

func ofTemplate(b binding.Binding, t *unstructured.Unstructured) bool {
	key, _ := keyOfReference(b.Spec.Resource) // one without kind is of no template
	return key.GVK.GroupKind() == t.GroupVersionKind().GroupKind() && key.Namespace == t.GetNamespace() && key.Name == t.GetName()
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

// confirmOne reads an object into now, which has the type of the cached one. A read of metadata
// alone is not comparable: the API server computes annotations of some kinds (DaemonSet:
// deprecated.daemonset.template.generation) from the whole object.
func (r *reconciler) confirmOne(ctx context.Context, cached, now client.Object) error {
	switch err := r.live.Get(ctx, client.ObjectKeyFromObject(cached), now); {
	case apierrors.IsNotFound(err):
		return kube.StaleCache(cached, cached.GetResourceVersion(), "none")
	case err != nil:
		return fmt.Errorf("read %T %s, from which its binding is to be written: %w", cached, cached.GetName(), err)
	}
	if now.GetResourceVersion() != cached.GetResourceVersion() && !equivalent(cached, now) {
		return kube.StaleCache(cached, cached.GetResourceVersion(), now.GetResourceVersion())
	}
	return nil
}

// equivalent reports whether two versions of an object differ at most in status. A kind without
// generations has no status.
func equivalent(a, b client.Object) bool {
	return a.GetUID() == b.GetUID() && a.GetGeneration() == b.GetGeneration() && a.GetGeneration() > 0 && sameMetadata(a, b)
}
