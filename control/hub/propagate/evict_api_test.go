package propagate_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/propagate"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/test/await"
)

const divided = ", replicaScheduling: {replicaSchedulingType: Divided, replicaDivisionPreference: Weighted}"

// dividing sends Deployments in equal parts to clusters, with failover.
func dividing(clusters, failover string) string {
	return fmt.Sprintf("{resourceSelectors: [{apiVersion: apps/v1, kind: Deployment}], placement: {clusterAffinity: {clusterNames: [%s]}%s}, failover: %s}",
		clusters, divided, failover)
}

// ready sets a member's condition Ready, since a minute ago.
func (h *hub) ready(member string, status metav1.ConditionStatus) {
	h.Helper()
	var c clusterv1alpha1.Cluster
	await.True(h, "the condition is set", func() bool {
		if err := h.Get(h.Context(), keyFor(&clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: member}}), &c); err != nil {
			h.Fatal(err)
		}
		c.Status.Conditions = slices.DeleteFunc(c.Status.Conditions, func(c metav1.Condition) bool { return c.Type == clusterv1alpha1.ConditionReady })
		c.Status.Conditions = append(c.Status.Conditions, metav1.Condition{Type: clusterv1alpha1.ConditionReady, Status: status,
			Reason: clusterv1alpha1.ReasonClusterStatusUnknown, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Minute))})
		return h.Status().Update(h.Context(), &c) == nil
	})
}

// reloads changes the load that a member reports, and waits until a template that is made later is
// placed.
func (h *hub) reloads(member string) {
	h.Helper()
	var c clusterv1alpha1.Cluster
	await.True(h, "the load is written", func() bool {
		if err := h.Get(h.Context(), keyFor(&clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: member}}), &c); err != nil {
			h.Fatal(err)
		}
		c.Status.ResourceSummary = &clusterv1alpha1.ResourceSummary{Allocated: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}}
		return h.Status().Update(h.Context(), &c) == nil
	})
	// clusters and templates are seen in any order, but a decision takes the newest clusters
	h.Make(h.deployment("after-"+member, 2))
	await.True(h, "a later template is placed", func() bool {
		b := h.binding("after-" + member + "-deployment")
		return b != nil && len(b.Spec.Clusters) > 0
	})
}

// reports has all clusters of a binding report healthy replicas.
func (h *hub) reports(name string) {
	h.Helper()
	await.True(h, "the status is written", func() bool {
		b := h.binding(name)
		b.Status.AggregatedStatus = nil
		for _, c := range b.Spec.Clusters {
			b.Status.AggregatedStatus = append(b.Status.AggregatedStatus, workv1alpha2.AggregatedStatusItem{
				ClusterName: c.Name, Applied: true, Health: workv1alpha2.ResourceHealthy,
				Status: &runtime.RawExtension{Raw: fmt.Appendf(nil, `{"readyReplicas": %d}`, c.Replicas)}})
		}
		return h.Status().Update(h.Context(), b) == nil
	})
}

// tasks are the clusters that a template is leaving, with the reason.
func (h *hub) tasks(name string) string {
	h.Helper()
	b := h.binding(name)
	if b == nil {
		return "no binding"
	}
	var out []string
	for _, t := range b.Spec.GracefulEvictionTasks {
		out = append(out, t.FromCluster+":"+t.Reason)
	}
	return strings.Join(out, " ")
}

func readyHub(t *testing.T, members ...string) *hub {
	t.Helper()
	h := newHub(t, members...)
	for _, m := range members {
		h.ready(m, metav1.ConditionTrue)
	}
	return h
}

