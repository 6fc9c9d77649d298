package propagate_test

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/propagate"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/test/await"
)

type policyObject = policyv1alpha1.PropagationPolicy

// What cannot be decided does not keep a cluster from being removed, which waits until no binding
// names it (rule 2.2 (e)). Neither do bindings of a template that was deleted with
// --cascade=orphan, or that a MultiClusterService has taken.
func TestClusterLeaves(t *testing.T) {
	h := newHub(t, "member1", "member2")
	stop := h.run(nil)
	h.policy("all", `{resourceSelectors: [{apiVersion: apps/v1, kind: Deployment}], placement: {replicaScheduling: {replicaSchedulingType: Divided}}}`)
	h.Make(h.deployment("web", 2))
	h.runs("web-deployment", "member1:1 member2:1")
	orphan, taken := h.deployment("orphan", 2), h.deployment("taken", 2)
	h.Make(orphan, taken)
	h.runs("taken-deployment", "member1:1 member2:1")
	b := h.runs("orphan-deployment", "member1:1 member2:1")
	stop() // else it owns the binding again
	edit(h, b, func(b *workv1alpha2.ResourceBinding) { b.OwnerReferences = nil })
	h.Remove(orphan)
	h.run(nil)
	edit(h, taken, func(d *appsv1.Deployment) { d.Labels[workv1alpha2.LabelClaimedBy] = "taken" })
	for _, c := range []struct{ leaves, runs, stays string }{{"member1", "member2:2", "member2:1"}, {"member2", "NoClusterFit", ""}} {
		member := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: c.leaves}}
		edit(h, member, func(m *clusterv1alpha1.Cluster) { m.Finalizers = []string{"example.com/wait"} })
		h.Remove(member)
		h.runs("web-deployment", c.runs)
		h.runs("orphan-deployment", c.stays)
		h.runs("taken-deployment", c.stays)
	}
}

// A template without namespace has a ClusterResourceBinding.
func TestTemplateWithoutNamespace(t *testing.T) {
	h := newHub(t, "member1")
	h.run(nil)
	name := "reader-" + h.ns
	h.widePolicy("roles-"+h.ns, `{resourceSelectors: [{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, name: `+name+`}]}`)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}}
	h.Make(role)
	var b workv1alpha2.ClusterResourceBinding
	await.Equal(t, "member1", func() string {
		if err := h.Get(t.Context(), keyFor(&workv1alpha2.ClusterResourceBinding{ObjectMeta: metav1.ObjectMeta{Name: name + "-clusterrole"}}), &b); err != nil {
			return err.Error()
		}
		return b.Spec.Clusters[0].Name
	})
	h.follows(role, "roles-"+h.ns)
	h.follows(&b, "roles-"+h.ns)
	h.Remove(role)
}

// A cluster that joins, or loses a taint, gets what is duplicated, and nothing that is divided
// (rule 2.2).
func TestClustersChange(t *testing.T) {
	h := newHub(t, "member1")
	h.run(nil)
	h.policy("copies", `{resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, labelSelector: {matchLabels: {app: copies}}}]}`)
	h.policy("parts", `{resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, labelSelector: {matchLabels: {app: parts}}}],
		placement: {replicaScheduling: {replicaSchedulingType: Divided}}}`)
	copies, parts := h.deployment("copies", 2), h.deployment("parts", 2)
	h.Make(copies, parts)
	h.runs("copies-deployment", "member1:2")
	h.runs("parts-deployment", "member1:2")
	m2 := h.join("member2", clusterv1alpha1.Taint{Key: "busy", Effect: "NoSchedule"})
	h.join("member3")
	h.runs("copies-deployment", "member1:2 member3:2")
	edit(h, m2, func(c *clusterv1alpha1.Cluster) { c.Spec.Taints = nil })
	h.runs("copies-deployment", "member1:2 member2:2 member3:2")
	if got := where(h.binding("parts-deployment")); got != "member1:2" {
		t.Errorf("what is divided has moved: %s", got)
	}
	b := h.binding("parts-deployment")
	// by a clock that goes before
	asked := metav1.NewTime(time.Now().Add(5 * time.Second).Truncate(time.Second))
	edit(h, b, func(b *workv1alpha2.ResourceBinding) { b.Spec.RescheduleTriggeredAt = &asked })
	await.True(t, "a rebalancing spreads it", func() bool { return len(h.binding("parts-deployment").Spec.Clusters) == 2 })
}

