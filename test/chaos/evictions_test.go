package main

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/test/await"
	"github.com/pelago-net/pelago/test/chaos/check"
)

// A hub that does all wrong that an eviction can do wrong is found out.
func TestEvictedIsJudged(t *testing.T) {
	s, ctx := testStage(t), t.Context()
	e := &evicted{stage: s, members: s.names, left: "member1", state: "7"}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range s.set.Members {
		must(s.members[m.Name].Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: evictedNamespace}}))
		must(e.observe(ctx, m))
	}
	must(s.hub.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: evictedNamespace}}))
	faults := func(all []check.Violation) string {
		var out []string
		for _, v := range all {
			out = append(out, string(v.Fault)+" "+v.What)
		}
		slices.Sort(out)
		return strings.Join(out, "\n")
	}
	missing := func() string {
		all, err := e.missing(ctx)
		must(err)
		return faults(all)
	}
	meta := metav1.ObjectMeta{Namespace: evictedNamespace, Name: evictedName}
	deployment := func(state string) *appsv1.Deployment {
		m := *meta.DeepCopy()
		m.Labels = map[string]string{stateLabel: state}
		return &appsv1.Deployment{ObjectMeta: m}
	}
	if got, want := missing(), "duplicated 0 Works of evicted and its ConfigMap, want 2\nduplicated 0 bindings of evicted and its ConfigMap\n"+
		"lost ConfigMap evicted runs nowhere\nlost Deployment evicted runs nowhere"; got != want {
		t.Errorf("nothing is there: %s", got)
	}
	for _, name := range []string{"evicted-deployment", "evicted-configmap"} {
		must(s.hub.Create(ctx, &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: evictedNamespace, Name: name},
			Spec: workv1alpha2.ResourceBindingSpec{Resource: workv1alpha2.ObjectReference{APIVersion: "v1", Kind: "X", Name: name}}}))
		must(s.churn.insist(ctx, s.churn.making(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "karmada-es-member2"}})))
		must(s.hub.Create(ctx, &workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-es-member2", Name: name,
			Annotations: map[string]string{workv1alpha2.AnnotationBindingNamespace: evictedNamespace}}}))
	}
	must(s.members["member2"].Create(ctx, deployment("7")))
	must(s.members["member2"].Create(ctx, &corev1.ConfigMap{ObjectMeta: meta}))
	if got := missing(); got != "" {
		t.Errorf("all is as wanted: %s", got)
	}
	e.left = "member2"
	if got := missing(); got != "left ConfigMap evicted in member2\nleft Deployment evicted in member2" {
		t.Errorf("it is where it has left: %s", got)
	}
	if got := faults(e.violations()); got != "" {
		t.Errorf("violations: %s", got)
	}
	must(s.members["member1"].Create(ctx, deployment("50")))
	await.Equal(t, "duplicated Deployment evicted begins in member1 and runs in member2\n"+
		`wrong Deployment evicted begins in member1 with chaos.pelago.io/ready="50", want "7"`, func() string { return faults(e.violations()) })
	if got := missing(); !strings.Contains(got, "duplicated Deployment evicted in [member1 member2]") {
		t.Errorf("it runs twice: %s", got)
	}
}
