package propagate_test

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/test/await"
)

// A namespaced policy beats a cluster-wide one whatever their priorities (rule 2.1.1); a claim stays where it is when a better policy
// appears (2.1.3), but for one with preemption Always and a higher priority; a policy that no longer has the higher one does not
// get it back by itself.
func TestClaimsStayUntilPreempted(t *testing.T) {
	h := newHub(t, "member1", "member2", "member3")
	h.run(nil)
	low := h.policy("low", selecting("", "member1", ", priority: 1"))
	first := h.deployment("first", 1)
	h.Make(first)
	h.follows(first, "low")
	h.widePolicy("everywhere-"+h.ns, selecting("", "member3", ", priority: 100"))
	h.widePolicy("signs-"+h.ns, strings.Replace(selecting(", name: sign", "member3", ""), "apps/v1, kind: Deployment", "v1, kind: ConfigMap", 1))
	sign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: h.ns, Name: "sign"}}
	h.Make(sign) // whoever sees its policy has seen the one before
	h.follows(sign, "signs-"+h.ns)
	d := h.deployment("web", 1)
	h.Make(d)
	h.follows(d, "low")
	h.runs("web-deployment", "member1:1")

	h.policy("better", selecting(", name: web", "member2", ", priority: 5"))
	marker := h.deployment("marker", 1) // whoever sees it has seen the policy before
	h.Make(marker)
	h.follows(marker, "low")
	h.follows(d, "low")

	h.policy("taker", selecting(", name: web", "member2", ", priority: 2, preemption: Always"))
	h.follows(d, "taker")
	h.runs("web-deployment", "member2:1")

	edit(h, low, func(p *policyv1alpha1.PropagationPolicy) { p.Spec.Priority = 50 })
	edit(h, d, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](2) })
	h.runs("web-deployment", "member2:2")
	h.follows(d, "taker")
}

// A takeover that the API server does not let through is told of in words that name both policies, counted, and tried again.
func TestPreemptionFails(t *testing.T) {
	h := newHub(t, "member1", "member2")
	var broken atomic.Bool
	h.run(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(q *http.Request) (*http.Response, error) {
			if broken.Load() && q.Method == http.MethodPatch && strings.HasSuffix(q.URL.Path, "/deployments/web") {
				return nil, errors.New("the line is cut")
			}
			return next.RoundTrip(q)
		})
	})
	h.policy("low", selecting(", name: web", "member1", ""))
	d := h.deployment("web", 1)
	h.Make(d)
	h.runs("web-deployment", "member1:1")
	before := counted(t, "policy_preemption_total")
	broken.Store(true)
	h.policy("taker", selecting(", name: web", "member2", ", priority: 2, preemption: Always"))
	await.True(t, "it is told", func() bool { return h.event("web", workv1alpha2.EventPreemptPolicyFailed) })
	if got := counted(t, "policy_preemption_total"); got["error"] <= before["error"] || got["success"] != before["success"] {
		t.Errorf("counted %v, and before %v", got, before)
	}
	h.follows(d, "low")
	h.runs("web-deployment", "member1:1")
	broken.Store(false)
	h.follows(d, "taker")
	h.runs("web-deployment", "member2:1")
	if got := counted(t, "policy_preemption_total"); got["success"] != before["success"]+1 {
		t.Errorf("counted %v, and before %v", got, before)
	}
}

// counted reads a counter by its label result.
func counted(t *testing.T, name string) map[string]float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "result" {
					out[l.GetValue()] += m.GetCounter().GetValue()
				}
			}
		}
	}
	return out
}

// A namespaced policy with preemption Always takes a template from a cluster-wide one of any priority, and not the other way round
// (rule 2.1.3). A policy that lowers its own priority lets those between take over.
func TestPreemptionAcrossScopes(t *testing.T) {
	h := newHub(t, "member1", "member2")
	h.run(nil)
	wide := h.widePolicy("wide-"+h.ns, selecting(", name: web", "member1", ", priority: 9, preemption: Always"))
	d := h.deployment("web", 1)
	h.Make(d)
	h.follows(d, wide.Name)
	high := h.policy("taker", selecting(", name: web", "member2", ", priority: 7, preemption: Always"))
	h.follows(d, "taker")
	h.policy("between", selecting(", name: web", "member1", ", priority: 5, preemption: Always"))
	h.runs("web-deployment", "member2:1")
	edit(h, high, func(p *policyv1alpha1.PropagationPolicy) { p.Spec.Priority = 3 })
	h.follows(d, "between")
	h.runs("web-deployment", "member1:1")
}

