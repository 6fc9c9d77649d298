package work_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/work"
)

// work is one of ours that holds the given objects.
func manifestWork(manifests ...string) *workv1alpha1.Work {
	w := &workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{
		Namespace: "karmada-es-m1", Name: "w", Finalizers: []string{workv1alpha1.FinalizerExecution},
		Labels: map[string]string{workv1alpha1.LabelWorkID: "w1"},
	}}
	for _, m := range manifests {
		raw := runtime.RawExtension{Raw: []byte(m)}
		w.Spec.Workload.Manifests = append(w.Spec.Workload.Manifests, workv1alpha1.Manifest{RawExtension: raw})
	}
	return w
}

// TestIdentity: whose Work it is does not depend on the version of the object, nor on names and
// ids.
func TestIdentity(t *testing.T) {
	const hpa = `{"apiVersion":"autoscaling/v1","kind":"HorizontalPodAutoscaler","metadata":{"namespace":"default","name":"web"}}`
	want := work.OfReference(workv1alpha2.ObjectReference{
		APIVersion: "autoscaling/v2", Kind: "HorizontalPodAutoscaler", Namespace: "default", Name: "web",
	})
	users := manifestWork(hpa)
	users.Labels = nil
	former := manifestWork(hpa)
	former.Labels, former.Annotations = nil, map[string]string{workv1alpha2.AnnotationBindingName: "web-horizontalpodautoscaler"}
	for _, c := range []struct {
		name string
		work *workv1alpha1.Work
		ours bool
	}{
		{"ours", manifestWork(hpa), true},
		{"ours, without an id", former, true},
		{"a user's", users, false},
		{"two objects", manifestWork(hpa, hpa), false},
		{"no object", manifestWork("7"), false},
		{"nothing", manifestWork(), false},
	} {
		id, ok := work.OfWork(c.work)
		if ok != c.ours || ok && id != want {
			t.Errorf("%s: got %v %t", c.name, id, ok)
		}
	}
}

// TestUpdated: what counts as a difference.
func TestUpdated(t *testing.T) {
	const object = `{"kind":"ConfigMap","data":{"a":"<1>","n":2}}`
	for _, c := range []struct {
		name      string
		have      func(*workv1alpha1.Work)
		want      func(*workv1alpha1.Work)
		different bool
	}{
		{name: "equal"},
		{name: "other bytes", want: func(w *workv1alpha1.Work) {
			w.Spec.Workload.Manifests[0].Raw = []byte(`{ "data": {"n": 2, "a": "\u003c1\u003e"}, "kind": "ConfigMap" }`)
		}},
		{name: "other content", different: true, want: func(w *workv1alpha1.Work) {
			w.Spec.Workload.Manifests[0].Raw = []byte(`{"kind":"ConfigMap","data":{"a":"<1>","n":3}}`)
		}},
		{name: "not suspended, said or not", have: func(w *workv1alpha1.Work) { w.Spec.SuspendDispatching = ptr.To(false) }},
		{name: "suspended", different: true, want: func(w *workv1alpha1.Work) { w.Spec.SuspendDispatching = ptr.To(true) }},
		{name: "preserved", different: true, have: func(w *workv1alpha1.Work) { w.Spec.PreserveResourcesOnDeletion = ptr.To(true) }},
		{name: "others' label", have: func(w *workv1alpha1.Work) { w.Labels["team"] = "a" }},
		{name: "a mark too many", different: true, have: func(w *workv1alpha1.Work) {
			w.Annotations = map[string]string{policyv1alpha1.AnnotationAppliedOverrides: "[]"}
		}},
		{name: "made of another template", different: true, have: func(w *workv1alpha1.Work) {
			w.Annotations = map[string]string{workv1alpha2.AnnotationTemplate: "before"}
		}},
		{name: "another id of the binding", different: true, have: func(w *workv1alpha1.Work) {
			w.Labels[workv1alpha2.LabelBindingID] = "b0"
		}},
		{name: "no finalizer", different: true, have: func(w *workv1alpha1.Work) { w.Finalizers = nil }},
		{name: "another finalizer, too", have: func(w *workv1alpha1.Work) { w.Finalizers = append(w.Finalizers, "example.com/x") }},
	} {
		have, want := manifestWork(object), manifestWork(object)
		if c.have != nil {
			c.have(have)
		}
		if c.want != nil {
			c.want(want)
		}
		before := have.DeepCopy()
		next := work.Updated(have, want)
		if (next != nil) != c.different {
			t.Errorf("%s: got %v", c.name, next)
		}
		if diff := cmp.Diff(before, have); diff != "" {
			t.Errorf("%s: the Work that exists was changed:\n%s", c.name, diff)
		}
		if next == nil {
			continue
		}
		if again := work.Updated(next, want); again != nil {
			t.Errorf("%s: and then still different: %v", c.name, again)
		}
	}
}
