package propagate_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/propagate"
	"github.com/pelago-net/pelago/test/await"
)

// measures has a member report its round-trip times, in milliseconds.
func (h *hub) measures(member string, rtts map[string]int) {
	h.Helper()
	var c clusterv1alpha1.Cluster
	await.True(h, "the report is written", func() bool {
		if err := h.Get(h.Context(), keyFor(&clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: member}}), &c); err != nil {
			h.Fatal(err)
		}
		c.Status.Network = nil
		for to, rtt := range rtts {
			c.Status.Network = append(c.Status.Network, clusterv1alpha1.NetworkPath{Cluster: to, Reachable: true,
				RTT: &metav1.Duration{Duration: time.Duration(rtt) * time.Millisecond}})
		}
		return h.Status().Update(h.Context(), &c) == nil
	})
}

// nearTo is a policy that places Deployments in one of the clusters, by a value of pelago.io/near.
func (h *hub) nearTo(near, clusters string) *policyv1alpha1.PropagationPolicy {
	h.Helper()
	p := h.policy("web", fmt.Sprintf(`{resourceSelectors: [{apiVersion: apps/v1, kind: Deployment}], placement: {clusterAffinity: {clusterNames: [%s]},
		spreadConstraints: [{spreadByField: cluster, minGroups: 1, maxGroups: 1}]}}`, clusters))
	edit(h, p, func(p *policyv1alpha1.PropagationPolicy) {
		p.Annotations = map[string]string{policyv1alpha1.AnnotationNear: near}
	})
	return p
}

func holding(d time.Duration) func(*propagate.Options) {
	return func(o *propagate.Options) { o.RTTHold = d }
}

// A template is placed in the cluster that is nearest, stays there while round-trip times change
// back and forth, and moves, its old copy kept until the new one is healthy, when another cluster
// has been much nearer for a while.
func TestNear(t *testing.T) {
	h := readyHub(t, "member1", "member2", "member3")
	h.measures("member1", map[string]int{"db": 40})
	h.measures("member2", map[string]int{"db": 1})
	h.measures("member3", map[string]int{"db": 41})
	h.nearTo(`{"cluster": "db"}`, "member1, member2, member3")
	h.Make(h.deployment("web", 4))
	stop := h.run(nil, holding(time.Hour))
	h.runs("web-deployment", "member2:4")
	h.reports("web-deployment")
	for i := range 6 { // within Hold
		h.measures("member2", map[string]int{"db": []int{60, 1}[i%2]})
	}
	h.measures("member2", map[string]int{"db": 60})
	h.reloads("member3") // a later decision has seen it
	b := h.runs("web-deployment", "member2:4")
	if len(b.Spec.GracefulEvictionTasks) > 0 {
		t.Errorf("tasks %v", b.Spec.GracefulEvictionTasks)
	}
	stop()
	h.measures("member2", map[string]int{"db": 1})
	h.run(nil, holding(time.Millisecond))
	h.reloads("member2")
	h.runs("web-deployment", "member2:4")
	h.measures("member2", map[string]int{"db": 60})
	b = h.runs("web-deployment", "member1:4")
	if got := h.tasks("web-deployment"); got != "member2:NearerCluster" {
		t.Errorf("tasks %q", got)
	}
	const why = "cluster member2 is 60ms away from cluster db, cluster member1 only 40ms"
	if task := b.Spec.GracefulEvictionTasks[0]; task.Message != why || task.PurgeMode != policyv1alpha1.PurgeModeGracefully {
		t.Errorf("task %+v", task)
	}
	h.reports("web-deployment")
	await.True(t, "the old copy is released", func() bool { return h.tasks("web-deployment") == "" })
	h.runs("web-deployment", "member1:4")
}

// A cluster that is too far away gets nothing; what runs there leaves it, but not where no other
// cluster can have it.
func TestNearMaxRTT(t *testing.T) {
	h := readyHub(t, "member1", "member2")
	h.measures("member1", map[string]int{"db": 5})
	h.measures("member2", map[string]int{"db": 6})
	h.nearTo(`{"cluster": "db", "maxRTT": "20ms", "prefer": false}`, "member1, member2")
	h.Make(h.deployment("web", 2))
	h.run(nil, holding(time.Millisecond))
	h.runs("web-deployment", "member1:2")
	h.reports("web-deployment")
	h.measures("member1", map[string]int{"db": 50})
	h.runs("web-deployment", "member2:2")
	h.reports("web-deployment")
	await.True(t, "the old copy is released", func() bool { return h.tasks("web-deployment") == "" })
	h.measures("member2", map[string]int{"db": 70})
	await.True(t, "the binding says why it stays", func() bool {
		d := workv1alpha2.ReadDecision(h.binding("web-deployment").Annotations)
		return strings.Contains(d.Held, "cluster member2 is 70ms away from cluster db, and at most 20ms are accepted: it stays in cluster member2")
	})
	h.runs("web-deployment", "member2:2")
}