// A template that a policy no longer selects loses the claim, keeps its binding, and is matched anew (rule 2.1.5).
func TestSelectorChange(t *testing.T) {
	h := newHub(t, "member1", "member2")
	h.run(nil)
	p := h.policy("first", selecting(", name: web", "member1", ""))
	d := h.deployment("web", 1)
	h.Make(d)
	h.runs("web-deployment", "member1:1")
	h.follows(d, "first")

	edit(h, p, func(p *policyv1alpha1.PropagationPolicy) { p.Spec.ResourceSelectors[0].Name = "other" })
	h.follows(d, "")
	b := h.binding("web-deployment")
	h.follows(b, "")
	if got := where(b); got != "member1:1" {
		t.Errorf("after the claim it runs in %s", got)
	}
	h.policy("second", selecting(", name: web", "member2", ""))
	h.follows(d, "second")
	now := h.runs("web-deployment", "member2:1")
	if now.UID != b.UID {
		t.Error("the binding was made again")
	}
}

// After a policy's deletion claims go and all else stays; a new policy of the same name may take over (rules 2.1.5, 2.1.6).
func TestPolicyDeletedAndMadeAgain(t *testing.T) {
	h := newHub(t, "member1", "member2")
	h.run(nil)
	p := h.policy("spread", selecting("", "member1", ""))
	d := h.deployment("web", 1)
	h.Make(d)
	b := h.runs("web-deployment", "member1:1")
	h.follows(d, "spread")
	h.Remove(p)
	h.follows(d, "")
	h.follows(b, "")
	if got := h.binding("web-deployment"); where(got) != "member1:1" || got.UID != b.UID || got.Spec.Placement == nil {
		t.Errorf("after the policy there is %s, %+v", where(got), got)
	}
	h.release(p)
	await.True(t, "the policy is gone", func() bool { return h.Get(t.Context(), keyFor(p), &policyv1alpha1.PropagationPolicy{}) != nil })

	h.policy("spread", selecting("", "member2", ""))
	h.follows(d, "spread")
	if now := h.runs("web-deployment", "member2:1"); now.UID != b.UID {
		t.Error("the binding was made again")
	}
}

// Lazy: neither a change of the policy nor a claim moves a template; its next edit does (rule 2.9). A template that comes after the
// policy is propagated at once.
func TestLazy(t *testing.T) {
	h := newHub(t, "member1", "member2")
	stop := h.run(nil)
	old := h.deployment("old", 1)
	h.Make(old)
	await.True(t, "a second has passed, in which times of creation are counted", func() bool {
		probe := h.configMap("")
		probe.GenerateName = "probe-"
		h.Make(probe)
		return probe.CreationTimestamp.After(old.CreationTimestamp.Time)
	})
	p := h.policy("lazy", selecting("", "member1", ", activationPreference: Lazy"))
	h.follows(old, "lazy")
	fresh := h.deployment("fresh", 1)
	h.Make(fresh)
	h.runs("fresh-deployment", "member1:1")
	if b := h.binding("old-deployment"); b != nil {
		t.Errorf("a policy that waits has made a binding in %s", where(b))
	}

	edit(h, p, func(p *policyv1alpha1.PropagationPolicy) {
		p.Spec.Placement.ClusterAffinity.ClusterNames = []string{"member2"}
	})
	stop() // nor does a restart
	h.run(nil)
	edit(h, old, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](2) })
	h.runs("old-deployment", "member2:2")
	if got := where(h.binding("fresh-deployment")); got != "member1:1" {
		t.Errorf("a change of the policy has moved it: %s", got)
	}
	edit(h, fresh, func(d *appsv1.Deployment) { d.Labels["edited"] = "yes" })
	h.runs("fresh-deployment", "member2:1")
}

// A policy that is deleted loses its claims although its successor cannot be used; the template stays where it is.
func TestPolicyEndsBeforeItsSuccessorCanBeUsed(t *testing.T) {
	h := newHub(t, "member1", "member2")
	h.run(nil)
	a := h.policy("a", selecting("", "member1", ""))
	d := h.deployment("web", 1)
	h.Make(d)
	b := h.runs("web-deployment", "member1:1")
	h.policy("b", selecting("", "member2", ", schedulePriority: {priorityClassSource: KubePriorityClass, priorityClassName: none}"))
	h.Remove(a)
	h.follows(d, "")
	h.follows(b, "")
	h.runs("web-deployment", "member1:1")
}

// A template whose name and kind another one has in another group gets a binding beside that one's, and finds it by what it is for.
func TestNameIsTaken(t *testing.T) {
	h := newHub(t, "member1")
	other := &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: h.ns, Name: "web-deployment"},
		Spec: workv1alpha2.ResourceBindingSpec{Resource: workv1alpha2.ObjectReference{APIVersion: "example.com/v1", Kind: "Deployment", Namespace: h.ns, Name: "web"}}}
	h.Make(other)
	h.run(nil)
	h.policy("all", selecting("", "member1", ""))
	d := h.deployment("web", 1)
	h.Make(d)
	beside := workv1alpha2.AlternateBindingName(workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: h.ns, Name: "web"})
	h.runs(beside, "member1:1")
	edit(h, d, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](2) })
	h.runs(beside, "member1:2")
	if now := h.binding("web-deployment"); now.ResourceVersion != other.ResourceVersion {
		t.Errorf("the other binding was written: %+v", now)
	}
}
