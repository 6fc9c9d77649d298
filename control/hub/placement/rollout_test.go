package placement

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// rolling is a binding in a rollout, with a clock of its own. A cluster applies a revision at once,
// and is healthy with it, unless health has another value.
type rolling struct {
	*testing.T
	Roller
	state  *workv1alpha2.Rollout
	next   time.Duration
	health map[string]workv1alpha1.ResourceHealth
}

func newRolling(t *testing.T, rollout string, targets ...RolloutTarget) *rolling {
	t.Helper()
	of, err := policyv1alpha1.RolloutOf(map[string]string{policyv1alpha1.AnnotationRollout: rollout})
	if err != nil {
		t.Fatal(err)
	}
	r := &rolling{T: t, Roller: Roller{Rollout: of, Revision: "a", Targets: targets, Now: time.Unix(1e9, 0)},
		health: map[string]workv1alpha1.ResourceHealth{}}
	r.roll()
	return r
}

// in makes the targets c1, c2 … with their waves.
func in(waves ...int) (out []RolloutTarget) {
	for i, wave := range waves {
		out = append(out, RolloutTarget{Name: fmt.Sprint("c", i+1), Wave: wave, Replicas: 1})
	}
	return out
}

// roll repeats until nothing changes, as events of Works do, and returns the state in words. Each
// step checks that no cluster has another revision than the newest and the one that has passed, and
// that the state survives its annotation.
func (r *rolling) roll() string {
	r.Helper()
	for before := ""; ; {
		for i := range r.Targets {
			t := &r.Targets[i]
			if t.Work = nil; r.state != nil {
				revision, _ := r.state.In(t.Name)
				t.Work = workWith(revision, r.health[t.Name])
			}
		}
		next, after := r.Roll(r.state)
		text, err := next.Encode()
		if err != nil {
			r.Fatal(err)
		}
		if r.state = workv1alpha2.ReadRollout(map[string]string{workv1alpha2.AnnotationRollout: text}); r.state == nil {
			r.Fatalf("%s cannot be read", text)
		}
		if r.next = after; text == before {
			return r.words()
		}
		before = text
	}
}

func (r *rolling) words() string {
	var out []string
	for _, t := range r.Targets {
		revision, state := r.state.In(t.Name)
		out = append(out, fmt.Sprintf("%s=%s/%s", t.Name, revision, state))
	}
	return strings.TrimSpace(strings.Join(out, " ") + " " + r.state.Reason)
}

func workWith(revision string, health workv1alpha1.ResourceHealth) *workv1alpha1.Work {
	if health == "" {
		health = workv1alpha1.ResourceHealthy
	}
	w := &workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{Generation: 1, Annotations: map[string]string{workv1alpha2.AnnotationRevision: revision}}}
	w.Status.Conditions = []metav1.Condition{{Type: workv1alpha1.ConditionApplied, Status: metav1.ConditionTrue, ObservedGeneration: 1}}
	w.Status.ManifestStatuses = []workv1alpha1.ManifestStatus{{Health: health}}
	return w
}

func (r *rolling) want(step, want string) {
	r.Helper()
	if got := r.roll(); got != want {
		r.Errorf("%s: %s, want %s; %s", step, got, want, r.state.Message)
	}
}

func (r *rolling) after(d time.Duration) { r.Now = r.Now.Add(d) }

func (r *rolling) edit(revision string) { r.Revision = revision }

