package propagate

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

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
