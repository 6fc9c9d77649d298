package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

// reporters is how many clusters a message names.
const reporters = 3

// dataPlaneReachable is the condition of a cluster by the reports of the others; nil if none that is ready reports on it.
func dataPlaneReachable(name string, all []clusterv1alpha1.Cluster) *metav1.Condition {
	var reach, not []string
	for i := range all {
		c := &all[i]
		ready := c.Ready()
		if c.Name == name || !c.Member() || ready == nil || ready.Status != metav1.ConditionTrue {
			continue
		}
		for _, path := range c.Status.Network {
			switch {
			case path.Cluster != name:
			case path.Reachable:
				reach = append(reach, c.Name)
			default:
				not = append(not, c.Name)
			}
		}
	}
	names := func(clusters []string) string {
		slices.Sort(clusters)
		if more := len(clusters) - reporters; more > 0 {
			return fmt.Sprintf("%s and %d more", strings.Join(clusters[:reporters], ", "), more)
		}
		return strings.Join(clusters, ", ")
	}
	switch {
	case len(reach) > 0:
		return &metav1.Condition{Type: clusterv1alpha1.ConditionDataPlaneReachable, Status: metav1.ConditionTrue,
			Reason: clusterv1alpha1.ReasonPeersReach, Message: "its gateways answer the probes of " + names(reach)}
	case len(not) > 0:
		return &metav1.Condition{Type: clusterv1alpha1.ConditionDataPlaneReachable, Status: metav1.ConditionFalse,
			Reason: clusterv1alpha1.ReasonNoPeerReaches, Message: "no gateway of it answers the probes of " + names(not)}
	}
	return nil
}

// witness writes the condition DataPlaneReachable of all Clusters.
type witness struct {
	client client.Client
	events record.EventRecorder
}

func (r *witness) setup(mgr ctrl.Manager) error {
	reachability, err := kube.Reconciler("dataplane", r.events, r.reconcile)
	if err != nil {
		return err
	}
	// Of an update, both versions are mapped.
	named := func(_ context.Context, o client.Object) []reconcile.Request {
		var out []reconcile.Request
		for _, path := range o.(*clusterv1alpha1.Cluster).Status.Network {
			out = append(out, request(path.Cluster))
		}
		return out
	}
	changed := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*clusterv1alpha1.Cluster), e.ObjectNew.(*clusterv1alpha1.Cluster)
		ready := func(c *clusterv1alpha1.Cluster) bool {
			return meta.IsStatusConditionTrue(c.Status.Conditions, clusterv1alpha1.ConditionReady)
		}
		return ready(before) != ready(after) || before.Member() != after.Member() ||
			!equality.Semantic.DeepEqual(before.Status.Network, after.Status.Network)
	}}
	return ctrl.NewControllerManagedBy(mgr).Named("dataplane").
		For(&clusterv1alpha1.Cluster{}, builder.WithPredicates(changed)).
		Watches(&clusterv1alpha1.Cluster{}, handler.EnqueueRequestsFromMapFunc(named), builder.WithPredicates(changed)).
		Complete(reachability)
}

func (r *witness) reconcile(ctx context.Context, req ctrl.Request) (time.Duration, error) {
	c := &clusterv1alpha1.Cluster{}
	if err := r.client.Get(ctx, req.NamespacedName, c); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	if c.DeletionTimestamp != nil {
		return 0, nil
	}
	var all clusterv1alpha1.ClusterList
	if err := r.client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("list Clusters: %w", err)
	}
	if want := dataPlaneReachable(c.Name, all.Items); want != nil {
		_, err := setCondition(ctx, r.client, c, *want)
		return 0, client.IgnoreNotFound(err)
	}
	next := c.DeepCopy()
	if !meta.RemoveStatusCondition(&next.Status.Conditions, clusterv1alpha1.ConditionDataPlaneReachable) {
		return 0, nil
	}
	if err := r.client.Status().Patch(ctx, next, kube.MergeFrom(c)); client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("remove condition %s of Cluster %s: %w", clusterv1alpha1.ConditionDataPlaneReachable, c.Name, err)
	}
	return 0, nil
}
