package propagate_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// Between claim and binding the process dies: the next one makes the binding, and claims nothing
// again.
func TestCrashBetweenClaimAndBinding(t *testing.T) {
	h := newHub(t, "member1")
	h.policy("all", selecting("", "member1", ""))
	stop := h.run(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(q *http.Request) (*http.Response, error) {
			if q.Method == http.MethodPost && strings.HasSuffix(q.URL.Path, "/resourcebindings") {
				return nil, errors.New("the process is dead")
			}
			return next.RoundTrip(q)
		})
	})
	d := h.deployment("web", 1)
	h.Make(d)
	h.follows(d, "all")
	stop()
	if b := h.binding("web-deployment"); b != nil {
		t.Fatal("there is a binding: the crash came too late")
	}
	var w writes
	h.run(w.wrap)
	h.runs("web-deployment", "member1:1")
	if diff := cmp.Diff([]string{"POST /apis/work.karmada.io/v1alpha2/resourcebindings"}, w.in(h.ns)); diff != "" {
		t.Errorf("writes -want +got:\n%s", diff)
	}
}

// A restart completes the recorded decision and writes nothing: it decides again only if an input
// changed.
func TestRestartWritesNothing(t *testing.T) {
	h := newHub(t, "member1", "member2")
	h.policy("all", selecting("", "member1, member2", ", propagateDeps: true"))
	stop := h.run(nil)
	h.Make(h.configMap("config"), h.deployment("web", 3, needs("config")))
	b := h.runs("web-deployment", "member1:3 member2:3")
	await.Equal(t, "web-deployment:member1,member2", func() string { return required(h.binding("config-configmap")) })
	stop()
	var w writes
	h.run(w.wrap)
	h.Make(h.deployment("marker", 1))
	h.runs("marker-deployment", "member1:1 member2:1")
	want := []string{"PATCH /apis/apps/v1/deployments/marker", "POST /apis/work.karmada.io/v1alpha2/resourcebindings"}
	if diff := cmp.Diff(want, w.in(h.ns)); diff != "" {
		t.Errorf("writes -want +got:\n%s", diff)
	}
	if now := h.binding("web-deployment"); now.ResourceVersion != b.ResourceVersion {
		t.Error("the binding was written")
	}
}

// Two processes at once (a leader that does not know of its successor): preconditions make one of
// them lose each time.
func TestTwoAtOnce(t *testing.T) {
	h := newHub(t, "member1", "member2")
	p := h.policy("all", selecting("", "member1", ", propagateDeps: true"))
	h.run(nil)
	h.run(nil)
	names := []string{"a", "b", "c", "d", "e", "f"}
	ids := map[string]string{}
	for _, n := range names {
		h.Make(h.deployment(n, 2, needs("config-"+n)), h.configMap("config-"+n))
	}
	for _, n := range names {
		ids[n] = h.runs(n+"-deployment", "member1:2").Labels[workv1alpha2.LabelBindingID]
		await.Equal(t, n+"-deployment:member1", func() string { return required(h.binding("config-" + n + "-configmap")) })
	}
	edit(h, p, func(p *policyObject) { p.Spec.Placement.ClusterAffinity.ClusterNames = []string{"member2"} })
	for _, n := range names {
		d := h.deployment(n, 2)
		edit(h, d, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](3) })
		b := h.runs(n+"-deployment", "member2:3")
		h.follows(d, "all")
		if b.Labels[workv1alpha2.LabelBindingID] != ids[n] {
			t.Errorf("%s has another permanent id", n)
		}
	}
}

