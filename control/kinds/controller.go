package kinds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/source"

	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

// all is the one request of the reconciler: which rule is used depends on all KindRules.
var all = ctrl.Request{}

// SetupRules adds the controllers to the hub's manager, whose scheme has the groups pelago.io and config.karmada.io.
func SetupRules(mgr ctrl.Manager, rules *Custom) error {
	recorder := mgr.GetEventRecorderFor("pelago-hub")
	ofRules, err := kube.NewStaleCaches[ctrl.Request]("kindrules", slog.Default(), recorder)
	if err != nil {
		return fmt.Errorf("set up the controllers of rules of kinds: %w", err)
	}
	ofCustomizations, err := kube.NewStaleCaches[ctrl.Request]("customizations", slog.Default(), recorder)
	if err != nil {
		return fmt.Errorf("set up the controllers of rules of kinds: %w", err)
	}
	err = errors.Join(
		mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
			<-ctx.Done()
			rules.Release()
			return nil
		})),
		ctrl.NewControllerManagedBy(mgr).Named("kindrules").
			Watches(&pelagov1alpha1.KindRules{}, handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []ctrl.Request {
				return []ctrl.Request{all}
			})).
			// The first reconcile runs even without KindRules: the interpreter blocks until then.
			WatchesRawSource(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
				queue.Add(all)
				return nil
			})).
			WithOptions(kube.HubControllerOptions(1)).
			Complete(&reconciler{client: mgr.GetClient(), recorder: recorder, stale: ofRules, rules: rules}),
		ctrl.NewControllerManagedBy(mgr).Named("customizations").
			For(&configv1alpha1.ResourceInterpreterCustomization{}).
			WithOptions(kube.HubControllerOptions(1)).
			Complete(&customizations{client: mgr.GetClient(), recorder: recorder, stale: ofCustomizations}),
	)
	if err != nil {
		return fmt.Errorf("set up the controllers of rules of kinds: %w", err)
	}
	return nil
}

// reconciler passes the KindRules to the interpreter and writes their condition Accepted.
type reconciler struct {
	client   client.Client
	recorder record.EventRecorder
	stale    *kube.StaleCaches[ctrl.Request]
	rules    *Custom
}

// Reconcile reconciles all KindRules.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var list pelagov1alpha1.KindRulesList
	if err := r.client.List(ctx, &list); err != nil {
		return ctrl.Result{}, fmt.Errorf("list KindRules: %w", err)
	}
	verdicts := r.rules.Set(list.Items)
	var errs []error
	for i := range list.Items {
		k := &list.Items[i]
		before := k.DeepCopy()
		is := accepted(verdicts[k.Name], k.Generation)
		if meta.SetStatusCondition(&k.Status.Conditions, is) {
			errs = append(errs, write(ctx, r.client, r.recorder, before, k, is))
		}
	}
	return r.stale.Result(req, 0, errors.Join(errs...))
}

// customizations writes the condition of customizations in Lua: they are not run.
type customizations struct {
	client   client.Client
	recorder record.EventRecorder
	stale    *kube.StaleCaches[ctrl.Request]
}

// Reconcile reconciles one customization.
func (r *customizations) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var c configv1alpha1.ResourceInterpreterCustomization
	if err := r.client.Get(ctx, req.NamespacedName, &c); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(fmt.Errorf("read the ResourceInterpreterCustomization %s: %w", req.Name, err))
	}
	before := c.DeepCopy()
	is := notRun(&c)
	if !meta.SetStatusCondition(&c.Status.Conditions, is) {
		return r.stale.Result(req, 0, nil)
	}
	return r.stale.Result(req, 0, write(ctx, r.client, r.recorder, before, &c, is))
}

// write writes a status whose condition has changed, and an Event if the condition is False.
func write(
	ctx context.Context, c client.Client, recorder record.EventRecorder, before, now client.Object, is metav1.Condition,
) error {
	err := c.Status().Patch(ctx, now, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write the status of %T %s: %w", now, now.GetName(), err))
	}
	if is.Status == metav1.ConditionFalse {
		recorder.Event(now, corev1.EventTypeWarning, is.Reason, shorten(is.Message, maxEvent))
	}
	return nil
}

// listRetry is the time between two lists of KindRules while the hub does not answer.
const listRetry = 2 * time.Second

