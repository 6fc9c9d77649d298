// Package meter reads in a member what the FederatedHPAs of the hub need: the pods of a workload
// and the values of the metrics APIs, added up by the rules of the HorizontalPodAutoscaler.
//
// control/execute answers the request in the annotation of a Work with it. It decides nothing: the
// hub (control/hub/autoscale) divides, compares and scales.
package meter

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
)

const (
	// measureTimeout bounds the reads of all metrics of one Work.
	measureTimeout = 5 * time.Second
	// maxError bounds the error of a metric, in bytes.
	maxError = 512
	// initializationPeriod and initialReadinessDelay are defaults of kube-controller-manager:
	// --horizontal-pod-autoscaler-cpu-initialization-period and
	// --horizontal-pod-autoscaler-initial-readiness-delay.
	initializationPeriod  = 5 * time.Minute
	initialReadinessDelay = 30 * time.Second
)

// Source is the access to a member and its metrics APIs.
type Source struct {
	Client client.Client // uncached
	REST   *rest.RESTClient
	Mapper meta.RESTMapper
	// Interval is the time between two answers to a request; 0: 15 s.
	Interval time.Duration
	// Pulled observes each read of a metric; nil: nothing does. See NewPulled.
	Pulled *prometheus.HistogramVec
}

// NewPulled is the metric of Source.Pulled, under Karmada's name, not registered.
func NewPulled() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "federatedhpa_pull_metrics_duration_seconds", Help: "How long it takes to read a metric of a FederatedHPA in a cluster.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
	}, []string{"result", "metricType"})
}

// Last is the last answer to the AnnotationScaling of a Work. The zero value is ready; it is used
// by one goroutine at a time.
type Last struct {
	last *workv1alpha1.ScalingStatus
	at   time.Time
}

// Answer returns the answer to a request (nil: none exists), and when the next one is due (0:
// never).
func (l *Last) Answer(ctx context.Context, from Source, text string) (*workv1alpha1.ScalingStatus, time.Duration) {
	if text == "" {
		l.last = nil
		return nil, 0
	}
	id, interval := workv1alpha1.ScalingRequestID(text), cmp.Or(from.Interval, 15*time.Second)
	if left := interval - time.Since(l.at); left > 0 && l.last != nil && l.last.Request == id {
		return l.last, left
	}
	out := &workv1alpha1.ScalingStatus{Request: id}
	l.last, l.at = out, time.Now()
	var r workv1alpha1.ScalingRequest
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		// of a newer hub; the report without metrics reports that this version has none
		return out, 0
	}
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	namespace, _, _ := strings.Cut(r.HPA, "/")
	pods, err := from.pods(ctx, namespace, r.Selector)
	for i := range pods {
		if ended(&pods[i]) {
			continue
		}
		out.Pods++
		if ready := condition(&pods[i]); pods[i].Status.Phase == corev1.PodRunning && ready != nil && ready.Status == corev1.ConditionTrue {
			out.ReadyPods++
		}
	}
	for i := range r.Metrics {
		began, result := time.Now(), "success"
		report, failure := workv1alpha1.MetricReport{}, err
		if failure == nil {
			report, failure = from.metric(ctx, namespace, r.Selector, &r.Metrics[i], pods)
		}
		if failure != nil {
			text := failure.Error()
			report, result = workv1alpha1.MetricReport{Error: strings.ToValidUTF8(text[:min(len(text), maxError)], "")}, "error"
		}
		if from.Pulled != nil {
			from.Pulled.WithLabelValues(result, string(r.Metrics[i].Type)).Observe(time.Since(began).Seconds())
		}
		out.Metrics = append(out.Metrics, report)
	}
	return out, interval
}

func (s Source) pods(ctx context.Context, namespace, selector string) ([]corev1.Pod, error) {
	parsed, err := labels.Parse(selector)
	if err == nil && parsed.Empty() {
		err = errors.New("it selects everything")
	}
	if err != nil {
		return nil, fmt.Errorf("read the selector %q: %w", selector, err)
	}
	var list corev1.PodList
	err = s.Client.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: parsed},
		// from the server's cache
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}})
	if err != nil {
		return nil, fmt.Errorf("list the pods %s in namespace %s: %w", selector, namespace, err)
	}
	return list.Items, nil
}

