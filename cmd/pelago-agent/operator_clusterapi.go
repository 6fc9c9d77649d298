package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
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
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
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
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/api/submariner/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy"
)

// Names of Cluster API (its api/core/v1beta1 and v1beta2, util/secret, cmd/clusterctl/api/v1alpha3).
const (
	capiGroup       = "cluster.x-k8s.io"
	capiSecretType  = "cluster.x-k8s.io/secret"
	capiSecretLabel = "cluster.x-k8s.io/cluster-name"
	capiSecretKey   = "value" // of the Secret <cluster>-kubeconfig
	// capiMoved marks objects that `clusterctl move` deletes here because they are in another management cluster now.
	capiMoved = "clusterctl.cluster.x-k8s.io/delete-for-move"
)

const (
	// giveUpAfter is how long a member that is to leave may be not ready before what was propagated to it is left there.
	giveUpAfter = 5 * time.Minute
	// leaveTimeout bounds the wait of `pelago unjoin`; the hub goes on meanwhile.
	leaveTimeout = 10 * time.Second
	// capiWorkers join clusters at the same time: one that is unreachable takes half a minute.
	capiWorkers = 4
	// capiOwner owns the fields of the hub's Clusters that follow from the object.
	capiOwner = "pelago-operator"
)

// Reasons of the Events on Clusters of Cluster API.
const (
	reasonJoined      = "Joined"
	reasonLeft        = "Left"
	reasonWaiting     = "JoinWaits"
	reasonRefused     = "JoinRefused"
	reasonJoinFailed  = "JoinFailed"
	reasonLeaving     = "Leaving"
	reasonStays       = "Stays"
	reasonLeaveFailed = "LeaveFailed"
)

// capi joins the clusters of Cluster API that have LabelJoin. That a cluster has joined is recorded at the hub (AnnotationClusterAPI).
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

// capiState is what is known of one object; its reconcile is the only writer, except of member.
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

// hubAccess is the hub; kubeconfig is empty if it is the operator's own API server.
type hubAccess struct {
	client.Client
	kubeconfig []byte
}

// reported is an Event that is no error.
type reported struct{ reason, message string }

func (r reported) Error() string { return r.message }