// RuleFollower passes the KindRules of the hub to the interpreter of an agent.
type RuleFollower struct {
	Cache cache.Cache   // of the hub
	Live  client.Reader // uncached
	Rules *Custom
	Log   *slog.Logger
}

// Start runs until ctx ends. An older hub does not serve KindRules, or does not allow members to read them: then there are no
// rules until it is upgraded.
func (f *RuleFollower) Start(ctx context.Context) error {
	defer f.Rules.Release()
	informer, err := f.Cache.GetInformer(ctx, &pelagov1alpha1.KindRules{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch the KindRules of the hub: %w", err)
	}
	changed := make(chan struct{}, 1)
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { notify(changed) }, UpdateFunc: func(_, _ any) { notify(changed) }, DeleteFunc: func(any) { notify(changed) },
	})
	if err != nil {
		return fmt.Errorf("watch the KindRules of the hub: %w", err)
	}
	defer func() { _ = informer.RemoveEventHandler(registration) }() // fails only for an unknown handler
	go f.older(ctx)
	if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return nil // the process ends
	}
	notify(changed) // even without KindRules
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
		var list pelagov1alpha1.KindRulesList
		if err := f.Cache.List(ctx, &list); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("list the KindRules of the hub: %w", err)
		}
		f.Rules.Set(list.Items)
	}
}

func notify(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default: // already notified
	}
}

// older releases the rules if the hub does not serve KindRules.
func (f *RuleFollower) older(ctx context.Context) {
	for {
		var list pelagov1alpha1.KindRulesList
		err := f.Live.List(ctx, &list, client.Limit(1))
		switch {
		case err == nil:
			return
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err), meta.IsNoMatchError(err):
			f.Log.Warn("The hub gives no KindRules: kinds are interpreted by what is built in. Upgrade the hub with `pelago init`.",
				"error", err)
			f.Rules.Release()
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(listRetry):
		}
	}
}

// maxEvent is the API server's limit for the message of an Event, in bytes.
const maxEvent = 1024

// accepted is the condition of KindRules.
func accepted(v Verdict, generation int64) metav1.Condition {
	c := metav1.Condition{
		Type: pelagov1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: pelagov1alpha1.ReasonAccepted,
		Message: "all rules compile and are used", ObservedGeneration: generation,
	}
	var problems []string
	for _, err := range v.Invalid {
		problems = append(problems, err.Error())
		c.Status, c.Reason = metav1.ConditionFalse, pelagov1alpha1.ReasonInvalidExpression
	}
	for _, conflict := range v.Conflicts {
		problems = append(problems, conflict)
		if c.Status == metav1.ConditionTrue {
			c.Status, c.Reason = metav1.ConditionFalse, pelagov1alpha1.ReasonConflict
		}
	}
	if len(problems) > 0 {
		c.Message = shorten(strings.Join(problems, "; "), maxMessage)
	}
	return c
}

// notRun is the condition of a customization in Lua, which names the rule to write instead of each script.
func notRun(c *configv1alpha1.ResourceInterpreterCustomization) metav1.Condition {
	is, rules := c.Spec.Customizations, []string{}
	for _, x := range []struct {
		script        *configv1alpha1.Script
		field, become string
	}{
		{is.Retention, "retention", "rules.retain"},
		{is.ReplicaResource, "replicaResource", "rules.replicas and rules.requirements"},
		{is.ComponentResource, "componentResource", "nothing yet"},
		{is.ReplicaRevision, "replicaRevision", "rules.revise"},
		{is.StatusReflection, "statusReflection", "rules.reflect"},
		{is.StatusAggregation, "statusAggregation", "rules.aggregate"},
		{is.HealthInterpretation, "healthInterpretation", "rules.healthy"},
		{is.DependencyInterpretation, "dependencyInterpretation", "rules.dependencies"},
	} {
		if x.script != nil {
			rules = append(rules, x.field+" becomes "+x.become)
		}
	}
	return metav1.Condition{
		Type: configv1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: configv1alpha1.ReasonNotSupportedYet,
		Message: fmt.Sprintf("Lua scripts are not run yet: %s %s is read and changed without them. Write them in CEL, as KindRules "+
			"(pelago.io/v1alpha1) for this kind: %s; `kubectl explain kindrules.spec.rules` says what each gives",
			c.Spec.Target.APIVersion, c.Spec.Target.Kind, strings.Join(rules, ", ")),
		ObservedGeneration: c.Generation,
	}
}
