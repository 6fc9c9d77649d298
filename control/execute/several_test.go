package execute

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// TestSeveralManifests: each manifest of a Work is an object with its own status; what fails for one
// stops no other, and what the Work no longer holds is deleted.
func TestSeveralManifests(t *testing.T) {
	member := apiserver.Start(t, apiserver.Controllers("namespace-controller"))
	const first, second, third = "{apiVersion: v1, kind: Namespace, metadata: {name: NS-own}}",
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: NS-own}, data: {a: '1'}}",
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: d, namespace: NS}, data: {a: '1'}}"
	several := func(l *lab, manifests ...string) (all []workv1alpha1.Manifest) {
		for _, m := range manifests {
			all = append(all, l.manifests(m)...)
		}
		return all
	}
	statuses := func(l *lab) func() string {
		return func() string {
			var out []string
			for _, s := range l.see("w").Status.ManifestStatuses {
				out = append(out, fmt.Sprintf("%d %s %s %s", s.Identifier.Ordinal, s.Identifier.Kind, strings.ReplaceAll(s.Identifier.Name, l.ns, "NS"), s.Health))
			}
			return strings.Join(out, ", ")
		}
	}

	t.Run("all are applied in their order, kept as they are, and deleted with the Work", func(t *testing.T) {
		l := newLab(t, member)
		l.run()
		// as users write them
		l.work("w", first, func(w *workv1alpha1.Work) {
			w.Finalizers, w.Spec.Workload.Manifests = nil, several(l, first, second, third)
		})
		l.applied("w")
		if _, message := l.condition("w", workv1alpha1.ConditionApplied); message != "all 3 manifests are applied" {
			t.Error(message)
		}
		await.Equal(t, "0 Namespace NS-own Healthy, 1 ConfigMap c Healthy, 2 ConfigMap d Healthy", statuses(l))
		l.patch(third, "kubectl-edit", `{"data":{"a":"2"}}`)
		await.Equal(t, "map[a:1]", func() string { return value(l.there(third), "data") })
		l.member.Remove(l.object(second))
		await.True(t, "the second object is there again", func() bool { return l.find(second) != nil })

		w := l.see("w")
		l.hub.Remove(w)
		await.True(t, "the Work is gone", func() bool { return apierrors.IsNotFound(l.hub.Get(t.Context(), client.ObjectKeyFromObject(w), w)) })
		if l.find(second) != nil || l.find(third) != nil {
			t.Error("objects remain")
		}
		if n := len(l.execution.states.names()); n != 0 {
			await.Equal(t, 0, func() int { return len(l.execution.states.names()) })
		}
	})

	t.Run("what fails stops no other, and is named", func(t *testing.T) {
		l := newLab(t, member)
		l.run()
		l.foreign(third, "somebody")
		l.work("w", first, func(w *workv1alpha1.Work) {
			w.Spec.Workload.Manifests = several(l, third, "{apiVersion: v1, kind: ConfigMap, metadata: {}}", first, second, second)
		})
		l.failed("w", "manifest 0: ", "not managed by the hub", "manifest 1: the manifest, a ConfigMap, is no object with a name",
			"manifest 4: ", "is manifest 3 as well")
		await.Equal(t, "2 Namespace NS-own Healthy, 3 ConfigMap c Healthy", statuses(l))
	})

	t.Run("what is removed from the Work is deleted, but for Namespaces", func(t *testing.T) {
		l := newLab(t, member)
		l.run()
		l.work("w", first, func(w *workv1alpha1.Work) { w.Spec.Workload.Manifests = several(l, first, second, third) })
		l.applied("w")
		await.Equal(t, "0 Namespace NS-own Healthy, 1 ConfigMap c Healthy, 2 ConfigMap d Healthy", statuses(l))
		l.edit("w", func(w *workv1alpha1.Work) { w.Spec.Workload.Manifests = several(l, third) })
		l.applied("w")
		await.Equal(t, "0 ConfigMap d Healthy", statuses(l))
		if l.find(second) != nil {
			t.Error("the second object remains")
		}
		if u := l.there(first); u.GetLabels()["karmada.io/managed"] != "" {
			t.Errorf("the Namespace has labels %v", u.GetLabels())
		}
		if diff := cmp.Diff([]string{"w"}, l.execution.states.names()); diff != "" {
			t.Error(diff)
		}
	})

	t.Run("while a manifest cannot be read, nothing is deleted", func(t *testing.T) {
		l := newLab(t, member)
		l.run()
		l.work("w", first, func(w *workv1alpha1.Work) { w.Spec.Workload.Manifests = several(l, first, second) })
		l.applied("w")
		await.Equal(t, "0 Namespace NS-own Healthy, 1 ConfigMap c Healthy", statuses(l))
		uid := l.there(second).GetUID()
		l.edit("w", func(w *workv1alpha1.Work) {
			w.Spec.Workload.Manifests = several(l, first, "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: NS-own}}")
		})
		l.failed("w", "manifest 1: the manifest, a ConfigMap, is no object with a name")
		if l.there(second).GetUID() != uid {
			t.Error("the object was deleted")
		}
	})

	t.Run("none", func(t *testing.T) {
		l := newLab(t, member)
		l.run()
		l.work("w", third, func(w *workv1alpha1.Work) { w.Spec.Workload.Manifests = nil })
		l.failed("w", "the Work holds no manifest")
	})
}

// With AllEvents statuses and health are on the Work, what was applied is on the template.
func TestEventsOnSuccess(t *testing.T) {
	object := ofKind(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"})
	object.SetName("c")
	object.SetAnnotations(map[string]string{workv1alpha2.AnnotationTemplateUID: "u"})
	before := &workv1alpha1.Work{}
	before.Spec.Workload.Manifests = []workv1alpha1.Manifest{{}}
	o := outcome{found: []found{{object: object}, {object: ofKind(object.GroupVersionKind())}, {}}}
	status := workv1alpha1.ManifestStatus{Identifier: workv1alpha1.ResourceIdentifier{Version: "v1", Kind: "ConfigMap", Name: "c"},
		Status: &runtime.RawExtension{Raw: []byte("{}")}, Health: workv1alpha1.ResourceHealthy}
	events := record.NewFakeRecorder(20)
	after := &workv1alpha1.Work{Status: statusOf(before, o, []workv1alpha1.ManifestStatus{status})}
	x := &task{Execution: &Execution{o: Options{Cluster: "m1", Recorder: events, AllEvents: true}}, work: after}
	x.recordEvents(before, o)
	x.recordEvents(after, o) // nothing has changed
	close(events.Events)
	var got []string
	for e := range events.Events {
		got = append(got, e)
	}
	want := []string{"Normal SyncSucceed the manifest is applied", "Normal ReflectStatusSucceed the status of ConfigMap c is read",
		"Normal InterpretHealthSucceed ConfigMap c is Healthy", "Normal SyncSucceed cluster m1: the manifest is applied",
		"Normal WorkDispatching cluster m1: " + workv1alpha1.MessageDispatching, "Normal WorkDispatching " + workv1alpha1.MessageDispatching}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
