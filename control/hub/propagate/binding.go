package propagate

import (
	"encoding/json"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/control/kube"
)

// Key names a template: what one reconcile is about.
type Key struct {
	GVK             schema.GroupVersionKind
	Namespace, Name string
}

func (k Key) String() string {
	if k.Namespace == "" {
		return k.GVK.Kind + " " + k.Name
	}
	return k.GVK.Kind + " " + k.Namespace + "/" + k.Name
}

func keyOf(obj *unstructured.Unstructured) Key {
	return Key{GVK: obj.GroupVersionKind(), Namespace: obj.GetNamespace(), Name: obj.GetName()}
}

// keyOfReference is false for a reference that names no kind.
func keyOfReference(r workv1alpha2.ObjectReference) (Key, bool) {
	gv, err := schema.ParseGroupVersion(r.APIVersion)
	return Key{GVK: gv.WithKind(r.Kind), Namespace: r.Namespace, Name: r.Name}, err == nil && r.Kind != ""
}

// anyName stands in an index for all objects of a kind, instead of a name; no object can be called
// so.
const anyName = "*"

// entry is the value of an index for an object, whatever version of its kind is spoken of.
func entry(gk schema.GroupKind, namespace, name string) string {
	return gk.Group + "/" + gk.Kind + "/" + namespace + "/" + name
}

// Indexes of the cache. Those of bindings: by template, by what the template depends on, by
// permanent id of the policy, those without a decision that succeeded, those with a rollout in
// progress. That of policies: by what they select.
const (
	indexTemplate   = "propagate.template"
	indexDependency = "propagate.dependency"
	indexPolicy     = "propagate.policy"
	indexUndecided  = "propagate.undecided"
	indexRollout    = "propagate.rollout"
	indexSelects    = "propagate.selects"
)

func byTemplate(b binding.Binding) []string {
	k, ok := keyOfReference(b.Spec.Resource)
	if !ok {
		return nil
	}
	return []string{entry(k.GVK.GroupKind(), k.Namespace, k.Name)}
}

func byDependency(b binding.Binding) []string {
	var out []string
	for _, d := range dependenciesOf(b) {
		gv, err := schema.ParseGroupVersion(d.APIVersion)
		if err != nil {
			continue // it names nothing that can exist
		}
		name := d.Name
		if name == "" {
			name = anyName
		}
		out = append(out, entry(gv.WithKind(d.Kind).GroupKind(), d.Namespace, name))
	}
	return out
}

func byPolicy(b binding.Binding) []string {
	if id := claimOf(b).id; id != "" {
		return []string{id}
	}
	return nil
}

func byUndecided(b binding.Binding) []string {
	if undecided(b) {
		return []string{kube.IndexFlag}
	}
	return nil
}

func byRollout(b binding.Binding) []string {
	if of := workv1alpha2.ReadRollout(b.GetAnnotations()); of != nil && of.InProgress() {
		return []string{kube.IndexFlag}
	}
	return nil
}

func bySelection(o client.Object) []string {
	p := policyOf(o)
	var out []string
	for i := range p.Spec.ResourceSelectors {
		s := &p.Spec.ResourceSelectors[i]
		gvk, ok := selected(s)
		if !ok {
			continue
		}
		namespace, name := s.Namespace, s.Name
		if !p.clusterWide {
			namespace = o.GetNamespace()
		}
		if name == "" {
			name = anyName
		}
		out = append(out, entry(gvk.GroupKind(), namespace, name))
	}
	return out
}

// selected is the kind that a selector names; false if it is none that is propagated.
func selected(s *policyv1alpha1.ResourceSelector) (schema.GroupVersionKind, bool) {
	gv, err := schema.ParseGroupVersion(s.APIVersion)
	gvk := gv.WithKind(s.Kind)
	return gvk, err == nil && s.Kind != "" && !policy.OwnKind(gvk.GroupKind())
}

// dependenciesOf reads what a binding's template refers to. What cannot be read counts as nothing:
// the next reconcile of the template writes it again.
func dependenciesOf(o client.Object) []kinds.DependentReference {
	text := o.GetAnnotations()[workv1alpha2.AnnotationDependencies]
	if text == "" {
		return nil
	}
	var out []kinds.DependentReference
	if json.Unmarshal([]byte(text), &out) != nil {
		return nil
	}
	return out
}

// capacityKey names a binding in Capacity.
func capacityKey(b binding.Binding) string { return b.GetNamespace() + "/" + b.GetName() }

// attachedOnly reports whether a binding never had a policy: it exists for the bindings that depend
// on its template.
func attachedOnly(b binding.Binding) bool { return b.Spec.Placement == nil && claimOf(b).id == "" }

// setLabel and setAnnotation set one; "" removes it.
func setLabel(o client.Object, key, value string) { o.SetLabels(with(o.GetLabels(), key, value)) }

func setAnnotation(o client.Object, key, value string) {
	o.SetAnnotations(with(o.GetAnnotations(), key, value))
}

func with(m map[string]string, key, value string) map[string]string {
	if value == "" {
		delete(m, key)
		return m
	}
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}

func sortBindings(all []binding.Binding) {
	slices.SortFunc(all, func(a, b binding.Binding) int { return strings.Compare(capacityKey(a), capacityKey(b)) })
}
