package work_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/test/await"
)

// TestUserDeletesAWork: it is made again, but not before it is gone; one that a user changes is put
// right.
func TestUserDeletesAWork(t *testing.T) {
	h := newHub(t)
	d := deployment("again")
	h.Make(d)
	h.Make(bindingOf(d, "apps/v1", "Deployment", "b1", on("m1", 1)))
	h.run(&writes{})
	h.becomes("again", map[string]string{"m1": "1 replicas of nginx:1"})
	before := h.works("again")["m1"]
	before.Spec.SuspendDispatching = ptr.To(true)
	if err := h.Update(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the Work is put right", func() bool { return h.works("again")["m1"].Spec.SuspendDispatching == nil })
	h.Remove(h.works("again")["m1"])
	await.True(t, "the Work is made again", func() bool {
		h.end("again")
		uids := slices.Collect(maps.Values(h.uids("again")))
		return len(uids) == 1 && uids[0] != before.UID
	})
}

// TestOrphans: a Work whose binding does not exist is counted and told of, and stays; one whose
// binding comes is like any other.
func TestOrphans(t *testing.T) {
	h := newHub(t)
	lost, late := deployment("lost"), deployment("late")
	h.Make(late)
	for _, d := range []*appsv1.Deployment{lost, late} {
		raw, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		w := &workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-es-m1", Name: d.Name}}
		w.Annotations = map[string]string{
			workv1alpha2.AnnotationBindingNamespace: "default", workv1alpha2.AnnotationBindingName: d.Name + "-deployment",
		}
		w.Spec.Workload.Manifests = []workv1alpha1.Manifest{{RawExtension: runtime.RawExtension{
			Raw: bytes.Replace(raw, []byte("{"), []byte(`{"apiVersion":"apps/v1","kind":"Deployment",`), 1)}}}
		h.Make(w)
	}
	wrote := &writes{}
	h.run(wrote)
	await.Equal(t, map[string]int{"lost": 1, "late": 1}, h.orphans)
	await.Equal(t, 2.0, func() float64 { return orphaned(t, "m1") })
	h.Make(bindingOf(late, "apps/v1", "Deployment", "b1", on("m1", 1)))
	h.becomes("late", map[string]string{"m1": "1 replicas of nginx:1"})
	await.Equal(t, 1.0, func() float64 { return orphaned(t, "m1") })
	if got := wrote.all(); len(got) != 1 || !strings.Contains(got[0], "karmada-es-m1/late") {
		t.Errorf("writes %v, want only that of the Work whose binding came", got)
	}
	h.Remove(h.works("lost")["m1"])
	await.Equal(t, 0.0, func() float64 { return orphaned(t, "m1") })
	if diff := cmp.Diff(map[string]int{"lost": 1, "late": 1}, h.orphans()); diff != "" {
		t.Errorf("Events, -want +got:\n%s", diff)
	}
}

// orphans counts the Events of orphaned Works by the Works' names. Each reports what to do.
func (h hub) orphans() map[string]int {
	h.Helper()
	var all corev1.EventList
	if err := h.List(h.Context(), &all, client.InNamespace("karmada-es-m1")); err != nil {
		h.Fatal(err)
	}
	out := map[string]int{}
	for _, e := range all.Items {
		if e.Reason != workv1alpha2.EventWorkOrphaned || e.InvolvedObject.Name != "lost" && e.InvolvedObject.Name != "late" {
			continue // another test's, at this server
		}
		out[e.InvolvedObject.Name] += int(e.Count)
		want := "-deployment, for which it was made, does not exist; cluster m1 keeps"
		if !strings.HasPrefix(e.Message, "ResourceBinding default/"+e.InvolvedObject.Name+want) || !strings.Contains(e.Message, "delete this Work") {
			h.Errorf("message %q", e.Message)
		}
	}
	return out
}

// orphaned is the metric of a cluster, 0 if none exists.
func orphaned(t *testing.T, cluster string) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "pelago_orphaned_works" && m.GetLabel()[0].GetValue() == cluster {
				return m.GetGauge().GetValue()
			}
		}
	}
	return 0
}
