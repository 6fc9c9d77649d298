package work

import (
	"maps"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// Binding is one of either kind.
type Binding struct {
	client.Object
	Spec *workv1alpha2.ResourceBindingSpec
}

// newBinding is an empty one, of the kind that a request means: ClusterResourceBindings have no namespace.
func newBinding(key types.NamespacedName) Binding {
	if key.Namespace == "" {
		b := &workv1alpha2.ClusterResourceBinding{}
		return Binding{b, &b.Spec}
	}
	b := &workv1alpha2.ResourceBinding{}
	return Binding{b, &b.Spec}
}

func (b Binding) finalizer() string {
	if b.GetNamespace() == "" {
		return workv1alpha2.FinalizerClusterBinding
	}
	return workv1alpha2.FinalizerBinding
}

// idLabel is the label of the binding's permanent id.
func (b Binding) idLabel() string {
	if b.GetNamespace() == "" {
		return workv1alpha2.LabelClusterBindingID
	}
	return workv1alpha2.LabelBindingID
}

// title is the binding in texts.
func (b Binding) title() string { return title(client.ObjectKeyFromObject(b)) }

func title(key types.NamespacedName) string {
	if key.Namespace == "" {
		return "ClusterResourceBinding " + key.Name
	}
	return "ResourceBinding " + key.String()
}

// marks name the binding and its policy on Works and on the objects in members.
func (b Binding) marks(policyLabels, policyAnnotations map[string]string) (labels, annotations map[string]string) {
	labels, annotations = maps.Clone(policyLabels), maps.Clone(policyAnnotations)
	if id := b.GetLabels()[b.idLabel()]; id != "" {
		labels[b.idLabel()] = id
	}
	if b.GetNamespace() == "" {
		annotations[workv1alpha2.AnnotationClusterBindingName] = b.GetName()
	} else {
		annotations[workv1alpha2.AnnotationBindingNamespace] = b.GetNamespace()
		annotations[workv1alpha2.AnnotationBindingName] = b.GetName()
	}
	return labels, annotations
}

// claimed says whether a policy claims the binding.
func (b Binding) claimed() bool {
	labels, _ := PolicyMarks(b.GetLabels(), nil)
	return len(labels) > 0
}

// bindingOf is the binding that a Work names.
func bindingOf(w *workv1alpha1.Work) (reconcile.Request, bool) {
	if name := w.Annotations[workv1alpha2.AnnotationClusterBindingName]; name != "" {
		return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}, true
	}
	ns, name := w.Annotations[workv1alpha2.AnnotationBindingNamespace], w.Annotations[workv1alpha2.AnnotationBindingName]
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: ns, Name: name}}, ns != "" && name != ""
}
