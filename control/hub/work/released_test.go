package work

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/policy"
)

// waiting is a reconciler over the objects and the live reads that it makes.
func waiting(t *testing.T, objects ...client.Object) (r *reconciler, events *record.FakeRecorder, reads *[]string) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, batchv1.AddToScheme, clusterv1alpha1.AddToScheme, workv1alpha1.AddToScheme, workv1alpha2.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithIndex(&workv1alpha1.Work{}, bindingIndex, func(w client.Object) []string {
			key, _ := binding.OfWork(w) // each names one
			return []string{key.String()}
		}).
		WithIndex(&workv1alpha1.Work{}, templateIndex, func(o client.Object) []string {
			id, _ := OfWork(o.(*workv1alpha1.Work)) // each holds one object
			return []string{id.String()}
		}).Build()
	reads = new([]string)
	live := interceptor.NewClient(c, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			*reads = append(*reads, fmt.Sprintf("%T %s", o, key.Name))
			return c.Get(ctx, key, o, opts...)
		},
	})
	events = record.NewFakeRecorder(1000)
	r = &reconciler{BindingOptions: BindingOptions{Skips: &policy.Skips{}, OrphanAfter: time.Nanosecond}, client: c, live: live, recorder: events,
		writer: NewWriter(c), polls: newPolls()}
	var err error
	if r.duration, err = newDurations(); err != nil {
		t.Fatal(err)
	}
	if r.orphans, err = newOrphans(); err != nil {
		t.Fatal(err)
	}
	return r, events, reads
}

func workOfWeb(change func(*workv1alpha1.Work)) *workv1alpha1.Work {
	w := &workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-es-m1", Name: "web", Annotations: map[string]string{
		workv1alpha2.AnnotationBindingNamespace: "shop", workv1alpha2.AnnotationBindingName: "web-deployment"}}}
	w.Spec.Workload.Manifests = []workv1alpha1.Manifest{{RawExtension: runtime.RawExtension{
		Raw: []byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"namespace":"shop","name":"web"}}`)}}}
	change(w)
	return w
}

// polled reconciles the binding of web often and checks that the requeue interval grows, and that
// of the template only metadata is read.
func polled(t *testing.T, r *reconciler, reads *[]string) {
	t.Helper()
	req := reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "shop", Name: "web-deployment"}}
	var last time.Duration
	for i := range 10 {
		wait, err := r.reconcile(t.Context(), req)
		if err != nil || wait < last || wait < firstPoll {
			t.Fatalf("reconcile %d: requeued after %v, %v, before after %v", i, wait, err, last)
		}
		last = wait
	}
	if last != lastPoll {
		t.Errorf("the interval grows to %v, want %v", last, lastPoll)
	}
	for _, read := range *reads {
		if strings.HasSuffix(read, " web") && !strings.Contains(read, "PartialObjectMetadata") {
			t.Errorf("live read of %s", read)
		}
	}
}

// The Works of a binding that was deleted while its template lives are reported as orphans, if no
// other binding takes them over.
func TestReleasedWorks(t *testing.T) {
	released := workOfWeb(func(w *workv1alpha1.Work) { w.Annotations[workv1alpha1.AnnotationReleased] = "true" })
	r, events, reads := waiting(t, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u1"}}, released)
	polled(t, r, reads)
	if n := len(events.Events); n != 1 {
		t.Fatalf("%d Events, want one", n)
	}
	if e := <-events.Events; !strings.Contains(e, workv1alpha2.EventWorkOrphaned) {
		t.Errorf("Event %q", e)
	}
}

// A binding that ends deletes the Works of bindings, and waits for no other.
func TestFinalizationLeavesOtherWriters(t *testing.T) {
	now := metav1.Now()
	b := &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-deployment", DeletionTimestamp: &now,
		Finalizers: []string{workv1alpha2.FinalizerBinding}}}
	b.Spec.Resource = workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web"}
	alias := workOfWeb(func(w *workv1alpha1.Work) {
		w.Annotations, w.Labels = nil, map[string]string{workv1alpha1.LabelWorkID: "1"}
	})
	r, _, _ := waiting(t, b, alias, &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "m1"}})
	if wait, err := r.reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(b)}); wait != 0 || err != nil {
		t.Fatalf("requeued after %v, %v", wait, err)
	}
	if err := r.client.Get(t.Context(), client.ObjectKeyFromObject(alias), alias); err != nil {
		t.Errorf("the Work of another writer: %v", err)
	}
}

// A Job that was replaced runs again: the Works of the former one end with its binding. In a hub
// that was restored with new UIDs, where an import has written the binding, and for other kinds,
// they stay.
func TestReplacedTemplate(t *testing.T) {
	now := metav1.Now()
	for name, test := range map[string]struct {
		kind    string
		manager string
		uid     types.UID // in the binding
		stays   bool
	}{
		"replaced":     {"Job", binding.Manager, "u0", false},
		"the same":     {"Job", binding.Manager, "u1", true},
		"restored":     {"Job", "kubectl-create", "u0", true},
		"another kind": {"Deployment", binding.Manager, "u0", true},
	} {
		t.Run(name, func(t *testing.T) {
			b := &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-deployment", DeletionTimestamp: &now,
				Finalizers: []string{workv1alpha2.FinalizerBinding}}}
			api := map[string]string{"Job": "batch/v1", "Deployment": "apps/v1"}[test.kind]
			b.Spec.Resource = workv1alpha2.ObjectReference{APIVersion: api, Kind: test.kind, Namespace: "shop", Name: "web", UID: test.uid}
			b.Spec.Clusters = []workv1alpha2.TargetCluster{{Name: "m1"}}
			is := metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u1"}
			template := map[string]client.Object{"Job": &batchv1.Job{ObjectMeta: is}, "Deployment": &appsv1.Deployment{ObjectMeta: is}}[test.kind]
			held := workOfWeb(func(w *workv1alpha1.Work) {
				w.Spec.Workload.Manifests[0].Raw = []byte(`{"apiVersion":"` + api + `","kind":"` + test.kind + `","metadata":{"namespace":"shop","name":"web"}}`)
			})
			r, _, _ := waiting(t, b, held, template)
			r.live = interceptor.NewClient(r.client.(client.WithWatch), interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					err := c.Get(ctx, key, o, opts...)
					o.SetManagedFields([]metav1.ManagedFieldsEntry{
						{Manager: "another", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{}}`)},
						{Manager: test.manager, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:resource":{".":{},"f:uid":{}}}}`)}})
					return err
				},
			})
			if _, err := r.reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(b)}); err != nil {
				t.Fatal(err)
			}
			if err := r.client.Get(t.Context(), client.ObjectKeyFromObject(held), held); (err == nil) != test.stays || client.IgnoreNotFound(err) != nil {
				t.Errorf("the Work: %v, to stay: %v", err, test.stays)
			}
		})
	}
}

// A binding that is deleted waits for a cluster that does not respond, without a read every few
// seconds.
func TestFinalizationWaits(t *testing.T) {
	now := metav1.Now()
	b := &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-deployment", DeletionTimestamp: &now,
		Finalizers: []string{workv1alpha2.FinalizerBinding}}}
	b.Spec.Resource = workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web"}
	ending := workOfWeb(func(w *workv1alpha1.Work) {
		w.DeletionTimestamp, w.Finalizers = &now, []string{workv1alpha1.FinalizerExecution}
	})
	r, _, reads := waiting(t, b, ending, &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "m1"}})
	polled(t, r, reads)
}
