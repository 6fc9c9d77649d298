package execute

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/test/await"
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

// A Work with the annotation gets its answer from the member's three metrics APIs and its pods; an
// API that is absent is an error of its metric alone; without the annotation the answer goes.
func TestScalingReport(t *testing.T) {
	l := newLab(t, server.Config(t))
	pods := []corev1.Pod{worker("a"), worker("b"), worker("late", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }), worker("other")}
	for i := range pods {
		p := &pods[i]
		p.Namespace, p.Labels = l.ns, map[string]string{"app": map[bool]string{true: "x", false: "web"}[p.Name == "other"]}
		status := p.Status
		l.member.Make(p)
		p.Status = status
		if err := l.member.Status().Update(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	queries := make(chan string, 100)
	answers := map[string]string{
		"/apis/metrics.k8s.io/v1beta1/namespaces/NS/pods": `{"items": [
			{"metadata": {"name": "a"}, "timestamp": "2026-03-10T12:00:00Z", "window": "30s", "containers": [{"name": "c", "usage": {"cpu": "80m"}}]},
			{"metadata": {"name": "b"}, "timestamp": "2026-03-10T12:00:00Z", "window": "30s", "containers": [{"name": "c", "usage": {"cpu": "50m"}}]}]}`,
		"/apis/custom.metrics.k8s.io/v1beta1/namespaces/NS/pods/*/requests":   `{"items": [{"describedObject": {"name": "a"}, "value": "3"}]}`,
		"/apis/custom.metrics.k8s.io/v1beta2/namespaces/NS/services/web/hits": `{"items": [{"describedObject": {"name": "web"}, "value": "12"}]}`,
		"/apis/external.metrics.k8s.io/v1beta1/namespaces/NS/queue":           `{"items": [{"value": "7"}, {"value": "500m"}]}`,
	}
	l.wire.set(func(r *http.Request) (*http.Response, error) {
		if !strings.Contains(r.URL.Path, "metrics.k8s.io/v1") {
			return nil, nil
		}
		queries <- r.URL.RawQuery
		code, text := http.StatusOK, answers[strings.ReplaceAll(r.URL.Path, l.ns, "NS")]
		if text == "" {
			code, text = http.StatusNotFound, "no such API"
		}
		return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
	})
	const config = `{apiVersion: v1, kind: ConfigMap, metadata: {name: web, namespace: NS}}`
	named := func(name string) autoscalingv2.MetricIdentifier {
		return autoscalingv2.MetricIdentifier{Name: name, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"verb": "GET"}}}
	}
	request, err := json.Marshal(workv1alpha1.ScalingRequest{HPA: l.ns + "/web", Selector: "app=web", Metrics: []autoscalingv2.MetricSpec{
		{Type: "Resource", Resource: &autoscalingv2.ResourceMetricSource{Name: "cpu", Target: autoscalingv2.MetricTarget{AverageUtilization: ptr.To[int32](50)}}},
		{Type: "Pods", Pods: &autoscalingv2.PodsMetricSource{Metric: named("requests")}},
		{Type: "Object", Object: &autoscalingv2.ObjectMetricSource{Metric: named("hits"), DescribedObject: autoscalingv2.CrossVersionObjectReference{
			APIVersion: "v1", Kind: "Service", Name: "web"}}},
		{Type: "External", External: &autoscalingv2.ExternalMetricSource{Metric: named("queue")}},
		{Type: "External", External: &autoscalingv2.ExternalMetricSource{Metric: named("absent")}},
		{Type: "Resource", Resource: &autoscalingv2.ResourceMetricSource{Name: "memory", Target: autoscalingv2.MetricTarget{AverageUtilization: ptr.To[int32](50)}}},
		{Type: "Moon"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	l.work("web", config, func(w *workv1alpha1.Work) {
		metav1.SetMetaDataAnnotation(&w.ObjectMeta, workv1alpha1.AnnotationScaling, string(request))
	})
	l.run(func(o *Options) { o.ScalingInterval = 50 * time.Millisecond })
	show := func() string {
		s := l.see("web").Status.Scaling
		if s == nil {
			return ""
		}
		out := fmt.Sprintf("%t %d/%d", s.Request == workv1alpha1.ScalingRequestID(string(request)), s.ReadyPods, s.Pods)
		for _, m := range s.Metrics {
			out += fmt.Sprintf("\n%d r%v u%v m%v %s", m.Value, m.Ready, m.Unready, m.Missing, m.Error)
		}
		return out
	}
	await.Equal(t, strings.Join([]string{"true 2/3",
		"0 r{2 130 200} u{1 0 100} m{0 0 0} ",
		"0 r{1 3000 0} u{1 0 0} m{1 0 0} ",
		"12000 r{0 0 0} u{0 0 0} m{0 0 0} ",
		"7500 r{0 0 0} u{0 0 0} m{0 0 0} ",
		"0 r{0 0 0} u{0 0 0} m{0 0 0} read metric absent from external.metrics.k8s.io: the server could not find the requested resource",
		"0 r{0 0 0} u{0 0 0} m{0 0 0} container c of pod a has no request for memory: set one, or a target averageValue",
		"0 r{0 0 0} u{0 0 0} m{0 0 0} metrics of type Moon are unknown to this version"}, "\n"), show)
	l.applied("web")
	seen := map[string]bool{}
	for len(queries) > 0 {
		seen[<-queries] = true
	}
	for _, q := range []string{"labelSelector=app%3Dweb", "labelSelector=app%3Dweb&metricLabelSelector=verb%3DGET", "metricLabelSelector=verb%3DGET", "labelSelector=verb%3DGET"} {
		if !seen[q+"&timeout=5s"] {
			t.Errorf("no request with the query %s in %v", q, seen)
		}
	}
	// A change of the metric is reported without any event.
	answersB := strings.Replace(answers["/apis/external.metrics.k8s.io/v1beta1/namespaces/NS/queue"], "7", "9", 1)
	l.wire.set(func(r *http.Request) (*http.Response, error) {
		if !strings.HasSuffix(r.URL.Path, "/queue") {
			return nil, nil
		}
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(answersB)), Request: r}, nil
	})
	await.True(t, "the new value is reported", func() bool { return strings.Contains(show(), "\n9500 ") })
	l.edit("web", func(w *workv1alpha1.Work) { delete(w.Annotations, workv1alpha1.AnnotationScaling) })
	await.Equal(t, "", show)
}
