package work_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/work"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/test/await"
)

// TestLife: the Works of a template from its first decision to its
// end.
func TestLife(t *testing.T) {
	h := newHub(t)
	d := deployment("life")
	h.Make(d)
	b := bindingOf(d, "apps/v1", "Deployment", "b1", on("m1", 2), on("m2", 1))
	h.Make(b)
	h.run(&writes{})
	h.becomes("life", map[string]string{"m1": "2 replicas of nginx:1", "m2": "1 replicas of nginx:1"})
	before := h.uids("life")

	d.Spec.Template.Spec.Containers[0].Image = "nginx:2"
	if err := h.Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	h.change(b, func(b *workv1alpha2.ResourceBinding) {
		b.Spec.Resource.ResourceVersion = d.ResourceVersion
		b.Spec.Clusters = []workv1alpha2.TargetCluster{on("m1", 4), on("m3", 1)}
	})
	h.becomes("life", map[string]string{"m1": "4 replicas of nginx:2", "m3": "1 replicas of nginx:2"})
	if now := h.uids("life"); now["m1"] != before["m1"] {
		t.Errorf("the Work of m1 was made anew")
	}

	h.Remove(d, b)
	h.becomes("life", map[string]string{})
	h.goes(b)
}

// Other rules for its kind are other Works of a binding, although nobody has touched it.
func TestRulesOfTheKindChange(t *testing.T) {
	h := newHub(t)
	rules := kinds.NewCustom()
	rules.Set(nil)
	d := deployment("ruled")
	h.Make(d)
	h.Make(bindingOf(d, "apps/v1", "Deployment", "b1", on("m1", 2)))
	h.manager(&writes{}, func(o *work.BindingOptions) { o.Interpreter = rules.Interpreter() }).Run(h, h.Config)
	h.becomes("ruled", map[string]string{"m1": "2 replicas of nginx:1"})
	rules.Set([]pelagov1alpha1.KindRules{{ObjectMeta: metav1.ObjectMeta{Name: "double"}, Spec: pelagov1alpha1.KindRulesSpec{
		Kinds: []pelagov1alpha1.RuledKind{{APIVersion: "apps/v1", Kind: "Deployment"}},
		Rules: pelagov1alpha1.Rules{Revise: "{'spec': {'replicas': replicas * 2}}"},
	}}})
	h.becomes("ruled", map[string]string{"m1": "4 replicas of nginx:1"})
}

// TestWaitsForTheEnd: the binding stays until its Works are gone, but for
// those of clusters that are not there.
func TestWaitsForTheEnd(t *testing.T) {
	h := newHub(t)
	d := deployment("end")
	h.Make(d)
	b := bindingOf(d, "apps/v1", "Deployment", "b1", on("m1", 2), on("m2", 1))
	h.Make(b)
	h.run(&writes{})
	h.becomes("end", map[string]string{"m1": "2 replicas of nginx:1", "m2": "1 replicas of nginx:1"})
	h.Remove(&clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "m2"}})

	h.Remove(d, b)
	await.Equal(t, map[string]string{"m1": "ending", "m2": "ending"}, func() map[string]string { return h.state("end") })
	if err := h.Get(t.Context(), client.ObjectKeyFromObject(b), b); err != nil {
		t.Fatalf("the binding before its Works are gone: %v", err)
	}
	m1 := h.works("end")["m1"]
	m1.Finalizers = nil
	if err := h.Update(t.Context(), m1); err != nil {
		t.Fatal(err)
	}
	h.goes(b)
}

// TestTemplateAlive: a deleted binding, and a hub that was restored: the binding of a template that
// lives goes without its Works, and the next one, with another id, UID and name, has them as they
// are.
func TestTemplateAlive(t *testing.T) {
	h := newHub(t)
	d := deployment("alive")
	h.Make(d)
	b := bindingOf(d, "apps/v1", "Deployment", "b1", on("m1", 2), on("m2", 1))
	h.Make(b)
	stop := h.run(&writes{})
	want := map[string]string{"m1": "2 replicas of nginx:1", "m2": "1 replicas of nginx:1"}
	h.becomes("alive", want)
	before := h.uids("alive")

	h.Remove(b)
	h.goes(b)
	if diff := cmp.Diff(want, h.state("alive")); diff != "" {
		t.Fatalf("its Works, -want +got:\n%s", diff)
	}

	stop() // it would take the Works of a template that is gone for orphans, after a while
	h.Remove(d)
	d = deployment("alive") // with another UID
	h.Make(d)
	next := bindingOf(d, "apps/v1", "Deployment", "b2", on("m1", 2), on("m2", 1))
	next.Name = "alive-restored"
	h.Make(next)
	h.run(&writes{})
	await.True(t, "the Works are the next binding's", func() bool {
		for _, w := range h.works("alive") {
			if w.Labels[workv1alpha2.LabelBindingID] != "b2" || w.Annotations[workv1alpha2.AnnotationBindingName] != "alive-restored" ||
				holds(t, w).GetAnnotations()[workv1alpha2.AnnotationTemplateUID] != string(d.UID) {
				return false
			}
		}
		return true
	})
	if diff := cmp.Diff(before, h.uids("alive")); diff != "" {
		t.Errorf("UIDs of the Works, -before +now:\n%s", diff)
	}
}

