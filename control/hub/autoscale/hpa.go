package autoscale

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	autoscalingv1alpha1 "github.com/pelago-net/pelago/api/autoscaling/v1alpha1"
	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/kube"
)

// Indexes of the cache.
const (
	hpaIndex     = "autoscale.hpa"     // Works by the FederatedHPA of their AnnotationScaling
	targetIndex  = "autoscale.target"  // bindings by their template
	bindingIndex = "autoscale.binding" // Works by their binding
)

type hpaReconciler struct {
	Options
	client client.Client
	events record.EventRecorder
	took   *prometheus.HistogramVec // a reconcile, by result

	mu       sync.Mutex
	memories map[client.ObjectKey]*memory
}

func setupHPA(mgr ctrl.Manager, o Options) error {
	r := &hpaReconciler{Options: o, client: mgr.GetClient(), events: kube.EventRecorder(mgr, "pelago-hub"), memories: map[client.ObjectKey]*memory{}}
	err := errors.Join(
		kube.AddIndex(mgr, &workv1alpha1.Work{}, hpaIndex, func(w *workv1alpha1.Work) []string {
			if hpa := requestOf(w).HPA; hpa != "" {
				return []string{hpa}
			}
			return nil
		}),
		kube.AddIndex(mgr, &workv1alpha1.Work{}, bindingIndex, func(w *workv1alpha1.Work) []string {
			if key, ok := binding.OfWork(w); ok {
				return []string{key.String()}
			}
			return nil
		}),
		binding.AddIndex(mgr, targetIndex, func(b binding.Binding) []string {
			ref := b.Spec.Resource
			return []string{targetKey(ref.Namespace, autoscalingv2.CrossVersionObjectReference{APIVersion: ref.APIVersion, Kind: ref.Kind, Name: ref.Name})}
		}),
	)
	if err != nil {
		return err
	}
	if r.took, err = histogram("federatedhpa_process_duration_seconds", "How long a reconcile of a FederatedHPA takes."); err != nil {
		return err
	}
	do, err := kube.Reconciler("federatedhpa", r.events, func(ctx context.Context, req ctrl.Request) (wait time.Duration, err error) {
		defer observe(r.took.WithLabelValues, time.Now(), &err)
		return r.reconcile(ctx, req)
	})
	if err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).Named("federatedhpa").
		For(&autoscalingv1alpha1.FederatedHPA{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(kube.HubControllerOptions(workers)).Complete(do)
}

// targetKey names a template whatever the version of its kind.
func targetKey(namespace string, ref autoscalingv2.CrossVersionObjectReference) string {
	group, _, found := strings.Cut(ref.APIVersion, "/")
	if !found {
		group = ""
	}
	return strings.Join([]string{group, ref.Kind, namespace, ref.Name}, "/")
}

func requestOf(w *workv1alpha1.Work) (r workv1alpha1.ScalingRequest) {
	if text := w.Annotations[workv1alpha1.AnnotationScaling]; text != "" {
		_ = json.Unmarshal([]byte(text), &r) // an unreadable annotation has no owner
	}
	return r
}

func (r *hpaReconciler) reconcile(ctx context.Context, req ctrl.Request) (time.Duration, error) {
	key := req.NamespacedName
	h := &autoscalingv1alpha1.FederatedHPA{}
	err := r.client.Get(ctx, key, h)
	if client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("read the FederatedHPA %s: %w", key, err)
	}
	if err != nil || h.DeletionTimestamp != nil {
		r.mu.Lock()
		delete(r.memories, key)
		r.mu.Unlock()
		return 0, r.ask(ctx, key, nil, "")
	}
	before := h.DeepCopy()
	invalid := validate(&h.Spec)
	if setAccepted(&h.Status.Conditions, h.Generation, invalid) && invalid != nil {
		r.events.Event(h, corev1.EventTypeWarning, policyv1alpha1.ReasonInvalid, invalid.Error())
	}
	var failure error
	if invalid == nil {
		failure = r.scale(ctx, h)
	} else {
		failure = r.ask(ctx, key, nil, "")
	}
	if kube.IsStale(failure) {
		return 0, failure
	}
	h.Status.ObservedGeneration = &h.Generation
	if !equality.Semantic.DeepEqual(before.Status, h.Status) {
		if err := r.client.Status().Patch(ctx, h, kube.MergeFrom(before)); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			failure = errors.Join(failure, fmt.Errorf("write the status of the FederatedHPA %s: %w", key, err))
		}
	}
	return r.Interval, failure
}

