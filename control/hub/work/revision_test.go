package work_test

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/work"
)

// rolls gives the template an image, and the binding a rollout of that revision from passed to the
// named clusters. The revision of image nginx:N is N.
func (w *world) rolls(revision, passed string, clusters ...string) {
	w.Helper()
	w.edits(revision)
	hash, err := workv1alpha2.TemplateHash(w.Template)
	if err != nil {
		w.Fatal(err)
	}
	r := workv1alpha2.Rollout{Revision: revision, Passed: passed, Clusters: map[string]workv1alpha2.RolloutCluster{}}
	for _, c := range clusters {
		r.Clusters[c] = workv1alpha2.RolloutCluster{}
	}
	text, err := r.Encode()
	if err != nil {
		w.Fatal(err)
	}
	a := w.Binding.GetAnnotations()
	a[workv1alpha2.AnnotationTemplate], a[workv1alpha2.AnnotationRollout] = hash, text
}

func (w *world) edits(revision string) {
	pod := w.Template.Object["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	pod["containers"].([]any)[0].(map[string]any)["image"] = "nginx:" + revision
}

func (w *world) zone(cluster, zone string) {
	w.override(cluster, policyv1alpha1.PlaintextOverrider{Path: "/metadata/labels/zone", Operator: "add", Value: apiextensionsv1.JSON{Raw: []byte(`"` + zone + `"`)}})
}

// has carries the plan out and compares what each cluster has: image, replicas and zone.
func (w *world) has(step string, want ...string) {
	w.Helper()
	if got := says(w.plan()); strings.Contains(got, "failed") {
		w.Errorf("%s: %s: %v", step, got, w.plan().Err())
	}
	w.settle()
	for i, want := range want {
		x := w.work(fmt.Sprint("m", i+1))
		u := holds(w, x)
		spec := u.Object["spec"].(map[string]any)
		got := fmt.Sprint(image(spec), " ", spec["replicas"], u.GetLabels()["zone"])
		revision := x.Annotations[workv1alpha2.AnnotationRevision]
		if got != want || revision != "" && !strings.HasPrefix(want, "nginx:"+revision+" ") {
			w.Errorf("%s: m%d has %s, revision %s, want %s", step, i+1, got, revision, want)
		}
		if x.Annotations[workv1alpha2.AnnotationTemplate] != w.Binding.GetAnnotations()[workv1alpha2.AnnotationTemplate] {
			w.Errorf("%s: the Work of m%d is not one of the binding's template", step, i+1)
		}
	}
	if got := says(w.plan()); got != "" {
		w.Errorf("%s: once more: %s", step, got)
	}
}

func TestRevisions(t *testing.T) {
	w := newWorld(t, nginx, on("m1", 2), on("m2", 2))
	w.zone("m1", "a")
	w.zone("m3", "c")
	w.rolls("1", "1")
	w.has("before the rollout", "nginx:1 2a", "nginx:1 2")
	generation := w.work("m2").Spec

	w.rolls("2", "1", "m1")
	w.has("the first wave", "nginx:2 2a", "nginx:1 2")
	if got := w.work("m2").Spec; string(got.Workload.Manifests[0].Raw) != string(generation.Workload.Manifests[0].Raw) {
		t.Errorf("the manifest of m2 changes: %s", got.Workload.Manifests[0].Raw)
	}
	w.spec.Clusters = []workv1alpha2.TargetCluster{on("m1", 3), on("m2", 3), on("m3", 1)}
	w.has("scaled, and a new cluster", "nginx:2 3a", "nginx:1 3", "nginx:1 1c")
	w.zone("m2", "b")
	w.has("an override", "nginx:2 3a", "nginx:1 3b", "nginx:1 1c")
	w.rolls("2", "1", "m1", "m2", "m3")
	w.has("all clusters, not passed", "nginx:2 3a", "nginx:2 3b", "nginx:2 1c")
	w.rolls("2", "1")
	w.has("aborted", "nginx:1 3a", "nginx:1 3b", "nginx:1 1c")
	w.rolls("3", "1", "m2")
	w.has("another revision", "nginx:1 3a", "nginx:3 3b", "nginx:1 1c")
	w.rolls("3", "3")
	w.has("passed", "nginx:3 3a", "nginx:3 3b", "nginx:3 1c")

	w.edits("4") // of which the binding has no state yet
	w.remove("m3")
	if got := says(w.plan()); got != "create m3" {
		t.Errorf("an edit that the binding does not follow leads to %q", got)
	}
	w.has("edited", "nginx:3 3a", "nginx:3 3b", "nginx:3 1c")
	w.spec.Clusters = w.spec.Clusters[:2]
	w.remove("m3")
	for _, x := range w.Works { // they lag behind the binding
		x.Annotations[workv1alpha2.AnnotationTemplate] = "former"
	}
	w.has("edited, and the Works lag", "nginx:3 3a", "nginx:3 3b")
	w.rolls("4", "3", "m1")
	w.has("and on", "nginx:4 3a", "nginx:3 3b")

	delete(w.Binding.GetAnnotations(), workv1alpha2.AnnotationRollout)
	w.has("without the annotation", "nginx:4 3a", "nginx:4 3b")
	for _, x := range w.Works {
		if a := x.Annotations; a[workv1alpha2.AnnotationRevision]+a[workv1alpha2.AnnotationKeptRevision] != "" {
			t.Errorf("%s keeps %v", x.Namespace, a)
		}
	}
}

// TestRevisionThatIsNotKept: the rollout's annotation came together with the edit, or the template
// is too large. Clusters keep the object that they have; none can return to it.
func TestRevisionThatIsNotKept(t *testing.T) {
	w := newWorld(t, nginx, on("m1", 1), on("m2", 1))
	w.zone("m2", "b")
	w.settle()
	former := w.Binding.GetAnnotations()[workv1alpha2.AnnotationTemplate]
	begin := func(clusters ...string) {
		w.rolls("2", former, clusters...)
	}
	begin("m1")
	w.spec.Clusters = []workv1alpha2.TargetCluster{on("m1", 1), on("m2", 4)}
	if got := says(w.plan()); got != "update m1, update m2" {
		t.Errorf("the rollout begins with %s", got)
	}
	w.settle()
	for cluster, want := range map[string]string{"m1": "nginx:2 1", "m2": "nginx:1 4"} {
		spec := holds(t, w.work(cluster)).Object["spec"].(map[string]any)
		if got := fmt.Sprint(image(spec), " ", spec["replicas"]); got != want {
			t.Errorf("%s has %s, want %s", cluster, got, want)
		}
	}
	w.spec.Clusters = append(w.spec.Clusters, on("m3", 1))
	w.settle()
	if got := fmt.Sprint(image(holds(t, w.work("m3")).Object["spec"].(map[string]any))); got != "nginx:1" {
		t.Errorf("a new cluster has %s", got)
	}
	begin() // aborted
	if got, err := says(w.plan()), w.plan().Err(); got != "failed m1" || !strings.Contains(err.Error(), "revision "+former+" is not kept") {
		t.Errorf("the abort leads to %q: %v", got, err)
	}

	large := make([]byte, 300<<10)
	if _, err := rand.Read(large); err != nil {
		t.Fatal(err)
	}
	l := newWorld(t, nginx, on("m1", 1))
	l.Template.SetAnnotations(map[string]string{"large": hex.EncodeToString(large)})
	l.rolls("1", "1")
	l.settle()
	if a := l.work("m1").Annotations; a[workv1alpha2.AnnotationKeptRevision] != "" || a[workv1alpha2.AnnotationRevision] != "1" {
		t.Errorf("of a template of 600 KiB the Work keeps %d bytes, revision %s", len(a[workv1alpha2.AnnotationKeptRevision]), a[workv1alpha2.AnnotationRevision])
	}
}

// TestKeptRevisionThatCannotBeRead: no Work is changed, and the error names the annotation.
func TestKeptRevisionThatCannotBeRead(t *testing.T) {
	w := newWorld(t, nginx, on("m1", 1))
	w.rolls("1", "1")
	w.settle()
	for _, text := range []string{"1:?", "1:" + hex.EncodeToString([]byte("no gzip"))} {
		w.work("m1").Annotations[workv1alpha2.AnnotationKeptRevision] = text
		w.rolls("2", "1")
		if _, err := work.DesiredWorks(&w.BindingInput); err == nil || !strings.Contains(err.Error(), "annotation pelago.io/kept-revision of the Works") {
			t.Errorf("%s: error %v", text, err)
		}
	}
}
