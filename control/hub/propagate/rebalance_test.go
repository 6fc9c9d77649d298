package propagate_test

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	appsv1alpha1 "github.com/pelago-net/pelago/api/apps/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/placement"
	"github.com/pelago-net/pelago/control/hub/propagate"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// Karmada, WorkloadRebalancer: each workload is scheduled once more, also right after it
// was; the result is written; a finished one is deleted after its time.
func TestWorkloadRebalancer(t *testing.T) {
	h := newHub(t, "member1")
	apiserver.Manager{
		Scheme: h.Scheme(), Cache: cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		Setup: []func(ctrl.Manager) error{func(m ctrl.Manager) error {
			return propagate.Setup(m, propagate.Options{Interpreter: kinds.New(), Capacity: placement.NewCache(placement.CacheOptions{})})
		}, propagate.SetupRebalancer},
	}.Run(t, h.Config)
	h.policy("copies", `{resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, name: copies}]}`)
	h.policy("parts", `{resourceSelectors: [{apiVersion: apps/v1, kind: Deployment}],
		placement: {replicaScheduling: {replicaSchedulingType: Divided, replicaDivisionPreference: Weighted}}}`)
	h.Make(h.deployment("web", 2), h.deployment("idle", 2), h.deployment("copies", 1))
	h.runs("web-deployment", "member1:2")
	h.runs("idle-deployment", "member1:2")
	h.join("member2")
	h.runs("copies-deployment", "member1:1 member2:1") // it is known
	of := func(name string) appsv1alpha1.ObjectReference {
		return appsv1alpha1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: h.ns, Name: name}
	}
	w := &appsv1alpha1.WorkloadRebalancer{ObjectMeta: metav1.ObjectMeta{Name: h.ns}, Spec: appsv1alpha1.WorkloadRebalancerSpec{
		Workloads: []appsv1alpha1.ObjectReference{of("web"), of("absent"), {APIVersion: "a/b/c", Kind: "Deployment", Name: "web"}}}}
	h.Make(w)
	results := func() string {
		if err := h.Get(h.Context(), keyFor(w), w); err != nil {
			h.Fatal(err)
		}
		text := ""
		if w.Status.FinishTime != nil && w.Status.ObservedGeneration == w.Generation {
			for _, o := range w.Status.ObservedWorkloads {
				text += o.Workload.Name + "=" + string(o.Result) + string(o.Reason) + " "
			}
		}
		return text
	}
	const notFound = "=FailedReferencedBindingNotFound "
	await.Equal(t, "web"+notFound+"absent"+notFound+"web=Successful ", results)
	h.runs("web-deployment", "member1:1 member2:1")
	asked := func() *metav1.Time { return h.binding("web-deployment").Spec.RescheduleTriggeredAt }
	first := asked()
	if !first.Equal(&w.CreationTimestamp) {
		t.Errorf("asked at %s, want the creation time %s of the rebalancer", first, w.CreationTimestamp)
	}
	// Another workload, and one less: only the new one is scheduled again.
	edit(h, w, func(w *appsv1alpha1.WorkloadRebalancer) {
		w.Spec.Workloads = []appsv1alpha1.ObjectReference{of("idle")}
	})
	await.Equal(t, "idle=Successful web=Successful ", results)
	h.runs("idle-deployment", "member1:1 member2:1")
	if again := asked(); !again.Equal(first) {
		t.Errorf("web was scheduled once more, at %s, first at %s", again, first)
	}
	edit(h, w, func(w *appsv1alpha1.WorkloadRebalancer) { w.Spec.TTLSecondsAfterFinished = ptr.To[int32](0) })
	await.True(t, "it is deleted", func() bool { return apierrors.IsNotFound(h.Get(h.Context(), keyFor(w), w)) })
	if d := workv1alpha2.ReadDecision(h.binding("web-deployment").Annotations); d.Reason != workv1alpha2.ReasonSuccess {
		t.Errorf("decision %+v", d)
	}
}
