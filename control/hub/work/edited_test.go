package work_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/test/await"
)

// While the binding does not follow an edit of its template, Works keep their object. Replicas
// follow the decision, and a further cluster gets what the others have.
func TestTemplateEditedAheadOfItsBinding(t *testing.T) {
	w := newWorld(t, nginx, on("m1", 2), on("m2", 1))
	for _, m := range []string{"m1", "m2"} {
		w.override(m, policyv1alpha1.PlaintextOverrider{Path: "/metadata/labels/zone", Operator: "add", Value: apiextensionsv1.JSON{Raw: []byte(`"a"`)}})
	}
	w.settle()
	spec := w.Template.Object["spec"].(map[string]any)
	spec["replicas"] = int64(7)
	spec["template"].(map[string]any)["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)["image"] = "nginx:2"
	w.Template.SetGeneration(5)
	w.Overrides.Namespaced = nil
	if got := says(w.plan()); got != "" {
		t.Errorf("the edit leads to %s", got)
	}

	w.spec.Clusters = []workv1alpha2.TargetCluster{on("m1", 5), on("m2", 1), on("m3", 3)}
	if got := says(w.plan()); got != "create m3, update m1" {
		t.Fatalf("another decision leads to %s", got)
	}
	w.settle()
	if got := says(w.plan()); got != "" {
		t.Errorf("once more: %s", got)
	}
	for cluster, replicas := range map[string]int{"m1": 5, "m2": 1, "m3": 3} {
		x := w.work(cluster)
		held := holds(t, x)
		a := held.GetAnnotations()
		spec := held.Object["spec"].(map[string]any)
		got := []string{fmt.Sprint(spec["replicas"], image(spec)), held.GetLabels()["zone"], held.GetLabels()[workv1alpha1.LabelWorkID],
			a[workv1alpha1.AnnotationWorkNamespace], a[workv1alpha2.AnnotationTemplateUID], a[workv1alpha2.AnnotationTemplateGeneration],
			x.Annotations[workv1alpha2.AnnotationTemplate]}
		want := []string{fmt.Sprint(replicas, "nginx:1"), "a", x.Labels[workv1alpha1.LabelWorkID], x.Namespace, "t1", "4",
			w.Binding.GetAnnotations()[workv1alpha2.AnnotationTemplate]}
		if diff := cmp.Diff(want, got); diff != "" || x.Annotations[policyv1alpha1.AnnotationAppliedOverrides] == "" {
			t.Errorf("%s, -want +got:\n%s%v", cluster, diff, x.Annotations)
		}
	}

	hash, err := workv1alpha2.TemplateHash(w.Template)
	if err != nil {
		t.Fatal(err)
	}
	w.Binding.GetAnnotations()[workv1alpha2.AnnotationTemplate] = hash
	plan := w.plan()
	if got := says(plan); got != "update m1, update m2, update m3" {
		t.Fatalf("the binding follows: %s", got)
	}
	if got := image(holds(t, plan.Update[2]).Object["spec"].(map[string]any)); got != "nginx:2" {
		t.Errorf("m3 gets %v", got)
	}
}

// An edit that the binding does not follow reaches no cluster by a restart either.
func TestEditWithoutPolicyAtRestart(t *testing.T) {
	h := newHub(t)
	d := deployment("edited")
	h.Make(d)
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
	if err := h.Get(t.Context(), client.ObjectKeyFromObject(d), u); err != nil {
		t.Fatal(err)
	}
	hash, err := workv1alpha2.TemplateHash(u)
	if err != nil {
		t.Fatal(err)
	}
	b := bindingOf(d, "apps/v1", "Deployment", "b1", on("m1", 2), on("m2", 1))
	b.Annotations = map[string]string{workv1alpha2.AnnotationTemplate: hash}
	h.Make(b)
	stop := h.run(&writes{})
	h.becomes("edited", map[string]string{"m1": "2 replicas of nginx:1", "m2": "1 replicas of nginx:1"})
	stop()
	d.Spec.Template.Spec.Containers[0].Image = "nginx:2"
	if err := h.Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	w := &writes{}
	h.run(w)
	h.change(b, func(b *workv1alpha2.ResourceBinding) {
		b.Spec.Clusters = []workv1alpha2.TargetCluster{on("m1", 2), on("m3", 1)}
	})
	h.becomes("edited", map[string]string{"m1": "2 replicas of nginx:1", "m3": "1 replicas of nginx:1"})
	await.Never(t, time.Second, "another write than those of m2 and m3", func() bool {
		// a delete may be repeated before the watch shows it
		return len(slices.Compact(slices.Sorted(slices.Values(w.all())))) != 2
	})
}
