package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/control/execute"
	"github.com/pelago-net/pelago/control/kube"
)

// atOnce is for how many members it is read at a time how they are reached. A hub that starts waits for the answer about each, and
// for long while its API server has much to do.
const atOnce = 16

// Options of the controller.
type PushOptions struct {
	// Execute executes the Works of a cluster in the member until ctx ends. It returns earlier only if it could not begin.
	Execute func(ctx context.Context, cluster string, member *rest.Config) error
	// Status holds the times of the collectors; all else in it is set here.
	Status execute.CollectorOptions
	// Registry, if set, gets the metrics.
	Registry prometheus.Registerer
	Log      *slog.Logger
}

// Setup adds the controller to the manager, whose cache must hold Clusters; of Secrets it watches the metadata.
func SetupPush(mgr ctrl.Manager, o PushOptions) error {
	if o.Execute == nil {
		return errors.New("set up the controller of members: it is not told how to execute Works")
	}
	r := &pushReconciler{PushOptions: o, client: mgr.GetClient(), live: mgr.GetAPIReader()}
	var err error
	if r.stale, err = kube.NewStaleCaches[ctrl.Request]("members", cmp.Or(o.Log, slog.Default()), mgr.GetEventRecorderFor("pelago-hub")); err != nil {
		return fmt.Errorf("set up the controller of members: %w", err)
	}
	r.took = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "cluster_sync_status_duration_seconds", Help: "How long it took to look at the cluster once.",
	}, []string{"member_cluster"})
	if o.Registry != nil {
		if err := o.Registry.Register(r.took); err != nil {
			return fmt.Errorf("register the metrics of members: %w", err)
		}
	}
	r.runs = newRuns(r.work, cmp.Or(o.Status.Every, execute.DefaultEvery))
	if err := mgr.Add(r.runs); err != nil {
		return fmt.Errorf("set up the controller of members: %w", err)
	}
	changes := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, membershipChanged()))
	err = ctrl.NewControllerManagedBy(mgr).Named("members").
		For(&clusterv1alpha1.Cluster{}, changes).
		WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.reachedBy)).
		WithOptions(controller.Options{MaxConcurrentReconciles: atOnce}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the controller of members: %w", err)
	}
	return nil
}

type pushReconciler struct {
	PushOptions
	client client.Client
	live   client.Reader
	stale  *kube.StaleCaches[ctrl.Request]
	runs   *runs
	took   *prometheus.HistogramVec
}

// Reconcile starts, restarts or stops the work with one cluster.
func (r *pushReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return r.stale.Result(req, 0, r.reconcile(ctx, req.Name))
}

func (r *pushReconciler) reconcile(ctx context.Context, name string) error {
	c := &clusterv1alpha1.Cluster{}
	err := r.client.Get(ctx, client.ObjectKey{Name: name}, c)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read Cluster %s: %w", name, err)
	}
	if err != nil || c.Spec.SyncMode != clusterv1alpha1.Push || !c.Member() {
		r.runs.stop(name)
		return nil
	}
	secret, err := r.secret(ctx, c)
	if err != nil {
		return err // the work goes on as it is
	}
	how, unusable := reachOf(c, secret)
	if unusable == nil {
		unusable = r.runs.start(name, how)
	}
	if unusable == nil {
		return nil
	}
	r.runs.stop(name)
	return execute.Unusable(ctx, r.client, c, unusable)
}

// secret reads the Secret of a cluster past the cache, which has no Secrets; nil if there is none.
func (r *pushReconciler) secret(ctx context.Context, c *clusterv1alpha1.Cluster) (*corev1.Secret, error) {
	if c.Spec.SecretRef == nil {
		return nil, nil
	}
	s := &corev1.Secret{}
	key := client.ObjectKey{Namespace: c.Spec.SecretRef.Namespace, Name: c.Spec.SecretRef.Name}
	if err := r.live.Get(ctx, key, s); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read Secret %s of cluster %s: %w", key, c.Name, err)
	}
	return s, nil
}

// work is what is done for one member until ctx ends: both parts beside each other, neither waits for the other.
func (r *pushReconciler) work(ctx context.Context, cluster string, config *rest.Config) {
	var both sync.WaitGroup
	log := r.Log.With("cluster", cluster)
	both.Go(func() {
		keep(ctx, log, "execute Works", func(ctx context.Context) error { return r.Execute(ctx, cluster, config) })
	})
	both.Go(func() {
		keep(ctx, log, "collect the status", func(ctx context.Context) error {
			o := r.Status
			o.Cluster, o.Hub, o.Member, o.Log, o.Took = cluster, r.client, config, log, r.took.WithLabelValues(cluster)
			c, err := execute.NewCollector(o)
			if err != nil {
				return err
			}
			return c.Start(ctx)
		})
	})
	both.Wait()
	r.took.DeleteLabelValues(cluster)
}

// reachedBy are the clusters whose Secret has come, changed or gone.
func (r *pushReconciler) reachedBy(ctx context.Context, secret client.Object) []reconcile.Request {
	var all clusterv1alpha1.ClusterList
	// They are only read. The cache fails only when the manager ends.
	if r.client.List(ctx, &all, client.UnsafeDisableDeepCopy) != nil {
		return nil
	}
	var requests []reconcile.Request
	for _, c := range all.Items {
		if ref := c.Spec.SecretRef; ref != nil && ref.Namespace == secret.GetNamespace() && ref.Name == secret.GetName() {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKey{Name: c.Name}})
		}
	}
	return requests
}

// membershipChanged: a Cluster was taken as a member, refused, or let go.
func membershipChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.(*clusterv1alpha1.Cluster).Member() != e.ObjectNew.(*clusterv1alpha1.Cluster).Member()
	}}
}