// clusterAPI waits until Cluster API is installed, and starts its controller then.
func clusterAPI(mgr ctrl.Manager, o *operator, giveUp time.Duration) manager.RunnableFunc {
	return func(ctx context.Context) error {
		for {
			mapping, err := mgr.GetRESTMapper().RESTMapping(schema.GroupKind{Group: capiGroup, Kind: "Cluster"})
			if err == nil {
				r := &capi{operator: o, manager: mgr, kind: mapping.GroupVersionKind, giveUp: cmp.Or(giveUp, giveUpAfter),
					events: mgr.GetEventRecorderFor(operatorDeployment), states: map[client.ObjectKey]*capiState{}, names: map[string]client.ObjectKey{}}
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
			case <-time.After(retryInterval):
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

// capiInput is what of an object matters here.
func capiInput(u *unstructured.Unstructured) string {
	return fmt.Sprint(u.GetUID(), u.GetLabels(), u.GetAnnotations(), u.GetDeletionTimestamp() != nil, initialized(u))
}

// initialized reports whether the control plane of a cluster can serve requests: in v1beta2 status.initialization.controlPlaneInitialized, in
// v1beta1 status.controlPlaneReady or, without an object for the control plane, the condition ControlPlaneInitialized.
func initialized(u *unstructured.Unstructured) bool {
	for _, field := range [][]string{{"status", "initialization", "controlPlaneInitialized"}, {"status", "controlPlaneReady"}} {
		if is, _, _ := unstructured.NestedBool(u.Object, field...); is { // another type is as good as none
			return true
		}
	}
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(c any) bool {
		fields, _ := c.(map[string]any)
		return fields["type"] == "ControlPlaneInitialized" && fields["status"] == "True"
	})
}

// sweep finds members whose object is gone, or has lost its label, while the operator did not run. No finalizer is needed for that.
func (r *capi) sweep(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	go func() {
		for ; ctx.Err() == nil && r.objects.WaitForCacheSync(ctx); sleep(ctx, retryInterval) {
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

// openHub opens the hub of Secret HubSecret, or the operator's own API server.
func (r *capi) openHub(ctx context.Context) (*hubAccess, error) {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: r.namespace, Name: v1alpha1.HubSecret}
	err := r.live.Get(ctx, key, secret)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get Secret %s: %w", key, err)
	}
	cfg := rest.CopyConfig(r.manager.GetConfig())
	var kubeconfig []byte
	if err == nil {
		if kubeconfig, err = vetted(secret.Data[v1alpha1.HubSecretKey]); err != nil {
			return nil, fmt.Errorf("key %s of Secret %s, the access to the hub: %w", v1alpha1.HubSecretKey, key, err)
		}
		if cfg, err = clientcmd.RESTConfigFromKubeConfig(kubeconfig); err != nil {
			return nil, fmt.Errorf("key %s of Secret %s gives no access to a hub: check its certificates", v1alpha1.HubSecretKey, key)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hub != nil && string(r.hub.kubeconfig) == string(kubeconfig) {
		return r.hub, nil
	}
	cfg.Timeout = 30 * time.Second
	c, err := deploy.NewClient(cfg)
	if err != nil {
		return nil, err
	}
	r.hub = &hubAccess{c, kubeconfig}
	return r.hub, nil
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
	if u != nil && u.GetDeletionTimestamp() != nil && u.GetAnnotations()[capiMoved] != "" {
		return reconcile.Result{}, nil
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
	case err != nil:
		return reconcile.Result{RequeueAfter: retryInterval}, nil
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
	var refused refusal
	switch {
	case reasonOf(err) != "":
		kind, reason = corev1.EventTypeNormal, reasonOf(err)
	case errors.As(err, &refused):
		reason = reasonRefused
	case joins:
		reason = reasonJoinFailed
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

// member returns the Cluster of the hub that an object has joined as, nil if it has not.
func (r *capi) member(ctx context.Context, hub *hubAccess, key client.ObjectKey, name string) (*clusterv1alpha1.Cluster, error) {
	r.mu.Lock()
	name = cmp.Or(r.states[key].member, name)
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
	case strings.HasSuffix(origin, "@"+r.uid):
		other, _, _ := strings.Cut(origin, "@")
		return nil, refusal{"", fmt.Sprintf("the name %q is taken by the member of Cluster %s: choose another one with the annotation %s", name, other,
			v1alpha1.AnnotationClusterName)}
	}
	r.record(key, "")
	return nil, nil
}

func (r *capi) origin(key client.ObjectKey) string { return key.String() + "@" + r.uid }

// kubeconfig is the administrator's access to a cluster.
func (r *capi) kubeconfig(ctx context.Context, key client.ObjectKey) (credential, error) {
	secret := &corev1.Secret{}
	name := client.ObjectKey{Namespace: key.Namespace, Name: key.Name + "-kubeconfig"}
	f := credential{name: "member", from: "Secret " + name.String()}
	err := r.live.Get(ctx, name, secret)
	switch {
	case apierrors.IsNotFound(err):
		return f, reported{reasonWaiting, f.from + " is missing: Cluster API makes it with the control plane"}
	case err != nil:
		return f, fmt.Errorf("get %s: %w", f.from, err)
	case secret.Type != capiSecretType:
		return f, refusal{"", fmt.Sprintf("%s has type %q, not %s: it is not Cluster API's", f.from, secret.Type, capiSecretType)}
	case len(secret.Data[capiSecretKey]) == 0:
		return f, reported{reasonWaiting, f.from + " has no key " + capiSecretKey + " yet"}
	}
	if f.content, err = vetted(secret.Data[capiSecretKey]); err != nil {
		return f, refusal{"", fmt.Sprintf("%s: %v", f.from, err)}
	}
	return f, nil
}

// memberName is the name of the member for an object.
func memberName(u *unstructured.Unstructured) (string, error) {
	name := cmp.Or(u.GetAnnotations()[v1alpha1.AnnotationClusterName], strings.ReplaceAll(u.GetName(), ".", "-"))
	if err := config.CheckClusterID(name); err != nil {
		return "", refusal{"", fmt.Sprintf("%v; the annotation %s chooses the name", err, v1alpha1.AnnotationClusterName)}
	}
	return name, nil
}

// commaList splits an annotation.
func commaList(text string) (out []string) {
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// memberFields are the labels and the place that the Cluster of the hub gets.
func memberFields(u *unstructured.Unstructured) (set map[string]string, place map[string]any, err error) {
	set, place = map[string]string{}, map[string]any{}
	for _, key := range commaList(u.GetAnnotations()[v1alpha1.AnnotationClusterLabels]) {
		value, ok := u.GetLabels()[key]
		if !ok {
			return nil, nil, refusal{"", fmt.Sprintf("annotation %s names the label %q, which the Cluster does not have", v1alpha1.AnnotationClusterLabels, key)}
		}
		set[key] = value
	}
	for field, key := range map[string]string{"provider": v1alpha1.AnnotationClusterProvider, "region": v1alpha1.AnnotationClusterRegion} {
		if value := u.GetAnnotations()[key]; value != "" {
			place[field] = value
		}
	}
	var zones []any
	for _, zone := range commaList(u.GetAnnotations()[v1alpha1.AnnotationClusterZones]) {
		zones = append(zones, zone)
	}
	if len(zones) > 0 {
		place["zones"] = zones
	}
	return set, place, nil
}

// join makes the cluster of an object a member. The error reports the result, also success.
func (r *capi) join(ctx context.Context, hub *hubAccess, u *unstructured.Unstructured, s *capiState) error {
	key := client.ObjectKeyFromObject(u)
	name, err := memberName(u)
	if err != nil {
		return err
	}
	set, place, err := memberFields(u)
	if err != nil {
		return err
	}
	have, err := r.member(ctx, hub, key, name)
	if err != nil {
		return err
	}
	mode := u.GetLabels()[v1alpha1.LabelJoin]
	by := clusterv1alpha1.Pull
	switch mode {
	case v1alpha1.JoinPush:
		by = clusterv1alpha1.Push
	case v1alpha1.JoinPull, v1alpha1.JoinNetwork:
	default:
		return refusal{"", fmt.Sprintf("label %s is %q: use %s, %s or %s", v1alpha1.LabelJoin, mode, v1alpha1.JoinPush, v1alpha1.JoinPull, v1alpha1.JoinNetwork)}
	}
	if have != nil && (have.Name != name || have.Spec.SyncMode != by) {
		return refusal{"", fmt.Sprintf("the cluster is a %s member called %s, and neither changes: remove the label %s, wait until it has left, and set it again",
			strings.ToLower(string(have.Spec.SyncMode)), have.Name, v1alpha1.LabelJoin)}
	}
	if !initialized(u) {
		return reported{reasonWaiting, "the control plane is not initialized yet"}
	}
	member, err := r.kubeconfig(ctx, key)
	if err != nil {
		return err
	}
	command, files, err := r.joinCommand(ctx, u, name, hub, member)
	if err != nil {
		return err
	}
	input := fmt.Sprint(command, set, place, u.GetUID(), sha256.Sum256(append(member.content, hub.kubeconfig...)))
	if (have != nil || s.applied.err != nil) && s.applied.current(input, repairInterval) {
		return cmp.Or(s.applied.err, error(reported{reasonJoined, joinedMessage(name, mode)}))
	}
	if !r.claim(name, key) {
		return reported{reasonWaiting, fmt.Sprintf("another Cluster is being joined as %q", name)}
	}
	defer r.release(name)
	err = r.run(ctx, files, command...)
	if err == nil && have == nil && by == clusterv1alpha1.Pull {
		err = r.run(ctx, hub.files(), append([]string{"clusters", "accept", name}, hub.flags()...)...) // who set the label, is an administrator
	}
	if err == nil {
		err = r.mark(ctx, hub, key, name, set, place)
	}
	s.applied = applied{input, time.Now(), err}
	if err != nil {
		return err
	}
	r.record(key, name)
	s.leaving = ""
	return reported{reasonJoined, joinedMessage(name, mode)}
}

func joinedMessage(name, mode string) string {
	return fmt.Sprintf("the cluster is member %s of the hub (%s): see `kubectl get clusters.cluster.karmada.io %s` there", name, mode, name)
}

// joinCommand are the arguments of pelago, and the files that they name.
func (r *capi) joinCommand(
	ctx context.Context, u *unstructured.Unstructured, name string, hub *hubAccess, member credential,
) ([]string, []credential, error) {
	mode := u.GetLabels()[v1alpha1.LabelJoin]
	flags, err := extraFlags(u.GetAnnotations(), slices.DeleteFunc(slices.Clone(extraJoin), func(flag string) bool {
		return flag == "network-only" || flag == "workloads-only"
	}))
	if err != nil {
		return nil, nil, refusal{"", err.Error()}
	}
	if mode == v1alpha1.JoinPush {
		if len(flags) > 0 {
			return nil, nil, refusal{"", fmt.Sprintf("annotation %s has no meaning with label %s=%s: remove it", v1alpha1.AnnotationFlags, v1alpha1.LabelJoin, mode)}
		}
		return append([]string{"join", name, "--cluster-kubeconfig=@member"}, hub.flags()...), append(hub.files(), member), nil
	}
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: r.namespace, Name: v1alpha1.BrokerInfoSecret}
	if err := r.live.Get(ctx, key, secret); err != nil {
		return nil, nil, fmt.Errorf("get Secret %s: %w: make a Broker object, or the Secret of a broker-info.subm of the hub, for the label %s=%s", key, err,
			v1alpha1.LabelJoin, mode)
	}
	info := credential{"info", "Secret " + key.String(), secret.Data[v1alpha1.BrokerInfoKey]}
	args := []string{"join", "@info", "--kubeconfig=@member", "--clusterid=" + name, "--wait=false", "--image=" + cmp.Or(r.image, deploy.DefaultImage)}
	if mode == v1alpha1.JoinPull {
		args = append(args, "--workloads-only=true")
	}
	return append(args, flags...), []credential{info, member}, nil
}

// claim keeps two objects from being joined under one name at the same time.
func (r *capi) claim(name string, key client.ObjectKey) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, busy := r.names[name]; busy {
		return false
	}
	r.names[name] = key
	return true
}

func (r *capi) release(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.names, name)
}

// mark writes what follows from the object into the Cluster of the hub, and into that of the network, if there is one. What the operator
// wrote before and does not write again is removed.
func (r *capi) mark(ctx context.Context, hub *hubAccess, key client.ObjectKey, name string, set map[string]string, place map[string]any) error {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": place}}
	if len(place) == 0 {
		u.Object = map[string]any{}
	}
	u.SetGroupVersionKind(clusterv1alpha1.GroupVersion.WithKind("Cluster"))
	u.SetAnnotations(map[string]string{v1alpha1.AnnotationClusterAPI: r.origin(key)})
	objects := []*unstructured.Unstructured{u}
	network := &submarinerv1.Cluster{}
	err := hub.Get(ctx, client.ObjectKey{Namespace: deploy.BrokerNamespace, Name: name}, network)
	switch {
	case err == nil:
		n := &unstructured.Unstructured{}
		n.SetGroupVersionKind(submarinerv1.GroupVersion.WithKind("Cluster"))
		n.SetNamespace(network.Namespace)
		objects = append(objects, n)
	case client.IgnoreNotFound(err) != nil && !meta.IsNoMatchError(err):
		return fmt.Errorf("get Cluster %s of the network at the hub: %w", name, err)
	}
	for _, u := range objects {
		u.SetName(name)
		u.SetLabels(set)
		if err := hub.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(capiOwner), client.ForceOwnership); err != nil {
			return fmt.Errorf("label Cluster %s at the hub: %w", name, err)
		}
	}
	return nil
}

// leave ends the membership of the cluster of an object, which is nil if it is gone: first at the hub, then in the cluster.
func (r *capi) leave(ctx context.Context, hub *hubAccess, key client.ObjectKey, u *unstructured.Unstructured, s *capiState) error {
	have, err := r.member(ctx, hub, key, "")
	if err != nil || have == nil && s.leaving == "" {
		return err
	}
	if have != nil {
		if u == nil && have.DeletionTimestamp == nil && !r.lost(have, time.Time{}) {
			return reported{reasonStays, fmt.Sprintf("member %s stays, since its deletion was not observed and it is ready: if it is to leave, run "+
				"`pelago unjoin %s` at the hub", have.Name, have.Name)}
		}
		s.applied = applied{}
		if s.leaving != have.Name {
			s.leaving, s.mode, s.since = have.Name, have.Spec.SyncMode, time.Now()
		}
		args := []string{"unjoin", have.Name}
		if have.Spec.SyncMode == clusterv1alpha1.Pull {
			args[1] = "--clusterid=" + have.Name
		}
		args = append(append(args, "--timeout="+leaveTimeout.String()), hub.flags()...)
		ready := have.Ready()
		if u == nil && (ready == nil || ready.Status != metav1.ConditionTrue) || have.DeletionTimestamp != nil && r.lost(have, have.DeletionTimestamp.Time) {
			args = append(args, "--force")
		}
		if err := r.run(ctx, hub.files(), args...); err != nil {
			after := &clusterv1alpha1.Cluster{}
			if hub.Get(ctx, client.ObjectKeyFromObject(have), after) == nil && after.DeletionTimestamp != nil {
				return reported{reasonLeaving, err.Error()}
			}
			return err
		}
		r.record(key, "")
	}
	if u != nil {
		err = r.clean(ctx, hub, key, s)
	}
	if err != nil && u.GetDeletionTimestamp() == nil && time.Since(s.since) < r.giveUp {
		return err
	}
	name, message := s.leaving, ""
	s.leaving = ""
	if err != nil {
		message = fmt.Sprintf("; what Pelago has in the cluster stays there: %v", err)
	}
	return reported{reasonLeft, fmt.Sprintf("member %s has left the hub%s", name, message)}
}

// lost reports whether a member has not been ready for long, counted from the later of both times.
func (r *capi) lost(c *clusterv1alpha1.Cluster, since time.Time) bool {
	if ready := c.Ready(); ready != nil {
		if ready.Status == metav1.ConditionTrue {
			return false
		}
		if ready.LastTransitionTime.After(since) {
			since = ready.LastTransitionTime.Time
		}
	} else if c.CreationTimestamp.After(since) {
		since = c.CreationTimestamp.Time
	}
	return time.Since(since) > r.giveUp
}

// clean removes Pelago from a cluster that has left the hub.
func (r *capi) clean(ctx context.Context, hub *hubAccess, key client.ObjectKey, s *capiState) error {
	member, err := r.kubeconfig(ctx, key)
	if err != nil {
		return errors.New(err.Error()) // nothing waits for it
	}
	if s.mode == clusterv1alpha1.Push {
		return r.run(ctx, append(hub.files(), member), append([]string{"unjoin", s.leaving, "--cluster-kubeconfig=@member"}, hub.flags()...)...)
	}
	return r.run(ctx, []credential{member}, "unjoin", "--kubeconfig=@member")
}

// credential is the content of a file; arguments name it as @name, messages as from.
type credential struct {
	name, from string
	content    []byte
}

func (h *hubAccess) flags() []string {
	if len(h.kubeconfig) == 0 {
		return nil
	}
	return []string{"--kubeconfig=@hub"}
}

func (h *hubAccess) files() []credential {
	if len(h.kubeconfig) == 0 {
		return nil
	}
	return []credential{{"hub", "that of the hub", h.kubeconfig}}
}

// run runs pelago with files.
func (r *capi) run(ctx context.Context, files []credential, args ...string) error {
	return inDirectory(func(dir string) error {
		paths, names := []string{}, []string{}
		for _, f := range files {
			path := filepath.Join(dir, f.name)
			if err := os.WriteFile(path, f.content, 0o600); err != nil {
				return fmt.Errorf("write %s for pelago: %w", f.from, err)
			}
			paths, names = append(paths, "@"+f.name, path), append(names, path, f.from)
		}
		replace := strings.NewReplacer(paths...)
		with := slices.Clone(args)
		for i, arg := range with {
			with[i] = replace.Replace(arg)
		}
		err := r.pelago(ctx, with...)
		if err == nil {
			return nil
		}
		message := err.Error()
		if refused := (refusal{}); errors.As(err, &refused) { // the fields are those of another kind
			message = refused.message
		}
		return errors.New(strings.NewReplacer(names...).Replace(message))
	})
}
