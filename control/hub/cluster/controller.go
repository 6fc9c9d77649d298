// Package cluster owns the life of a member at the hub: finalizer, execution namespace, rights and
// Leases of pull members, taints by condition, refusal of a cluster that joins twice, ordered
// removal. For each push member it runs the executor of its Works and the collector of its status.
//
// pelago-hub runs it. It writes to no member and never removes the finalizer of a Work:
// control/execute does, or Abandon for a cluster that an administrator gives up.
package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kube"
)

// accessInterval is the interval at which the rights of a pull member are verified without an
// event.
const accessInterval = 5 * time.Minute

// MembershipOptions configure SetupMembership. The defaults detect a failure in about 17 s;
// Karmada's take 45 s.
type MembershipOptions struct {
	// HubUID is the UID of the hub's namespace kube-system.
	HubUID string
	// Every is the interval at which Leases are checked, and what blocks a removal; 0: 2 s.
	Every time.Duration
	// Grace is the time without a renewal of its Lease after which a cluster's status is unknown;
	// 0: 15 s. StartupGrace is the same for a cluster that has not reported yet; 0: 60 s.
	Grace, StartupGrace time.Duration
	// Registry, if set, gets the metrics of all Clusters.
	Registry prometheus.Registerer
}

// SetupMembership adds the controllers to the manager, whose cache must hold Clusters, Namespaces,
// Works and bindings.
func SetupMembership(mgr ctrl.Manager, o MembershipOptions) error {
	o.Every = cmp.Or(o.Every, 2*time.Second)
	o.Grace = cmp.Or(o.Grace, 15*time.Second)
	o.StartupGrace = cmp.Or(o.StartupGrace, 60*time.Second)
	events := kube.EventRecorder(mgr, "pelago-hub")
	r := &reconciler{MembershipOptions: o, client: mgr.GetClient(), live: mgr.GetAPIReader(), events: events}
	taints := &tainter{client: mgr.GetClient(), events: events}
	remedies := &remedier{client: mgr.GetClient(), events: events}
	leases := &monitor{MembershipOptions: o, client: mgr.GetClient(), live: mgr.GetAPIReader()}
	err := errors.Join(r.setup(mgr), taints.setup(mgr), remedies.setup(mgr), mgr.Add(leases))
	if o.Registry != nil {
		err = errors.Join(err, o.Registry.Register(&metrics{from: mgr.GetClient()}))
	}
	if err != nil {
		return fmt.Errorf("set up the controllers of memberships: %w", err)
	}
	return nil
}

// reconciler admits Clusters as members and removes them. It has one worker: Clusters with the same
// spec.id are judged one after the other.
type reconciler struct {
	MembershipOptions
	client client.Client
	live   client.Reader
	events record.EventRecorder
}

// setup adds the controller with its watches. A change of status does not affect the membership.
func (r *reconciler) setup(mgr ctrl.Manager) error {
	membership, err := kube.Reconciler("memberships", r.events, r.reconcile)
	if err != nil {
		return err
	}
	changes := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, changed(joined)))
	onlyDeletions := predicate.NewPredicateFuncs(func(client.Object) bool { return false })
	onlyDeletions.DeleteFunc = nil
	return ctrl.NewControllerManagedBy(mgr).Named("membership").
		For(&clusterv1alpha1.Cluster{}, changes).
		Watches(&clusterv1alpha1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.sameID), changes).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(ofNamespace)).
		Watches(&workv1alpha1.Work{}, handler.EnqueueRequestsFromMapFunc(r.leaving), builder.WithPredicates(onlyDeletions)).
		WithOptions(kube.HubControllerOptions(1)).
		Complete(membership)
}

// changed is the predicate of updates that change a property of a Cluster.
func changed(property func(*clusterv1alpha1.Cluster) bool) predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return property(e.ObjectOld.(*clusterv1alpha1.Cluster)) != property(e.ObjectNew.(*clusterv1alpha1.Cluster))
	}}
}

// sameID are requests for the other Clusters with the spec.id of one.
func (r *reconciler) sameID(ctx context.Context, o client.Object) []reconcile.Request {
	c := o.(*clusterv1alpha1.Cluster)
	return requests(ctx, r.client, func(other *clusterv1alpha1.Cluster) bool {
		return c.Spec.ID != "" && other.Name != c.Name && other.Spec.ID == c.Spec.ID
	})
}