// With a service the nearest cluster that exports it counts, and a change of exports is followed.
func TestNearService(t *testing.T) {
	h := readyHub(t, "member1", "member2")
	h.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "submariner-k8s-broker"}})
	h.measures("member1", map[string]int{"db1": 1, "db2": 50})
	h.measures("member2", map[string]int{"db1": 50, "db2": 2})
	export := func(cluster string) *pelagov1alpha1.ServiceContribution {
		return &pelagov1alpha1.ServiceContribution{ObjectMeta: metav1.ObjectMeta{Namespace: "submariner-k8s-broker", Name: cluster + ".shop.db"},
			Spec: pelagov1alpha1.ServiceContributionSpec{Cluster: cluster, Namespace: "shop", Service: "db", Type: pelagov1alpha1.ContributionClusterSetIP, ExportedAt: metav1.Now()}}
	}
	db2 := export("db2")
	h.Make(db2)
	h.nearTo(`{"service": "shop/db"}`, "member1, member2")
	h.Make(h.deployment("web", 1))
	h.run(nil, holding(time.Millisecond))
	h.runs("web-deployment", "member2:1")
	h.reports("web-deployment")
	h.Make(export("db1"))
	if err := h.Delete(h.Context(), db2); err != nil {
		t.Fatal(err)
	}
	h.runs("web-deployment", "member1:1")
}

// Another value of the annotation causes a new decision.
func TestNearIsFollowed(t *testing.T) {
	h := readyHub(t, "member1", "member2")
	h.measures("member1", map[string]int{"db": 5, "cache": 90})
	h.measures("member2", map[string]int{"db": 90, "cache": 5})
	p := h.nearTo(`{"cluster": "db"}`, "member1, member2")
	h.Make(h.deployment("web", 1))
	h.run(nil, holding(time.Millisecond))
	h.runs("web-deployment", "member1:1")
	h.reports("web-deployment")
	edit(h, p, func(p *policyv1alpha1.PropagationPolicy) {
		p.Annotations[policyv1alpha1.AnnotationNear] = `{"cluster": "cache"}`
	})
	h.runs("web-deployment", "member2:1")
}

// A template that was unhealthy in the nearest cluster does not move back there, whether that is
// nearer or the only one within maxRTT, until it is another template.
func TestNearAfterApplicationFailure(t *testing.T) {
	for name, tt := range map[string]struct{ near, held string }{
		"preferred":     {near: `{"cluster": "db"}`},
		"within maxRTT": {near: `{"cluster": "db", "maxRTT": "20ms", "prefer": false}`, held: "it stays in cluster member2, since no other can have it"},
	} {
		t.Run(name, func(t *testing.T) {
			h := readyHub(t, "member1", "member2")
			h.measures("member1", map[string]int{"db": 1})
			h.measures("member2", map[string]int{"db": 5})
			p := h.nearTo(tt.near, "member1, member2")
			edit(h, p, func(p *policyv1alpha1.PropagationPolicy) {
				p.Spec.PropagateDeps = true
				p.Spec.Failover = &policyv1alpha1.FailoverBehavior{Application: &policyv1alpha1.ApplicationFailoverBehavior{
					DecisionConditions: policyv1alpha1.DecisionConditions{TolerationSeconds: ptr.To[int32](1)}, PurgeMode: policyv1alpha1.PurgeModeGracefully}}
			})
			web := h.deployment("web", 2)
			h.Make(web)
			h.run(nil, holding(time.Millisecond))
			h.runs("web-deployment", "member1:2")
			await.True(t, "the status is written", func() bool {
				b := h.binding("web-deployment")
				b.Status.AggregatedStatus = []workv1alpha2.AggregatedStatusItem{{ClusterName: "member1", Applied: true, Health: workv1alpha2.ResourceUnhealthy}}
				return h.Status().Update(h.Context(), b) == nil
			})
			h.runs("web-deployment", "member2:2")
			h.reports("web-deployment")
			await.Equal(t, "", func() string { return h.tasks("web-deployment") })
			h.measures("member2", map[string]int{"db": 60})
			if tt.held != "" {
				await.True(t, "the binding says why it stays", func() bool {
					return strings.Contains(workv1alpha2.ReadDecision(h.binding("web-deployment").Annotations).Held, tt.held)
				})
			}
			h.reloads("member1") // a later decision has seen it
			if b := h.runs("web-deployment", "member2:2"); len(b.Spec.GracefulEvictionTasks) > 0 {
				t.Errorf("tasks %v", b.Spec.GracefulEvictionTasks)
			}
			edit(h, web, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "mended" })
			h.runs("web-deployment", "member1:2")
			if got := h.tasks("web-deployment"); got != "member2:NearerCluster" {
				t.Errorf("tasks %q", got)
			}
		})
	}
}
