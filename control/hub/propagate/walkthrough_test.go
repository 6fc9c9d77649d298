package propagate_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

const halves = `
resourceSelectors:
  - {apiVersion: apps/v1, kind: Deployment, name: nginx}
placement:
  clusterAffinity: {clusterNames: [member1, member2]}
  replicaScheduling:
    replicaDivisionPreference: Weighted
    replicaSchedulingType: Divided
    weightPreference:
      staticWeightList:
        - {targetCluster: {clusterNames: [member1]}, weight: 1}
        - {targetCluster: {clusterNames: [member2]}, weight: 1}
`

// The walk-through that users know: a policy with static weights, a Deployment with two replicas.
// Rules 2.1.1 and 2.2 (a), (b).
func TestWalkthrough(t *testing.T) {
	h := newHub(t, "member1", "member2", "member3")
	h.run(nil)
	p := h.policy("nginx-propagation", halves)
	d := h.deployment("nginx", 2)
	h.Make(d)
	b := h.runs("nginx-deployment", "member1:1 member2:1")
	h.follows(d, p.Name)

	wantOwner := []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "nginx", UID: d.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}}
	if diff := cmp.Diff(wantOwner, b.OwnerReferences); diff != "" {
		t.Errorf("owner -want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{workv1alpha2.FinalizerBinding}, b.Finalizers); diff != "" {
		t.Errorf("finalizers -want +got:\n%s", diff)
	}
	if len(b.Labels[workv1alpha2.LabelBindingID]) != 36 {
		t.Errorf("permanent id %q", b.Labels[workv1alpha2.LabelBindingID])
	}
	h.follows(b, p.Name)
	want := workv1alpha2.ResourceBindingSpec{
		Resource: workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: h.ns, Name: "nginx", UID: d.UID, ResourceVersion: d.ResourceVersion},
		Replicas: 2, ReplicaRequirements: b.Spec.ReplicaRequirements,
		Clusters:  []workv1alpha2.TargetCluster{{Name: "member1", Replicas: 1}, {Name: "member2", Replicas: 1}},
		Placement: ptr.To(p.Spec.Placement), SchedulerName: policyv1alpha1.DefaultSchedulerName, ConflictResolution: policyv1alpha1.ConflictAbort,
	}
	if diff := cmp.Diff(want, b.Spec); diff != "" {
		t.Errorf("spec -want +got:\n%s", diff)
	}
	record := workv1alpha2.ReadDecision(b.Annotations)
	hash, err := workv1alpha2.SpecHash(&b.Spec)
	if err != nil || record.For != hash || record.Scheduled.IsZero() {
		t.Errorf("the record %+v is not for %s (%v)", record, hash, err)
	}

	edit(h, d, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](6) })
	b = h.runs("nginx-deployment", "member1:3 member2:3")
	if again, err := workv1alpha2.SpecHash(&b.Spec); err != nil || workv1alpha2.ReadDecision(b.Annotations).For != again || again == hash {
		t.Errorf("the record is for %s, the spec %s (%v)", workv1alpha2.ReadDecision(b.Annotations).For, again, err)
	}
}

// Creating one template is one claim and one binding: nothing is written twice or tried in vain.
// What only changes the status (rule 2.1.7) writes nothing.
func TestBudget(t *testing.T) {
	h := newHub(t, "member1", "member2")
	h.policy("nginx-propagation", halves)
	h.policy("all", selecting(", labelSelector: {matchLabels: {group: a}}", "member1", ""))
	var w writes
	h.run(w.wrap)
	want := map[string]int{}
	make := func(name, runs string, replicas int32) *appsv1.Deployment {
		d := h.deployment(name, replicas, func(d *appsv1.Deployment) { d.Labels["group"] = "a" })
		h.Make(d)
		h.runs(name+"-deployment", runs)
		want["PATCH /apis/apps/v1/deployments/"+name]++
		want["POST /apis/work.karmada.io/v1alpha2/resourcebindings"]++
		return d
	}
	d := make("nginx", "member1:1 member2:1", 2)
	for _, name := range []string{"a", "b", "c", "d"} {
		make(name, "member1:2", 2)
	}
	h.follows(d, "nginx-propagation")
	d.Status.ObservedGeneration = 1
	if err := h.Status().Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	b := h.binding("nginx-deployment")
	b.Status.AggregatedStatus = []workv1alpha2.AggregatedStatusItem{{ClusterName: "member1", Applied: true}}
	if err := h.Status().Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	make("e", "member1:1", 1) // comes after what must write nothing
	got := map[string]int{}
	for _, s := range w.in(h.ns) {
		got[s]++
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("writes -want +got:\n%s", diff)
	}
}
