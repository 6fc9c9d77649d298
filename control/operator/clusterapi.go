package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/api/submariner/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

// Names of Cluster API (its api/core/v1beta1 and v1beta2, util/secret,
// cmd/clusterctl/api/v1alpha3).
const (
	capiGroup       = "cluster.x-k8s.io"
	capiSecretType  = "cluster.x-k8s.io/secret"
	capiSecretLabel = "cluster.x-k8s.io/cluster-name"
	capiSecretKey   = "value" // of the Secret <cluster>-kubeconfig
	// capiMoved is the annotation, with an empty value, on objects that `clusterctl move` deletes
	// here because they now live in another management cluster. It replaces all other annotations.
	capiMoved = "clusterctl.cluster.x-k8s.io/delete-for-move"
)

const (
	// giveUpAfter is how long a leaving member may be not ready before its propagated objects are
	// abandoned there.
	giveUpAfter = 5 * time.Minute
	// leaveTimeout bounds how long `pelago unjoin` waits; the hub continues the removal afterwards.
	leaveTimeout = 10 * time.Second
	// leaveInterval is the pause before unjoin is repeated: the cluster may remain reachable for
	// only a few seconds.
	leaveInterval = 2 * time.Second
	// capiWorkers is the number of clusters that are joined concurrently: an unreachable one takes
	// half a minute.
	capiWorkers = 4
	// capiOwner is the field manager of the fields in the hub's Clusters that are derived from the
	// object.
	capiOwner = "pelago-operator"
)

// Reasons of the Events on Clusters of Cluster API.
const (
	reasonJoined      = "Joined"
	reasonLeft        = "Left"
	reasonJoinPending = "JoinPending"
	reasonRefused     = "JoinRefused"
	reasonJoinFailed  = "JoinFailed"
	reasonLeaving     = "Leaving"
	reasonRetained    = "MemberRetained"
	reasonLeaveFailed = "LeaveFailed"
)

// capi joins the clusters of Cluster API that have LabelJoin. That a cluster has joined is recorded
// at the hub (AnnotationClusterAPI).
type capi struct {
	*operator
	manager ctrl.Manager
	kind    schema.GroupVersionKind
	objects cache.Cache // of all namespaces
	events  record.EventRecorder
	uid     string // of the namespace kube-system here
	giveUp  time.Duration

	mu     sync.Mutex
	states map[client.ObjectKey]*capiState
	names  map[string]client.ObjectKey // of members that are being joined
	hub    *hubAccess
}

// capiState is what the operator knows about one object. Only the object's reconcile writes it,
// except for member.
type capiState struct {
	applied applied
	member  string // its name at the hub; under capi.mu
	// What is leaving, since when.
	leaving string
	mode    clusterv1alpha1.SyncMode
	since   time.Time
	// The last Event.
	said   string
	saidAt time.Time
}

// reported is a result that is reported as an Event of type Normal, not as a failure.
type reported struct{ reason, message string }

func (r reported) Error() string { return r.message }

// clusterAPI waits until Cluster API is installed, and starts its controller then.
func clusterAPI(mgr ctrl.Manager, o *operator, giveUp time.Duration) manager.RunnableFunc {
	return func(ctx context.Context) error {
		for {
			mapping, err := mgr.GetRESTMapper().RESTMapping(schema.GroupKind{Group: capiGroup, Kind: "Cluster"})
			if err == nil {
				r := &capi{operator: o, manager: mgr, kind: mapping.GroupVersionKind, giveUp: cmp.Or(giveUp, giveUpAfter),
					events: kube.EventRecorder(mgr, Deployment), states: map[client.ObjectKey]*capiState{}, names: map[string]client.ObjectKey{}}
				err = r.start(ctx)
				if err == nil {
					return nil
				}
			}
			if !meta.IsNoMatchError(err) {
				slog.Warn("cannot watch the Clusters of Cluster API yet", "error", err)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(o.retries()):
			}
		}
	}
}

