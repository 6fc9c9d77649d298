package execute

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/control/kube"
)

// allRules is the one request of its reconciler: which rule is used depends on all KindRules.
var allRules = ctrl.Request{}

// SetupRules adds the controllers that pass KindRules and ResourceInterpreterCustomizations to the
// interpreter of kinds, and write their condition Accepted, to the hub's manager, whose scheme has
// the groups pelago.io and config.karmada.io.
func SetupRules(mgr ctrl.Manager, rules *kinds.Custom) error {
	recorder := kube.EventRecorder(mgr, "pelago-hub")
	ofRules, err := kube.NewStaleCaches[ctrl.Request]("kindrules", slog.Default(), recorder)
	if err != nil {
		return fmt.Errorf("set up the controllers of rules of kinds: %w", err)
	}
	enqueue := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []ctrl.Request { return []ctrl.Request{allRules} })
	err = errors.Join(
		mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
			<-ctx.Done()
			rules.Release()
			return nil
		})),
		ctrl.NewControllerManagedBy(mgr).Named("kindrules").
			Watches(&pelagov1alpha1.KindRules{}, enqueue).
			Watches(&configv1alpha1.ResourceInterpreterCustomization{}, enqueue).
			Watches(&configv1alpha1.ResourceInterpreterWebhookConfiguration{}, enqueue).
			// The first reconcile runs even without KindRules: the interpreter blocks until then.
			WatchesRawSource(source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
				queue.Add(allRules)
				go func() {
					for {
						select {
						case <-ctx.Done():
							return
						case <-rules.Exhausted():
							queue.Add(allRules)
						}
					}
				}()
				return nil
			})).
			WithOptions(kube.HubControllerOptions(1)).
			Complete(&ruleReconciler{
				client: mgr.GetClient(), mapper: mgr.GetRESTMapper(), recorder: recorder, stale: ofRules, rules: rules,
				webhooks: hookSet{services: mgr.GetAPIReader()},
			}),
	)
	if err != nil {
		return fmt.Errorf("set up the controllers of rules of kinds: %w", err)
	}
	return nil
}

// ruleReconciler passes KindRules, customizations and webhooks to the interpreter and writes their
// condition Accepted.
type ruleReconciler struct {
	client   client.Client
	mapper   meta.RESTMapper
	recorder record.EventRecorder
	stale    *kube.StaleCaches[ctrl.Request]
	rules    *kinds.Custom
	webhooks hookSet
}

// Reconcile reconciles all KindRules, customizations and webhooks.
func (r *ruleReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var list pelagov1alpha1.KindRulesList
	if err := r.client.List(ctx, &list); err != nil {
		return ctrl.Result{}, fmt.Errorf("list KindRules: %w", err)
	}
	var customizations configv1alpha1.ResourceInterpreterCustomizationList
	if err := r.client.List(ctx, &customizations); err != nil {
		return ctrl.Result{}, fmt.Errorf("list ResourceInterpreterCustomizations: %w", err)
	}
	var hooks configv1alpha1.ResourceInterpreterWebhookConfigurationList
	if err := r.client.List(ctx, &hooks); err != nil {
		return ctrl.Result{}, fmt.Errorf("list ResourceInterpreterWebhookConfigurations: %w", err)
	}
	served, again := servedKinds(r.mapper, list.Items, customizations.Items)
	r.rules.SetServed(served)
	called := r.webhooks.set(r.rules, hooks.Items)
	scripts := r.rules.SetScripts(customizations.Items)
	verdicts := r.rules.Set(list.Items)
	var errs []error
	for i := range hooks.Items {
		c := &hooks.Items[i]
		errs = append(errs, writeRule(ctx, r.client, r.recorder, c, &c.Status.Conditions, webhooksAccepted(c, called[c.Name])))
	}
	for i := range customizations.Items {
		c := &customizations.Items[i]
		errs = append(errs, writeRule(ctx, r.client, r.recorder, c, &c.Status.Conditions, scriptsAccepted(c, scripts[c.Name])))
	}
	for i := range list.Items {
		k := &list.Items[i]
		errs = append(errs, writeRule(ctx, r.client, r.recorder, k, &k.Status.Conditions, accepted(verdicts[k.Name], k.Generation)))
	}
	return r.stale.Result(req, again, errors.Join(errs...))
}

