package kinds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
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

// Setup adds the controllers to the hub's manager, whose scheme has the groups pelago.io and config.karmada.io.
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
			// Also where there are none: until the interpreter has been told so, it waits.
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

// reconciler hands the KindRules to the interpreter and says on each whether it can work.
type reconciler struct {
	client   client.Client
	recorder record.EventRecorder
	stale    *kube.StaleCaches[ctrl.Request]
	rules    *Custom
}

// Reconcile looks at all KindRules.
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

// customizations says on each customization in Lua that it is not run.
type customizations struct {
	client   client.Client
	recorder record.EventRecorder
	stale    *kube.StaleCaches[ctrl.Request]
}

// Reconcile looks at one customization.
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

// write writes a status whose condition has changed; what does not hold is an Event as well.
func write(
	ctx context.Context, c client.Client, recorder record.EventRecorder, before, now client.Object, is metav1.Condition,
) error {
	err := c.Status().Patch(ctx, now, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write the status of %T %s: %w", now, now.GetName(), err))
	}
	if is.Status == metav1.ConditionFalse {
		recorder.Event(now, corev1.EventTypeWarning, is.Reason, clipMessage(is.Message, maxEvent))
	}
	return nil
}
