package propagate_test

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/test/await"
)

// Karmada: a decision that would exceed the quota of the namespace is not made, with the
// reason; what runs stays, also under a quota below the use, and a restart knows the use; a larger
// quota has the waiting ones decided.
func TestQuotaExceeded(t *testing.T) {
	h := newHub(t, "member1", "member2")
	stop := h.run(nil)
	h.policy("all", `{resourceSelectors: [{apiVersion: apps/v1, kind: Deployment}],
		placement: {replicaScheduling: {replicaSchedulingType: Divided, replicaDivisionPreference: Weighted}}}`)
	core := func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1")}
	}
	quota := &policyv1alpha1.FederatedResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: h.ns, Name: "shop"},
		Spec: policyv1alpha1.FederatedResourceQuotaSpec{Overall: corev1.ResourceList{"cpu": resource.MustParse("6")}}}
	h.Make(quota)
	scale := func(d *appsv1.Deployment, to int32) {
		t.Helper()
		edit(h, d, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To(to) })
	}
	web, second := h.deployment("web", 4, core), h.deployment("second", 3, core)
	h.Make(web)
	h.runs("web-deployment", "member1:2 member2:2")
	h.Make(second)
	b := h.runs("second-deployment", "QuotaExceeded")
	d := workv1alpha2.ReadDecision(b.Annotations)
	if want := "quota shop: exceeded by 3 more cpu, of at most 6: raise spec.overall of the FederatedResourceQuota, or scale down (its status has the use)"; d.Message != want {
		t.Errorf("message %q, want %q", d.Message, want)
	}
	scale(web, 7)
	h.runs("web-deployment", "member1:2 member2:2 QuotaExceeded")
	scale(web, 2)
	h.runs("web-deployment", "member1:1 member2:1")
	await.Equal(t, 3, func() int32 { // there is room now
		n := int32(0)
		for _, c := range h.binding("second-deployment").Spec.Clusters {
			n += c.Replicas
		}
		return n
	})

	// Below the use: nothing goes, fewer are allowed, more are not.
	edit(h, quota, func(q *policyv1alpha1.FederatedResourceQuota) { q.Spec.Overall["cpu"] = resource.MustParse("1") })
	stop()
	h.run(nil)
	scale(second, 4)
	await.Equal(t, workv1alpha2.ReasonQuotaExceeded, func() string { return workv1alpha2.ReadDecision(h.binding("second-deployment").Annotations).Reason })
	h.runs("web-deployment", "member1:1 member2:1")
	scale(second, 2)
	h.runs("second-deployment", "member1:1 member2:1")
	scale(web, 4)
	h.runs("web-deployment", "member1:1 member2:1 QuotaExceeded")
	await.Never(t, 500*time.Millisecond, "the message is written again and again", func() bool {
		return h.binding("web-deployment").ResourceVersion != h.runs("web-deployment", "member1:1 member2:1 QuotaExceeded").ResourceVersion
	})
	h.Remove(quota)
	h.runs("web-deployment", "member1:2 member2:2")
}

// overQuota makes the Deployment web with as many replicas as a quota allows, which run in places,
// and then scales it to more.
func (h *hub) overQuota(replicas, more int32, places string) *policyv1alpha1.FederatedResourceQuota {
	h.Helper()
	quota := &policyv1alpha1.FederatedResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: h.ns, Name: "shop"},
		Spec: policyv1alpha1.FederatedResourceQuotaSpec{Overall: corev1.ResourceList{"pods": *resource.NewQuantity(int64(replicas), resource.DecimalSI)}}}
	h.Make(quota)
	web := h.deployment("web", replicas)
	h.Make(web)
	h.runs("web-deployment", places)
	edit(h, web, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To(more) })
	h.runs("web-deployment", places+" QuotaExceeded")
	return quota
}

// More replicas than the quota allows do not keep those that run from failing over; they stay
// pending.
func TestFailoverWhileReplicasArePending(t *testing.T) {
	h := readyHub(t, "member1", "member2", "member3")
	h.run(nil)
	h.policy("web", dividing("member1, member2, member3", "{cluster: {purgeMode: Gracefully}}"))
	quota := h.overQuota(6, 10, "member1:2 member2:2 member3:2")
	h.taint("member1", corev1.TaintEffectNoExecute)
	b := h.runs("web-deployment", "member2:3 member3:3 QuotaExceeded")
	if got := h.tasks("web-deployment"); !strings.Contains(got, "member1") {
		t.Errorf("tasks %q, want one for member1", got)
	}
	if d := workv1alpha2.ReadDecision(b.Annotations); d.Held != "" || !strings.Contains(d.Message, "quota shop: exceeded by 4 more pods") {
		t.Errorf("record %+v", d)
	}
	edit(h, quota, func(q *policyv1alpha1.FederatedResourceQuota) { q.Spec.Overall["pods"] = resource.MustParse("10") })
	h.runs("web-deployment", "member2:5 member3:5")
}

