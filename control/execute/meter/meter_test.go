package meter

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
)

var noon = time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)

// worker is a pod that was ready for an hour and requests 100m.
func worker(name string, change ...func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i",
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m")}}}}}}
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: ptr.To(metav1.NewTime(noon.Add(-time.Hour))), Conditions: []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(noon.Add(-time.Hour))}}}
	for _, f := range change {
		f(&p)
	}
	return p
}

// The groups of the HorizontalPodAutoscaler, by one pod each: r is ready, u unready, m missing, -
// does not count.
func TestPodsOfMetric(t *testing.T) {
	since := func(start, ready time.Duration, is corev1.ConditionStatus) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.StartTime = ptr.To(metav1.NewTime(noon.Add(-start)))
			p.Status.Conditions[0].Status, p.Status.Conditions[0].LastTransitionTime = is, metav1.NewTime(noon.Add(-ready))
		}
	}
	const yes, no = corev1.ConditionTrue, corev1.ConditionFalse
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		metric string // age of the metric, "": none
		of     corev1.ResourceName
		want   string
	}{
		"ready":                                 {func(*corev1.Pod) {}, "0s", "cpu", "r"},
		"without metric":                        {func(*corev1.Pod) {}, "", "cpu", "m"},
		"pending":                               {func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, "0s", "memory", "u"},
		"failed":                                {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, "0s", "cpu", "-"},
		"being deleted":                         {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, "0s", "cpu", "-"},
		"no conditions":                         {func(p *corev1.Pod) { p.Status.Conditions = nil }, "0s", "cpu", "u"},
		"no start time":                         {func(p *corev1.Pod) { p.Status.StartTime = nil }, "0s", "cpu", "u"},
		"young and not ready":                   {since(time.Minute, time.Minute, no), "0s", "cpu", "u"},
		"young and ready, metric of before":     {since(time.Minute, 20*time.Second, yes), "0s", "cpu", "u"},
		"young and ready, metric since":         {since(time.Minute, 40*time.Second, yes), "0s", "cpu", "r"},
		"young and not ready, another resource": {since(time.Minute, time.Minute, no), "0s", "memory", "r"},
		"old and no longer ready":               {since(time.Hour, time.Minute, no), "0s", "cpu", "r"},
		"old and never ready":                   {since(time.Hour, time.Hour-20*time.Second, no), "0s", "cpu", "u"},
	} {
		p := worker("p", c.change)
		used := map[string]usage{}
		if c.metric != "" {
			used["p"] = usage{value: 70, at: noon, window: 30 * time.Second}
		}
		m := sums([]corev1.Pod{p}, used, c.of, map[string]int64{"p": 100}, noon)
		one := workv1alpha1.PodSum{Pods: 1, Requests: 100}
		full := one
		full.Usage = 70
		got := map[workv1alpha1.MetricReport]string{{}: "-", {Ready: full}: "r", {Unready: one}: "u", {Missing: one}: "m"}[m]
		if got != c.want {
			t.Errorf("%s: %q %+v, want %q", name, got, m, c.want)
		}
	}
}

func TestRequestsOf(t *testing.T) {
	sidecar := corev1.Container{Name: "s", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": resource.MustParse("20m")}}}
	setup := corev1.Container{Name: "setup"}
	with := worker("p", func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{setup, sidecar} })
	whole := worker("p", func(p *corev1.Pod) {
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}
	})
	for name, c := range map[string]struct {
		pod           corev1.Pod
		of, container string
		want          string
	}{
		"all containers":     {with, "cpu", "", "120"},
		"one container":      {with, "cpu", "c", "100"},
		"of the whole pod":   {whole, "cpu", "", "1000"},
		"one of a whole pod": {whole, "cpu", "c", "100"},
		"none":               {with, "memory", "", "container s of pod p has no request for memory: set one, or a target averageValue"},
		"no such container":  {with, "cpu", "x", "pod p has no container x"},
	} {
		m, err := requestsOf([]corev1.Pod{c.pod}, corev1.ResourceName(c.of), c.container)
		got := fmt.Sprint(m["p"])
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