// Karmada: a workload with the affinity of its group goes where the others are, one with
// anti-affinity elsewhere; the record reports why, what runs stays, also after a restart, and one
// that waits is decided when the others have gone.
func TestWorkloadAffinity(t *testing.T) {
	h := newHub(t, "member1", "member2")
	stop := h.run(nil)
	placed := func(by, placement string) string {
		return "{resourceSelectors: [{apiVersion: apps/v1, kind: Deployment" + by + "}], placement: " + placement + "}"
	}
	h.policy("first", placed(", name: first", "{workloadAffinity: {affinity: {groupByLabelKey: team}, antiAffinity: {groupByLabelKey: db}}, clusterAffinity: {clusterNames: [member2]}}"))
	h.policy("near", placed(", labelSelector: {matchLabels: {near: x}}", "{workloadAffinity: {affinity: {groupByLabelKey: team}}}"))
	far := h.policy("far", placed(", labelSelector: {matchLabels: {far: x}}", "{workloadAffinity: {antiAffinity: {groupByLabelKey: db}}}"))
	with := func(name string, labels ...string) *appsv1.Deployment {
		return h.deployment(name, 1, func(d *appsv1.Deployment) {
			for _, l := range labels {
				key, value, _ := strings.Cut(l, "=")
				d.Labels[key] = value
			}
		})
	}
	first := with("first", "team=shop", "db=main")
	h.Make(first)
	b := h.runs("first-deployment", "member2:1")
	if g := b.Spec.WorkloadAffinityGroups; g == nil || g.AffinityGroup != "team=shop" || g.AntiAffinityGroup != "db=main" {
		t.Errorf("groups %+v", g)
	}
	h.Make(with("near", "near=x", "team=shop"), with("other", "near=x", "team=other"), with("far", "far=x", "db=main"))
	b = h.runs("near-deployment", "member2:1")
	if d := workv1alpha2.ReadDecision(b.Annotations); len(d.Rejected) != 1 || d.Rejected[0].Why != "cluster(s) did not run the workloads of the affinity group" {
		t.Errorf("rejected %+v", d.Rejected)
	}
	h.runs("other-deployment", "member1:1 member2:1")
	h.runs("far-deployment", "member1:1")
	stop()
	h.run(nil)
	h.Make(with("full", "far=x", "db=main"))
	b = h.runs("full-deployment", "NoClusterFit")
	if d := workv1alpha2.ReadDecision(b.Annotations); d.Message != "no cluster fits: 0/2: 2 cluster(s) ran workloads of the anti-affinity group" {
		t.Errorf("message %q", d.Message)
	}
	h.Remove(first)
	await.True(t, "its binding is being deleted", func() bool { return h.binding("first-deployment").DeletionTimestamp != nil })
	h.release(h.binding("first-deployment")) // as control/hub/work does when its Works are gone
	h.runs("full-deployment", "member2:1")
	edit(h, far, func(p *policyObject) { p.Spec.Placement.WorkloadAffinity = nil })
	h.runs("far-deployment", "member1:1 member2:1")
	h.runs("near-deployment", "member2:1")
}