// metric reports one metric.
func (s Source) metric(ctx context.Context, namespace, selector string, of *autoscalingv2.MetricSpec, pods []corev1.Pod) (workv1alpha1.MetricReport, error) {
	switch {
	case of.Resource != nil:
		return s.resource(ctx, namespace, selector, of.Resource.Name, "", of.Resource.Target, pods)
	case of.ContainerResource != nil:
		return s.resource(ctx, namespace, selector, of.ContainerResource.Name, of.ContainerResource.Container, of.ContainerResource.Target, pods)
	case of.Pods != nil:
		values, err := s.custom(ctx, "namespaces/"+url.PathEscape(namespace)+"/pods/*/", selector, of.Pods.Metric)
		if err != nil {
			return workv1alpha1.MetricReport{}, err
		}
		used := map[string]usage{}
		for _, v := range values {
			used[v.DescribedObject.Name] = usage{value: v.Value.MilliValue()}
		}
		return sums(pods, used, "", nil, time.Now()), nil
	case of.Object != nil:
		path, err := s.objectPath(namespace, of.Object.DescribedObject)
		if err != nil {
			return workv1alpha1.MetricReport{}, err
		}
		values, err := s.custom(ctx, path, "", of.Object.Metric)
		return workv1alpha1.MetricReport{Value: total(values)}, err
	case of.External != nil:
		values, err := s.external(ctx, namespace, of.External.Metric)
		return workv1alpha1.MetricReport{Value: total(values)}, err
	}
	return workv1alpha1.MetricReport{}, fmt.Errorf("metrics of type %s are unknown to this version", of.Type)
}

// resource reports a metric of metrics.k8s.io.
func (s Source) resource(ctx context.Context, namespace, selector string, name corev1.ResourceName, container string, target autoscalingv2.MetricTarget,
	pods []corev1.Pod) (workv1alpha1.MetricReport, error) {
	var list struct {
		Items []struct {
			Metadata   metav1.ObjectMeta `json:"metadata"`
			Timestamp  metav1.Time       `json:"timestamp"`
			Window     metav1.Duration   `json:"window"`
			Containers []struct {
				Name  string              `json:"name"`
				Usage corev1.ResourceList `json:"usage"`
			} `json:"containers"`
		} `json:"items"`
	}
	err := s.read(ctx, "/apis/metrics.k8s.io/v1beta1/namespaces/"+url.PathEscape(namespace)+"/pods", url.Values{"labelSelector": {selector}}, &list)
	if err != nil {
		return workv1alpha1.MetricReport{}, fmt.Errorf("read the %s of the pods from metrics.k8s.io (metrics-server): %w", name, err)
	}
	used := map[string]usage{}
	for _, p := range list.Items {
		u, known := usage{at: p.Timestamp.Time, window: p.Window.Duration}, false
		for _, c := range p.Containers {
			if container != "" && container != c.Name {
				continue
			}
			q, ok := c.Usage[name]
			u.value += q.MilliValue()
			if known = ok; !ok {
				break
			}
		}
		if known {
			used[p.Metadata.Name] = u
		}
	}
	var requests map[string]int64
	if target.AverageValue == nil {
		if requests, err = requestsOf(pods, name, container); err != nil {
			return workv1alpha1.MetricReport{}, err
		}
	}
	return sums(pods, used, name, requests, time.Now()), nil
}

// sample is a value of custom.metrics.k8s.io or external.metrics.k8s.io.
type sample struct {
	DescribedObject struct {
		Name string `json:"name"`
	} `json:"describedObject"`
	Value resource.Quantity `json:"value"`
}

func total(all []sample) (n int64) {
	for _, v := range all {
		n += v.Value.MilliValue()
	}
	return n
}

