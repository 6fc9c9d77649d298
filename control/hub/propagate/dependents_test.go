package propagate_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/test/await"
)

// required reports which bindings a dependent's binding is required by, and where those run.
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

// A dependent's binding is not deleted while a parent binding is being recreated: objects in
// members would be recreated, too.
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

// event reports whether there is one of a reason on an object of a name.
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
