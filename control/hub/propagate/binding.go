package propagate

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kinds"
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

// anyName stands in an index for all objects of a kind, instead of a name; no object can be called so.
const anyName = "*"

// entry is the value of an index for an object, whatever version of its kind is spoken of.
func entry(gk schema.GroupKind, namespace, name string) string {
	return gk.Group + "/" + gk.Kind + "/" + namespace + "/" + name
}

// Indexes of the cache. Those of bindings: by template, by what the template depends on, by permanent id of the policy, those
// without a decision that succeeded. That of policies: by what they select.
const (
	indexTemplate   = "propagate.template"
	indexDependency = "propagate.dependency"
	indexPolicy     = "propagate.policy"
	indexUndecided  = "propagate.undecided"
	indexSelects    = "propagate.selects"
)

func byTemplate(o client.Object) []string {
	k, ok := keyOfReference(bindingOf(o).spec.Resource)
	if !ok {
		return nil
	}
	return []string{entry(k.GVK.GroupKind(), k.Namespace, k.Name)}
}

func byDependency(o client.Object) []string {
	var out []string
	for _, d := range dependenciesOf(o) {
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

func byPolicy(o client.Object) []string {
	if id := claimOf(o).id; id != "" {
		return []string{id}
	}
	return nil
}

func bySelection(o client.Object) []string {
	p := policyOf(o)
	var out []string
	for i := range p.spec.ResourceSelectors {
		s := &p.spec.ResourceSelectors[i]
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
	return gvk, err == nil && s.Kind != "" && !ownKind(gvk.GroupKind())
}

// dependenciesOf reads what a binding's template refers to. What cannot be read counts as nothing: the next reconcile of the
// template writes it again.
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

// binding is one of either kind; the zero value is none.
type binding struct {
	client.Object
	spec   *workv1alpha2.ResourceBindingSpec
	status *workv1alpha2.ResourceBindingStatus
}

func bindingOf(o client.Object) binding {
	switch b := o.(type) {
	case *workv1alpha2.ResourceBinding:
		return binding{Object: b, spec: &b.Spec, status: &b.Status}
	case *workv1alpha2.ClusterResourceBinding:
		return binding{Object: b, spec: &b.Spec, status: &b.Status}
	}
	return binding{}
}

// newBinding is an empty one, a ClusterResourceBinding for a template without namespace.
func newBinding(namespace string) binding {
	if namespace == "" {
		return bindingOf(&workv1alpha2.ClusterResourceBinding{})
	}
	b := bindingOf(&workv1alpha2.ResourceBinding{})
	b.SetNamespace(namespace)
	return b
}

func (b binding) exists() bool { return b.Object != nil }

func (b binding) copy() binding { return bindingOf(b.DeepCopyObject().(client.Object)) }

func (b binding) clusterWide() bool { return b.GetNamespace() == "" }

// roomKey names the binding to the scheduling loop.
func (b binding) roomKey() string { return b.GetNamespace() + "/" + b.GetName() }

// finalizer and idLabel are those of its kind.
func (b binding) finalizer() string {
	if b.clusterWide() {
		return workv1alpha2.FinalizerClusterBinding
	}
	return workv1alpha2.FinalizerBinding
}

func (b binding) idLabel() string {
	if b.clusterWide() {
		return workv1alpha2.LabelClusterBindingID
	}
	return workv1alpha2.LabelBindingID
}

// attachedOnly says whether it never had a policy: it is there for those that depend on its template.
func (b binding) attachedOnly() bool { return b.spec.Placement == nil && claimOf(b).id == "" }

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
