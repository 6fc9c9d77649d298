package operator

import (
	"context"
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelago-net/pelago/api/submariner/v1alpha1"
)

// A spec that is edited while the finalizer is added is read again: the response to the patch has
// lost its unknown fields.
func TestEditedWithTheFinalizer(t *testing.T) {
	s := runtime.NewScheme()
	must(t, errors.Join(scheme.AddToScheme(s), v1alpha1.AddToScheme(s)))
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"clusterID": "c1"}}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Submariner"))
	u.SetNamespace(operatorNamespace)
	u.SetName("submariner")
	c := fake.NewClientBuilder().WithScheme(s).WithObjects(u).WithStatusSubresource(&v1alpha1.Submariner{}).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			edited := &unstructured.Unstructured{}
			edited.SetGroupVersionKind(u.GroupVersionKind())
			must(t, c.Get(ctx, client.ObjectKeyFromObject(u), edited))
			edited.Object["spec"] = map[string]any{"clusterID": "c1", "natEnable": true}
			must(t, c.Update(ctx, edited))
			return c.Patch(ctx, o, patch, opts...)
		}}).Build()
	o := &operator{client: c, live: c, namespace: operatorNamespace, applied: map[client.ObjectKey]applied{}}
	result, err := o.submariner(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(u)})
	must(t, err)
	now := &v1alpha1.Submariner{}
	must(t, c.Get(t.Context(), client.ObjectKeyFromObject(u), now))
	if result.RequeueAfter <= 0 || len(now.Status.Conditions) > 0 || len(now.Finalizers) != 1 {
		t.Errorf("%+v after the finalizer was added, with finalizers %v and status %+v; want that it is read again", result, now.Finalizers, now.Status)
	}
}
