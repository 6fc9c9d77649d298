package propagate_test

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/metrics"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/test/await"
)

// A takeover that the API server does not let through is notified of in words that name both
// policies, counted, and tried again.
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

// A template that a policy no longer selects loses the claim, keeps its binding, and is matched
// again (rule 2.1.5).
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