// A cluster fails: its replicas run elsewhere, in the write that begins the eviction, which ends
// when they are healthy there. One without failover stays.
func TestClusterFailover(t *testing.T) {
	h := readyHub(t, "member1", "member2", "member3")
	h.run(nil)
	h.policy("web", dividing("member1, member2, member3", "{cluster: {purgeMode: Gracefully}}"))
	h.Make(h.deployment("web", 6))
	h.runs("web-deployment", "member1:2 member2:2 member3:2")
	h.ready("member1", metav1.ConditionUnknown)
	h.runs("web-deployment", "member2:3 member3:3")
	h.reloads("member2") // a change of load while a cluster has failed
	b := h.runs("web-deployment", "member2:3 member3:3")
	if got := h.tasks("web-deployment"); got != "member1:ClusterFailure" {
		t.Errorf("tasks %q", got)
	}
	if d := workv1alpha2.ReadDecision(b.Annotations); d.Reason != workv1alpha2.ReasonSuccess || d.Held != "" {
		t.Errorf("decision %+v", d)
	}
	h.reports("web-deployment")
	await.Equal(t, "", func() string { return h.tasks("web-deployment") })
	h.runs("web-deployment", "member2:3 member3:3")
}

// NoExecute evicts what does not tolerate it, whether or not the policy has failover.
func TestNoExecuteTaint(t *testing.T) {
	h := readyHub(t, "member1", "member2")
	h.run(nil)
	h.policy("web", selecting("", "member1, member2", ""))
	h.Make(h.deployment("web", 2))
	h.runs("web-deployment", "member1:2 member2:2")
	c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "member2"}}
	edit(h, c, func(c *clusterv1alpha1.Cluster) {
		now := metav1.Now()
		c.Spec.Taints = append(c.Spec.Taints, clusterv1alpha1.Taint{Key: "maintenance", Effect: corev1.TaintEffectNoExecute, TimeAdded: &now})
	})
	h.runs("web-deployment", "member1:2")
	await.Equal(t, "member2:TaintUntolerated", func() string { return h.tasks("web-deployment") })
	edit(h, c, func(c *clusterv1alpha1.Cluster) { c.Spec.Taints = nil })
	h.reports("web-deployment")
	await.Equal(t, "", func() string { return h.tasks("web-deployment") })
	h.runs("web-deployment", "member1:2 member2:2")
}

// A task ends also where no status changes any more, since the template is healthy in all other
// clusters already.
func TestEvictionEndsWithoutChange(t *testing.T) {
	h := readyHub(t, "member1", "member2")
	h.run(nil)
	h.policy("web", selecting("", "member1, member2", ""))
	h.Make(h.deployment("web", 2))
	h.runs("web-deployment", "member1:2 member2:2")
	h.reports("web-deployment")
	h.taint("member2", corev1.TaintEffectNoExecute)
	h.runs("web-deployment", "member1:2")
	await.Equal(t, "", func() string { return h.tasks("web-deployment") })
}

// No running replica is removed if no other cluster can take it, or if too many clusters
// have failed.
func TestFailoverHolds(t *testing.T) {
	h := readyHub(t, "member1", "member2", "member3")
	h.run(nil)
	h.policy("web", dividing("member1, member2", "{cluster: {purgeMode: Directly}}"))
	h.Make(h.deployment("web", 4))
	h.runs("web-deployment", "member1:2 member2:2")
	// One is tainted: the other has all. Both are: nobody has another place.
	taint := func(member string, taints ...clusterv1alpha1.Taint) {
		edit(h, &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: member}}, func(c *clusterv1alpha1.Cluster) { c.Spec.Taints = taints })
	}
	now := metav1.Now()
	noExecute := clusterv1alpha1.Taint{Key: "all", Effect: corev1.TaintEffectNoExecute, TimeAdded: &now}
	taint("member1", noExecute)
	h.runs("web-deployment", "member2:4")
	taint("member2", noExecute)
	await.True(t, "it stays in member2", func() bool {
		d := workv1alpha2.ReadDecision(h.binding("web-deployment").Annotations)
		return strings.Contains(d.Held, "it stays in cluster member2, since no other can have it")
	})
	h.runs("web-deployment", "member2:4")
	taint("member2") // first, else member1 takes over
	taint("member1")
	h.reports("web-deployment")
	await.Equal(t, "", func() string { return h.tasks("web-deployment") })
	// by a decision that may be made before the taints are seen to be gone
	await.True(t, "it is divided again", func() bool {
		b := h.binding("web-deployment")
		asked := metav1.NewTime(time.Now().Add(5 * time.Second).Truncate(time.Second))
		edit(h, b, func(b *workv1alpha2.ResourceBinding) { b.Spec.RescheduleTriggeredAt = &asked })
		return where(h.binding("web-deployment")) == "member1:2 member2:2"
	})
	for _, m := range []string{"member3", "member2"} {
		h.ready(m, metav1.ConditionUnknown)
	}
	await.True(t, "it stays where it is", func() bool {
		return strings.Contains(workv1alpha2.ReadDecision(h.binding("web-deployment").Annotations).Held, "2 of 3 clusters are not ready at once")
	})
	h.runs("web-deployment", "member1:2 member2:2")
	if got := h.tasks("web-deployment"); got != "" {
		t.Errorf("tasks %q", got)
	}
}