// requests are those for the Clusters of a cache that match.
func requests(ctx context.Context, cache client.Reader, match func(*clusterv1alpha1.Cluster) bool) []reconcile.Request {
	var all clusterv1alpha1.ClusterList
	// a cache fails only when the manager ends
	if cache.List(ctx, &all, client.UnsafeDisableDeepCopy) != nil {
		return nil
	}
	var out []reconcile.Request
	for i := range all.Items {
		if match(&all.Items[i]) {
			out = append(out, request(all.Items[i].Name))
		}
	}
	return out
}

func request(cluster string) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKey{Name: cluster}}
}

// leaving is the request for the cluster of a Work, if the cluster is being removed.
func (r *reconciler) leaving(ctx context.Context, o client.Object) []reconcile.Request {
	name, ok := workv1alpha2.ClusterOfNamespace(o.GetNamespace())
	c := &clusterv1alpha1.Cluster{}
	if !ok || r.client.Get(ctx, client.ObjectKey{Name: name}, c) != nil || c.DeletionTimestamp == nil {
		return nil
	}
	return []reconcile.Request{request(name)}
}

// ofNamespace is the request for the cluster of an execution namespace.
func ofNamespace(_ context.Context, o client.Object) []reconcile.Request {
	name, ok := workv1alpha2.ClusterOfNamespace(o.GetName())
	if !ok {
		return nil
	}
	return []reconcile.Request{request(name)}
}

func (r *reconciler) reconcile(ctx context.Context, req ctrl.Request) (time.Duration, error) {
	c := &clusterv1alpha1.Cluster{}
	if err := r.client.Get(ctx, req.NamespacedName, c); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	if c.DeletionTimestamp != nil {
		return r.remove(ctx, c)
	}
	// A cluster that is about to become a member is judged on a live list: a stale cache could
	// accept two of one spec.id.
	from := client.Reader(r.client)
	if !joined(c) {
		from = r.live
	}
	var all clusterv1alpha1.ClusterList
	if err := from.List(ctx, &all); err != nil {
		return 0, fmt.Errorf("list Clusters: %w", err)
	}
	if reason, message := refusal(c, all.Items, r.HubUID); reason != "" {
		return 0, r.report(ctx, c, metav1.Condition{
			Type: clusterv1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason, Message: message,
		}, corev1.EventTypeWarning, clusterv1alpha1.EventClusterRefused)
	}
	return r.admit(ctx, c)
}

// report writes a condition of a Cluster, with an Event if it has changed.
func (r *reconciler) report(
	ctx context.Context, c *clusterv1alpha1.Cluster, condition metav1.Condition, eventType, event string,
) error {
	changed, err := setCondition(ctx, r.client, c, condition)
	if changed && err == nil {
		r.events.Event(c, eventType, event, condition.Message)
	}
	return err
}

// failed emits an Event of a failed write, unless a stale cache caused it: then it is repeated.
func failed(events record.EventRecorder, c *clusterv1alpha1.Cluster, event, what string, err error) {
	if !kube.IsStale(err) {
		events.Eventf(c, corev1.EventTypeWarning, event, "%s: %v", what, err)
	}
}

// setCondition writes a condition of a Cluster if it differs.
func setCondition(
	ctx context.Context, to client.Client, c *clusterv1alpha1.Cluster, condition metav1.Condition,
) (changed bool, err error) {
	next := c.DeepCopy()
	if !meta.SetStatusCondition(&next.Status.Conditions, condition) {
		return false, nil
	}
	if err := to.Status().Patch(ctx, next, kube.MergeFrom(c)); err != nil {
		return false, fmt.Errorf("set condition %s of Cluster %s to %s: %w", condition.Type, c.Name, condition.Reason, err)
	}
	return true, nil
}

// refusal is the reason and message of the condition Ready of a Cluster that cannot be a member;
// empty if it can. all are the hub's Clusters, hubID is the UID of the hub's namespace kube-system.
func refusal(c *clusterv1alpha1.Cluster, all []clusterv1alpha1.Cluster, hubID string) (reason, message string) {
	if c.Spec.ID == "" {
		return "", ""
	}
	if c.Spec.ID == hubID {
		return clusterv1alpha1.ReasonClusterIsHub, fmt.Sprintf("cluster %s is the hub itself, which does not run what it distributes: "+
			"delete this Cluster and join another cluster", c.Name)
	}
	for i := range all {
		if other := &all[i]; other.Name != c.Name && other.Spec.ID == c.Spec.ID && precedes(other, c) {
			return clusterv1alpha1.ReasonClusterIDTaken, fmt.Sprintf("this cluster is a member already, as %s (both have spec.id %s): "+
				"delete one of the two Clusters", other.Name, c.Spec.ID)
		}
	}
	return "", ""
}

