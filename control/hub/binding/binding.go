// Package binding has the bindings of either kind as one type. The controllers of the hub read and
// write them with it, and the CLI shows them.
package binding

import (
	"context"
	"errors"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kube"
)

// Binding is a ResourceBinding or a ClusterResourceBinding. The zero value is none.
type Binding struct {
	client.Object
	Spec   *workv1alpha2.ResourceBindingSpec
	Status *workv1alpha2.ResourceBindingStatus
}

// Of is the view of an object of either kind; the zero value for another kind.
func Of(o client.Object) Binding {
	switch b := o.(type) {
	case *workv1alpha2.ResourceBinding:
		return Binding{b, &b.Spec, &b.Status}
	case *workv1alpha2.ClusterResourceBinding:
		return Binding{b, &b.Spec, &b.Status}
	}
	return Binding{}
}

// New is a binding without content, a ClusterResourceBinding if the key has no namespace.
func New(key client.ObjectKey) Binding {
	var o client.Object = &workv1alpha2.ClusterResourceBinding{}
	if key.Namespace != "" {
		o = &workv1alpha2.ResourceBinding{}
		o.SetNamespace(key.Namespace)
	}
	o.SetName(key.Name)
	return Of(o)
}

// Each calls f with the bindings of both kinds that a cache lists. f must not change them.
func Each(ctx context.Context, cache client.Reader, f func(Binding), by ...client.ListOption) error {
	by = append(by, client.UnsafeDisableDeepCopy)
	var namespaced workv1alpha2.ResourceBindingList
	if err := cache.List(ctx, &namespaced, by...); err != nil {
		return fmt.Errorf("list ResourceBindings: %w", err)
	}
	for i := range namespaced.Items {
		f(Of(&namespaced.Items[i]))
	}
	var clusterWide workv1alpha2.ClusterResourceBindingList
	if err := cache.List(ctx, &clusterWide, by...); err != nil {
		return fmt.Errorf("list ClusterResourceBindings: %w", err)
	}
	for i := range clusterWide.Items {
		f(Of(&clusterWide.Items[i]))
	}
	return nil
}

// AddIndex indexes the bindings of both kinds under field by the values of each (kube.AddIndex).
func AddIndex(mgr ctrl.Manager, field string, values func(Binding) []string) error {
	of := func(o client.Object) []string { return values(Of(o)) }
	return errors.Join(
		kube.AddIndex[client.Object](mgr, &workv1alpha2.ResourceBinding{}, field, of),
		kube.AddIndex[client.Object](mgr, &workv1alpha2.ClusterResourceBinding{}, field, of),
	)
}

// OfWork is the key of the binding that a Work names. ok is false if it names none.
func OfWork(w client.Object) (key client.ObjectKey, ok bool) {
	a := w.GetAnnotations()
	if name := a[workv1alpha2.AnnotationClusterBindingName]; name != "" {
		return client.ObjectKey{Name: name}, true
	}
	key = client.ObjectKey{Namespace: a[workv1alpha2.AnnotationBindingNamespace], Name: a[workv1alpha2.AnnotationBindingName]}
	return key, key.Namespace != "" && key.Name != ""
}

// Exists reports whether there is a binding.
func (b Binding) Exists() bool { return b.Object != nil }

// Copy is a deep copy.
func (b Binding) Copy() Binding {
	o, _ := b.DeepCopyObject().(client.Object) // the copy has the type of the object
	return Of(o)
}

// ClusterWide reports whether it is a ClusterResourceBinding.
func (b Binding) ClusterWide() bool { return b.GetNamespace() == "" }

// Finalizer is the one of its kind.
func (b Binding) Finalizer() string {
	if b.ClusterWide() {
		return workv1alpha2.FinalizerClusterBinding
	}
	return workv1alpha2.FinalizerBinding
}

// IDLabel is the label of its permanent id.
func (b Binding) IDLabel() string {
	if b.ClusterWide() {
		return workv1alpha2.LabelClusterBindingID
	}
	return workv1alpha2.LabelBindingID
}

// String is its kind and name.
func (b Binding) String() string {
	if b.ClusterWide() {
		return "ClusterResourceBinding " + b.GetName()
	}
	return "ResourceBinding " + client.ObjectKeyFromObject(b).String()
}
