package work

import (
	"context"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/kube"
)

// emptyCache has synced and has nothing.
type emptyCache struct{ cache.Cache }

func (emptyCache) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return synced{}, nil
}

func (emptyCache) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

type synced struct{ cache.Informer }

func (synced) HasSynced() bool { return true }

// The binding of a template that was deleted with --cascade=orphan stays, without owner: its
// reconcile does not wait for the template.
func TestOrphanedBinding(t *testing.T) {
	web := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u1"}}
	for name, test := range map[string]struct {
		owned  bool
		exists []client.Object
		waits  bool
	}{
		"orphaned":                             {false, nil, false},
		"to be deleted with its template":      {true, nil, true},
		"the cache lacks the template":         {true, []client.Object{web}, true},
		"… of a binding that has no owner yet": {false, []client.Object{web}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-deployment"}}
			b.Spec.Resource = workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", UID: "u1"}
			if test.owned {
				b.OwnerReferences = []metav1.OwnerReference{{Kind: "Deployment", Name: "web", UID: "u1", Controller: ptr.To(true)}}
			}
			r, _, _ := waiting(t, test.exists...)
			r.cache = emptyCache{}
			if in, err := r.input(t.Context(), binding.Of(b)); in != nil || kube.IsStale(err) != test.waits || err != nil && !test.waits {
				t.Errorf("waits: %v, want %v: %v", kube.IsStale(err), test.waits, err)
			}
		})
	}
}
