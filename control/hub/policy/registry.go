package policy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	searchv1alpha1 "github.com/pelago-net/pelago/api/search/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/scheduler"
)

// SetupRegistries adds the controller of the conditions of ResourceRegistries. What they select is
// read by control/hub/cluster, with each request, if pelago-hub serves that: searched. The
// manager's scheme has them in version searchv1alpha1.Stored.
func SetupRegistries(mgr ctrl.Manager, searched bool) error {
	c := mgr.GetClient()
	r, err := kube.Reconciler("resourceregistry", kube.EventRecorder(mgr, "pelago-hub"), func(ctx context.Context, req ctrl.Request) (time.Duration, error) {
		o := &searchv1alpha1.ResourceRegistry{}
		if err := c.Get(ctx, req.NamespacedName, o); err != nil {
			return 0, client.IgnoreNotFound(fmt.Errorf("read the ResourceRegistry %s: %w", req.Name, err))
		}
		var clusters clusterv1alpha1.ClusterList
		if err := c.List(ctx, &clusters, client.UnsafeDisableDeepCopy); err != nil {
			return 0, fmt.Errorf("list Clusters: %w", err)
		}
		before, changed := o.DeepCopy(), false
		for _, is := range registryConditions(&o.Spec, clusters.Items, searched) {
			is.ObservedGeneration = o.Generation
			changed = meta.SetStatusCondition(&o.Status.Conditions, is) || changed
		}
		if !changed {
			return 0, nil
		}
		if err := client.IgnoreNotFound(c.Status().Patch(ctx, o, kube.MergeFrom(before))); err != nil {
			return 0, fmt.Errorf("write the status of the ResourceRegistry %s: %w", req.Name, err)
		}
		return 0, nil
	})
	if err != nil {
		return err
	}
	all := kube.EnqueueAll(c, &searchv1alpha1.ResourceRegistryList{})
	selected := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, now := e.ObjectOld.(*clusterv1alpha1.Cluster), e.ObjectNew.(*clusterv1alpha1.Cluster)
		return before.Generation != now.Generation || !equality.Semantic.DeepEqual(before.Labels, now.Labels) ||
			!equality.Semantic.DeepEqual(before.Status.APIEnablements, now.Status.APIEnablements)
	}}
	err = ctrl.NewControllerManagedBy(mgr).Named("resourceregistry").
		For(&searchv1alpha1.ResourceRegistry{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&clusterv1alpha1.Cluster{}, all, builder.WithPredicates(selected)).
		WithOptions(kube.HubControllerOptions(1)).Complete(r)
	if err != nil {
		return fmt.Errorf("set up the controller of ResourceRegistries: %w", err)
	}
	return nil
}

// registryConditions are Accepted and KindsServed, Unknown if that is False. A registry that is not
// accepted selects nothing.
func registryConditions(s *searchv1alpha1.ResourceRegistrySpec, clusters []clusterv1alpha1.Cluster, searched bool) []metav1.Condition {
	accepted := metav1.Condition{Type: policyv1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: policyv1alpha1.ReasonAccepted,
		Message: "search and proxying show the selected objects"}
	served := metav1.Condition{Type: searchv1alpha1.ConditionKindsServed, Status: metav1.ConditionTrue, Reason: searchv1alpha1.ReasonKindsServed,
		Message: "each selector names a kind that a cluster of spec.targetCluster serves"}
	target, err := scheduler.ParseAffinity(&s.TargetCluster)
	switch {
	case !searched:
		accepted.Status, accepted.Reason = metav1.ConditionFalse, configv1alpha1.ReasonNotSupportedYet
		accepted.Message = "pelago-hub serves no search: run it with --proxy-address"
	case s.BackendStore != nil && s.BackendStore.OpenSearch != nil:
		accepted.Status, accepted.Reason = metav1.ConditionFalse, configv1alpha1.ReasonNotSupportedYet
		accepted.Message = "spec.backendStore.openSearch is not supported, so nothing is selected: remove it, and objects are read from the members"
	case err != nil:
		accepted.Status, accepted.Reason = metav1.ConditionFalse, policyv1alpha1.ReasonInvalid
		accepted.Message = "spec.targetCluster: " + err.Error()
	}
	if accepted.Status == metav1.ConditionFalse {
		served.Status, served.Reason, served.Message = metav1.ConditionUnknown, accepted.Reason, accepted.Message
		return []metav1.Condition{accepted, served}
	}
	var missing []string
	for _, r := range s.ResourceSelectors {
		if !slices.ContainsFunc(clusters, func(c clusterv1alpha1.Cluster) bool {
			return target.Matches(&c) && clusterv1alpha1.Serves(c.Status.APIEnablements, r.APIVersion, r.Kind)
		}) {
			missing = append(missing, r.Kind+" ("+r.APIVersion+")")
		}
	}
	if len(missing) > 0 {
		served.Status, served.Reason = metav1.ConditionFalse, searchv1alpha1.ReasonKindNotServed
		served.Message = "no cluster of spec.targetCluster serves " + strings.Join(missing, ", ") + ": correct apiVersion or kind, or install its definition in a member"
	}
	return []metav1.Condition{accepted, served}
}
