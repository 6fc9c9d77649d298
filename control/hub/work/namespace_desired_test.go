package work_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/work"
	"github.com/pelago-net/pelago/control/kinds"
)

// TestGoes: synchronized and reserved namespaces, as in Karmada.
func TestGoes(t *testing.T) {
	for _, c := range []struct {
		name   string
		labels map[string]string
		ending bool
		want   string // without opt-in, with
	}{
		{name: "web", want: "true false"},
		{name: "web", labels: map[string]string{"pelago.io/propagate": "true"}, want: "true true"},
		{name: "web", labels: map[string]string{"pelago.io/propagate": "no"}, want: "true false"},
		{name: "web", labels: map[string]string{"namespace.karmada.io/skip-auto-propagation": "true"}, want: "false false"},
		{name: "web", labels: map[string]string{"namespace.karmada.io/skip-auto-propagation": "false"}, want: "true false"},
		{name: "web", ending: true, labels: map[string]string{"pelago.io/propagate": "true"}, want: "false false"},
		{name: "default", labels: map[string]string{"pelago.io/propagate": "true"}, want: "false false"},
		{name: "kube-system", labels: map[string]string{"pelago.io/propagate": "true"}, want: "false false"},
		{name: "karmada-es-m1", labels: map[string]string{"pelago.io/propagate": "true"}, want: "false false"},
		{name: "pelago-system", labels: map[string]string{"pelago.io/propagate": "true"}, want: "false false"},
	} {
		ns := &metav1.ObjectMeta{Name: c.name, Labels: c.labels}
		if c.ending {
			ns.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		}
		if got := fmt.Sprint(work.Propagated(ns, false), work.Propagated(ns, true)); got != c.want {
			t.Errorf("%s %v: got %s, want %s", c.name, c.labels, got, c.want)
		}
	}
}

// TestWork: the whole of what a cluster gets of a namespace.
func TestNamespaceWork(t *testing.T) {
	ns := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: "web", UID: "n1", CreationTimestamp: metav1.Time{Time: time.Unix(1, 0)}, Finalizers: []string{"example.com/hub"},
		Labels: map[string]string{"kubernetes.io/metadata.name": "web", "team": "a"},
	}}
	in := &work.NamespaceInput{
		Interpreter: kinds.New(), HubID: "hub", Namespace: ns, NewID: func() string { return "w1" },
		Clusters: map[string]*clusterv1alpha1.Cluster{"m1": {ObjectMeta: metav1.ObjectMeta{Name: "m1"}, Spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Push}}},
		Works:    map[string]*workv1alpha1.Work{},
		Names:    work.Names{Of: workv1alpha2.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: "web"}},
	}
	plan := work.DesiredNamespaceWorks(in)
	if len(plan.Create) != 1 || len(plan.Update)+len(plan.Failed) > 0 {
		t.Fatalf("the plan is %+v", plan)
	}
	created := plan.Create[0]
	raw, err := yaml.JSONToYAML(created.Spec.Workload.Manifests[0].Raw)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]any{}
	if err := yaml.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	annotations := map[string]any{
		"pelago.io/hub-id": "hub", "resourcetemplate.karmada.io/uid": "n1", "resourcetemplate.karmada.io/generation": "0",
		"resourcetemplate.karmada.io/managed-labels": "karmada.io/managed,team,work.karmada.io/permanent-id",
		"resourcetemplate.karmada.io/managed-annotations": "pelago.io/hub-id,resourcetemplate.karmada.io/generation," +
			"resourcetemplate.karmada.io/managed-annotations,resourcetemplate.karmada.io/managed-labels,resourcetemplate.karmada.io/uid," +
			"work.karmada.io/conflict-resolution,work.karmada.io/name,work.karmada.io/namespace",
		"work.karmada.io/conflict-resolution": "abort", "work.karmada.io/name": created.Name, "work.karmada.io/namespace": "karmada-es-m1",
	}
	want := map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{
		"name": "web", "annotations": annotations,
		"labels": map[string]any{"team": "a", "karmada.io/managed": "true", "work.karmada.io/permanent-id": "w1"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	// One that a binding made before is taken over as it is.
	created.UID, created.Name = "u1", "as-it-was"
	created.Annotations = map[string]string{workv1alpha2.AnnotationClusterBindingName: "web-namespace"}
	in.Works["m1"] = created
	plan = work.DesiredNamespaceWorks(in)
	if len(plan.Update) != 1 || plan.Update[0].UID != "u1" || work.OfBinding(plan.Update[0]) {
		t.Errorf("the plan for a binding's Work is %+v", plan)
	}
	in.Works["m1"] = plan.Update[0]
	if plan = work.DesiredNamespaceWorks(in); len(plan.Update)+len(plan.Create) > 0 {
		t.Errorf("and then still %+v", plan)
	}
}