func (r *capi) start(ctx context.Context) (err error) {
	system := &corev1.Namespace{}
	if err := r.live.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, system); err != nil {
		return fmt.Errorf("get namespace %s: %w", metav1.NamespaceSystem, err)
	}
	r.uid = string(system.UID)
	has, err := labels.NewRequirement(capiSecretLabel, selection.Exists, nil)
	if err != nil {
		return fmt.Errorf("select the Secrets of Cluster API: %w", err)
	}
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	r.objects, err = cache.New(r.manager.GetConfig(), cache.Options{Scheme: r.manager.GetScheme(), Mapper: r.manager.GetRESTMapper(),
		HTTPClient: r.manager.GetHTTPClient(), DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{secret: {Label: labels.NewSelector().Add(*has)}}})
	if err != nil {
		return fmt.Errorf("make the cache of Cluster API's objects: %w", err)
	}
	if err := r.manager.Add(r.objects); err != nil {
		return fmt.Errorf("add the cache of Cluster API's objects: %w", err)
	}
	own := handler.TypedEnqueueRequestForObject[*unstructured.Unstructured]{}
	of := handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, s *metav1.PartialObjectMetadata) []reconcile.Request {
		name, ok := strings.CutSuffix(s.Name, "-kubeconfig")
		key := client.ObjectKey{Namespace: s.Namespace, Name: name}
		if u := r.object(); !ok || r.objects.Get(context.Background(), key, u) != nil || u.GetLabels()[v1alpha1.LabelJoin] == "" {
			return nil
		}
		return []reconcile.Request{{NamespacedName: key}}
	})
	relevant := predicate.TypedFuncs[*unstructured.Unstructured]{
		CreateFunc: func(e event.TypedCreateEvent[*unstructured.Unstructured]) bool {
			return e.Object.GetLabels()[v1alpha1.LabelJoin] != ""
		},
		UpdateFunc: func(e event.TypedUpdateEvent[*unstructured.Unstructured]) bool {
			before, after := e.ObjectOld, e.ObjectNew
			_, had := before.GetLabels()[v1alpha1.LabelJoin]
			_, has := after.GetLabels()[v1alpha1.LabelJoin]
			return (had || has) && capiInput(before) != capiInput(after)
		},
	}
	err = ctrl.NewControllerManagedBy(r.manager).Named("clusterapi").WithOptions(controller.Options{MaxConcurrentReconciles: capiWorkers}).
		WatchesRawSource(source.Kind(r.objects, r.object(), &own, relevant)).
		WatchesRawSource(source.Kind(r.objects, secret, of)).
		WatchesRawSource(source.Func(r.sweep)).Complete(r)
	if err != nil {
		return fmt.Errorf("start the controller of Cluster API's Clusters: %w", err)
	}
	return nil
}

func (r *capi) object() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(r.kind)
	return u
}

// capiInput renders the parts of an object on which a reconcile depends, for comparison.
func capiInput(u *unstructured.Unstructured) string {
	return fmt.Sprint(u.GetUID(), u.GetLabels(), u.GetAnnotations(), u.GetDeletionTimestamp() != nil, initialized(u))
}

// initialized reports whether the control plane of a cluster can serve requests: in v1beta2
// status.initialization.controlPlaneInitialized, in v1beta1 status.controlPlaneReady or, without an
// object for the control plane, the condition ControlPlaneInitialized.
func initialized(u *unstructured.Unstructured) bool {
	for _, field := range [][]string{{"status", "initialization", "controlPlaneInitialized"}, {"status", "controlPlaneReady"}} {
		// another type is as good as none
		if is, _, _ := unstructured.NestedBool(u.Object, field...); is {
			return true
		}
	}
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(c any) bool {
		fields, _ := c.(map[string]any)
		return fields["type"] == "ControlPlaneInitialized" && fields["status"] == "True"
	})
}