// validate checks what the schema does not.
func validate(s *autoscalingv1alpha1.FederatedHPASpec) error {
	var errs []error
	if low := ptr.Deref(s.MinReplicas, 1); low < 1 || s.MaxReplicas < low {
		errs = append(errs, fmt.Errorf("minReplicas must be at least 1, and maxReplicas (%d) at least minReplicas (%d)", s.MaxReplicas, low))
	}
	for i := range s.Metrics {
		m, n := &s.Metrics[i], 0
		for _, has := range []bool{m.Resource != nil, m.ContainerResource != nil, m.Pods != nil, m.Object != nil, m.External != nil} {
			if has {
				n++
			}
		}
		if n != 1 {
			errs = append(errs, fmt.Errorf("metrics[%d]: exactly one of resource, containerResource, pods, object and external is required", i))
			continue
		}
		target, perPod := targetOf(m)
		positive := target.AverageUtilization != nil && *target.AverageUtilization > 0
		if m.Pods != nil || !perPod {
			positive = false
		}
		if target.AverageValue != nil {
			positive = target.AverageValue.Sign() > 0
		} else if !perPod && target.Value != nil {
			positive = target.Value.Sign() > 0
		}
		if !positive {
			errs = append(errs, fmt.Errorf("metrics[%d]: the %s needs a target above 0: averageUtilization or averageValue of a resource, averageValue of pods, "+
				"value or averageValue of object and external", i, nameOf(m)))
		}
	}
	return errors.Join(errs...)
}

// defaultMetrics are those of a FederatedHPA without metrics.
func defaultMetrics() []autoscalingv2.MetricSpec {
	return []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
		Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: ptr.To[int32](80)}}}}
}

// scale computes the replicas of a valid FederatedHPA, sets them, and completes the status.
func (r *hpaReconciler) scale(ctx context.Context, h *autoscalingv1alpha1.FederatedHPA) error {
	key, condition := client.ObjectKeyFromObject(h), conditions(h)
	if other, err := r.older(ctx, h); err != nil || other != "" {
		if err == nil {
			condition(autoscalingv2.ScalingActive, false, "AmbiguousSelector", fmt.Sprintf("the FederatedHPA %s scales the same target: delete one of them", other))
			err = r.ask(ctx, key, nil, "")
		}
		return err
	}
	s, err := readScale(ctx, r.client, h.Namespace, h.Spec.ScaleTargetRef)
	if err != nil {
		condition(autoscalingv2.AbleToScale, false, "FailedGetScale", err.Error())
		return ignorePermanent(err)
	}
	condition(autoscalingv2.AbleToScale, true, "SucceededGetScale", "the target's scale was read")
	h.Status.CurrentReplicas = s.replicas
	selector, err := labels.Parse(s.selector)
	if err != nil || selector.Empty() {
		condition(autoscalingv2.ScalingActive, false, "InvalidSelector", fmt.Sprintf("%s has no usable selector in its scale subresource", s))
		return r.ask(ctx, key, nil, "")
	}
	metrics := h.Spec.Metrics
	if len(metrics) == 0 {
		metrics = defaultMetrics()
	}
	reports, copies, err := r.reports(ctx, h, metrics, s.selector)
	if err != nil {
		return err
	}
	low, high, desired, why := ptr.Deref(h.Spec.MinReplicas, 1), h.Spec.MaxReplicas, s.replicas, ""
	switch {
	case s.replicas == 0:
		condition(autoscalingv2.ScalingActive, false, "ScalingDisabled", "scaling is disabled since the replica count of the target is zero")
	case s.replicas > high:
		desired, why = high, "the replicas were above maxReplicas"
	case s.replicas < low:
		desired, why = low, "the replicas were below minReplicas"
	default:
		n, by, ok := compute(h, metrics, reports, copies)
		if !ok {
			return nil
		}
		l := r.memory(key).limit(h.Spec.Behavior, s.replicas, n, low, high, r.Now())
		condition(autoscalingv2.AbleToScale, true, l.stabilized, map[bool]string{true: "recommended size matches current size",
			false: "recent recommendations differ from the current one, and the smallest change among them applies"}[l.stabilized == "ReadyForNewScale"])
		condition(autoscalingv2.ScalingLimited, l.isLimited, l.reason, l.message)
		if desired, why = l.replicas, by+" above target"; desired < s.replicas {
			why = "all metrics below target"
		}
	}
	if h.Status.DesiredReplicas = desired; desired == s.replicas {
		return nil
	}
	if err := s.set(ctx, r.client, desired); err != nil {
		if apierrors.IsConflict(err) { // the template was changed meanwhile
			return err
		}
		condition(autoscalingv2.AbleToScale, false, "FailedUpdateScale", err.Error())
		r.events.Event(h, corev1.EventTypeWarning, "FailedRescale", err.Error())
		return ignorePermanent(err)
	}
	now := r.Now()
	r.memory(key).scaled(s.replicas, desired, now)
	h.Status.LastScaleTime = ptr.To(metav1.NewTime(now))
	condition(autoscalingv2.AbleToScale, true, "SucceededRescale", fmt.Sprintf("the target was scaled to %d replicas", desired))
	r.events.Eventf(h, corev1.EventTypeNormal, "SuccessfulRescale", "New size: %d; reason: %s", desired, why)
	return nil
}

