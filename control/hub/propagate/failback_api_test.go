package propagate_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/test/await"
)

// returning gives a policy an annotation pelago.io/failback.
func (h *hub) returning(p *policyv1alpha1.PropagationPolicy, when string) {
	h.Helper()
	edit(h, p, func(p *policyv1alpha1.PropagationPolicy) {
		p.Annotations = map[string]string{policyv1alpha1.AnnotationFailback: when}
	})
	await.True(h, "the binding has the annotation", func() bool {
		b := h.binding("web-deployment")
		return b == nil || b.Annotations[policyv1alpha1.AnnotationFailback] == when
	})
}

// taint replaces the taints of a member by one, or by none.
func (h *hub) taint(member string, effects ...corev1.TaintEffect) {
	h.Helper()
	edit(h, &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: member}}, func(c *clusterv1alpha1.Cluster) {
		c.Spec.Taints = nil
		for _, e := range effects {
			now := metav1.Now()
			c.Spec.Taints = append(c.Spec.Taints, clusterv1alpha1.Taint{Key: "maintenance", Effect: e, TimeAdded: &now})
		}
	})
}

// awaited is what the record of the decision says of a failback.
func (h *hub) awaited(name string) string {
	d := workv1alpha2.ReadDecision(h.binding(name).Annotations)
	if d == nil || d.Failback == nil {
		return ""
	}
	return d.Failback.Message
}

func (h *hub) awaits(name, want string) {
	h.Helper()
	await.True(h, "the binding awaits "+want, func() bool {
		got := h.awaited(name)
		return strings.Contains(got, want) && (got == "") == (want == "")
	})
}

// reportsOf has members report healthy replicas: "member1:2".
func (h *hub) reportsOf(name string, of ...string) {
	h.Helper()
	await.True(h, "the status is written", func() bool {
		b := h.binding(name)
		b.Status.AggregatedStatus = nil
		for _, text := range of {
			cluster, replicas, _ := strings.Cut(text, ":")
			b.Status.AggregatedStatus = append(b.Status.AggregatedStatus, workv1alpha2.AggregatedStatusItem{ClusterName: cluster, Applied: true,
				Health: workv1alpha2.ResourceHealthy, Status: &runtime.RawExtension{Raw: fmt.Appendf(nil, `{"readyReplicas": %s}`, replicas)}})
		}
		return h.Status().Update(h.Context(), b) == nil
	})
}

// A cluster fails and comes back: its replicas return when it has been healthy for the time, also
// over a restart of the hub, and the others keep theirs until these are ready.
func TestFailback(t *testing.T) {
	h := readyHub(t, "member1", "member2", "member3")
	stop := h.run(nil)
	p := h.policy("web", dividing("member1, member2, member3", "{cluster: {purgeMode: Gracefully}}"))
	h.returning(p, "WhenHealthy(1h)")
	h.Make(h.deployment("web", 6))
	h.runs("web-deployment", "member1:2 member2:2 member3:2")
	h.returning(p, "WhenHealthy(1h)")
	h.ready("member1", metav1.ConditionUnknown)
	h.runs("web-deployment", "member2:3 member3:3")
	h.awaits("web-deployment", "it returns to cluster member1 when that has been ready, without taints that are not tolerated, for 1h0m0s")
	h.reports("web-deployment")
	await.Equal(t, "", func() string { return h.tasks("web-deployment") })
	back := time.Now()
	h.ready("member1", metav1.ConditionTrue)
	h.awaits("web-deployment", "it returns to cluster member1 at ")
	first := h.awaited("web-deployment")
	stop()
	stop = h.run(nil)
	h.reloads("member2") // the new hub has reconciled
	if got := h.awaited("web-deployment"); got != first {
		t.Errorf("after a restart of the hub it awaits %q, before %q", got, first)
	}
	h.returning(p, "WhenHealthy(4s)")
	b := h.runs("web-deployment", "member1:2 member2:2 member3:2")
	if after := time.Since(back); after < 4*time.Second {
		t.Errorf("it returned after %s", after)
	}
	if got := h.tasks("web-deployment"); got != "member2:Failback member3:Failback" {
		t.Errorf("tasks %q", got)
	}
	for _, c := range b.Spec.Clusters {
		want := map[string]int32{"member1": 2, "member2": 3, "member3": 3}[c.Name]
		if got := b.Spec.ReplicasIn(c); got != want {
			t.Errorf("cluster %s has %d replicas meanwhile, want %d", c.Name, got, want)
		}
	}
	stop()
	h.run(nil)
	h.reportsOf("web-deployment", "member1:1", "member2:3", "member3:3") // one is not ready yet
	h.reloads("member3")
	if got := h.tasks("web-deployment"); got != "member2:Failback member3:Failback" {
		t.Errorf("tasks %q, although member1 is not ready", got)
	}
	h.reportsOf("web-deployment", "member1:2", "member2:3", "member3:3")
	await.Equal(t, "", func() string { return h.tasks("web-deployment") })
	b = h.runs("web-deployment", "member1:2 member2:2 member3:2")
	if d := workv1alpha2.ReadDecision(b.Annotations); d.Failback != nil {
		t.Errorf("it still awaits %+v", d.Failback)
	}
}