// The hub is killed at each write of an eviction: the next one completes it, and no replica is lost
// or doubled.
func TestFailoverSurvivesRestarts(t *testing.T) {
	h := readyHub(t, "member1", "member2", "member3")
	stop := h.run(nil)
	h.policy("web", dividing("member1, member2, member3", "{cluster: {purgeMode: Gracefully}}"))
	h.Make(h.deployment("web", 6))
	h.runs("web-deployment", "member1:2 member2:2 member3:2")
	stop()
	h.ready("member1", metav1.ConditionUnknown)
	// the write is not made; it is made and its answer lost
	for _, lost := range []bool{false, true} {
		var writes atomic.Int32
		broken := func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(q *http.Request) (*http.Response, error) {
				if q.Method != http.MethodPut || !strings.Contains(q.URL.Path, "resourcebindings") {
					return next.RoundTrip(q)
				}
				if writes.Add(1); lost {
					if response, err := next.RoundTrip(q); err == nil {
						_ = response.Body.Close()
					}
				}
				return nil, errors.New("killed")
			})
		}
		stop := h.run(broken)
		await.True(t, "the eviction is written", func() bool { return writes.Load() > 0 })
		stop()
	}
	h.run(nil)
	h.runs("web-deployment", "member2:3 member3:3")
	if got := h.tasks("web-deployment"); got != "member1:ClusterFailure" {
		t.Errorf("tasks %q; want one", got)
	}
}

// A template that stays unhealthy in a cluster leaves it. The time counts from before a restart of
// the hub.
func TestApplicationFailover(t *testing.T) {
	h := readyHub(t, "member1", "member2")
	stop := h.run(nil)
	h.policy("web", `{resourceSelectors: [{apiVersion: apps/v1, kind: Deployment}], propagateDeps: true,
  placement: {clusterAffinity: {clusterNames: [member1, member2]}, spreadConstraints: [{spreadByField: cluster, maxGroups: 1}]},
  failover: {application: {decisionConditions: {tolerationSeconds: 3}, purgeMode: Directly,
    statePreservation: {rules: [{aliasLabelName: example.com/ready, jsonPath: "{.readyReplicas}"}]}}}}`)
	h.Make(h.deployment("web", 2))
	h.runs("web-deployment", "member1:2")
	b := h.binding("web-deployment")
	b.Status.AggregatedStatus = []workv1alpha2.AggregatedStatusItem{{ClusterName: "member1", Applied: true, Health: workv1alpha2.ResourceUnhealthy,
		Status: &runtime.RawExtension{Raw: []byte(`{"readyReplicas": 1}`)}}}
	if err := h.Status().Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the time is recorded", func() bool {
		return len(workv1alpha2.ReadDecision(h.binding("web-deployment").Annotations).Unhealthy) == 1
	})
	since := workv1alpha2.ReadDecision(h.binding("web-deployment").Annotations).Unhealthy["member1"]
	stop()
	h.run(nil, func(*propagate.Options) {})
	h.runs("web-deployment", "member2:2")
	task := h.binding("web-deployment").Spec.GracefulEvictionTasks[0]
	if task.Reason != workv1alpha2.EvictionReasonApplicationFailure || task.PreservedLabelState["example.com/ready"] != "1" || task.CreationTimestamp.Before(&metav1.Time{Time: since.Add(2 * time.Second)}) {
		t.Errorf("task %+v, unhealthy since %s", task, since)
	}
}

