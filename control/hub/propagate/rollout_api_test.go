package propagate_test

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/placement"
	"github.com/pelago-net/pelago/control/hub/propagate"
	"github.com/pelago-net/pelago/control/hub/work"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// rollingHub has a hub that makes Works, with a canary and two other members.
func rollingHub(t *testing.T) *hub {
	t.Helper()
	h := readyHub(t, "member1", "member2", "member3")
	for _, m := range []string{"member1", "member2", "member3"} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: workv1alpha2.ExecutionNamespace(m)}}
		if err := h.Create(h.Context(), ns); client.IgnoreAlreadyExists(err) != nil {
			t.Fatal(err)
		}
	}
	h.tier("member1", "canary")
	return h
}

func (h *hub) tier(member, tier string) {
	h.Helper()
	edit(h, &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: member}}, func(c *clusterv1alpha1.Cluster) {
		c.Labels = map[string]string{"tier": tier}
	})
}

// works starts the controllers of bindings and of Works.
func (h *hub) works() (stop func()) {
	h.Helper()
	return apiserver.Manager{
		Scheme: h.Scheme(), Cache: cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		Setup: []func(ctrl.Manager) error{work.AddIndexes, func(m ctrl.Manager) error {
			return propagate.Setup(m, propagate.Options{Interpreter: kinds.New(), Capacity: placement.NewCache(placement.CacheOptions{}), Workers: 4})
		}, func(m ctrl.Manager) error {
			return work.SetupBindings(m, work.BindingOptions{HubID: "hub", Interpreter: kinds.New(), Workers: 4})
		}},
	}.Run(h, h.Config)
}

// work is the Work of the Deployment web in a member; nil: none.
func (h *hub) work(member string) *workv1alpha1.Work {
	h.Helper()
	var list workv1alpha1.WorkList
	if err := h.List(h.Context(), &list, client.InNamespace(workv1alpha2.ExecutionNamespace(member))); err != nil {
		h.Fatal(err)
	}
	for i := range list.Items {
		if list.Items[i].Annotations[workv1alpha2.AnnotationBindingNamespace] == h.ns {
			return &list.Items[i]
		}
	}
	return nil
}

// rolled waits until the members have these images and replicas, and the rollout this reason.
func (h *hub) rolled(want string) *workv1alpha2.Rollout {
	h.Helper()
	var state *workv1alpha2.Rollout
	await.Equal(h, want, func() string {
		var out []string
		for _, m := range []string{"member1", "member2", "member3"} {
			w := h.work(m)
			if w == nil {
				out = append(out, "none")
				continue
			}
			var d appsv1.Deployment
			read(h, string(w.Spec.Workload.Manifests[0].Raw), &d)
			out = append(out, fmt.Sprintf("%s*%d", strings.TrimPrefix(d.Spec.Template.Spec.Containers[0].Image, "nginx:"), *d.Spec.Replicas))
		}
		if b := h.binding("web-deployment"); b != nil {
			if state = workv1alpha2.ReadRollout(b.Annotations); state != nil && state.Reason != "" {
				out = append(out, state.Reason)
			}
		}
		return strings.Join(out, " ")
	})
	return state
}

// healthy has a member apply its Work, with this health.
func (h *hub) healthy(member string, health workv1alpha1.ResourceHealth) {
	h.Helper()
	await.True(h, "the status of the Work is written", func() bool {
		w := h.work(member)
		w.Status.Conditions = []metav1.Condition{{Type: workv1alpha1.ConditionApplied, Status: metav1.ConditionTrue, Reason: "AppliedSuccessful",
			LastTransitionTime: metav1.Now(), ObservedGeneration: w.Generation}}
		w.Status.ManifestStatuses = []workv1alpha1.ManifestStatus{{Health: health,
			Identifier: workv1alpha1.ResourceIdentifier{Version: "v1", Kind: "Deployment", Resource: "deployments", Name: "web"}}}
		return h.Status().Update(h.Context(), w) == nil
	})
}

// commands changes the state as the command line does.
func (h *hub) commands(change func(*workv1alpha2.Rollout)) {
	h.Helper()
	edit(h, h.binding("web-deployment"), func(b *workv1alpha2.ResourceBinding) {
		r := workv1alpha2.ReadRollout(b.Annotations)
		change(r)
		text, err := r.Encode()
		if err != nil {
			h.Fatal(err)
		}
		b.Annotations[workv1alpha2.AnnotationRollout] = text
	})
}

