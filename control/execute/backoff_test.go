package execute

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/control/kinds"
)

// eventless is a cache without events.
type eventless struct{ cache.Cache }

func (eventless) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return eventlessInformer{}, nil
}

type eventlessInformer struct{ cache.Informer }

func (eventlessInformer) AddEventHandler(toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	return nil, nil
}

// An object that a finalizer delays is read every second for a minute, then with the backoff.
func TestDeletionBackoff(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	now := metav1.Now()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "c", DeletionTimestamp: &now, Finalizers: []string{"example.com/wait"},
		Labels: map[string]string{workv1alpha1.LabelManaged: "true"},
		Annotations: map[string]string{pelagov1alpha1.AnnotationHubID: "hub",
			workv1alpha1.AnnotationWorkNamespace: "karmada-es-m1", workv1alpha1.AnnotationWorkName: "w"},
	}}
	hub := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{SubResourcePatch: func(
		context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption,
	) error {
		return nil
	}})
	for name, tt := range map[string]struct{ age, least, most time.Duration }{
		"soon":       {10 * time.Second, 0, time.Second},
		"long since": {2 * time.Minute, maxRetry, maxRetry + maxRetry/5},
	} {
		t.Run(name, func(t *testing.T) {
			e := &Execution{
				o:         Options{Cluster: "m1", HubID: "hub", Interpreter: kinds.New(), Hub: hub, Recorder: record.NewFakeRecorder(100), Metrics: NewMetrics()},
				namespace: "karmada-es-m1", member: &member{client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(object).Build()},
				kinds:   newKinds(eventless{}, toolscache.ResourceEventHandlerFuncs{}),
				retries: workqueue.NewTypedItemExponentialFailureRateLimiter[string](minRetry, maxRetry),
			}
			work := &workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-es-m1", Name: "w", ResourceVersion: "1",
				DeletionTimestamp: &metav1.Time{Time: time.Now().Add(-tt.age)}}}
			work.Spec.Workload.Manifests = []workv1alpha1.Manifest{{RawExtension: runtime.RawExtension{
				Raw: []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"shop","name":"c"}}`)}}}
			var due time.Duration
			for range 20 {
				task := &task{Execution: e, work: work.DeepCopy(), part: "w", state: &workState{}, began: time.Now()}
				e.statusVersions.Forget("w") // each may write
				result, err := task.remove(t.Context(), false)
				if err != nil {
					t.Fatal(err)
				}
				due = result.RequeueAfter
			}
			if due < tt.least || due > tt.most {
				t.Errorf("requeued after %v, want %v to %v", due, tt.least, tt.most)
			}
		})
	}
}