// A template that is made again while the old binding waits for its Works gets a new binding, after
// the old one (rule 2.1.6).
func TestTemplateMadeAgain(t *testing.T) {
	h := newHub(t, "member1")
	h.run(nil)
	h.policy("all", selecting("", "member1", ""))
	d := h.deployment("web", 1)
	h.Make(d)
	old := h.runs("web-deployment", "member1:1")
	h.Remove(d)
	await.True(t, "the binding waits for its Works", func() bool { return h.binding("web-deployment").DeletionTimestamp != nil })
	again := h.deployment("web", 2)
	h.Make(again)
	h.Make(h.deployment("marker", 1))
	h.runs("marker-deployment", "member1:1")
	if b := h.binding("web-deployment"); b.UID != old.UID || where(b) != "member1:1" {
		t.Fatalf("the old binding has changed: %s", where(b))
	}
	h.release(old)
	b := h.runs("web-deployment", "member1:2")
	if b.UID == old.UID || b.Spec.Resource.UID != again.UID || b.OwnerReferences[0].UID != again.UID {
		t.Errorf("binding %s of %+v", b.UID, b.Spec.Resource)
	}
}

// After a restore from a backup the template has another UID: its binding is its own again, in
// place.
func TestReowned(t *testing.T) {
	h := newHub(t, "member1")
	h.policy("all", selecting("", "member1", ""))
	stop := h.run(nil)
	d := h.deployment("web", 1)
	h.Make(d)
	b := h.runs("web-deployment", "member1:1")
	stop()
	b.OwnerReferences = nil // else the garbage collector is faster than the test
	b.Spec.Resource.UID = "of-another-hub"
	if err := h.Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	h.run(nil)
	await.Equal(t, d.UID, func() (owner types.UID) {
		now := h.binding("web-deployment")
		if len(now.OwnerReferences) == 1 && now.Spec.Resource.UID == d.UID {
			return now.OwnerReferences[0].UID
		}
		return ""
	})
	if now := h.binding("web-deployment"); now.UID != b.UID || where(now) != "member1:1" || now.Labels[workv1alpha2.LabelBindingID] != b.Labels[workv1alpha2.LabelBindingID] {
		t.Errorf("the binding was made again: %+v", now.ObjectMeta)
	}
}

// A template is gone, while the process looks or while none exists, and there is no garbage
// collector: its binding goes. One that the template does not own any more (--cascade=orphan)
// stays, and so does that of a template that lives.
func TestTemplateGone(t *testing.T) {
	h := hubAt(t, apiserver.Start(t, apiserver.CRDs()), "member1")
	h.policy("all", selecting("", "member1", ""))
	stop := h.run(nil)
	web, later, orphaning := h.deployment("web", 1), h.deployment("later", 1), h.deployment("orphaning", 1)
	h.Make(web, later, orphaning, h.deployment("lives", 1))
	for _, name := range []string{"web", "later", "lives", "orphaning"} {
		h.runs(name+"-deployment", "member1:1")
	}
	gone := func(name string) func() bool {
		return func() bool { b := h.binding(name); return b == nil || b.DeletionTimestamp != nil }
	}
	h.Remove(web)
	await.True(t, "the binding goes with its template", gone("web-deployment"))
	stop()
	orphan := h.binding("orphaning-deployment")
	orphan.OwnerReferences = nil
	if err := h.Update(t.Context(), orphan); err != nil {
		t.Fatal(err)
	}
	h.Remove(later, orphaning)
	h.run(nil)
	await.True(t, "the binding goes when somebody looks", gone("later-deployment"))
	h.Make(h.deployment("marker", 1))
	h.runs("marker-deployment", "member1:1")
	if gone("lives-deployment")() || gone("orphaning-deployment")() {
		t.Error("a binding was deleted whose template lives, or does not own it")
	}
}

