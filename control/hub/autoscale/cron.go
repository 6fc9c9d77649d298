package autoscale

import (
	"context"
	"errors"
	"fmt"
	"time"

	// Images have no time zone database of their own.
	_ "time/tzdata"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autoscalingv1alpha1 "github.com/pelago-net/pelago/api/autoscaling/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

// maxWait bounds the time between two reconciles of a CronFederatedHPA.
const maxWait = time.Minute

type cronReconciler struct {
	client  client.Client
	events  record.EventRecorder
	now     func() time.Time
	written kube.Expectations[client.ObjectKey]
	// took is by result: a reconcile, and the application of a rule.
	took, ruleTook *prometheus.HistogramVec
}

func setupCron(mgr ctrl.Manager, o Options) error {
	r := &cronReconciler{client: mgr.GetClient(), events: kube.EventRecorder(mgr, "pelago-hub"), now: o.Now}
	var errs [2]error
	r.took, errs[0] = histogram("cronfederatedhpa_process_duration_seconds", "How long a reconcile of a CronFederatedHPA takes.")
	r.ruleTook, errs[1] = histogram("cronfederatedhpa_rule_process_duration_seconds", "How long the application of a rule takes.")
	do, err := kube.Reconciler("cronfederatedhpa", r.events, func(ctx context.Context, req ctrl.Request) (wait time.Duration, err error) {
		defer observe(r.took.WithLabelValues, time.Now(), &err)
		return r.reconcile(ctx, req)
	})
	if err := errors.Join(errs[0], errs[1], err); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).Named("cronfederatedhpa").For(&autoscalingv1alpha1.CronFederatedHPA{}).
		WithOptions(kube.HubControllerOptions(workers)).Complete(do)
}

func (r *cronReconciler) reconcile(ctx context.Context, req ctrl.Request) (time.Duration, error) {
	key := req.NamespacedName
	c := &autoscalingv1alpha1.CronFederatedHPA{}
	if err := r.client.Get(ctx, key, c); err != nil {
		r.written.Forget(key)
		return 0, client.IgnoreNotFound(fmt.Errorf("read the CronFederatedHPA %s: %w", key, err))
	}
	switch {
	case c.DeletionTimestamp != nil:
		return 0, nil
	case r.written.Stale(key, c.ResourceVersion, time.Now()):
		return 0, kube.StaleCache(c, c.ResourceVersion, "that of our last write")
	}
	before := c.DeepCopy()
	rules, invalid := parseRules(c.Spec)
	accepted := meta.FindStatusCondition(c.Status.Conditions, policyv1alpha1.ConditionAccepted)
	edited := accepted == nil || accepted.ObservedGeneration != c.Generation
	if setAccepted(&c.Status.Conditions, c.Generation, invalid) && invalid != nil {
		r.events.Event(c, corev1.EventTypeWarning, policyv1alpha1.ReasonInvalid, invalid.Error())
	}
	if invalid != nil {
		return 0, r.write(ctx, before, c)
	}
	now := r.now()
	all, due := histories(rules, c.Status.ExecutionHistories, edited, now)
	for _, d := range due {
		err := r.run(ctx, c, d)
		if err != nil && !permanent(err) {
			return 0, err // again, with the time still due
		}
		recordRun(all, d, r.now(), err)
		if err != nil {
			r.events.Eventf(c, corev1.EventTypeWarning, "ScaleFailed", "Rule %s of %s: %v", d.rule.Name, d.at.UTC().Format(time.RFC3339), err)
		}
	}
	trim(all, rules)
	c.Status.ExecutionHistories = all
	return untilNext(all, now), r.write(ctx, before, c)
}

func (r *cronReconciler) write(ctx context.Context, before, c *autoscalingv1alpha1.CronFederatedHPA) error {
	if equality.Semantic.DeepEqual(before.Status, c.Status) {
		return nil
	}
	key := client.ObjectKeyFromObject(c)
	if err := r.client.Status().Patch(ctx, c, kube.MergeFrom(before)); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write the status of the CronFederatedHPA %s: %w", key, err))
	}
	r.written.Expect(key, c.ResourceVersion, time.Now())
	return nil
}

// run applies a rule.
func (r *cronReconciler) run(ctx context.Context, c *autoscalingv1alpha1.CronFederatedHPA, d run) (err error) {
	if d.late {
		return fmt.Errorf("%w: it was missed for more than %s, pelago-hub did not run", errRefused, startingDeadline)
	}
	defer observe(r.ruleTook.WithLabelValues, time.Now(), &err)
	if scalesHPA(c.Spec) {
		return r.setBounds(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Spec.ScaleTargetRef.Name}, d.rule)
	}
	s, err := readScale(ctx, r.client, c.Namespace, c.Spec.ScaleTargetRef)
	if err != nil {
		return err
	}
	return s.set(ctx, r.client, *d.rule.TargetReplicas)
}

// setBounds changes minReplicas and maxReplicas of a FederatedHPA.
func (r *cronReconciler) setBounds(ctx context.Context, key client.ObjectKey, by *rule) error {
	h := &autoscalingv1alpha1.FederatedHPA{}
	if err := r.client.Get(ctx, key, h); err != nil {
		return fmt.Errorf("read the FederatedHPA %s: %w", key, err)
	}
	before := h.DeepCopy()
	if by.TargetMinReplicas != nil {
		h.Spec.MinReplicas = by.TargetMinReplicas
	}
	if by.TargetMaxReplicas != nil {
		h.Spec.MaxReplicas = *by.TargetMaxReplicas
	}
	if low := h.Spec.MinReplicas; low != nil && *low > h.Spec.MaxReplicas {
		return fmt.Errorf("%w: minReplicas %d of the FederatedHPA %s would be above maxReplicas %d: set both in the rule", errRefused, *low, key, h.Spec.MaxReplicas)
	}
	if equality.Semantic.DeepEqual(before.Spec, h.Spec) {
		return nil
	}
	if err := r.client.Patch(ctx, h, kube.MergeFrom(before)); err != nil {
		return fmt.Errorf("write the bounds of the FederatedHPA %s: %w", key, err)
	}
	return nil
}

// setAccepted reports whether the condition Accepted was changed.
func setAccepted(conditions *[]metav1.Condition, generation int64, invalid error) bool {
	c := metav1.Condition{Type: policyv1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: policyv1alpha1.ReasonAccepted,
		ObservedGeneration: generation}
	if invalid != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, policyv1alpha1.ReasonInvalid, invalid.Error()
	}
	return meta.SetStatusCondition(conditions, c)
}