// precedes reports whether of two Clusters with one spec.id a is the member: the one that has
// joined, else the older one, else the first by name.
func precedes(a, b *clusterv1alpha1.Cluster) bool {
	if ma, mb := joined(a), joined(b); ma != mb {
		return ma
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

func joined(c *clusterv1alpha1.Cluster) bool {
	return slices.Contains(c.Finalizers, clusterv1alpha1.FinalizerCluster)
}

// admit makes a Cluster a member. The finalizer precedes all objects that a removal deletes.
func (r *reconciler) admit(ctx context.Context, c *clusterv1alpha1.Cluster) (time.Duration, error) {
	if c.Refused() { // the refusal no longer holds; the collector of its status sets Ready
		next := c.DeepCopy()
		meta.RemoveStatusCondition(&next.Status.Conditions, clusterv1alpha1.ConditionReady)
		if err := r.client.Status().Patch(ctx, next, kube.MergeFrom(c)); err != nil {
			return 0, fmt.Errorf("accept Cluster %s: %w", c.Name, err)
		}
		c = next
	}
	if !joined(c) {
		next := c.DeepCopy()
		controllerutil.AddFinalizer(next, clusterv1alpha1.FinalizerCluster)
		if err := r.client.Patch(ctx, next, kube.MergeFrom(c)); err != nil {
			return 0, fmt.Errorf("add the finalizer to Cluster %s: %w", c.Name, err)
		}
		c = next
	}
	if terminating, err := r.executionNamespace(ctx, c); err != nil || terminating {
		return 0, err
	}
	if errs := c.Spec.Validate(field.NewPath("spec")); len(errs) > 0 {
		r.events.Eventf(c, corev1.EventTypeWarning, clusterv1alpha1.EventInvalidResourceModels,
			"the nodes of cluster %s are not counted by models: %v", c.Name, errs.ToAggregate())
	}
	if c.Spec.SyncMode != clusterv1alpha1.Pull {
		return 0, r.syncAccess(ctx, c, false)
	}
	if err := r.createNamespace(ctx, clusterv1alpha1.SecretNamespace); client.IgnoreAlreadyExists(err) != nil {
		return 0, fmt.Errorf("create Namespace %s: %w", clusterv1alpha1.SecretNamespace, err)
	}
	return accessInterval, r.syncAccess(ctx, c, true)
}

// executionNamespace creates the execution namespace. terminating reports that a former one of the
// name is being deleted; its end is an event.
func (r *reconciler) executionNamespace(ctx context.Context, c *clusterv1alpha1.Cluster) (terminating bool, err error) {
	ns, name := &corev1.Namespace{}, workv1alpha2.ExecutionNamespace(c.Name)
	err = r.client.Get(ctx, client.ObjectKey{Name: name}, ns)
	switch {
	case err == nil && ns.DeletionTimestamp != nil:
		return true, nil
	case err == nil && ns.Labels[workv1alpha1.LabelSystem] == "true":
		return false, nil
	case err == nil:
		next := ns.DeepCopy()
		metav1.SetMetaDataLabel(&next.ObjectMeta, workv1alpha1.LabelSystem, "true")
		err = r.client.Patch(ctx, next, kube.MergeFrom(ns))
	case apierrors.IsNotFound(err):
		err = client.IgnoreAlreadyExists(r.createNamespace(ctx, name))
		if err == nil {
			r.events.Eventf(c, corev1.EventTypeNormal, clusterv1alpha1.EventCreateExecutionSpaceSucceed,
				"execution namespace %s made", name)
		}
	}
	if err != nil {
		failed(r.events, c, clusterv1alpha1.EventCreateExecutionSpaceFailed, "execution namespace of cluster "+c.Name, err)
		return false, fmt.Errorf("create the execution namespace of cluster %s: %w", c.Name, err)
	}
	return false, nil
}

// createNamespace creates a namespace of the hub's own, unless the cache has it.
func (r *reconciler) createNamespace(ctx context.Context, name string) error {
	err := r.client.Get(ctx, client.ObjectKey{Name: name}, &corev1.Namespace{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	return r.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{workv1alpha1.LabelSystem: "true"},
	}})
}