// ignorePermanent is nil for an error that the status reports and that lasts until someone changes
// an object: the next interval tries again.
func ignorePermanent(err error) error {
	if permanent(err) {
		return nil
	}
	return err
}

// conditions sets conditions of a FederatedHPA.
func conditions(h *autoscalingv1alpha1.FederatedHPA) func(of autoscalingv2.HorizontalPodAutoscalerConditionType, is bool, reason, message string) {
	return func(of autoscalingv2.HorizontalPodAutoscalerConditionType, is bool, reason, message string) {
		status := metav1.ConditionFalse
		if is {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&h.Status.Conditions, metav1.Condition{Type: string(of), Status: status, Reason: reason, Message: message, ObservedGeneration: h.Generation})
	}
}

func (r *hpaReconciler) memory(key client.ObjectKey) *memory {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.memories[key] == nil {
		r.memories[key] = &memory{}
	}
	return r.memories[key]
}

// compute is the largest proposal of all metrics, for the template, and the metric that made it. ok
// is false if the metrics do not suffice: none has values, or some have none and the others request
// fewer replicas.
func compute(h *autoscalingv1alpha1.FederatedHPA, metrics []autoscalingv2.MetricSpec, reports []memberReport, copies int64) (desired int32, by string, ok bool) {
	current, t := int64(h.Status.CurrentReplicas)*copies, tolerancesOf(h.Spec.Behavior)
	var most int64
	var failed, unknown []string
	reason := ""
	h.Status.CurrentMetrics = nil
	for i := range metrics {
		m := &metrics[i]
		s := add(reports, i)
		p, err := propose(m, s, current, t)
		if err != nil {
			failed = append(failed, fmt.Sprintf("%s: %v", nameOf(m), err))
			reason = cmp.Or(reason, "FailedGet"+string(m.Type)+"Metric")
			continue
		}
		h.Status.CurrentMetrics = append(h.Status.CurrentMetrics, statusOf(m, p.current))
		unknown = append(unknown, s.unknown...)
		if by == "" || p.replicas > most {
			most, by = p.replicas, nameOf(m)
		}
	}
	desired = int32((most + copies - 1) / copies)
	if by == "" || len(failed) > 0 && desired < h.Status.CurrentReplicas {
		conditions(h)(autoscalingv2.ScalingActive, false, reason, "the replica count was not computed: "+strings.Join(failed, "; "))
		return 0, "", false
	}
	message := "the replica count was computed from " + by
	if missing := append(failed, unknown...); len(missing) > 0 {
		slices.Sort(missing)
		message += "; without " + strings.Join(slices.Compact(missing), "; ")
	}
	conditions(h)(autoscalingv2.ScalingActive, true, "ValidMetricFound", message)
	return desired, by, true
}

