package propagate

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/kube"
)

// inputs is what a binding is computed from, without its decision. It is complete when made.
type inputs struct {
	key      Key
	template *unstructured.Unstructured
	// policy that the template follows; nil: none. waiting: it is Lazy and the template has not
	// been edited since.
	policy  *propagationPolicy
	waiting bool
	// kept: the policy, or an object that it needs, cannot be used at present. The binding changes
	// only with clusters and with those that require it.
	kept bool
	// refused is why the template's present revision may not run; the members keep the one that the
	// binding was made of. nil: it may.
	refused error
	// staleClaim: the binding names another policy than this one, and that does not exist any more.
	staleClaim bool
	// have is the present binding, if there is one; name and id are those of a new one.
	have binding.Binding
	name string
	id   types.UID
	// parents are the bindings whose templates depend on this one, sorted.
	parents []binding.Binding
	// generation is that of the reconciler before anything of this was read that is not in
	// subject.
	generation uint64
	// within is which clusters the namespace may use (policyv1alpha1.AnnotationClusters).
	within string
	// priority is that of the policy's priority class.
	priority *int32
}

// inputs makes the inputs of a template that has the claim of its policy.
func (r *reconciler) inputs(ctx context.Context, s subject, p *propagationPolicy, priority *int32) (inputs, error) {
	w := inputs{key: s.key, template: s.template, policy: p, have: s.have, parents: s.parents, priority: priority, generation: r.generation.Load()}
	var err error
	if w.within, err = binding.Within(ctx, r.cache, r.live, s.key.Namespace); err != nil {
		return w, err
	}
	if w.waiting, err = waits(p, s.template, s.have); err != nil {
		return w, err
	}
	if !s.have.Exists() {
		w.id = uuid.NewUUID()
		w.name, err = r.bindingName(ctx, s.template)
		return w, err
	}
	if of := claimOf(s.have); of.id != "" && !of.of(p) {
		former, err := r.holder(ctx, of)
		if err != nil {
			return w, err
		}
		w.staleClaim = gone(former)
	}
	return w, nil
}

// keeping are the inputs of a binding that is kept.
func (w inputs) keeping() inputs {
	w.kept = true
	return w
}

// refusing are the inputs of a binding that is kept since its template is refused.
func (w inputs) refusing(why error) inputs {
	w.refused = why
	return w.keeping()
}

// removes reports whether a template that fits no cluster any more is removed from all clusters.
func (w inputs) removes() bool { return w.policy != nil && !w.kept && w.policy.removes() }

// waits reports whether a Lazy policy still waits for the user's next edit of the template. What
// the template was like stands on the binding or, before there is one, on the template.
func waits(p *propagationPolicy, t *unstructured.Unstructured, have binding.Binding) (bool, error) {
	if !lazy(p) {
		return false, nil
	}
	noted := t.GetAnnotations()[workv1alpha2.AnnotationTemplate]
	if have.Exists() {
		noted = have.GetAnnotations()[workv1alpha2.AnnotationTemplate]
	}
	hash, err := workv1alpha2.TemplateHash(t)
	return noted == hash, err
}

// bindingName is the name of a template's new binding: that of its kind, but for a template whose
// namesake of another kind or group has it.
func (r *reconciler) bindingName(ctx context.Context, t *unstructured.Unstructured) (string, error) {
	ref := workv1alpha2.ObjectReference{APIVersion: t.GetAPIVersion(), Kind: t.GetKind(), Name: t.GetName()}
	name := workv1alpha2.BindingName(ref)
	other := binding.New(client.ObjectKey{Namespace: t.GetNamespace(), Name: name})
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