func TestRolloutWaves(t *testing.T) {
	r := newRolling(t, `{"order": ["tier=canary", "region=eu"], "maxClusters": 2, "soak": "10m"}`, in(1, 2, 2, 2, 3)...)
	r.want("the first delivery", "c1=a/done c2=a/done c3=a/done c4=a/done c5=a/done")
	r.edit("b")
	r.want("canary", "c1=b/soaking c2=a/waiting c3=a/waiting c4=a/waiting c5=a/waiting Progressing")
	if r.next != 10*time.Minute {
		t.Errorf("the next step is after %s, want 10m", r.next)
	}
	r.after(9 * time.Minute)
	r.want("in its soak", "c1=b/soaking c2=a/waiting c3=a/waiting c4=a/waiting c5=a/waiting Progressing")
	r.after(time.Minute)
	r.want("two of eu", "c1=b/done c2=b/soaking c3=b/soaking c4=a/waiting c5=a/waiting Progressing")
	r.after(10 * time.Minute)
	r.want("the third of eu alone", "c1=b/done c2=b/done c3=b/done c4=b/soaking c5=a/waiting Progressing")
	r.after(10 * time.Minute)
	r.want("the others", "c1=b/done c2=b/done c3=b/done c4=b/done c5=b/soaking Progressing")
	r.after(10 * time.Minute)
	r.want("passed", "c1=b/done c2=b/done c3=b/done c4=b/done c5=b/done")
	if r.state.Passed != "b" || r.next != 0 {
		t.Errorf("passed %s, next after %s, want b and no next", r.state.Passed, r.next)
	}
}

func TestRolloutStops(t *testing.T) {
	start := func(t *testing.T, more string) *rolling {
		r := newRolling(t, `{"maxClusters": 1, "soak": "10m", "progressDeadline": "5m"`+more+`}`, in(1, 1)...)
		r.edit("b")
		return r
	}
	t.Run("not healthy by the deadline", func(t *testing.T) {
		r := start(t, "")
		r.health["c1"] = workv1alpha1.ResourceUnhealthy
		r.want("begun", "c1=b/applying c2=a/waiting Progressing")
		if r.next != 5*time.Minute {
			t.Errorf("the next step is after %s, want 5m", r.next)
		}
		r.after(5 * time.Minute)
		r.want("past the deadline", "c1=b/unhealthy c2=a/waiting Stopped")
		if want := "cluster c1: it is not healthy after 5m0s: it is unhealthy; `pelago rollout resume` continues"; !strings.Contains(r.state.Message, want) {
			t.Errorf("message %q, want %q", r.state.Message, want)
		}
		r.health["c1"] = ""
		r.want("healthy later", "c1=b/unhealthy c2=a/waiting Stopped")
		r.state.Resume()
		r.want("resumed", "c1=b/done c2=b/soaking Progressing")
	})
	t.Run("unhealthy in its soak", func(t *testing.T) {
		r := start(t, "")
		r.want("begun", "c1=b/soaking c2=a/waiting Progressing")
		r.health["c1"] = workv1alpha1.ResourceUnhealthy
		r.want("unhealthy", "c1=b/unhealthy c2=a/waiting Stopped")
		r.edit("c")
		r.want("the next revision", "c1=c/applying c2=a/waiting Progressing")
	})
	t.Run("not reported in its soak", func(t *testing.T) {
		r := start(t, "")
		r.want("begun", "c1=b/soaking c2=a/waiting Progressing")
		r.after(9 * time.Minute)
		r.health["c1"] = workv1alpha1.ResourceUnknown
		r.want("unknown", "c1=b/applying c2=a/waiting Progressing")
		r.health["c1"] = ""
		r.want("again", "c1=b/soaking c2=a/waiting Progressing")
		r.after(9 * time.Minute)
		r.want("the soak began anew", "c1=b/soaking c2=a/waiting Progressing")
	})
	t.Run("not where the policy has it off", func(t *testing.T) {
		r := start(t, `, "stopWhenUnhealthy": false`)
		r.health["c1"] = workv1alpha1.ResourceUnhealthy
		r.want("begun", "c1=b/applying c2=a/waiting Progressing")
		r.after(5 * time.Minute)
		r.want("past the deadline", "c1=b/done c2=b/soaking Progressing")
	})
	t.Run("the template leaves the unhealthy cluster", func(t *testing.T) {
		r := start(t, "")
		r.health["c1"] = workv1alpha1.ResourceUnhealthy
		r.want("begun", "c1=b/applying c2=a/waiting Progressing")
		r.Targets[0].Name, r.Evicted = "c3", []string{"c1"}
		r.want("c3 replaces c1", "c3=a/waiting c2=a/waiting Stopped")
		r.state.Resume()
		r.want("resumed", "c3=a/waiting c2=b/soaking Progressing")
	})
	t.Run("scaling in its soak", func(t *testing.T) {
		r := start(t, "")
		r.want("begun", "c1=b/soaking c2=a/waiting Progressing")
		r.Targets[0].Replicas, r.health["c1"] = 5, workv1alpha1.ResourceUnhealthy
		r.want("more replicas", "c1=b/applying c2=a/waiting Progressing")
	})
}