// older names a valid FederatedHPA that scales the same target and is older than this one; "" if
// none exists.
func (r *hpaReconciler) older(ctx context.Context, h *autoscalingv1alpha1.FederatedHPA) (string, error) {
	var list autoscalingv1alpha1.FederatedHPAList
	if err := r.client.List(ctx, &list, client.InNamespace(h.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("list FederatedHPAs: %w", err)
	}
	for i := range list.Items {
		o := &list.Items[i]
		older := cmp.Or(o.CreationTimestamp.Compare(h.CreationTimestamp.Time), strings.Compare(o.Name, h.Name)) < 0
		if older && o.DeletionTimestamp == nil && validate(&o.Spec) == nil && targetKey(o.Namespace, o.Spec.ScaleTargetRef) == targetKey(h.Namespace, h.Spec.ScaleTargetRef) {
			return o.Name, nil
		}
	}
	return "", nil
}

// reports asks the clusters of the target for metrics, and returns what they have reported. copies
// is how many times the template's replicas run: once if they are divided.
func (r *hpaReconciler) reports(ctx context.Context, h *autoscalingv1alpha1.FederatedHPA, metrics []autoscalingv2.MetricSpec, selector string) (
	out []memberReport, copies int64, err error) {
	key := client.ObjectKeyFromObject(h)
	var b binding.Binding
	err = binding.Each(ctx, r.client, func(of binding.Binding) { b = of.Copy() }, client.MatchingFields{targetIndex: targetKey(h.Namespace, h.Spec.ScaleTargetRef)})
	if err != nil || !b.Exists() {
		return nil, 1, errors.Join(err, r.ask(ctx, key, nil, ""))
	}
	text, err := json.Marshal(workv1alpha1.ScalingRequest{HPA: key.String(), Selector: selector, Metrics: metrics})
	if err != nil {
		return nil, 1, err
	}
	var list workv1alpha1.WorkList
	if err := r.client.List(ctx, &list, client.MatchingFields{bindingIndex: client.ObjectKeyFromObject(b).String()}); err != nil {
		return nil, 1, fmt.Errorf("list the Works of %s: %w", b, err)
	}
	works, id := kube.Pointers(list.Items), workv1alpha1.ScalingRequestID(string(text))
	works = slices.DeleteFunc(works, func(w *workv1alpha1.Work) bool { return w.DeletionTimestamp != nil })
	for _, t := range b.Spec.Clusters {
		m := memberReport{cluster: t.Name, replicas: t.Replicas, why: "it has not reported yet"}
		i := slices.IndexFunc(works, func(w *workv1alpha1.Work) bool { return w.Namespace == workv1alpha2.ExecutionNamespace(t.Name) })
		var c clusterv1alpha1.Cluster
		if err := r.client.Get(ctx, client.ObjectKey{Name: t.Name}, &c); client.IgnoreNotFound(err) != nil {
			return nil, 1, fmt.Errorf("read Cluster %s: %w", t.Name, err)
		}
		switch {
		case !meta.IsStatusConditionTrue(c.Status.Conditions, clusterv1alpha1.ConditionReady):
			m.why = "the cluster is not ready"
		case i >= 0 && works[i].Status.Scaling != nil && works[i].Status.Scaling.Request == id:
			m.status = works[i].Status.Scaling
		}
		out = append(out, m)
	}
	copies = 1
	if !b.Spec.Placement.Divided() {
		copies = max(int64(len(b.Spec.Clusters)), 1)
	}
	return out, copies, r.ask(ctx, key, works, string(text))
}

// ask annotates Works with a request, and removes it from the other Works that have one of the
// FederatedHPA.
func (r *hpaReconciler) ask(ctx context.Context, key client.ObjectKey, works []*workv1alpha1.Work, text string) error {
	var list workv1alpha1.WorkList
	if err := r.client.List(ctx, &list, client.MatchingFields{hpaIndex: key.String()}); err != nil {
		return fmt.Errorf("list the Works that report to the FederatedHPA %s: %w", key, err)
	}
	var errs []error
	set := func(w *workv1alpha1.Work, to string) {
		if w.Annotations[workv1alpha1.AnnotationScaling] == to {
			return
		}
		before := w.DeepCopy()
		if to == "" {
			delete(w.Annotations, workv1alpha1.AnnotationScaling)
		} else {
			metav1.SetMetaDataAnnotation(&w.ObjectMeta, workv1alpha1.AnnotationScaling, to)
		}
		err := r.client.Patch(ctx, w, kube.MergeFrom(before))
		if apierrors.IsConflict(err) {
			err = kube.StaleCache(w, before.ResourceVersion, "a newer one")
		}
		errs = append(errs, client.IgnoreNotFound(err))
	}
	for _, w := range works {
		set(w, text)
	}
	for i := range list.Items {
		w := &list.Items[i]
		if !slices.ContainsFunc(works, func(o *workv1alpha1.Work) bool { return client.ObjectKeyFromObject(o) == client.ObjectKeyFromObject(w) }) {
			set(w, "")
		}
	}
	return errors.Join(errs...)
}