// A Job that is replaced while nobody looks, and there is no garbage collector, gets a new binding
// once the old one is gone. That of a hub restored with new UIDs, whose UID an import has written,
// stays.
func TestJobReplaced(t *testing.T) {
	h := hubAt(t, apiserver.Start(t, apiserver.CRDs()), "member1")
	h.policy("jobs", `{resourceSelectors: [{apiVersion: batch/v1, kind: Job}], placement: {clusterAffinity: {clusterNames: [member1]}}}`)
	stop := h.run(nil)
	job := func(name string) *batchv1.Job {
		j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: h.ns, Name: name}}
		j.Spec.Template.Spec = corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}}}
		return j
	}
	replaced, restored := job("replaced"), job("restored")
	h.Make(replaced, restored)
	old, kept := h.runs("replaced-job", "member1:1"), h.runs("restored-job", "member1:1")
	stop()
	if err := h.Delete(t.Context(), replaced, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		t.Fatal(err)
	}
	again := job("replaced")
	h.Make(again)
	kept.Spec.Resource.UID = "of-another-hub"
	if err := h.Update(t.Context(), kept); err != nil {
		t.Fatal(err)
	}
	h.run(nil)
	await.True(t, "the binding of the former Job ends", func() bool { return h.binding("replaced-job").DeletionTimestamp != nil })
	h.release(old)
	await.Equal(t, again.UID, func() types.UID {
		if b := h.binding("replaced-job"); b != nil && b.UID != old.UID {
			return b.Spec.Resource.UID
		}
		return ""
	})
	await.Equal(t, restored.UID, func() types.UID { return h.binding("restored-job").Spec.Resource.UID })
	if b := h.binding("restored-job"); b.UID != kept.UID {
		t.Error("the binding of a restored hub was made again")
	}
}

// The informer of policies is behind that of templates: a template moves to a policy that has moved
// to the template's cluster a moment before. It must never be anywhere else.
func TestPoliciesBehind(t *testing.T) {
	h := newHub(t, "member1", "member2")
	h.policy("a", selecting(", labelSelector: {matchLabels: {group: a}}", "member1", ""))
	b := h.policy("b", selecting(", labelSelector: {matchLabels: {group: b}}", "member2", ""))
	in := func(group string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) { d.Labels = map[string]string{"group": group} }
	}
	held := holdup{path: "/apis/policy.karmada.io/v1alpha1/propagationpolicies"}
	h.run(held.wrap)
	d := h.deployment("web", 2, in("a"))
	h.Make(d)
	h.runs("web-deployment", "member1:2")

	held.hold()
	edit(h, b, func(p *policyObject) { p.Spec.Placement.ClusterAffinity.ClusterNames = []string{"member1"} })
	edit(h, d, in("b"))
	await.Never(t, time.Second, "it leaves its cluster", func() bool { return where(h.binding("web-deployment")) != "member1:2" })
	held.release()
	h.follows(d, "b")
	h.runs("web-deployment", "member1:2")
	edit(h, b, func(p *policyObject) { p.Spec.Placement.ClusterAffinity.ClusterNames = []string{"member2"} })
	h.runs("web-deployment", "member2:2") // what is asked for is done
}

// A kind that a policy names is propagated as soon as it is served, and no longer watched when no
// policy names it.
func TestKindAppearsLater(t *testing.T) {
	h := newHub(t, "member1")
	var asked watches
	h.run(asked.wrap)
	p := h.policy("gadgets", `{resourceSelectors: [{apiVersion: example.com/v1, kind: Gadget}], placement: {clusterAffinity: {clusterNames: [member1]}}}`)
	h.policy("all", selecting("", "member1", ""))
	h.Make(h.deployment("web", 1))
	h.runs("web-deployment", "member1:1") // the other kind does not suffer
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "gadgets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "gadgets", Kind: "Gadget"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object",
					XPreserveUnknownFields: ptr.To(true)}}}}}}
	h.Make(crd)
	gadget := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Gadget",
		"metadata": map[string]any{"namespace": h.ns, "name": "g"}, "spec": map[string]any{"size": int64(1)}}}
	await.True(t, "the kind is served", func() bool { return h.Create(t.Context(), gadget.DeepCopy()) == nil })
	b := h.runs("g-gadget", "member1:0")
	if !asked.open("/apis/example.com/v1/gadgets") || asked.open("/api/v1/secrets") || asked.open("/api/v1/pods") {
		t.Errorf("watched are %v", asked.all())
	}

	h.Remove(p)
	h.follows(b, "")
	h.release(p)
	await.True(t, "the kind is no longer watched", func() bool { return !asked.open("/apis/example.com/v1/gadgets") })
	again := h.policy("gadgets-again", `{resourceSelectors: [{apiVersion: example.com/v1, kind: Gadget}], placement: {clusterAffinity: {clusterNames: [member1]}}}`)
	h.follows(b, again.Name)
	second := gadget.DeepCopy() // seen by its event only
	second.SetName("second")
	h.Make(second)
	h.runs("second-gadget", "member1:0")
	h.Remove(crd)
	await.True(t, "a kind that is no longer served is not watched", func() bool { return !asked.open("/apis/example.com/v1/gadgets") })
	h.Make(h.deployment("after", 1))
	h.runs("after-deployment", "member1:1")
}