func TestRolloutHolds(t *testing.T) {
	r := newRolling(t, `{"maxClusters": 1, "soak": "10m"}`, in(1, 1, 1)...)
	r.edit("b")
	r.want("begun", "c1=b/soaking c2=a/waiting c3=a/waiting Progressing")
	r.state.Hold = workv1alpha2.RolloutPaused
	r.after(10 * time.Minute)
	r.want("paused", "c1=b/done c2=a/waiting c3=a/waiting Paused")
	r.state.Resume()
	r.want("resumed", "c1=b/done c2=b/soaking c3=a/waiting Progressing")
	r.state.Hold = workv1alpha2.RolloutAborted
	r.want("aborted", "c1=a/waiting c2=a/waiting c3=a/waiting Aborted")
	r.after(time.Hour)
	r.want("it stays so", "c1=a/waiting c2=a/waiting c3=a/waiting Aborted")
	r.state.Resume()
	r.want("resumed", "c1=b/soaking c2=a/waiting c3=a/waiting Progressing")
	r.state.Hold = workv1alpha2.RolloutAborted
	r.edit("c")
	r.want("the next revision ends the abort", "c1=c/soaking c2=a/waiting c3=a/waiting Progressing")
	r.state.Hold = workv1alpha2.RolloutPaused
	r.edit("a")
	r.want("the revision that has passed is no rollout", "c1=a/done c2=a/done c3=a/done Paused")
	r.edit("d")
	r.want("a pause outlasts it", "c1=a/waiting c2=a/waiting c3=a/waiting Paused")
}

func TestRolloutOfOtherClusters(t *testing.T) {
	r := newRolling(t, `{"order": ["tier=canary"], "maxClusters": 1}`, in(1, 2, 2)...)
	r.edit("b")
	r.Targets[0].Out = "the cluster is not ready"
	r.health["c2"] = workv1alpha1.ResourceUnknown
	r.want("a cluster that is not ready holds up no wave", "c1=a/waiting c2=b/applying c3=a/waiting Progressing")
	if want := "revision b is done in 0 of 3 clusters; applying: c2; left out: c1 (the cluster is not ready)"; r.state.Message != want {
		t.Errorf("message %q, want %q", r.state.Message, want)
	}
	r.Targets = append(r.Targets, RolloutTarget{Name: "c4", Wave: 1})
	r.want("a new cluster has the passed revision", "c1=a/waiting c2=b/applying c3=a/waiting c4=a/waiting Progressing")
	r.health["c2"] = ""
	r.want("its wave is the next one", "c1=a/waiting c2=b/done c3=b/done c4=b/done Progressing")
	r.Targets[0].Out = ""
	r.want("ready again", "c1=b/done c2=b/done c3=b/done c4=b/done")
	r.edit("c")
	r.Unmatched = []string{"tier=canary"}
	r.want("no Cluster of a wave", "c1=b/waiting c2=b/waiting c3=b/waiting c4=b/waiting InvalidOrder")
	if !strings.Contains(r.state.Message, "no Cluster matches tier=canary of the order") {
		t.Errorf("message %q", r.state.Message)
	}
}

func TestRolloutBeginsWithTheAnnotation(t *testing.T) {
	r := newRolling(t, `{"maxClusters": 1}`, in(1)...)
	for former, want := range map[string]string{"": "c1=b/done", "old": "c1=b/soaking"} {
		r.state, r.Former, r.Revision = nil, former, "b"
		r.Rollout.Soak.Duration = time.Minute
		if got := r.roll(); !strings.HasPrefix(got, want) {
			t.Errorf("before it was %q: %s, want %s", former, got, want)
		}
	}
}