// A policy that cannot be used, or a template that cannot be read, stops neither the eviction from
// a failed cluster nor the removal of a cluster: the binding keeps what it had before.
func TestFailoverWithUnusablePolicy(t *testing.T) {
	replicas := func(rules *kinds.Custom, text pelagov1alpha1.Expression) {
		rules.Set([]pelagov1alpha1.KindRules{{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: pelagov1alpha1.KindRulesSpec{
			Kinds: []pelagov1alpha1.RuledKind{{APIVersion: "apps/v1", Kind: "Deployment"}}, Rules: pelagov1alpha1.Rules{Replicas: text}}}})
	}
	for name, spoil := range map[string]func(*hub, *policyObject, *schedulingv1.PriorityClass, *kinds.Custom){
		"invalid policy": func(h *hub, p *policyObject, _ *schedulingv1.PriorityClass, _ *kinds.Custom) {
			edit(h, p, func(p *policyObject) { p.Annotations = map[string]string{policyv1alpha1.AnnotationFailback: "Wenn"} })
		},
		"no PriorityClass": func(h *hub, _ *policyObject, class *schedulingv1.PriorityClass, _ *kinds.Custom) { h.Remove(class) },
		"no override": func(h *hub, p *policyObject, _ *schedulingv1.PriorityClass, _ *kinds.Custom) {
			edit(h, p, func(p *policyObject) { p.Spec.DependentOverrides = []string{"missing"} })
		},
		"failing replicas rule": func(_ *hub, _ *policyObject, _ *schedulingv1.PriorityClass, rules *kinds.Custom) {
			replicas(rules, "object.spec.nothing")
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := readyHub(t, "member1", "member2", "member3", "member4")
			class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "class-" + h.ns}, Value: 7}
			h.Make(class)
			rules := kinds.NewCustom()
			replicas(rules, "object.spec.replicas")
			with := func(o *propagate.Options) { o.Interpreter = rules.Interpreter() }
			stop := h.run(nil, with)
			p := h.policy("web", strings.TrimSuffix(dividing("member1, member2, member3, member4", "{cluster: {purgeMode: Gracefully}}"), "}")+
				", schedulePriority: {priorityClassSource: KubePriorityClass, priorityClassName: "+class.Name+"}}")
			d := h.deployment("web", 8)
			h.Make(d)
			h.runs("web-deployment", "member1:2 member2:2 member3:2 member4:2")
			stop()
			spoil(h, p, class, rules)
			edit(h, d, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](80) })
			h.ready("member1", metav1.ConditionUnknown)
			h.run(nil, with)
			await.Equal(t, "member1:ClusterFailure", func() string { return h.tasks("web-deployment") })
			h.reports("web-deployment")
			await.Equal(t, "", func() string { return h.tasks("web-deployment") })
			c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "member2"}}
			edit(h, c, func(c *clusterv1alpha1.Cluster) { c.Finalizers = []string{clusterv1alpha1.FinalizerCluster} })
			h.Remove(c)
			await.True(t, "no binding names the cluster that is removed", func() bool {
				return !strings.Contains(where(h.binding("web-deployment")), "member2")
			})
			b := h.binding("web-deployment")
			if b.Spec.Replicas != 8 || b.Spec.SchedulePriority == nil || b.Spec.Placement == nil {
				t.Errorf("it has %+v", b.Spec)
			}
		})
	}
}
