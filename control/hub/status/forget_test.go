package status

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/kinds"
)

// unsynced is a cache whose kinds are being listed.
type unsynced struct{ cache.Cache }

func (unsynced) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return listing{}, nil
}

type listing struct{ cache.Informer }

func (listing) HasSynced() bool { return false }

// Nothing is kept of templates that were deleted, whichever of template and binding goes first.
func TestForgetsDeletedTemplates(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, clusterv1alpha1.AddToScheme, workv1alpha1.AddToScheme, workv1alpha2.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c := fake.NewClientBuilder().WithScheme(scheme).
		WithStatusSubresource(&appsv1.Deployment{}, &workv1alpha2.ResourceBinding{}).
		WithIndex(&workv1alpha1.Work{}, workIndex, func(w client.Object) []string {
			key, _ := binding.OfWork(w) // each names one
			return []string{key.String()}
		}).Build()
	deployments := appsv1.SchemeGroupVersion.WithKind("Deployment")
	r := &reconciler{client: c, live: c, cache: unsynced{}, recorder: record.NewFakeRecorder(1000), interpreter: kinds.New(),
		kinds: &statusKinds{known: map[schema.GroupVersionKind]known{deployments: {true, time.Now().Add(time.Hour)}}}}
	const templates = 100
	var keys []client.ObjectKey
	for i := range templates {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("web-%d", i), Generation: 1}}
		b := &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: d.Name + "-deployment"}, Spec: workv1alpha2.ResourceBindingSpec{
			Resource: workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: d.Name},
			Clusters: []workv1alpha2.TargetCluster{{Name: "member1", Replicas: 1}},
		}}
		key := client.ObjectKeyFromObject(b)
		keys = append(keys, key)
		reconcile := func() {
			t.Helper()
			if _, err := r.reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
				t.Fatal(err)
			}
		}
		w := work("member1", func(w *workv1alpha1.Work) {
			w.Name = d.Name
			w.Annotations = map[string]string{workv1alpha2.AnnotationBindingNamespace: "shop", workv1alpha2.AnnotationBindingName: b.Name}
		})
		for _, o := range []client.Object{d, b, w} {
			if err := c.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		reconcile()
		if r.templates.LastWrite(key).IsZero() {
			t.Fatal("the status of the template was not written")
		}
		order := []client.Object{w, d, b}
		if i%2 == 0 {
			order = []client.Object{w, b, d}
		}
		for _, o := range order {
			if err := c.Delete(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			reconcile()
		}
	}
	for _, key := range keys {
		if !r.templates.LastWrite(key).IsZero() || !r.bindings.LastWrite(key).IsZero() {
			t.Fatalf("the last write for binding %s is kept", key)
		}
	}
}