// servedAgain is the requeue interval while the hub does not serve a kind of a rule.
const servedAgain = time.Minute

// servedKinds are the kinds of rules that the hub serves in their version, and the requeue
// interval; 0 if it serves all.
func servedKinds(
	mapper meta.RESTMapper, rules []pelagov1alpha1.KindRules, scripts []configv1alpha1.ResourceInterpreterCustomization,
) (map[schema.GroupVersionKind]bool, time.Duration) {
	served, again := map[schema.GroupVersionKind]bool{}, time.Duration(0)
	look := func(apiVersion, kind string) {
		gvk := schema.FromAPIVersionAndKind(apiVersion, kind)
		if _, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version); err != nil {
			again = servedAgain // it may be defined later, or the hub did not answer
			return
		}
		served[gvk] = true
	}
	for i := range rules {
		for _, k := range rules[i].Spec.Kinds {
			look(k.APIVersion, k.Kind)
		}
	}
	for i := range scripts {
		look(scripts[i].Spec.Target.APIVersion, scripts[i].Spec.Target.Kind)
	}
	return served, again
}

// writeRule sets a condition among those of the status of now. If it has changed, it writes the
// status, and an Event if the condition is False.
func writeRule(
	ctx context.Context, c client.Client, recorder record.EventRecorder, now client.Object, conditions *[]metav1.Condition, is metav1.Condition,
) error {
	before, _ := now.DeepCopyObject().(client.Object) // the copy has the type of the object
	if !meta.SetStatusCondition(conditions, is) {
		return nil
	}
	err := c.Status().Patch(ctx, now, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write the status of %T %s: %w", now, now.GetName(), err))
	}
	if is.Status == metav1.ConditionFalse {
		recorder.Event(now, corev1.EventTypeWarning, is.Reason, kinds.Shorten(is.Message, maxEvent))
	}
	return nil
}

// listRetry is the time between two lists of KindRules while the hub does not answer.
const listRetry = 2 * time.Second

// Follower passes the KindRules, customizations and webhooks of the hub to the interpreter of an
// agent.
type Follower struct {
	Cache  cache.Cache     // of the hub
	Live   client.Reader   // uncached
	Mapper meta.RESTMapper // of the hub
	Rules  *kinds.Custom
	Log    *slog.Logger

	webhooks hookSet
}

// Start runs until ctx ends. An older hub does not serve KindRules, or does not allow members to
// read them, customizations or webhooks: then none exist until it is upgraded.
func (f *Follower) Start(ctx context.Context) error {
	defer f.Rules.Release()
	changed := make(chan struct{}, 1)
	rules, err := f.watch(ctx, &pelagov1alpha1.KindRules{}, changed)
	if err != nil {
		return err
	}
	scripts, err := f.watch(ctx, &configv1alpha1.ResourceInterpreterCustomization{}, changed)
	if err != nil {
		return err
	}
	hooks, err := f.watch(ctx, &configv1alpha1.ResourceInterpreterWebhookConfiguration{}, changed)
	if err != nil {
		return err
	}
	var withoutScripts, withoutHooks atomic.Bool
	go f.older(ctx, &pelagov1alpha1.KindRulesList{}, f.Rules.Release)
	go f.older(ctx, &configv1alpha1.ResourceInterpreterCustomizationList{}, func() { withoutScripts.Store(true) })
	go f.older(ctx, &configv1alpha1.ResourceInterpreterWebhookConfigurationList{}, func() { withoutHooks.Store(true) })
	known := func() bool { return (withoutScripts.Load() || scripts()) && (withoutHooks.Load() || hooks()) }
	if !toolscache.WaitForCacheSync(ctx.Done(), rules, known) {
		return nil // the process ends
	}
	notify(changed) // even without KindRules
	var later <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-later:
		}
		again, err := f.set(ctx, scripts(), hooks())
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if later = nil; again > 0 {
			later = time.After(again)
		}
	}
}

