package propagate_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/test/await"
)

// followers selects Deployments by a label and duplicates them to the clusters with another one.
func followers(on, clusters string) string {
	return "{resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, labelSelector: {matchLabels: {flock: " + on + "}}}], placement: {clusterAffinity: {labelSelector: {matchLabels: {" +
		clusters + ": x}}}}}"
}

// labelled sets the labels of a cluster.
func (h *hub) labelled(c *clusterv1alpha1.Cluster, labels ...string) {
	h.Helper()
	edit(h, c, func(c *clusterv1alpha1.Cluster) {
		c.Labels = map[string]string{}
		for _, l := range labels {
			c.Labels[l] = "x"
		}
	})
}

// attempts are the decisions that controllers of this process have come to.
func attempts(t *testing.T) (n float64) {
	t.Helper()
	all, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == "karmada_scheduler_schedule_attempts_total" {
			for _, m := range f.GetMetric() {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// A change of a cluster is decided on for the templates that it moves, and for no others.
func TestOnlyWhatMovesIsDecidedAgain(t *testing.T) {
	h := newHub(t)
	first, second := h.join("member1"), h.join("member2")
	h.labelled(first, "all")
	h.labelled(second, "all", "some")
	h.run(nil)
	h.policy("all", followers("all", "all"))
	h.policy("some", followers("some", "some"))
	on := func(name string) {
		d := h.deployment(name, 1)
		d.Labels["flock"] = strings.TrimRight(name, "0123456789")
		h.Make(d)
	}
	const flock = 12
	for i := range flock {
		on(fmt.Sprint("all", i))
	}
	for i := range flock {
		h.runs(fmt.Sprintf("all%d-deployment", i), "member1:1 member2:1")
	}
	on("some1")
	h.runs("some1-deployment", "member2:1")
	before := attempts(t)
	for _, taints := range [][]clusterv1alpha1.Taint{{{Key: "flip", Effect: corev1.TaintEffectNoSchedule}}, nil} {
		edit(h, second, func(c *clusterv1alpha1.Cluster) { c.Spec.Taints = taints })
	}
	h.labelled(first, "all", "some")
	h.runs("some1-deployment", "member1:1 member2:1")
	h.labelled(first, "all")
	h.runs("some1-deployment", "member2:1")
	// A change that arrives while a decision is being written leads to one more; one that is decided
	// for all templates leads to as many as there are.
	if n := attempts(t) - before; n < 2 || n >= flock {
		t.Errorf("%v decisions, want the two that move a template, and none for the other %d", n, flock)
	}
}

// A decision whose write is under way while its reason goes away again is not the last one.
func TestClusterBackDuringWrite(t *testing.T) {
	h := newHub(t)
	c := h.join("member1")
	h.labelled(c, "all")
	h.labelled(h.join("member2"), "all")
	under, goOn := make(chan bool), make(chan bool)
	armed := make(chan bool, 1)
	h.run(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(q *http.Request) (*http.Response, error) {
			if q.Method == http.MethodPut && strings.HasSuffix(q.URL.Path, "/resourcebindings/web-deployment") {
				select {
				case <-armed:
					under <- true
					<-goOn
				default:
				}
			}
			return next.RoundTrip(q)
		})
	})
	h.policy("all", followers("web", "all"))
	d := h.deployment("web", 1)
	d.Labels["flock"] = "web"
	h.Make(d)
	h.runs("web-deployment", "member1:1 member2:1")
	h.policy("other", followers("other", "back"))
	other := h.deployment("other", 1)
	other.Labels["flock"] = "other"
	h.Make(other)
	h.runs("other-deployment", "NoClusterFit")
	armed <- true
	h.labelled(c)
	<-under
	h.labelled(c, "all", "back")
	h.runs("other-deployment", "member1:1") // the change has been looked at
	goOn <- true
	await.True(t, "the binding was written", func() bool { return h.binding("web-deployment").Generation > 1 })
	h.runs("web-deployment", "member1:1 member2:1")
	if g := h.binding("web-deployment").Generation; g < 3 {
		t.Errorf("generation %d: the template did not leave member1 and come back", g)
	}
}