// A taint with effect NoExecute is the other reason; any taint that is not tolerated restarts the
// time. A cluster that fails while replicas return to it is left again, and those that they left
// have theirs still.
func TestFailbackIsInterrupted(t *testing.T) {
	h := readyHub(t, "member1", "member2")
	h.run(nil)
	p := h.policy("web", `{resourceSelectors: [{apiVersion: apps/v1, kind: Deployment}], failover: {cluster: {purgeMode: Gracefully}},
		placement: {clusterAffinities: [{affinityName: first, clusterNames: [member1]}, {affinityName: second, clusterNames: [member2]}]}}`)
	h.returning(p, "WhenHealthy(1h)")
	h.Make(h.deployment("web", 2))
	h.runs("web-deployment", "member1:2")
	h.returning(p, "WhenHealthy(1h)")
	h.taint("member1", corev1.TaintEffectNoExecute)
	h.runs("web-deployment", "member2:2")
	h.reports("web-deployment")
	await.Equal(t, "", func() string { return h.tasks("web-deployment") })
	h.taint("member1")
	h.awaits("web-deployment", "it returns to cluster member1 at ")
	first := h.awaited("web-deployment")
	time.Sleep(1100 * time.Millisecond) // times have seconds
	h.taint("member1", corev1.TaintEffectNoSchedule)
	h.awaits("web-deployment", "it returns to cluster member1 when ")
	h.taint("member1")
	h.awaits("web-deployment", "it returns to cluster member1 at ")
	if second := h.awaited("web-deployment"); second == first {
		t.Errorf("it returns at the same time as if there had been no taint: %s", second)
	}
	h.returning(p, "WhenHealthy(1s)")
	h.runs("web-deployment", "member1:2")
	if got := h.tasks("web-deployment"); got != "member2:Failback" {
		t.Errorf("tasks %q", got)
	}
	h.ready("member1", metav1.ConditionUnknown)
	b := h.runs("web-deployment", "member2:2")
	if d := workv1alpha2.ReadDecision(b.Annotations); d.Held != "" || d.Term != "second" {
		t.Errorf("decision %+v", d)
	}
	h.reports("web-deployment")
	await.Equal(t, "", func() string { return h.tasks("web-deployment") })
	h.awaits("web-deployment", "it returns to cluster member1 when ")
	h.returning(p, "Never")
	h.awaits("web-deployment", "")
	h.ready("member1", metav1.ConditionTrue)
	h.reloads("member2")
	h.runs("web-deployment", "member2:2")
}

// A duplicated template follows its clusters by itself, but not sooner than the policy says; where
// no other cluster is left it does.
func TestFailbackOfDuplicated(t *testing.T) {
	h := readyHub(t, "member1", "member2")
	h.run(nil)
	p := h.policy("web", selecting("", "member1, member2", ""))
	h.returning(p, "WhenHealthy(1h)")
	h.Make(h.deployment("web", 2))
	h.runs("web-deployment", "member1:2 member2:2")
	h.returning(p, "WhenHealthy(1h)")
	h.taint("member1", corev1.TaintEffectNoExecute)
	h.runs("web-deployment", "member2:2")
	h.reports("web-deployment")
	await.Equal(t, "", func() string { return h.tasks("web-deployment") })
	h.taint("member1")
	h.awaits("web-deployment", "it returns to cluster member1 at ")
	h.reloads("member2")
	h.runs("web-deployment", "member2:2")
	h.taint("member2", corev1.TaintEffectNoExecute)
	h.runs("web-deployment", "member1:2")
	if got := h.tasks("web-deployment"); got != "member2:TaintUntolerated" {
		t.Errorf("tasks %q", got)
	}
	h.awaits("web-deployment", "it returns to cluster member2 when ")
}

// What is due and cannot be is on the binding, with the reason; it is retried.
func TestFailbackThatFails(t *testing.T) {
	h := readyHub(t, "member1", "member2")
	h.run(nil)
	p := h.policy("web", `{resourceSelectors: [{apiVersion: apps/v1, kind: Deployment}], failover: {cluster: {purgeMode: Directly,
		statePreservation: {rules: [{aliasLabelName: example.com/ready, jsonPath: "{.readyReplicas}"}]}}},
		placement: {clusterAffinity: {clusterNames: [member1, member2]}, spreadConstraints: [{spreadByField: cluster, maxGroups: 1}]}}`)
	h.returning(p, "WhenHealthy(1s)")
	h.Make(h.deployment("web", 2))
	h.runs("web-deployment", "member1:2")
	h.returning(p, "WhenHealthy(1s)")
	h.reports("web-deployment")
	h.ready("member1", metav1.ConditionUnknown)
	h.runs("web-deployment", "member2:2")
	h.reports("web-deployment")
	await.Equal(t, "", func() string { return h.tasks("web-deployment") })
	b := h.binding("web-deployment")
	b.Status.AggregatedStatus[0].Status = &runtime.RawExtension{Raw: []byte(`{}`)}
	if err := h.Status().Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	h.ready("member1", metav1.ConditionTrue)
	h.awaits("web-deployment", "it does not return to cluster member1 now: its state in cluster member2 cannot be preserved")
	h.runs("web-deployment", "member2:2")
	h.reports("web-deployment")
	b = h.runs("web-deployment", "member1:2")
	if task := b.Spec.GracefulEvictionTasks[0]; task.FromCluster != "member2" || task.PreservedLabelState["example.com/ready"] != "2" {
		t.Errorf("task %+v", task)
	}
}
