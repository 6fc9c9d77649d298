package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	networkingv1alpha1 "github.com/pelago-net/pelago/api/networking/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

// SetupUnsupported adds a controller for each kind of the karmada.io groups on which nothing acts.
// It sets the condition Accepted to False with the alternative, so that a manifest written for
// Karmada is stored and its author learns that it has no effect. The manager's scheme has all
// groups. A kind that gets a controller loses its entry here.
func SetupUnsupported(mgr ctrl.Manager) error {
	return errors.Join(
		unsupported(mgr, "MultiClusterIngress", "propagate an Ingress to each cluster",
			func(o *networkingv1alpha1.MultiClusterIngress) *[]metav1.Condition { return &o.Status.Conditions }),
	)
}

// unsupported adds the controller of one kind.
func unsupported[T any, P interface {
	*T
	client.Object
}](mgr ctrl.Manager, kind, instead string, conditions func(P) *[]metav1.Condition) error {
	events := kube.EventRecorder(mgr, "pelago-hub")
	r, err := kube.Reconciler(strings.ToLower(kind), events, func(ctx context.Context, req ctrl.Request) (time.Duration, error) {
		var o P = new(T)
		if err := mgr.GetClient().Get(ctx, req.NamespacedName, o); err != nil {
			return 0, client.IgnoreNotFound(fmt.Errorf("read the %s %s: %w", kind, req.NamespacedName, err))
		}
		before, _ := o.DeepCopyObject().(client.Object) // a copy has the type of the object
		is := metav1.Condition{
			Type: policyv1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: configv1alpha1.ReasonNotSupportedYet,
			Message:            fmt.Sprintf("%s is stored and has no effect yet: %s", kind, instead),
			ObservedGeneration: o.GetGeneration(),
		}
		if !meta.SetStatusCondition(conditions(o), is) {
			return 0, nil
		}
		// The definitions that Karmada installs have no status for some of the kinds: NotFound.
		if err := client.IgnoreNotFound(mgr.GetClient().Status().Patch(ctx, o, kube.MergeFrom(before))); err != nil {
			return 0, fmt.Errorf("write the status of the %s %s: %w", kind, req.NamespacedName, err)
		}
		events.Event(o, corev1.EventTypeWarning, is.Reason, is.Message)
		return 0, nil
	})
	if err != nil {
		return err
	}
	err = ctrl.NewControllerManagedBy(mgr).Named(strings.ToLower(kind)).For(P(new(T))).
		WithOptions(kube.HubControllerOptions(1)).Complete(r)
	if err != nil {
		return fmt.Errorf("set up the controller of %s: %w", kind, err)
	}
	return nil
}
