package propagate_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/test/await"
)

// The API server adds an annotation to DaemonSets (deprecated.daemonset.template.generation) that a
// read of their metadata alone does not have. A DaemonSet must leave a cluster all the same, and be
// followed afterwards.
func TestDaemonSetLeavesCluster(t *testing.T) {
	h := newHub(t, "member1", "member2", "member3")
	h.run(nil)
	p := h.policy("agents", `{resourceSelectors: [{apiVersion: apps/v1, kind: DaemonSet}],
  placement: {clusterAffinity: {clusterNames: [member1, member2, member3]}}}`)
	labels := map[string]string{"app": "agent"}
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: h.ns, Name: "agent"},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: "nginx:1.19.0"}}}}}}
	h.Make(d)
	h.runs("agent-daemonset", "member1:0 member2:0 member3:0")
	edit(h, p, func(p *policyObject) { p.Spec.Placement.ClusterAffinity.ClusterNames = []string{"member1", "member2"} })
	before := h.runs("agent-daemonset", "member1:0 member2:0").Annotations[workv1alpha2.AnnotationTemplate]
	edit(h, d, func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.Containers[0].Image = "nginx:1.20.0" })
	await.True(t, "the binding is of the changed template", func() bool {
		return h.binding("agent-daemonset").Annotations[workv1alpha2.AnnotationTemplate] != before
	})
}

// The garbage collector may remove the binding of a template whose deletion the hub's watch has not
// shown yet. A second binding would apply in the clusters what was deleted.
func TestNoBindingForADeletedTemplate(t *testing.T) {
	h := newHub(t, "member1")
	held := holdup{path: "/apis/apps/v1/deployments"}
	var seen writes
	h.run(func(next http.RoundTripper) http.RoundTripper { return held.wrap(seen.wrap(next)) })
	h.policy("all", selecting("", "member1", ""))
	d := h.deployment("web", 1)
	h.Make(d)
	h.runs("web-deployment", "member1:1")
	before := len(seen.in(h.ns))
	held.hold()
	h.Remove(d)
	await.True(t, "the garbage collector deletes its binding", func() bool { return h.binding("web-deployment").DeletionTimestamp != nil })
	h.release(h.binding("web-deployment"))
	h.Make(h.deployment("other", 1)) // its events are kept back, too
	await.Never(t, time.Second, "a second binding", func() bool { return h.binding("web-deployment") != nil })
	held.release()
	h.runs("other-deployment", "member1:1")
	if h.binding("web-deployment") != nil {
		t.Error("there is a second binding")
	}
	for _, w := range seen.in(h.ns)[before:] {
		if strings.Contains(w, "web") {
			t.Errorf("written after its deletion: %s", w)
		}
	}
	h.Make(h.deployment("web", 1))
	h.runs("web-deployment", "member1:1")
}

// After a change of the leader the informer of bindings shows one that was written from a template
// which the informer of templates does not show yet. The binding is not written from the older
// template.
func TestTemplateOlderThanBinding(t *testing.T) {
	h := newHub(t, "member1")
	held := holdup{path: "/apis/apps/v1/deployments"}
	var seen writes
	h.run(func(next http.RoundTripper) http.RoundTripper { return held.wrap(seen.wrap(next)) })
	h.policy("all", selecting("", "member1", ""))
	d := h.deployment("web", 2)
	h.Make(d)
	h.runs("web-deployment", "member1:2")
	held.hold()
	before := len(seen.in(h.ns))
	stop := h.run(nil) // the leader before
	edit(h, d, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](3) })
	version := h.runs("web-deployment", "member1:3").ResourceVersion
	stop()
	await.Never(t, time.Second, "the binding is written from the older template", func() bool {
		return h.binding("web-deployment").ResourceVersion != version
	})
	if w := seen.in(h.ns)[before:]; len(w) > 0 {
		t.Errorf("written while the template was stale: %v", w)
	}
	held.release()
	edit(h, d, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](4) })
	h.runs("web-deployment", "member1:4")
}
