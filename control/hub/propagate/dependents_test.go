package propagate_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/test/await"
)

// required says which bindings a dependent's binding is required by, and where those run.
func required(b *workv1alpha2.ResourceBinding) string {
	if b == nil {
		return "no binding"
	}
	var out []string
	for _, r := range b.Spec.RequiredBy {
		var clusters []string
		for _, c := range r.Clusters {
			clusters = append(clusters, c.Name)
		}
		out = append(out, r.Name+":"+strings.Join(clusters, ","))
	}
	return strings.Join(out, " ")
}

// labels counts those by which the binding names the ones that need it.
func labels(b *workv1alpha2.ResourceBinding) (n int) {
	for key := range b.Labels {
		if strings.HasPrefix(key, workv1alpha2.LabelDependedByPrefix) {
			n++
		}
	}
	return n
}

// What a template refers to goes where the template goes, also if it appears later; of what two need in different ways the
// stronger way holds, with an Event; when nothing needs it any more its binding goes (karmada.md 1.5).
func TestDependents(t *testing.T) {
	h := newHub(t, "member1", "member2")
	h.run(nil)
	h.policy("first", selecting(", name: a", "member1", ", propagateDeps: true"))
	h.policy("second", selecting(", name: b", "member2", ", propagateDeps: true, conflictResolution: Overwrite, preserveResourcesOnDeletion: true"))
	a, b := h.deployment("a", 1, needs("config")), h.deployment("b", 1, needs("config"))
	h.Make(a)
	parent := h.runs("a-deployment", "member1:1")
	if got := parent.Annotations[workv1alpha2.AnnotationDependencies]; got != `[{"apiVersion":"v1","kind":"ConfigMap","namespace":"`+h.ns+`","name":"config"}]` {
		t.Errorf("dependencies %s", got)
	}
	h.Make(h.configMap("config"), h.configMap("other"))
	await.Equal(t, "a-deployment:member1", func() string { return required(h.binding("config-configmap")) })
	attached := h.binding("config-configmap")
	if s := attached.Spec; s.Placement != nil || s.Clusters != nil || attached.Annotations[workv1alpha2.AnnotationDecision] != "" || labels(attached) != 1 ||
		s.ConflictResolution != policyv1alpha1.ConflictAbort {
		t.Errorf("attached %+v %v", s, attached.ObjectMeta)
	}

	h.Make(b)
	await.Equal(t, "a-deployment:member1 b-deployment:member2", func() string { return required(h.binding("config-configmap")) })
	attached = h.binding("config-configmap")
	if s := attached.Spec; s.ConflictResolution != policyv1alpha1.ConflictOverwrite || !ptr.Deref(s.PreserveResourcesOnDeletion, false) || labels(attached) != 2 {
		t.Errorf("after a conflict %+v", s)
	}
	await.True(t, "the conflict is an event", func() bool { return h.event("config", workv1alpha2.EventDependencyPolicyConflict) })

	edit(h, b, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Volumes = nil }) // no longer refers
	await.Equal(t, "a-deployment:member1", func() string { return required(h.binding("config-configmap")) })
	if got := h.binding("config-configmap"); got.Spec.ConflictResolution != policyv1alpha1.ConflictAbort || got.Spec.PreserveResourcesOnDeletion != nil || labels(got) != 1 {
		t.Errorf("after the conflict %+v", got.Spec)
	}
	h.Remove(a) // its binding waits for Works; the test lets it go
	await.True(t, "the binding is being deleted", func() bool { return h.binding("a-deployment").DeletionTimestamp != nil })
	h.release(h.binding("a-deployment"))
	await.True(t, "the attached binding is being deleted", func() bool {
		b := h.binding("config-configmap")
		return b == nil || b.DeletionTimestamp != nil
	})
	if h.binding("other-configmap") != nil {
		t.Error("an object that nothing needs has a binding")
	}
}

// A dependent that a policy of its own selects keeps placement and clusters of its own; that of a policy which is gone stays
// when nothing needs it any more.
func TestDependentWithPolicy(t *testing.T) {
	h := newHub(t, "member1", "member2")
	h.run(nil)
	own := h.policy("own", `{resourceSelectors: [{apiVersion: v1, kind: ConfigMap, name: config}], placement: {clusterAffinity: {clusterNames: [member2]}}}`)
	h.policy("first", selecting(", name: a", "member1", ", propagateDeps: true"))
	h.Make(h.configMap("config"))
	d := h.deployment("a", 1, needs("config"))
	h.Make(d)
	await.Equal(t, "a-deployment:member1", func() string { return required(h.binding("config-configmap")) })
	h.runs("config-configmap", "member2:0")
	h.Remove(own)
	h.follows(h.binding("config-configmap"), "")
	edit(h, d, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Volumes = nil })
	await.Equal(t, "", func() string { return required(h.binding("config-configmap")) })
	if got := h.binding("config-configmap"); where(got) != "member2:0" || got.DeletionTimestamp != nil {
		t.Errorf("a binding that had a policy: %s, %v", where(got), got.DeletionTimestamp)
	}
}

// A dependent's binding is not deleted while a parent binding is being recreated: objects in members would be recreated, too.
func TestParentMadeAgain(t *testing.T) {
	h := newHub(t, "member1")
	stop := h.run(nil)
	h.policy("first", selecting("", "member1", ", propagateDeps: true"))
	h.Make(h.configMap("config"), h.deployment("a", 1, needs("config")))
	await.Equal(t, "a-deployment:member1", func() string { return required(h.binding("config-configmap")) })
	attached, parent := h.binding("config-configmap"), h.binding("a-deployment")
	stop()
	h.Remove(parent)
	h.release(parent)
	h.run(func(next http.RoundTripper) http.RoundTripper { // the parent comes late
		return roundTripper(func(q *http.Request) (*http.Response, error) {
			if q.Method == http.MethodPost && strings.HasSuffix(q.URL.Path, "/resourcebindings") {
				select {
				case <-time.After(time.Second): // the fault itself: a write that is slow
				case <-q.Context().Done():
					return nil, q.Context().Err()
				}
			}
			return next.RoundTrip(q)
		})
	})
	if again := h.runs("a-deployment", "member1:1"); again.UID == parent.UID {
		t.Fatal("the parent was not made again")
	}
	wantLabel := func() string {
		b := h.binding("config-configmap")
		if b == nil || b.UID != attached.UID || b.DeletionTimestamp != nil {
			return "made again"
		}
		for key, value := range b.Labels {
			if strings.HasPrefix(key, workv1alpha2.LabelDependedByPrefix) {
				return value
			}
		}
		return ""
	}
	await.Equal(t, h.binding("a-deployment").Labels[workv1alpha2.LabelBindingID], wantLabel)
}

// event says whether there is one of a reason on an object of a name.
func (h *hub) event(name, reason string) bool {
	h.Helper()
	var list corev1.EventList
	if err := h.List(h.Context(), &list); err != nil {
		h.Fatal(err)
	}
	for _, e := range list.Items {
		if e.InvolvedObject.Namespace == h.ns && e.InvolvedObject.Name == name && e.Reason == reason {
			return true
		}
	}
	return false
}