// TestRolledOut: a status counts if it is that of the manifest.
func TestRolledOut(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*workv1alpha1.Work)
		want string
	}{
		"healthy":             {func(*workv1alpha1.Work) {}, "Healthy"},
		"another revision":    {func(w *workv1alpha1.Work) { w.Annotations = nil }, "its Work is not written"},
		"an older generation": {func(w *workv1alpha1.Work) { w.Generation = 2 }, "not applied yet"},
		"refused": {func(w *workv1alpha1.Work) {
			w.Status.Conditions[0].Status, w.Status.Conditions[0].Message = "False", "denied"
		}, "denied"},
		"no status":                 {func(w *workv1alpha1.Work) { w.Status.ManifestStatuses = nil }, "its status is not reported yet"},
		"not observed":              {status(`{"generation": 3, "observedGeneration": 2, "resourceTemplateGeneration": 7}`), "its status is not reported yet"},
		"of the former manifest":    {status(`{"generation": 3, "observedGeneration": 3, "resourceTemplateGeneration": 6}`), "its status is not reported yet"},
		"of the manifest":           {status(`{"generation": 3, "observedGeneration": 3, "resourceTemplateGeneration": 7}`), "Healthy"},
		"of a kind that has others": {status(`{"phase": "Bound"}`), "Healthy"},
	} {
		w := workWith("b", workv1alpha1.ResourceHealthy)
		w.Spec.Workload.Manifests = []workv1alpha1.Manifest{{RawExtension: runtime.RawExtension{
			Raw: []byte(`{"metadata": {"annotations": {"resourcetemplate.karmada.io/generation": "7"}}}`)}}}
		tt.edit(w)
		health, why := rolledOut(w, "b")
		if health == workv1alpha1.ResourceHealthy {
			why = string(health)
		}
		if why != tt.want {
			t.Errorf("%s: %s, want %s", name, why, tt.want)
		}
	}
}

func status(raw string) func(*workv1alpha1.Work) {
	return func(w *workv1alpha1.Work) {
		w.Status.ManifestStatuses[0].Status = &runtime.RawExtension{Raw: []byte(raw)}
	}
}

// TestRolloutHasTwoRevisions: whatever happens, clusters have the revision that has passed or the
// newest one, at most maxClusters of them at once get it, and in the end all have it.
func TestRolloutHasTwoRevisions(t *testing.T) {
	r := newRolling(t, `{"order": ["a", "b"], "maxClusters": 2, "soak": "1m"}`, in(1, 1, 1, 2, 2, 3, 3, 3)...)
	for i := range 200 {
		switch i % 7 {
		case 0:
			r.edit(fmt.Sprint("r", i%3))
		case 2:
			r.state.Hold = []string{"", workv1alpha2.RolloutPaused, workv1alpha2.RolloutAborted}[i%3]
		case 3:
			r.health[fmt.Sprint("c", 1+i%8)] = []workv1alpha1.ResourceHealth{workv1alpha1.ResourceUnhealthy, workv1alpha1.ResourceUnknown}[i%2]
		case 4:
			clear(r.health)
		case 5:
			r.state.Resume()
		}
		r.after(time.Duration(i%3) * time.Minute)
		r.roll()
		have, under := map[string]bool{}, 0
		for _, target := range r.Targets {
			revision, state := r.state.In(target.Name)
			have[revision] = true
			if state == workv1alpha2.RolloutApplying || state == workv1alpha2.RolloutSoaking || state == workv1alpha2.RolloutUnhealthy {
				under++
			}
		}
		delete(have, r.state.Passed)
		delete(have, r.state.Revision)
		if len(have) > 0 || under > 2 {
			t.Fatalf("step %d: %s: other revisions %v, %d clusters at once", i, r.words(), slices.Sorted(maps.Keys(have)), under)
		}
	}
	clear(r.health)
	for range 20 {
		r.state.Resume()
		r.after(time.Minute)
		r.roll()
	}
	if r.state.InProgress() {
		t.Errorf("it does not end: %s", r.words())
	}
}
