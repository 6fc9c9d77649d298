package status

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/test/script"
)

// TestScripts: the output has the status of each binding and of its template, where it differs from
// that after the step before.
func TestScripts(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, batchv1.AddToScheme, corev1.AddToScheme, clusterv1alpha1.AddToScheme,
		workv1alpha1.AddToScheme, workv1alpha2.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	indexed := func(b *fake.ClientBuilder) {
		b.WithIndex(&workv1alpha1.Work{}, workIndex, func(o client.Object) []string {
			if key, ok := binding.OfWork(o); ok {
				return []string{key.String()}
			}
			return nil
		})
	}
	script.Run(t, scheme, indexed, func(t *testing.T, w *script.World) func() string {
		r := &reconciler{client: w.Client, interpreter: kinds.New()}
		var changes script.Changes
		return func() string {
			now := map[string]string{}
			err := binding.Each(t.Context(), w.Client, func(cached binding.Binding) { r.aggregated(t, w, cached.Copy(), now) })
			if err != nil {
				t.Fatal(err)
			}
			return changes.Step(now)
		}
	})
}

// aggregated computes the status of a binding and of its template, as reconcile does, and stores
// both in the world.
func (r *reconciler) aggregated(t *testing.T, w *script.World, b binding.Binding, out map[string]string) {
	t.Helper()
	works, err := r.works(t.Context(), client.ObjectKeyFromObject(b))
	if err != nil {
		t.Fatal(err)
	}
	at := metav1.NewTime(time.Unix(0, 0).UTC())
	status, err := Desired(b, works, nil, r.unready(t.Context()), at)
	if err != nil {
		t.Fatal(err)
	}
	template := empty(schema.FromAPIVersionAndKind(b.Spec.Resource.APIVersion, b.Spec.Resource.Kind))
	key := client.ObjectKey{Namespace: b.Spec.Resource.Namespace, Name: b.Spec.Resource.Name}
	if err := w.Get(t.Context(), key, template); err != nil || b.Spec.Resource.UID != "" && b.Spec.Resource.UID != template.GetUID() {
		template = nil
	}
	want, failure := r.aggregate(template, b, status.AggregatedStatus)
	interpreted(&status, b, works, failure, at)
	*b.Status = status
	if err := w.Update(t.Context(), b.Object); err != nil {
		t.Fatal(err)
	}
	for i := range status.Conditions {
		status.Conditions[i].LastTransitionTime = metav1.Time{}
	}
	out[b.String()] = script.YAML(t, map[string]any{"status": status})
	if template == nil {
		return
	}
	if want != nil {
		template.Object["status"] = want
		if err := w.Status().Update(t.Context(), template); err != nil {
			t.Fatal(err)
		}
	}
	now, _, err := unstructured.NestedMap(template.Object, "status")
	if err != nil {
		t.Fatal(err)
	}
	out[template.GetKind()+" "+key.String()] = script.YAML(t, map[string]any{"status": now})
}