// TestTemplateGoesBeforeItsNextBinding: a binding was deleted and its template lived, so the Works
// stayed; then the template goes, with or without a process that sees it. Works of a binding that
// nobody has let go stay.
func TestTemplateGoesBeforeItsNextBinding(t *testing.T) {
	for name, awake := range map[string]bool{"seen": true, "not seen": false} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t)
			d, other := deployment("short"), deployment("unknown")
			h.Make(d, other)
			b := bindingOf(d, "apps/v1", "Deployment", "b1", on("m1", 2), on("m2", 1))
			unknown := bindingOf(other, "apps/v1", "Deployment", "b2", on("m1", 1))
			h.Make(b, unknown)
			stop := h.run(&writes{})
			want := map[string]string{"m1": "2 replicas of nginx:1", "m2": "1 replicas of nginx:1"}
			h.becomes("short", want)
			h.becomes("unknown", map[string]string{"m1": "1 replicas of nginx:1"})
			h.Remove(b)
			h.goes(b)
			if diff := cmp.Diff(want, h.state("short")); diff != "" {
				t.Fatalf("while the template lives, -want +got:\n%s", diff)
			}
			if !awake {
				stop()
			}
			h.clear(&workv1alpha2.ResourceBindingList{})
			h.Remove(d, other)
			if !awake {
				h.run(&writes{})
			}
			h.becomes("short", map[string]string{})
			if diff := cmp.Diff(map[string]string{"m1": "1 replicas of nginx:1"}, h.state("unknown")); diff != "" {
				t.Errorf("of a binding that nobody has let go, -want +got:\n%s", diff)
			}
		})
	}
}

// TestCrash: a process that dies between any two writes leaves what the next one completes; no Work
// is made twice, and nothing is taken away before what takes its place is there.
func TestCrash(t *testing.T) {
	const steps = 3 // create m3, update m1, delete m2
	for limit := range steps + 1 {
		t.Run(strconv.Itoa(limit), func(t *testing.T) {
			h := newHub(t)
			d := deployment("crash")
			h.Make(d)
			b := bindingOf(d, "apps/v1", "Deployment", "b1", on("m1", 2), on("m2", 1))
			h.Make(b)
			stop := h.run(&writes{})
			h.becomes("crash", map[string]string{"m1": "2 replicas of nginx:1", "m2": "1 replicas of nginx:1"})
			stop()
			h.change(b, func(b *workv1alpha2.ResourceBinding) {
				b.Spec.Clusters = []workv1alpha2.TargetCluster{on("m1", 5), on("m3", 1)}
			})

			dying := &writes{limit: &limit}
			stop = h.run(dying)
			await.True(t, "the process is dead or has nothing left to write", func() bool {
				return dying.isDead() || len(dying.all()) == steps
			})
			stop()
			left := h.state("crash")
			if left["m2"] == "ending" && left["m3"] == "" {
				t.Errorf("m2 ends before m3 is there: %v", left)
			}
			uids := h.uids("crash")
			delete(uids, "m2")

			h.run(&writes{})
			h.becomes("crash", map[string]string{"m1": "5 replicas of nginx:1", "m3": "1 replicas of nginx:1"})
			now := h.uids("crash")
			for cluster, uid := range uids {
				if now[cluster] != uid {
					t.Errorf("the Work of %s was made anew", cluster)
				}
			}
		})
	}
}

// TestDirectly: old removed before new created.
func TestDirectly(t *testing.T) {
	h := newHub(t)
	d := deployment("directly")
	h.Make(d)
	b := bindingOf(d, "apps/v1", "Deployment", "b1", on("m1", 1))
	h.Make(b)
	w := &writes{}
	h.run(w)
	h.becomes("directly", map[string]string{"m1": "1 replicas of nginx:1"})
	h.change(b, func(b *workv1alpha2.ResourceBinding) {
		b.Spec.Clusters = []workv1alpha2.TargetCluster{on("m2", 1)}
		b.Spec.GracefulEvictionTasks = []workv1alpha2.GracefulEvictionTask{
			{FromCluster: "m1", PurgeMode: policyv1alpha1.PurgeModeDirectly, Reason: "ApplicationFailure", Producer: "test"},
		}
	})
	await.Equal(t, map[string]string{"m1": "ending"}, func() map[string]string { return h.state("directly") })
	h.becomes("directly", map[string]string{"m2": "1 replicas of nginx:1"})
	all := w.all()
	deleted, created := slices.IndexFunc(all, func(s string) bool { return strings.HasPrefix(s, "delete") }), len(all)-1
	if deleted < 0 || deleted > created || !strings.HasPrefix(all[created], "create") {
		t.Errorf("written: %v", all)
	}
}

// TestClusterBinding: a template without a namespace.
func TestClusterBinding(t *testing.T) {
	h := newHub(t)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "works:reader"}}
	h.Make(role)
	t.Cleanup(func() {
		if err := h.Delete(context.Background(), role); err != nil {
			t.Error(err)
		}
	})
	ref := workv1alpha2.ObjectReference{
		APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole", Name: role.Name, UID: role.UID,
	}
	h.Make(&workv1alpha2.ClusterResourceBinding{
		ObjectMeta: metav1.ObjectMeta{
			Name: workv1alpha2.BindingName(ref), Finalizers: []string{workv1alpha2.FinalizerClusterBinding},
			Labels: map[string]string{workv1alpha2.LabelClusterBindingID: "c1"},
		},
		Spec: workv1alpha2.ResourceBindingSpec{Resource: ref, Clusters: []workv1alpha2.TargetCluster{on("m1", 0)}},
	})
	h.run(&writes{})
	h.becomes("works:reader", map[string]string{"m1": "there"})
	w := h.works("works:reader")["m1"]
	got := []string{w.Name, w.Labels[workv1alpha2.LabelClusterBindingID], w.Annotations[workv1alpha2.AnnotationClusterBindingName]}
	if diff := cmp.Diff([]string{workv1alpha2.WorkName(ref), "c1", "works.reader-clusterrole"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