// watch sends to changed when an object of a kind changes. It returns the function that reports
// whether all have been read.
func (f *Follower) watch(ctx context.Context, o client.Object, changed chan<- struct{}) (synced toolscache.InformerSynced, err error) {
	informer, err := f.Cache.GetInformer(ctx, o, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch %T at the hub: %w", o, err)
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { notify(changed) }, UpdateFunc: func(_, _ any) { notify(changed) }, DeleteFunc: func(any) { notify(changed) },
	})
	if err != nil {
		return nil, fmt.Errorf("watch %T at the hub: %w", o, err)
	}
	// fails only for an unknown handler
	context.AfterFunc(ctx, func() { _ = informer.RemoveEventHandler(registration) })
	return registration.HasSynced, nil
}

// set passes the rules in the cache to the interpreter, and customizations and webhooks if they
// have been read. It returns the requeue interval for kinds that the hub does not serve; 0 if
// it serves all.
func (f *Follower) set(ctx context.Context, scripts, hooks bool) (time.Duration, error) {
	if hooks {
		var list configv1alpha1.ResourceInterpreterWebhookConfigurationList
		if err := f.Cache.List(ctx, &list); err != nil {
			return 0, fmt.Errorf("list the ResourceInterpreterWebhookConfigurations of the hub: %w", err)
		}
		f.webhooks.set(f.Rules, list.Items)
	}
	var customizations configv1alpha1.ResourceInterpreterCustomizationList
	if scripts {
		if err := f.Cache.List(ctx, &customizations); err != nil {
			return 0, fmt.Errorf("list the ResourceInterpreterCustomizations of the hub: %w", err)
		}
		f.Rules.SetScripts(customizations.Items)
	}
	var list pelagov1alpha1.KindRulesList
	if err := f.Cache.List(ctx, &list); err != nil {
		return 0, fmt.Errorf("list the KindRules of the hub: %w", err)
	}
	served, again := servedKinds(f.Mapper, list.Items, customizations.Items)
	f.Rules.SetServed(served)
	f.Rules.Set(list.Items)
	return again, nil
}

func notify(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default: // already notified
	}
}

// older calls otherwise if the hub does not serve a kind, or does not allow members to read it.
func (f *Follower) older(ctx context.Context, list client.ObjectList, otherwise func()) {
	for {
		err := f.Live.List(ctx, list, client.Limit(1))
		switch {
		case err == nil:
			return
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err), meta.IsNoMatchError(err):
			f.Log.Warn("The hub does not give these rules to members: kinds are interpreted without them. Upgrade the hub with `pelago init`.",
				"list", fmt.Sprintf("%T", list), "error", err)
			otherwise()
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
func accepted(v kinds.Verdict, generation int64) metav1.Condition {
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
		c.Message = kinds.Shorten(strings.Join(problems, "; "), kinds.MaxMessage)
	}
	return c
}

// webhooksAccepted is the condition of a webhook configuration.
func webhooksAccepted(c *configv1alpha1.ResourceInterpreterWebhookConfiguration, v kinds.Verdict) metav1.Condition {
	is := accepted(v, c.Generation)
	if v.Invalid != nil {
		is.Reason = configv1alpha1.ReasonInvalidWebhook
	} else {
		is.Message = "all webhooks are called"
	}
	return is
}

// scriptsAccepted is the condition of a customization.
func scriptsAccepted(c *configv1alpha1.ResourceInterpreterCustomization, v kinds.Verdict) metav1.Condition {
	is := accepted(v, c.Generation)
	switch {
	case v.Invalid != nil:
		is.Reason = configv1alpha1.ReasonInvalidScript
	case v.Conflicts != nil:
	case v.Exhausted != "":
		is.Status, is.Reason = metav1.ConditionFalse, configv1alpha1.ReasonLimitExceeded
		is.Message = kinds.Shorten(v.Exhausted+"; objects for which that happens keep what they have", kinds.MaxMessage)
	default:
		is.Message = "all scripts compile and are used"
	}
	return is
}