// With purge mode Directly they get the cluster back once its copy is gone: an eviction without end
// would keep them from it.
func TestPendingReplicasGetTheClusterBack(t *testing.T) {
	h := readyHub(t, "member1", "member2")
	h.run(nil)
	h.policy("web", dividing("member1, member2", "{cluster: {purgeMode: Directly}}"))
	quota := h.overQuota(4, 6, "member1:2 member2:2")
	h.ready("member1", metav1.ConditionUnknown)
	h.runs("web-deployment", "member2:4 QuotaExceeded")
	h.reports("web-deployment")
	h.ready("member1", metav1.ConditionTrue)
	await.Never(t, 500*time.Millisecond, "the eviction ends before the copy is gone", func() bool { return h.tasks("web-deployment") == "" })
	await.True(t, "the status says that the copy is gone", func() bool {
		b := h.binding("web-deployment")
		meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: workv1alpha2.ConditionFullyApplied, Status: metav1.ConditionTrue,
			Reason: workv1alpha2.ReasonFullyAppliedSuccess, ObservedGeneration: b.Generation})
		return h.Status().Update(h.Context(), b) == nil
	})
	await.Equal(t, "", func() string { return h.tasks("web-deployment") })
	edit(h, quota, func(q *policyv1alpha1.FederatedResourceQuota) { q.Spec.Overall["pods"] = resource.MustParse("6") })
	h.runs("web-deployment", "member1:3 member2:3")
}

// Requests that are raised count like replicas: what exceeds the quota does not reach the members,
// with the reason, and what runs stays. Divided and duplicated.
func TestQuotaOfRaisedRequests(t *testing.T) {
	for name, c := range map[string]struct{ placement, places string }{
		"divided":    {`{replicaScheduling: {replicaSchedulingType: Divided, replicaDivisionPreference: Weighted}}`, "member1:2 member2:2"},
		"duplicated": {`{}`, "member1:4 member2:4"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t, "member1", "member2")
			h.run(nil)
			h.policy("all", `{resourceSelectors: [{apiVersion: apps/v1, kind: Deployment}], placement: `+c.placement+`}`)
			requests := func(cpu string) func(*appsv1.Deployment) {
				return func(d *appsv1.Deployment) {
					d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse(cpu)}
				}
			}
			quota := &policyv1alpha1.FederatedResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: h.ns, Name: "shop"},
				Spec: policyv1alpha1.FederatedResourceQuotaSpec{Overall: corev1.ResourceList{"cpu": resource.MustParse("4")}}}
			h.Make(quota)
			web := h.deployment("web", 4, requests("1m"))
			h.Make(web)
			before := h.runs("web-deployment", c.places)
			edit(h, web, requests("16"))
			b := h.runs("web-deployment", c.places+" QuotaExceeded")
			if was, is := before.Annotations[workv1alpha2.AnnotationTemplate], b.Annotations[workv1alpha2.AnnotationTemplate]; was != is {
				t.Errorf("the binding follows the template: Works would be made of it")
			}
			if cpu := b.Spec.ReplicaRequirements.ResourceRequest["cpu"]; cpu.String() != "1m" {
				t.Errorf("the binding requests %s for each replica, want 1m", &cpu)
			}
			if d := workv1alpha2.ReadDecision(b.Annotations); !strings.Contains(d.Message, "quota shop: exceeded by") {
				t.Errorf("message %q", d.Message)
			}
			edit(h, web, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To(int32(0)) })
			h.runs("web-deployment", "member1:0 member2:0")
			edit(h, web, func(d *appsv1.Deployment) { requests("100m")(d); d.Spec.Replicas = ptr.To(int32(4)) })
			h.runs("web-deployment", c.places)
			edit(h, web, requests("600m"))
			if name == "divided" { // 2.4 of 4 cores
				await.Equal(t, "600m", func() string {
					cpu := h.binding("web-deployment").Spec.ReplicaRequirements.ResourceRequest["cpu"]
					return cpu.String()
				})
				return
			}
			h.runs("web-deployment", c.places+" QuotaExceeded") // 4.8 of 4
			edit(h, quota, func(q *policyv1alpha1.FederatedResourceQuota) { q.Spec.Overall["cpu"] = resource.MustParse("5") })
			h.runs("web-deployment", c.places)
		})
	}
}