// What Karmada has decided stays: its bindings have the placement and the time of the decision, but
// no record of it, and Karmada's clusters, which another scheduler would choose differently.
func TestKarmadasDecisionStays(t *testing.T) {
	h := newHub(t, "member1", "member2")
	h.policy("all", `{resourceSelectors: [{apiVersion: apps/v1, kind: Deployment}],
		placement: {replicaScheduling: {replicaSchedulingType: Divided, replicaDivisionPreference: Weighted}}}`)
	stop := h.run(nil)
	h.Make(h.deployment("web", 4))
	await.True(t, "decided", func() bool { b := h.binding("web-deployment"); return b != nil && len(b.Spec.Clusters) > 0 })
	stop()
	b := h.binding("web-deployment")
	edit(h, b, func(b *workv1alpha2.ResourceBinding) {
		delete(b.Annotations, workv1alpha2.AnnotationDecision)
		b.Spec.Clusters = []workv1alpha2.TargetCluster{{Name: "member1", Replicas: 3}, {Name: "member2", Replicas: 1}}
	})
	b = h.binding("web-deployment")
	b.Status.LastScheduledTime = ptr.To(metav1.Now())
	if err := h.Status().Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	h.run(nil)
	await.True(t, "seen", func() bool { return h.binding("web-deployment").Annotations[workv1alpha2.AnnotationDecision] != "" })
	h.runs("web-deployment", "member1:3 member2:1")
	if d := workv1alpha2.ReadDecision(h.binding("web-deployment").Annotations); !d.Scheduled.Time.Equal(b.Status.LastScheduledTime.Rfc3339Copy().Time) {
		t.Errorf("decided again at %v", d.Scheduled)
	}
}

// The order of clusters, Karmada's for instance, is no decision.
func TestOrderOfClustersStays(t *testing.T) {
	h := newHub(t, "member1", "member2")
	h.policy("all", selecting("", "member1, member2", ""))
	stop := h.run(nil)
	h.Make(h.deployment("web", 1))
	b := h.runs("web-deployment", "member1:1 member2:1")
	stop()
	edit(h, b, func(b *workv1alpha2.ResourceBinding) { slices.Reverse(b.Spec.Clusters) })
	h.run(nil)
	h.Make(h.deployment("marker", 1))
	h.runs("marker-deployment", "member1:1 member2:1")
	if c := h.binding("web-deployment").Spec.Clusters; c[0].Name != "member2" {
		t.Errorf("clusters were written again: %v", c)
	}
}

// A policy ends although a binding that it has made waits for an unreachable member: its template
// is released at once.
func TestClaimOfAnEndingBinding(t *testing.T) {
	h := newHub(t, "member1")
	h.run(nil)
	policy := h.policy("all", selecting("", "member1", ""))
	web := h.deployment("web", 1)
	h.Make(web)
	binding := h.runs("web-deployment", "member1:1")
	h.follows(web, "all")
	for _, o := range []client.Object{binding, policy} {
		if err := h.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	h.follows(web, "")
	if b := h.binding("web-deployment"); b == nil || b.UID != binding.UID {
		t.Error("the binding does not wait")
	}
}
