package execute

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
)

const (
	// measureTimeout bounds the reads of all metrics of one Work.
	measureTimeout = 5 * time.Second
	// initializationPeriod and initialReadinessDelay are defaults of kube-controller-manager: --horizontal-pod-autoscaler-cpu-initialization-period
	// and --horizontal-pod-autoscaler-initial-readiness-delay.
	initializationPeriod  = 5 * time.Minute
	initialReadinessDelay = 30 * time.Second
)

// scaling returns the answer to AnnotationScaling (nil: the Work has none), and when the next one is due (0: never). The hub divides
// and compares: a member reports sums.
func (t *task) scaling(ctx context.Context) (*workv1alpha1.ScalingStatus, time.Duration) {
	text := t.work.Annotations[workv1alpha1.AnnotationScaling]
	if text == "" {
		return nil, 0
	}
	id, last := workv1alpha1.ScalingRequestID(text), t.state.scaling
	if left := t.o.ScalingInterval - time.Since(t.state.measuredAt); left > 0 && last != nil && last.Request == id {
		return last, left
	}
	out := &workv1alpha1.ScalingStatus{Request: id}
	t.state.scaling, t.state.measuredAt = out, time.Now()
	var r workv1alpha1.ScalingRequest
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return out, 0 // of a newer hub; the report without metrics says that this version has none
	}
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	namespace, _, _ := strings.Cut(r.HPA, "/")
	pods, err := t.pods(ctx, namespace, r.Selector)
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
		began := time.Now()
		m, failure := workv1alpha1.MetricReport{}, err
		if failure == nil {
			m, failure = t.metric(ctx, namespace, r.Selector, &r.Metrics[i], pods)
		}
		t.o.Metrics.pulled(r.Metrics[i].Type, began, failure)
		if failure != nil {
			m = workv1alpha1.MetricReport{Error: truncate(failure.Error())}
		}
		out.Metrics = append(out.Metrics, m)
	}
	return out, t.o.ScalingInterval
}

func (t *task) pods(ctx context.Context, namespace, selector string) ([]corev1.Pod, error) {
	parsed, err := labels.Parse(selector)
	if err == nil && parsed.Empty() {
		err = errors.New("it selects everything")
	}
	if err != nil {
		return nil, fmt.Errorf("read the selector %q: %w", selector, err)
	}
	var list corev1.PodList
	err = t.member.client.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: parsed},
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}) // from the server's cache
	if err != nil {
		return nil, fmt.Errorf("list the pods %s in namespace %s: %w", selector, namespace, err)
	}
	return list.Items, nil
}

// metric reports one metric.
func (t *task) metric(ctx context.Context, namespace, selector string, m *autoscalingv2.MetricSpec, pods []corev1.Pod) (workv1alpha1.MetricReport, error) {
	switch {
	case m.Resource != nil:
		return t.resource(ctx, namespace, selector, m.Resource.Name, "", m.Resource.Target, pods)
	case m.ContainerResource != nil:
		return t.resource(ctx, namespace, selector, m.ContainerResource.Name, m.ContainerResource.Container, m.ContainerResource.Target, pods)
	case m.Pods != nil:
		values, err := t.custom(ctx, "namespaces/"+url.PathEscape(namespace)+"/pods/*/", selector, m.Pods.Metric)
		if err != nil {
			return workv1alpha1.MetricReport{}, err
		}
		used := map[string]usage{}
		for _, v := range values {
			used[v.DescribedObject.Name] = usage{value: v.Value.MilliValue()}
		}
		return sums(pods, used, "", nil, time.Now()), nil
	case m.Object != nil:
		path, err := t.objectPath(namespace, m.Object.DescribedObject)
		if err != nil {
			return workv1alpha1.MetricReport{}, err
		}
		values, err := t.custom(ctx, path, "", m.Object.Metric)
		return workv1alpha1.MetricReport{Value: total(values)}, err
	case m.External != nil:
		values, err := t.external(ctx, namespace, m.External.Metric)
		return workv1alpha1.MetricReport{Value: total(values)}, err
	}
	return workv1alpha1.MetricReport{}, fmt.Errorf("metrics of type %s are unknown to this version", m.Type)
}

// resource reports a metric of metrics.k8s.io.
func (t *task) resource(ctx context.Context, namespace, selector string, name corev1.ResourceName, container string, target autoscalingv2.MetricTarget,
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
	err := t.read(ctx, "/apis/metrics.k8s.io/v1beta1/namespaces/"+url.PathEscape(namespace)+"/pods", url.Values{"labelSelector": {selector}}, &list)
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

// custom reads a metric of custom.metrics.k8s.io below a path, in the newest version that is served.
func (t *task) custom(ctx context.Context, path, selector string, of autoscalingv2.MetricIdentifier) ([]sample, error) {
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
	err = t.read(ctx, "/apis/custom.metrics.k8s.io/v1beta2/"+path+url.PathEscape(of.Name), query, &list)
	if apierrors.IsNotFound(err) {
		err = t.read(ctx, "/apis/custom.metrics.k8s.io/v1beta1/"+path+url.PathEscape(of.Name), query, &list)
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
func (t *task) external(ctx context.Context, namespace string, of autoscalingv2.MetricIdentifier) ([]sample, error) {
	selector, err := metav1.LabelSelectorAsSelector(orEverything(of.Selector))
	if err != nil {
		return nil, fmt.Errorf("read the selector of metric %s: %w", of.Name, err)
	}
	var list struct {
		Items []sample `json:"items"`
	}
	path := "/apis/external.metrics.k8s.io/v1beta1/namespaces/" + url.PathEscape(namespace) + "/" + url.PathEscape(of.Name)
	if err := t.read(ctx, path, url.Values{"labelSelector": {selector.String()}}, &list); err != nil {
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
func (t *task) objectPath(namespace string, of autoscalingv2.CrossVersionObjectReference) (string, error) {
	if of.Kind == "Namespace" && of.APIVersion == "v1" {
		return "namespaces/" + url.PathEscape(of.Name) + "/metrics/", nil
	}
	gvk := schema.FromAPIVersionAndKind(of.APIVersion, of.Kind)
	m, err := t.member.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return "", fmt.Errorf("find the resource of the described object %s %s: %w", of.Kind, of.Name, err)
	}
	return "namespaces/" + url.PathEscape(namespace) + "/" + m.Resource.GroupResource().String() + "/" + url.PathEscape(of.Name) + "/", nil
}

func (t *task) read(ctx context.Context, path string, query url.Values, into any) error {
	r := t.member.probe.Get().AbsPath(path)
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

// sums adds up the metrics of pods by the rules of the HorizontalPodAutoscaler: pods that have ended do not count, pending ones, and
// for a processor metric those that are still starting, are unready.
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