// sweep enqueues members whose object was deleted, or lost its label, while the operator was not
// running, so no finalizer is needed.
func (r *capi) sweep(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	go func() {
		for ; ctx.Err() == nil && r.objects.WaitForCacheSync(ctx); sleep(ctx, r.retries()) {
			hub, err := r.openHub(ctx)
			if err != nil {
				continue // reported on each object that wants to join
			}
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(clusterv1alpha1.GroupVersion.WithKind("ClusterList"))
			if hub.List(ctx, list) != nil { // likewise
				continue
			}
			for _, c := range list.Items {
				origin, ok := strings.CutSuffix(c.Annotations[v1alpha1.AnnotationClusterAPI], "@"+r.uid)
				namespace, name, _ := strings.Cut(origin, "/")
				if !ok {
					continue
				}
				key := client.ObjectKey{Namespace: namespace, Name: name}
				r.record(key, c.Name)
				u := r.object()
				if r.objects.Get(ctx, key, u) != nil || u.GetLabels()[v1alpha1.LabelJoin] == "" || u.GetDeletionTimestamp() != nil {
					queue.Add(reconcile.Request{NamespacedName: key})
				}
			}
		}
	}()
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// state returns what is known of an object.
func (r *capi) state(key client.ObjectKey) *capiState {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.states[key] == nil {
		r.states[key] = &capiState{}
	}
	return r.states[key]
}

// record notes the member of an object.
func (r *capi) record(key client.ObjectKey, name string) {
	s := r.state(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	s.member = name
}

// Reconcile joins one cluster, or has it leave.
func (r *capi) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	key, s := req.NamespacedName, r.state(req.NamespacedName)
	u := r.object()
	if err := r.objects.Get(ctx, key, u); apierrors.IsNotFound(err) {
		u = nil
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("get Cluster %s: %w", key, err)
	}
	joins := u != nil && u.GetLabels()[v1alpha1.LabelJoin] != "" && u.GetDeletionTimestamp() == nil
	if u != nil {
		if _, moved := u.GetAnnotations()[capiMoved]; moved {
			return reconcile.Result{}, nil
		}
	}
	hub, err := r.openHub(ctx)
	if err == nil && joins {
		err = r.join(ctx, hub, u, s)
	} else if err == nil {
		err = r.leave(ctx, hub, key, u, s)
	}
	r.report(key, u, s, joins, err)
	switch {
	case reasonOf(err) == reasonJoined:
		return reconcile.Result{RequeueAfter: repairInterval}, nil
	case reasonOf(err) == reasonLeaving:
		return reconcile.Result{RequeueAfter: leaveInterval}, nil
	case err != nil:
		return reconcile.Result{RequeueAfter: r.retries()}, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if u == nil && s.member == "" {
		delete(r.states, key)
	}
	return reconcile.Result{}, nil
}

func reasonOf(err error) string {
	var r reported
	errors.As(err, &r)
	return r.reason
}

// report makes an Event of a result, when it changes and from time to time.
func (r *capi) report(key client.ObjectKey, u *unstructured.Unstructured, s *capiState, joins bool, err error) {
	if err == nil {
		return
	}
	kind, reason, message := corev1.EventTypeWarning, reasonLeaveFailed, err.Error()
	var wrong refusal
	switch {
	case reasonOf(err) != "":
		kind, reason = corev1.EventTypeNormal, reasonOf(err)
	case errors.As(err, &wrong):
		reason = reasonRefused
	case joins:
		reason = reasonJoinFailed
	}
	if kind == corev1.EventTypeWarning {
		r.count("Cluster", err)
	}
	if s.said == reason+message && time.Since(s.saidAt) < repairInterval {
		return
	}
	s.said, s.saidAt = reason+message, time.Now()
	ref := &corev1.ObjectReference{APIVersion: r.kind.GroupVersion().String(), Kind: r.kind.Kind, Namespace: key.Namespace, Name: key.Name}
	if u != nil {
		ref.UID = u.GetUID()
	}
	r.events.Event(ref, kind, reason, message)
}

// member returns the hub's Cluster as which an object has joined, nil if it has not joined. It
// refuses the wanted name if the member of another object has it.
func (r *capi) member(ctx context.Context, hub *hubAccess, key client.ObjectKey, wanted string) (*clusterv1alpha1.Cluster, error) {
	r.mu.Lock()
	name := cmp.Or(r.states[key].member, wanted)
	r.mu.Unlock()
	if name == "" {
		return nil, nil
	}
	c := &clusterv1alpha1.Cluster{}
	err := hub.Get(ctx, client.ObjectKey{Name: name}, c)
	switch {
	case meta.IsNoMatchError(err):
		return nil, fmt.Errorf("the hub has no kind Cluster of %s: run `pelago init` there, or name the hub in Secret %s/%s, key %s",
			clusterv1alpha1.GroupVersion.Group, r.namespace, v1alpha1.HubSecret, v1alpha1.HubSecretKey)
	case client.IgnoreNotFound(err) != nil:
		return nil, fmt.Errorf("get Cluster %s at the hub: %w", name, err)
	case err != nil:
		r.record(key, "")
		return nil, nil
	}
	switch origin := c.Annotations[v1alpha1.AnnotationClusterAPI]; {
	case origin == r.origin(key):
		return c, nil
	case name == wanted && strings.HasSuffix(origin, "@"+r.uid):
		other, _, _ := strings.Cut(origin, "@")
		return nil, refusal{"", fmt.Sprintf("the name %q is taken by the member of Cluster %s: choose another one with the annotation %s", name, other,
			v1alpha1.AnnotationClusterName)}
	}
	r.record(key, "")
	return nil, nil
}

func (r *capi) origin(key client.ObjectKey) string { return key.String() + "@" + r.uid }
