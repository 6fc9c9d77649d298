package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/control/execute/collect"
	"github.com/pelago-net/pelago/control/hub/member"
	"github.com/pelago-net/pelago/control/kube"
)

// pushWorkers is the number of members whose Secret is read at a time. A hub that starts reads that
// of each member, which takes long while its API server is busy.
const pushWorkers = 16

// PushOptions configure SetupPush.
type PushOptions struct {
	// Execute executes the Works of a cluster in the member until ctx ends. It returns earlier only
	// if it cannot start.
	Execute func(ctx context.Context, cluster string, member *rest.Config) error
	// Status are the intervals of the collectors; the controller sets the other fields.
	Status collect.CollectorOptions
	// Registry, if set, gets the metrics.
	Registry prometheus.Registerer
	Log      *slog.Logger
}

// SetupPush adds the controller to the manager, whose cache must hold Clusters; of Secrets it
// watches the metadata.
func SetupPush(mgr ctrl.Manager, o PushOptions) error {
	r := &pushReconciler{PushOptions: o, client: mgr.GetClient(), live: mgr.GetAPIReader()}
	r.duration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "cluster_sync_status_duration_seconds", Help: "How long it took to look at the cluster once.",
	}, []string{"member_cluster"})
	r.runs = newRuns(r.run, cmp.Or(o.Status.Every, collect.DefaultEvery))
	members, err := kube.Reconciler("members", kube.EventRecorder(mgr, "pelago-hub"), r.reconcile)
	if o.Registry != nil {
		err = errors.Join(err, o.Registry.Register(r.duration))
	}
	if err = errors.Join(err, mgr.Add(r.runs)); err != nil {
		return fmt.Errorf("set up the controller of push members: %w", err)
	}
	changes := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, changed((*clusterv1alpha1.Cluster).Member)))
	err = ctrl.NewControllerManagedBy(mgr).Named("members").
		For(&clusterv1alpha1.Cluster{}, changes).
		WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.reachedBy)).
		WithOptions(kube.HubControllerOptions(pushWorkers)).
		Complete(members)
	if err != nil {
		return fmt.Errorf("set up the controller of push members: %w", err)
	}
	return nil
}

type pushReconciler struct {
	PushOptions
	client   client.Client
	live     client.Reader
	runs     *runs
	duration *prometheus.HistogramVec
}

// reconcile starts, restarts or stops the run of one member.
func (r *pushReconciler) reconcile(ctx context.Context, req ctrl.Request) (time.Duration, error) {
	c := &clusterv1alpha1.Cluster{}
	err := r.client.Get(ctx, req.NamespacedName, c)
	if client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("read Cluster %s: %w", req.Name, err)
	}
	if err != nil || c.Spec.SyncMode != clusterv1alpha1.Push || !c.Member() {
		r.runs.stop(req.Name)
		return 0, nil
	}
	secret, err := r.secret(ctx, c)
	if err != nil {
		return 0, err // the run continues
	}
	how, unusable := member.ConfigOf(c, secret)
	if unusable == nil {
		unusable = r.runs.start(req.Name, how)
	}
	if unusable == nil {
		return 0, nil
	}
	r.runs.stop(req.Name)
	return 0, collect.Unusable(ctx, r.client, c, unusable)
}

// secret reads the Secret of a cluster past the cache, which has no Secrets; nil if none exists.
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

// run executes Works and collects the status of one member until ctx ends, each independent of the
// other.
func (r *pushReconciler) run(ctx context.Context, cluster string, config *rest.Config) {
	var both sync.WaitGroup
	log := r.Log.With("cluster", cluster)
	both.Go(func() {
		keep(ctx, log, "execute Works", func(ctx context.Context) error { return r.Execute(ctx, cluster, config) })
	})
	both.Go(func() {
		keep(ctx, log, "collect the status", func(ctx context.Context) error {
			o := r.Status
			o.Cluster, o.Hub, o.Member, o.Log, o.Took = cluster, r.client, config, log, r.duration.WithLabelValues(cluster)
			c, err := collect.NewCollector(o)
			if err != nil {
				return err
			}
			return c.Start(ctx)
		})
	})
	both.Wait()
	r.duration.DeleteLabelValues(cluster)
}

// reachedBy are requests for the clusters of a Secret.
func (r *pushReconciler) reachedBy(ctx context.Context, secret client.Object) []reconcile.Request {
	return requests(ctx, r.client, func(c *clusterv1alpha1.Cluster) bool {
		ref := c.Spec.SecretRef
		return ref != nil && ref.Namespace == secret.GetNamespace() && ref.Name == secret.GetName()
	})
}

// runs are the push members that the hub is connected to. Its methods do not block on a member: a
// run waits itself for the end of the one that it replaces.
type runs struct {
	do func(ctx context.Context, cluster string, config *rest.Config) // until ctx ends
	// interval of the identity checks
	every time.Duration
	ctx   context.Context // of all runs
	end   context.CancelFunc

	mu  sync.Mutex
	by  map[string]*run
	all sync.WaitGroup
}

type run struct {
	config member.Config
	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{}
}

func newRuns(do func(context.Context, string, *rest.Config), every time.Duration) *runs {
	ctx, cancel := context.WithCancel(context.Background())
	return &runs{do: do, every: every, ctx: ctx, end: cancel, by: map[string]*run{}}
}

// start starts the run of a member, unless there is one with this config. A former run ends first.
func (r *runs) start(cluster string, how member.Config) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	former := r.by[cluster]
	if r.ctx.Err() != nil || former != nil && former.ctx.Err() == nil && reflect.DeepEqual(former.config, how) {
		return nil
	}
	l, err := how.Open()
	if err != nil {
		return err
	}
	if former != nil {
		former.cancel()
	}
	ctx, cancel := context.WithCancel(r.ctx)
	next := &run{config: how, ctx: ctx, cancel: cancel, ended: make(chan struct{})}
	r.by[cluster] = next
	r.all.Go(func() {
		defer close(next.ended)
		defer l.Close()
		defer r.forget(cluster, next)
		if former != nil {
			<-former.ended
		}
		var watch sync.WaitGroup
		defer watch.Wait()
		watch.Go(func() { l.Watch(ctx, r.every) })
		r.do(ctx, cluster, l.Config)
	})
	return nil
}

// stop cancels a member's run and does not wait for its end.
func (r *runs) stop(cluster string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if former := r.by[cluster]; former != nil {
		former.cancel()
	}
}

// forget removes a run that has ended.
func (r *runs) forget(cluster string, ended *run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ended.cancel()
	if r.by[cluster] == ended {
		delete(r.by, cluster)
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: only the leader connects to
// members.
func (r *runs) NeedLeaderElection() bool { return true }

// Start ends all runs when ctx ends, and waits for them.
func (r *runs) Start(ctx context.Context) error {
	<-ctx.Done()
	r.mu.Lock() // start adds nothing to all from here on
	r.end()
	r.mu.Unlock()
	r.all.Wait()
	return nil
}

// keep repeats work that failed until ctx ends, with a backoff of up to a minute.
func keep(ctx context.Context, log *slog.Logger, what string, work func(context.Context) error) {
	const longest = time.Minute
	backoff := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 10, Cap: longest}
	next := backoff
	for ctx.Err() == nil {
		began := time.Now()
		err := work(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > longest {
			next = backoff
		}
		pause := next.Step()
		log.Warn("work with a member failed", "what", what, "error", err, "again", pause)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}
