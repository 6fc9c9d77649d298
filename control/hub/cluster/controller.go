package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kube"
)

// Times that Options leave open, Karmada's.
const (
	DefaultEvery        = 5 * time.Second
	DefaultGrace        = 40 * time.Second
	DefaultStartupGrace = 60 * time.Second
)

// rightsEvery is how often the rights of a pull member are looked at without a reason.
const rightsEvery = 5 * time.Minute

// Options of the controllers.
type MembershipOptions struct {
	// HubUID is the UID of the hub's namespace kube-system.
	HubUID string
	// Every is the time between two looks at Leases, and at what a removal waits for.
	Every time.Duration
	// Grace is how long a Lease may stay as it is before its cluster counts as not seen; StartupGrace the same for a cluster
	// that has not reported yet.
	Grace, StartupGrace time.Duration
	// Registry, if set, gets the metrics of all Clusters.
	Registry prometheus.Registerer
}

// Setup adds the controllers to the manager, whose cache must hold Clusters, Namespaces, Works and bindings.
func SetupMembership(mgr ctrl.Manager, o MembershipOptions) error {
	o.Every = orElse(o.Every, DefaultEvery)
	o.Grace = orElse(o.Grace, DefaultGrace)
	o.StartupGrace = orElse(o.StartupGrace, DefaultStartupGrace)
	events := mgr.GetEventRecorderFor("pelago-hub")
	r := &reconciler{MembershipOptions: o, client: mgr.GetClient(), live: mgr.GetAPIReader(), events: events}
	var err error
	if r.stale, err = kube.NewStaleCaches[ctrl.Request]("memberships", slog.Default(), events); err != nil {
		return fmt.Errorf("set up the controller of memberships: %w", err)
	}
	if err := r.setup(mgr); err != nil {
		return fmt.Errorf("set up the controller of memberships: %w", err)
	}
	taints := &tainter{client: mgr.GetClient(), events: events}
	if taints.stale, err = kube.NewStaleCaches[ctrl.Request]("taints", slog.Default(), events); err != nil {
		return fmt.Errorf("set up the controller of taints: %w", err)
	}
	if err := ctrl.NewControllerManagedBy(mgr).Named("taints").For(&clusterv1alpha1.Cluster{}).Complete(taints); err != nil {
		return fmt.Errorf("set up the controller of taints: %w", err)
	}
	if err := mgr.Add(&monitor{MembershipOptions: o, client: mgr.GetClient(), live: mgr.GetAPIReader(), now: time.Now}); err != nil {
		return fmt.Errorf("set up the monitor of leases: %w", err)
	}
	if o.Registry != nil {
		if err := o.Registry.Register(&metrics{from: mgr.GetClient()}); err != nil {
			return fmt.Errorf("register the metrics of clusters: %w", err)
		}
	}
	return nil
}

func orElse(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}

// reconciler takes Clusters as members and lets them go. It has one worker: two Clusters of one cluster are judged one after the
// other.
type reconciler struct {
	MembershipOptions
	client client.Client
	live   client.Reader
	events record.EventRecorder
	stale  *kube.StaleCaches[ctrl.Request]
}

// Reconcile brings one Cluster into the state that it should have.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	wait, err := r.reconcile(ctx, req.Name)
	return r.stale.Result(req, wait, err)
}

func (r *reconciler) reconcile(ctx context.Context, name string) (time.Duration, error) {
	c := &clusterv1alpha1.Cluster{}
	if err := r.client.Get(ctx, client.ObjectKey{Name: name}, c); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	if c.DeletionTimestamp != nil {
		return r.remove(ctx, c)
	}
	reason, message, err := r.refusal(ctx, c)
	if err != nil {
		return 0, err
	}
	if reason != "" {
		return 0, r.refuse(ctx, c, reason, message)
	}
	return r.admit(ctx, c)
}

// refusal judges a Cluster against all others: those of the cache if it is a member, those of the API server if it is about to
// become one.
func (r *reconciler) refusal(ctx context.Context, c *clusterv1alpha1.Cluster) (reason, message string, err error) {
	from := client.Reader(r.client)
	if !joined(c) {
		from = r.live
	}
	var all clusterv1alpha1.ClusterList
	if err := from.List(ctx, &all); err != nil {
		return "", "", fmt.Errorf("list Clusters: %w", err)
	}
	reason, message = refusal(c, all.Items, r.HubUID)
	return reason, message, nil
}

