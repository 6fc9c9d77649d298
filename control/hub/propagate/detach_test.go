package propagate_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/work"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// runWorks starts the controller that makes Works of bindings.
func (h *hub) runWorks() (stop func()) {
	h.Helper()
	return apiserver.Manager{
		Scheme: h.Scheme(), Cache: cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		Setup: []func(ctrl.Manager) error{work.AddIndexes, func(m ctrl.Manager) error {
			return work.SetupBindings(m, work.BindingOptions{HubID: "hub", Interpreter: kinds.New()})
		}},
	}.Run(h, h.Config)
}

// execution makes the execution namespaces of members, and removes their Works after the test.
func (h *hub) execution(members ...string) {
	h.Helper()
	for _, m := range members {
		err := h.Create(h.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: workv1alpha2.ExecutionNamespace(m)}})
		if err != nil && !apierrors.IsAlreadyExists(err) { // of a test before
			h.Fatal(err)
		}
	}
}

// held returns the Works that hold objects of a kind, by member/name. Works that are being deleted
// end.
func (h *hub) held(kind string) map[string]types.UID {
	h.Helper()
	var all workv1alpha1.WorkList
	if err := h.List(h.Context(), &all, client.HasLabels{workv1alpha1.LabelWorkID}); err != nil {
		h.Fatal(err)
	}
	out := map[string]types.UID{}
	for i := range all.Items {
		w := &all.Items[i]
		if id, ok := work.OfWork(w); ok && id.Kind == kind && id.Namespace == h.ns {
			cluster, _ := workv1alpha2.ClusterOfNamespace(w.Namespace)
			out[cluster+"/"+id.Name] = w.UID
			if w.DeletionTimestamp != nil {
				h.release(w)
			}
		}
	}
	return out
}

// An object that a template depends on leaves the members when the last template that uses it does
// so no longer.
func TestDependentLeavesMembers(t *testing.T) {
	unused := func(d *appsv1.Deployment) { d.Spec.Template.Spec.Volumes = nil }
	for name, end := range map[string]func(h *hub, b *appsv1.Deployment, stop, stopWorks func()){
		"while the hub runs": func(h *hub, b *appsv1.Deployment, _, _ func()) { edit(h, b, unused) },
		"while the hub does not run": func(h *hub, b *appsv1.Deployment, stop, stopWorks func()) {
			stop()
			stopWorks()
			edit(h, b, unused)
			h.run(nil)
			h.runWorks()
		},
		"before a restart of the hub": func(h *hub, b *appsv1.Deployment, stop, stopWorks func()) {
			stopWorks()
			edit(h, b, unused)
			await.True(h, "the binding is deleted", func() bool { return h.binding("config-configmap").DeletionTimestamp != nil })
			stop()
			h.runWorks()
			h.run(nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t, "member1", "member2")
			h.execution("member1", "member2")
			stop, stopWorks := h.run(nil), h.runWorks()
			h.policy("first", selecting(", name: a", "member1, member2", ", propagateDeps: true"))
			h.policy("second", selecting(", name: b", "member2", ", propagateDeps: true"))
			a, b := h.deployment("a", 1, needs("config")), h.deployment("b", 1, needs("config"))
			h.Make(h.configMap("config"), a, b)
			configs := func() []string { return slices.Sorted(maps.Keys(h.held("ConfigMap"))) }
			await.Equal(t, []string{"member1/config", "member2/config"}, configs)
			await.Equal(t, "a-deployment:member1,member2 b-deployment:", func() string { return required(h.binding("config-configmap")) })
			edit(h, a, unused)
			await.Equal(t, []string{"member2/config"}, configs)
			end(h, b, stop, stopWorks)
			await.Equal(t, nil, configs)
			await.True(t, "the binding is gone", func() bool { return h.binding("config-configmap") == nil })
		})
	}
}

// A binding that a user deletes leaves its Works to the next one of its template.
func TestDependentBindingDeletedByUser(t *testing.T) {
	h := newHub(t, "member1")
	h.execution("member1")
	h.run(nil)
	stopWorks := h.runWorks()
	h.policy("first", selecting("", "member1", ", propagateDeps: true"))
	h.Make(h.configMap("config"), h.deployment("a", 1, needs("config")))
	await.True(t, "the Work is made", func() bool { return h.held("ConfigMap")["member1/config"] != "" })
	of := h.held("ConfigMap")
	before := h.binding("config-configmap")
	stopWorks()
	h.Remove(before)
	h.runWorks()
	await.True(t, "the binding is made again", func() bool { now := h.binding("config-configmap"); return now != nil && now.UID != before.UID })
	await.Equal(t, "a-deployment:member1", func() string { return required(h.binding("config-configmap")) })
	if diff := cmp.Diff(of, h.held("ConfigMap")); diff != "" {
		t.Errorf("Works -before +after:\n%s", diff)
	}
}
