package meter

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// waiting is a pod that no node has been able to run for a time.
func waiting(name string, ago time.Duration, change ...func(*corev1.Pod)) *corev1.Pod {
	p := worker(name, change...)
	p.Namespace, p.Labels = "shop", map[string]string{"app": "web"}
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Reason: corev1.PodReasonUnschedulable, LastTransitionTime: metav1.NewTime(noon.Add(-ago))}}}
	for _, f := range change {
		f(&p)
	}
	return &p
}

func TestUnschedulable(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	running := worker("running")
	running.Namespace, running.Labels = "shop", map[string]string{"app": "web"}
	pods := []client.Object{&running, waiting("a", time.Hour), waiting("b", time.Minute),
		waiting("failed", 0, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
		waiting("gated", 0, func(p *corev1.Pod) {
			if len(p.Status.Conditions) > 0 {
				p.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated
			}
		}),
		waiting("of another", 0, func(p *corev1.Pod) { p.Labels = map[string]string{"app": "db"} })}
	object := func(kind string, replicas, ready int64) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": kind,
			"metadata": map[string]any{"namespace": "shop", "name": "web"},
			"spec":     map[string]any{"replicas": replicas, "selector": map[string]any{"matchLabels": map[string]any{"app": "web"}}},
			"status":   map[string]any{"replicas": replicas, "readyReplicas": ready}}}
	}
	from := Source{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(pods...).Build()}
	var l Unschedulable
	now := noon
	for _, step := range []struct {
		what  string
		have  *unstructured.Unstructured
		after time.Duration
		do    func() error
		want  string
	}{
		{what: "nothing in the member", want: "none, 0s"},
		{what: "no Deployment", have: object("StatefulSet", 3, 1), want: "none, 0s"},
		{what: "it starts", have: object("Deployment", 3, 1), want: "none, 30s"},
		{what: "it still starts", have: object("Deployment", 3, 1), after: 20 * time.Second, want: "none, 10s"},
		{what: "it has not started", have: object("Deployment", 3, 1), after: 10 * time.Second, want: "2 since 11:59:00, 15s"},
		{what: "another pod, too early", have: object("Deployment", 3, 1), after: 5 * time.Second,
			do: func() error { return from.Client.Create(t.Context(), waiting("c", 0)) }, want: "2 since 11:59:00, 10s"},
		{what: "the Deployment has changed", have: object("Deployment", 4, 1), want: "3 since 12:00:00, 15s"},
		{what: "all run", have: object("Deployment", 3, 3), want: "none, 0s"},
		{what: "again not", have: object("Deployment", 3, 1), want: "none, 30s"},
	} {
		now = now.Add(step.after)
		if step.do != nil {
			if err := step.do(); err != nil {
				t.Fatal(err)
			}
		}
		got, next := l.Count(t.Context(), from, step.have, now)
		text := "none"
		if got != nil {
			text = fmt.Sprintf("%d since %s", got.Pods, got.Since.UTC().Format(time.TimeOnly))
		}
		if text += fmt.Sprintf(", %s", next); text != step.want {
			t.Errorf("%s: %s, want %s", step.what, text, step.want)
		}
	}
}