// refuse says on the Cluster that it is no member.
func (r *reconciler) refuse(ctx context.Context, c *clusterv1alpha1.Cluster, reason, message string) error {
	next := c.DeepCopy()
	if !meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
		Type: clusterv1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason, Message: message,
	}) {
		return nil
	}
	if err := patchStatus(ctx, r.client, c, next); err != nil {
		return fmt.Errorf("refuse Cluster %s: %w", c.Name, err)
	}
	r.events.Event(next, corev1.EventTypeWarning, clusterv1alpha1.EventClusterRefused, message)
	return nil
}

// admit makes a Cluster a member: the finalizer before anything that it has to clean up.
func (r *reconciler) admit(ctx context.Context, c *clusterv1alpha1.Cluster) (time.Duration, error) {
	if c.Refused() { // not any more; whoever collects its status says how it is
		next := c.DeepCopy()
		meta.RemoveStatusCondition(&next.Status.Conditions, clusterv1alpha1.ConditionReady)
		if err := patchStatus(ctx, r.client, c, next); err != nil {
			return 0, fmt.Errorf("accept Cluster %s: %w", c.Name, err)
		}
		c = next
	}
	if !joined(c) {
		next := c.DeepCopy()
		controllerutil.AddFinalizer(next, clusterv1alpha1.FinalizerCluster)
		if err := patch(ctx, r.client, c, next); err != nil {
			return 0, fmt.Errorf("put the finalizer on Cluster %s: %w", c.Name, err)
		}
		c = next
	}
	if leaving, err := r.namespace(ctx, c); err != nil || leaving {
		return 0, err
	}
	if errs := c.Spec.Validate(field.NewPath("spec")); len(errs) > 0 {
		r.events.Eventf(c, corev1.EventTypeWarning, clusterv1alpha1.EventInvalidResourceModels,
			"the nodes of cluster %s are not counted by models: %v", c.Name, errs.ToAggregate())
	}
	if c.Spec.SyncMode != clusterv1alpha1.Pull {
		return 0, r.withdraw(ctx, c)
	}
	if err := r.ensure(ctx, clusterv1alpha1.SecretNamespace); err != nil {
		return 0, err
	}
	return rightsEvery, r.give(ctx, c)
}

// namespace makes the execution namespace. leaving says that a former one of the name is still going; its end is an event.
func (r *reconciler) namespace(ctx context.Context, c *clusterv1alpha1.Cluster) (leaving bool, err error) {
	ns := &corev1.Namespace{}
	err = r.client.Get(ctx, client.ObjectKey{Name: workv1alpha2.ExecutionNamespace(c.Name)}, ns)
	switch {
	case err == nil && ns.DeletionTimestamp != nil:
		return true, nil
	case err == nil && ns.Labels[workv1alpha1.LabelSystem] == "true":
		return false, nil
	case err == nil:
		next := ns.DeepCopy()
		metav1.SetMetaDataLabel(&next.ObjectMeta, workv1alpha1.LabelSystem, "true")
		err = patch(ctx, r.client, ns, next)
	case apierrors.IsNotFound(err):
		err = r.ensure(ctx, workv1alpha2.ExecutionNamespace(c.Name))
		if err == nil {
			r.events.Eventf(c, corev1.EventTypeNormal, clusterv1alpha1.EventCreateExecutionSpaceSucceed,
				"execution namespace %s made", workv1alpha2.ExecutionNamespace(c.Name))
		}
	}
	if err != nil {
		if !kube.IsStale(err) {
			r.events.Eventf(c, corev1.EventTypeWarning, clusterv1alpha1.EventCreateExecutionSpaceFailed,
				"execution namespace of cluster %s: %v", c.Name, err)
		}
		return false, fmt.Errorf("make the execution namespace of cluster %s: %w", c.Name, err)
	}
	return false, nil
}

// ensure makes a namespace of the hub's own if there is none.
func (r *reconciler) ensure(ctx context.Context, name string) error {
	err := r.client.Get(ctx, client.ObjectKey{Name: name}, &corev1.Namespace{})
	if apierrors.IsNotFound(err) {
		err = r.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{workv1alpha1.LabelSystem: "true"},
		}})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make Namespace %s: %w", name, err)
	}
	return nil
}

// patch and patchStatus write the difference between two states of an object, if nobody has changed it meanwhile.
func patch(ctx context.Context, c client.Client, from, to client.Object) error {
	return c.Patch(ctx, to, client.MergeFromWithOptions(from, client.MergeFromWithOptimisticLock{}))
}

func patchStatus(ctx context.Context, c client.Client, from, to client.Object) error {
	return c.Status().Patch(ctx, to, client.MergeFromWithOptions(from, client.MergeFromWithOptimisticLock{}))
}

// exactly is the precondition of a deletion: this object, in this state.
func exactly(o client.Object) client.Preconditions {
	uid, version := o.GetUID(), o.GetResourceVersion()
	return client.Preconditions{UID: &uid, ResourceVersion: &version}
}