// A policy waits for the overrides that it depends on, and for its priority class; both say so.
func TestWaitsForWhatAPolicyNeeds(t *testing.T) {
	h := newHub(t, "member1")
	h.run(nil)
	h.policy("overridden", selecting(", name: web", "member1", ", dependentOverrides: [tag]"))
	class := "class-" + h.ns
	h.policy("urgent", selecting(", name: urgent", "member1", ", schedulePriority: {priorityClassSource: KubePriorityClass, priorityClassName: "+class+"}"))
	h.Make(h.deployment("web", 1), h.deployment("urgent", 1))
	for _, name := range []string{"web", "urgent"} {
		await.True(t, "the event for "+name, func() bool { return h.event(name, workv1alpha2.EventApplyPolicyFailed) })
		if h.binding(name+"-deployment") != nil {
			t.Errorf("%s has a binding", name)
		}
	}
	h.Make(&policyv1alpha1.OverridePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: h.ns, Name: "tag"}, Spec: policyv1alpha1.OverrideSpec{
		OverrideRules: []policyv1alpha1.RuleWithCluster{}}})
	h.Make(&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Value: 7})
	h.runs("web-deployment", "member1:1")
	if b := h.runs("urgent-deployment", "member1:1"); b.Spec.SchedulePriority.Priority != 7 {
		t.Errorf("priority %+v", b.Spec.SchedulePriority)
	}
}

// A cluster that is new and has not reported holds first decisions back, until it reports or is not
// new any more; others go on.
func TestClusterNotHeardOf(t *testing.T) {
	h := newHub(t, "member1")
	p := h.policy("all", selecting("", "member1, member2", ""))
	stop := h.run(nil)
	h.Make(h.deployment("before", 2))
	h.runs("before-deployment", "member1:2")
	silent := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "member2"},
		Spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Push}}
	h.Make(silent)
	h.Make(h.deployment("web", 2))
	await.Never(t, time.Second, "a decision without member2", func() bool { return h.binding("web-deployment") != nil })
	edit(h, p, func(p *policyObject) { p.Spec.PropagateDeps = true })
	await.True(t, "what runs goes on", func() bool { return h.binding("before-deployment").Spec.PropagateDeps })
	silent.Spec.Taints = []clusterv1alpha1.Taint{{Key: clusterv1alpha1.TaintNotReady, Effect: "NoSchedule"}}
	if err := h.Update(t.Context(), silent); err != nil {
		t.Fatal(err)
	}
	h.report(silent)
	await.Never(t, time.Second, "a decision before member2 is ready", func() bool { return h.binding("web-deployment") != nil })
	edit(h, silent, func(c *clusterv1alpha1.Cluster) { c.Spec.Taints = nil })
	h.runs("web-deployment", "member1:2 member2:2")
	stop()

	h.Remove(silent)
	silent.ResourceVersion = ""
	h.Make(silent)
	h.run(nil, func(o *propagate.Options) { o.FirstReport = 2 * time.Second })
	h.Make(h.deployment("later", 2))
	h.runs("later-deployment", "member1:2")
}

// A new cluster to which a template cannot come holds no first decision back.
func TestClusterNotHeardOfElsewhere(t *testing.T) {
	h := newHub(t, "member1")
	h.policy("all", selecting("", "member1, member2", ""))
	h.run(nil, func(o *propagate.Options) { o.FirstReport = time.Hour })
	h.Make(&clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "member2"}, Spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Push,
		Taints: []clusterv1alpha1.Taint{{Key: clusterv1alpha1.TaintUnapproved, Effect: "NoSchedule"}}}})
	h.Make(&clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "member3"}, Spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Push}})
	h.Make(h.deployment("web", 2))
	h.runs("web-deployment", "member1:2")
}

// Other rules for its kind are other replicas of a template, although nobody has touched it.
func TestRulesOfTheKindChange(t *testing.T) {
	h := newHub(t, "member1")
	rules := kinds.NewCustom()
	rules.Set(nil)
	h.policy("all", selecting("", "member1", ""))
	h.run(nil, func(o *propagate.Options) { o.Interpreter = rules.Interpreter() })
	h.Make(h.deployment("web", 2))
	h.runs("web-deployment", "member1:2")
	rules.Set([]pelagov1alpha1.KindRules{{ObjectMeta: metav1.ObjectMeta{Name: "double"}, Spec: pelagov1alpha1.KindRulesSpec{
		Kinds: []pelagov1alpha1.RuledKind{{APIVersion: "apps/v1", Kind: "Deployment"}},
		Rules: pelagov1alpha1.Rules{Replicas: "object.spec.replicas * 2"},
	}}})
	h.runs("web-deployment", "member1:4")
	rules.Set(nil)
	h.runs("web-deployment", "member1:2")
}