// A revision goes to the canary, then to one cluster after the other; it stops where it is
// unhealthy, returns where it is aborted, and outlasts restarts of the hub.
func TestRollout(t *testing.T) {
	h := rollingHub(t)
	stop := h.works()
	p := h.policy("web", selecting("", "member1, member2, member3", ""))
	rollout := func(text string) {
		t.Helper()
		edit(h, p, func(p *policyv1alpha1.PropagationPolicy) {
			p.Annotations = map[string]string{policyv1alpha1.AnnotationRollout: text}
		})
	}
	rollout(`{"order": ["tier=canary"], "maxClusters": 1, "progressDeadline": "24h"}`)
	web := h.deployment("web", 2)
	h.Make(web)
	h.rolled("1.19.0*2 1.19.0*2 1.19.0*2")
	revise := func(image string) {
		t.Helper()
		edit(h, web, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "nginx:" + image })
	}

	revise("2")
	first := h.rolled("2*2 1.19.0*2 1.19.0*2 Progressing")
	stop()
	stop = h.works()
	edit(h, web, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To(int32(3)) })
	if now := h.rolled("2*3 1.19.0*3 1.19.0*3 Progressing"); now.Revision != first.Revision || now.Passed != first.Passed {
		t.Errorf("scaled, the rollout of %s after %s is one of %s after %s", first.Revision, first.Passed, now.Revision, now.Passed)
	}
	h.healthy("member1", workv1alpha1.ResourceHealthy)
	h.rolled("2*3 2*3 1.19.0*3 Progressing")
	h.healthy("member2", workv1alpha1.ResourceUnhealthy)
	rollout(`{"order": ["tier=canary"], "maxClusters": 1, "progressDeadline": "1s"}`)
	state := h.rolled("2*3 2*3 1.19.0*3 Stopped")
	if !strings.Contains(state.Message, "cluster member2: it is not healthy after 1s: it is unhealthy") {
		t.Errorf("message %q", state.Message)
	}
	await.True(t, "an Event has the reason", func() bool {
		var events corev1.EventList
		if err := h.List(h.Context(), &events, client.InNamespace(h.ns)); err != nil {
			t.Fatal(err)
		}
		for _, e := range events.Items {
			if e.Reason == workv1alpha2.EventRolloutStopped && e.InvolvedObject.Name == "web" {
				return true
			}
		}
		return false
	})
	stop()
	stop = h.works()
	rollout(`{"order": ["tier=canary"], "maxClusters": 1, "progressDeadline": "24h"}`)
	h.rolled("2*3 2*3 1.19.0*3 Stopped")
	h.commands(func(r *workv1alpha2.Rollout) { r.Hold = workv1alpha2.RolloutAborted })
	h.rolled("1.19.0*3 1.19.0*3 1.19.0*3 Aborted")
	h.commands((*workv1alpha2.Rollout).Resume)
	h.rolled("2*3 1.19.0*3 1.19.0*3 Progressing")

	revise("3") // in mid-rollout
	h.rolled("3*3 1.19.0*3 1.19.0*3 Progressing")
	h.commands(func(r *workv1alpha2.Rollout) { r.Hold = workv1alpha2.RolloutPaused })
	h.healthy("member1", workv1alpha1.ResourceHealthy)
	h.rolled("3*3 1.19.0*3 1.19.0*3 Paused")
	h.commands((*workv1alpha2.Rollout).Resume)
	h.rolled("3*3 3*3 1.19.0*3 Progressing")
	h.healthy("member2", workv1alpha1.ResourceHealthy)
	h.rolled("3*3 3*3 3*3 Progressing") // the status that follows is of this revision
	h.healthy("member3", workv1alpha1.ResourceHealthy)
	if state := h.rolled("3*3 3*3 3*3"); state.InProgress() {
		t.Errorf("state %+v", state)
	}

	h.tier("member1", "former")
	revise("4")
	h.rolled("3*3 3*3 3*3 InvalidOrder")
	h.tier("member2", "canary")
	h.rolled("3*3 4*3 3*3 Progressing")
	revise("5")
	h.rolled("3*3 5*3 3*3 Progressing")
	edit(h, p, func(p *policyv1alpha1.PropagationPolicy) { p.Annotations = nil })
	h.rolled("5*3 5*3 5*3")
	stop()
}