// custom reads a metric of custom.metrics.k8s.io below a path, in the newest version that is
// served.
func (s Source) custom(ctx context.Context, path, selector string, of autoscalingv2.MetricIdentifier) ([]sample, error) {
	metrics, err := metav1.LabelSelectorAsSelector(orEverything(of.Selector))
	if err != nil {
		return nil, fmt.Errorf("read the selector of metric %s: %w", of.Name, err)
	}
	query := url.Values{"metricLabelSelector": {metrics.String()}}
	if selector != "" {
		query.Set("labelSelector", selector)
	}
	var list struct {
		Items []sample `json:"items"`
	}
	err = s.read(ctx, "/apis/custom.metrics.k8s.io/v1beta2/"+path+url.PathEscape(of.Name), query, &list)
	if apierrors.IsNotFound(err) {
		err = s.read(ctx, "/apis/custom.metrics.k8s.io/v1beta1/"+path+url.PathEscape(of.Name), query, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("read metric %s from custom.metrics.k8s.io: %w", of.Name, err)
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("read metric %s from custom.metrics.k8s.io: it has no values", of.Name)
	}
	return list.Items, nil
}

// external reads a metric of external.metrics.k8s.io.
func (s Source) external(ctx context.Context, namespace string, of autoscalingv2.MetricIdentifier) ([]sample, error) {
	selector, err := metav1.LabelSelectorAsSelector(orEverything(of.Selector))
	if err != nil {
		return nil, fmt.Errorf("read the selector of metric %s: %w", of.Name, err)
	}
	var list struct {
		Items []sample `json:"items"`
	}
	path := "/apis/external.metrics.k8s.io/v1beta1/namespaces/" + url.PathEscape(namespace) + "/" + url.PathEscape(of.Name)
	if err := s.read(ctx, path, url.Values{"labelSelector": {selector.String()}}, &list); err != nil {
		return nil, fmt.Errorf("read metric %s from external.metrics.k8s.io: %w", of.Name, err)
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("read metric %s from external.metrics.k8s.io: it has no values", of.Name)
	}
	return list.Items, nil
}

func orEverything(s *metav1.LabelSelector) *metav1.LabelSelector {
	if s == nil { // nothing, by the rules of selectors
		return &metav1.LabelSelector{}
	}
	return s
}

// objectPath is the path of an object in custom.metrics.k8s.io.
func (s Source) objectPath(namespace string, of autoscalingv2.CrossVersionObjectReference) (string, error) {
	if of.Kind == "Namespace" && of.APIVersion == "v1" {
		return "namespaces/" + url.PathEscape(of.Name) + "/metrics/", nil
	}
	gvk := schema.FromAPIVersionAndKind(of.APIVersion, of.Kind)
	mapping, err := s.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return "", fmt.Errorf("find the resource of the described object %s %s: %w", of.Kind, of.Name, err)
	}
	return "namespaces/" + url.PathEscape(namespace) + "/" + mapping.Resource.GroupResource().String() + "/" + url.PathEscape(of.Name) + "/", nil
}

func (s Source) read(ctx context.Context, path string, query url.Values, into any) error {
	r := s.REST.Get().AbsPath(path)
	for key, values := range query {
		r = r.Param(key, values[0])
	}
	text, err := r.Do(ctx).Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// usage is the metric of one pod, in thousandths.
type usage struct {
	value  int64
	at     time.Time
	window time.Duration
}

// sums adds up the metrics of pods by the rules of the HorizontalPodAutoscaler: failed pods and
// those being deleted do not count; pending ones and, for a CPU metric, those that are still
// starting count as unready.
func sums(pods []corev1.Pod, used map[string]usage, name corev1.ResourceName, requests map[string]int64, now time.Time) (m workv1alpha1.MetricReport) {
	for i := range pods {
		p := &pods[i]
		u, known := used[p.Name]
		to := &m.Ready
		switch {
		case ended(p):
			continue
		case p.Status.Phase == corev1.PodPending:
			to = &m.Unready
		case !known:
			to = &m.Missing
		case name == corev1.ResourceCPU && starting(p, u, now):
			to = &m.Unready
		default:
			to.Usage += u.value
		}
		to.Pods++
		to.Requests += requests[p.Name]
	}
	return m
}

func ended(p *corev1.Pod) bool {
	return p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed
}

// starting reports whether the processor time of a pod is that of its start.
func starting(p *corev1.Pod, u usage, now time.Time) bool {
	ready, began := condition(p), p.Status.StartTime
	switch {
	case ready == nil || began == nil:
		return true
	case began.Add(initializationPeriod).After(now):
		return ready.Status == corev1.ConditionFalse || u.at.Before(ready.LastTransitionTime.Add(u.window))
	}
	return ready.Status == corev1.ConditionFalse && began.Add(initialReadinessDelay).After(ready.LastTransitionTime.Time)
}

func condition(p *corev1.Pod) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == corev1.PodReady {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// requestsOf are the requests of each pod, or of one container in it; each container must have one.
func requestsOf(pods []corev1.Pod, name corev1.ResourceName, container string) (map[string]int64, error) {
	out := map[string]int64{}
	for i := range pods {
		p := &pods[i]
		if r := p.Spec.Resources; r != nil && container == "" {
			if q, ok := r.Requests[name]; ok {
				out[p.Name] = q.MilliValue()
				continue
			}
		}
		found := false
		for _, c := range append(sidecars(p), p.Spec.Containers...) {
			if container != "" && container != c.Name {
				continue
			}
			q, ok := c.Resources.Requests[name]
			if !ok {
				return nil, fmt.Errorf("container %s of pod %s has no request for %s: set one, or a target averageValue", c.Name, p.Name, name)
			}
			out[p.Name] += q.MilliValue()
			found = true
		}
		if !found {
			return nil, errors.New("pod " + p.Name + " has no container " + container)
		}
	}
	return out, nil
}

// sidecars are the init containers that keep running.
func sidecars(p *corev1.Pod) (out []corev1.Container) {
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			out = append(out, c)
		}
	}
	return out
}
