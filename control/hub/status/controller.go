// Package status aggregates status: from the Works of a binding into the binding's status, from
// there into the template's status. It runs in pelago-hub and is the only writer of both. Events
// within a short delay are coalesced into one write.
package status

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/control/kube"
)

// same compares statuses; what members report is compared as JSON, whatever the order of its keys.
var same = func() conversion.Equalities {
	e := equality.Semantic.Copy()
	if err := e.AddFunc(func(a, b runtime.RawExtension) bool {
		if bytes.Equal(a.Raw, b.Raw) {
			return true
		}
		var x, y any
		return json.Unmarshal(a.Raw, &x) == nil && json.Unmarshal(b.Raw, &y) == nil && reflect.DeepEqual(x, y)
	}); err != nil {
		panic(err) // the function's form is wrong
	}
	return e
}()

const (
	defaultDelay    = 100 * time.Millisecond
	defaultWorkers  = 8
	defaultProgress = time.Second
)

// Options of the controller.
type Options struct {
	Interpreter *kinds.Interpreter
	// Unmade is why Works are not made; nil: nothing is known.
	Unmade *binding.Unmade
	// Delay is the time from the first event of a binding to the write; 0: 100 ms.
	Delay time.Duration
	// Progress is the minimum interval between two writes of a binding that do not complete it:
	// partial progress is less urgent than completion; 0: 1 s.
	Progress time.Duration
	// Workers is how many bindings are worked on at once; 0: 8.
	Workers int
	// AllEvents: successes have the Events of Karmada, on binding and template.
	AllEvents bool
}

type reconciler struct {
	client      client.Client
	cache       cache.Cache
	live        client.Reader
	recorder    record.EventRecorder
	allEvents   bool
	kinds       *statusKinds
	interpreter *kinds.Interpreter
	unmade      *binding.Unmade
	progress    time.Duration // Options.Progress
	// bindings and templates are the versions that our own writes made, both by binding.
	bindings, templates kube.Expectations[client.ObjectKey]
}

// Setup adds the controller to the manager, whose scheme has clusters, Works and bindings.
func Setup(mgr ctrl.Manager, o Options) error {
	o.Delay, o.Progress, o.Workers = cmp.Or(o.Delay, defaultDelay), cmp.Or(o.Progress, defaultProgress), cmp.Or(o.Workers, defaultWorkers)
	d, err := discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("set up the aggregation of statuses: %w", err)
	}
	r := &reconciler{
		client: mgr.GetClient(), cache: mgr.GetCache(), live: mgr.GetAPIReader(), recorder: kube.EventRecorder(mgr, "pelago-hub"),
		allEvents: o.AllEvents,
		kinds:     &statusKinds{discovery: d, known: map[schema.GroupVersionKind]known{}}, interpreter: o.Interpreter, unmade: o.Unmade, progress: o.Progress,
	}
	if err := watch(mgr, r, o); err != nil {
		return fmt.Errorf("set up the aggregation of statuses: %w", err)
	}
	return nil
}

// reconcile writes the status of one binding (without a namespace: a ClusterResourceBinding), and
// that of its template. It returns the requeue interval; 0: no requeue.
func (r *reconciler) reconcile(ctx context.Context, req ctrl.Request) (time.Duration, error) {
	key := req.NamespacedName
	now := time.Now()
	b := binding.New(key)
	if err := r.client.Get(ctx, key, b.Object); err != nil {
		r.bindings.Forget(key)
		r.templates.Forget(key)
		return 0, client.IgnoreNotFound(fmt.Errorf("read the binding %s: %w", key, err))
	}
	if b.GetDeletionTimestamp() != nil {
		return 0, nil
	}
	if r.bindings.Stale(key, b.GetResourceVersion(), now) {
		return 0, kube.StaleCache(b.Object, b.GetResourceVersion(), "that of our last write")
	}
	works, err := r.works(ctx, key)
	if err != nil {
		return 0, err
	}
	at := metav1.NewTime(now.Truncate(time.Second))
	status, err := Desired(b, works, r.unmade.Of(key), r.unready(ctx), at)
	if err != nil {
		return 0, fmt.Errorf("make the status of the binding %s: %w", key, err)
	}
	template, err := r.template(ctx, b.Spec.Resource)
	if err != nil {
		return 0, errors.Join(r.writeBinding(ctx, b, status), err)
	}
	if template != nil && r.templates.Stale(key, template.GetResourceVersion(), now) {
		return 0, kube.StaleCache(template, template.GetResourceVersion(), "that of our last write")
	}
	want, failure := r.aggregate(template, b, status.AggregatedStatus)
	omit(status.AggregatedStatus, maxStatus)
	interpreted(&status, b, works, failure, at)
	if left := r.progress - now.Sub(r.bindings.LastWrite(key)); left > 0 && inProgress(*b.Status, b) && inProgress(status, b) {
		return left, nil
	}
	if failure != nil {
		for _, o := range []client.Object{template, b.Object} {
			r.recorder.Eventf(o, corev1.EventTypeWarning, workv1alpha2.EventAggregateStatusFailed, "%v", failure)
		}
	}
	return 0, errors.Join(r.writeBinding(ctx, b, status), failure, r.writeTemplate(ctx, b.Object, template, want))
}

// inProgress reports whether a status of the present binding is not fully applied.
func inProgress(status workv1alpha2.ResourceBindingStatus, b binding.Binding) bool {
	c := meta.FindStatusCondition(status.Conditions, workv1alpha2.ConditionFullyApplied)
	return c != nil && c.Status == metav1.ConditionFalse && c.ObservedGeneration == b.GetGeneration()
}

// works are those of a binding; they are the cache's own, and are not changed.
func (r *reconciler) works(ctx context.Context, key client.ObjectKey) ([]*workv1alpha1.Work, error) {
	var list workv1alpha1.WorkList
	err := r.client.List(ctx, &list, client.MatchingFields{workIndex: key.String()}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list the Works of the binding %s: %w", key, err)
	}
	return kube.Pointers(list.Items), nil
}

// unready is the reason why a cluster is not ready; "" if it is.
func (r *reconciler) unready(ctx context.Context) func(cluster string) string {
	return func(cluster string) string {
		var c clusterv1alpha1.Cluster
		switch err := r.client.Get(ctx, client.ObjectKey{Name: cluster}, &c, client.UnsafeDisableDeepCopy); {
		case apierrors.IsNotFound(err):
			return ""
		case err != nil:
			return fmt.Sprintf("cannot be read: %v", err)
		}
		return readiness(&c)
	}
}

// readiness is "" for a ready cluster, else words that follow "the cluster".
func readiness(c *clusterv1alpha1.Cluster) string {
	ready := meta.FindStatusCondition(c.Status.Conditions, clusterv1alpha1.ConditionReady)
	switch {
	case ready == nil:
		return "has not reported yet"
	case ready.Status == metav1.ConditionTrue:
		return ""
	}
	return fmt.Sprintf("is not ready (%s)", cmp.Or(ready.Reason, "no reason"))
}

func (r *reconciler) writeBinding(ctx context.Context, b binding.Binding, status workv1alpha2.ResourceBindingStatus) error {
	if same.DeepEqual(*b.Status, status) {
		return nil
	}
	key := client.ObjectKeyFromObject(b)
	// the spec is no part of the patch
	bare := func(status workv1alpha2.ResourceBindingStatus) client.Object {
		only := binding.New(key)
		only.SetResourceVersion(b.GetResourceVersion())
		*only.Status = status
		return only.Object
	}
	after := bare(status)
	patch := kube.MergeFrom(bare(*b.Status))
	if err := r.client.Status().Patch(ctx, after, patch); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write the status of the binding %s: %w", key, err))
	}
	r.bindings.Expect(key, after.GetResourceVersion(), time.Now())
	r.succeeded(b.Object, "The status has what the clusters report")
	return nil
}

// template reads the template; nil if it does not exist or its kind has no status.
func (r *reconciler) template(ctx context.Context, ref workv1alpha2.ObjectReference) (*unstructured.Unstructured, error) {
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	if has, err := r.kinds.haveStatus(gvk, time.Now()); err != nil || !has {
		return nil, err
	}
	key := client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}
	t, err := r.read(ctx, gvk, key)
	if err != nil {
		return nil, client.IgnoreNotFound(fmt.Errorf("read the template %s %s: %w", ref.Kind, key, err))
	}
	if ref.UID != "" && ref.UID != t.GetUID() {
		return nil, nil // another one of this name, which gets its own binding
	}
	return t, nil
}

// read reads a template from the cache that control/hub/propagate and control/hub/work share; from
// the server until the first list of the kind is complete. Its resourceVersion is the precondition
// of the status write, so neither a new generation nor another writer's status is overwritten.
func (r *reconciler) read(ctx context.Context, gvk schema.GroupVersionKind, key client.ObjectKey) (*unstructured.Unstructured, error) {
	// keeps what it is given, and reads it later
	informer, err := r.cache.GetInformer(ctx, empty(gvk), cache.BlockUntilSynced(false))
	if err != nil {
		return nil, err
	}
	t := empty(gvk)
	if !informer.HasSynced() {
		return t, r.live.Get(ctx, key, t)
	}
	return t, r.cache.Get(ctx, key, t)
}

func empty(gvk schema.GroupVersionKind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	return u
}

// aggregate is the status that the template is to have; nil: it stays as it is.
func (r *reconciler) aggregate(
	template *unstructured.Unstructured, b binding.Binding, items []workv1alpha2.AggregatedStatusItem,
) (map[string]any, error) {
	if template == nil {
		return nil, nil
	}
	answers, err := Answers(b, items, template.GetGeneration())
	if err != nil {
		return nil, err
	}
	return r.interpreter.AggregateStatus(template, answers)
}

// succeeded emits an Event about a status that was written.
func (r *reconciler) succeeded(o client.Object, message string) {
	if r.allEvents {
		r.recorder.Event(o, corev1.EventTypeNormal, workv1alpha2.EventAggregateStatusSucceed, message)
	}
}

func (r *reconciler) writeTemplate(
	ctx context.Context, binding client.Object, template *unstructured.Unstructured, status map[string]any,
) error {
	if template == nil || status == nil {
		return nil
	}
	key := client.ObjectKeyFromObject(template)
	old, _, err := unstructured.NestedMap(template.Object, "status")
	if err != nil {
		return fmt.Errorf("read the status of %s %s: %w", template.GetKind(), key, err)
	}
	if len(old) == 0 && len(status) == 0 || same.DeepEqual(old, status) {
		return nil
	}
	now := template.DeepCopy() // an Update reads the answer into it
	now.SetManagedFields(nil)  // those in the cache are not the API server's
	now.Object["status"] = status
	err = r.client.Status().Update(ctx, now) // with the resourceVersion that was read
	switch {
	case err == nil:
		r.templates.Expect(client.ObjectKeyFromObject(binding), now.GetResourceVersion(), time.Now())
		r.succeeded(now, "The status is that of all clusters")
		return nil
	case apierrors.IsNotFound(err): // the template has gone, or the subresource
		r.kinds.forget(template.GroupVersionKind())
		return nil
	}
	err = fmt.Errorf("write the status of %s %s: %w", template.GetKind(), key, err)
	if !apierrors.IsConflict(err) {
		for _, o := range []client.Object{template, binding} {
			r.recorder.Eventf(o, corev1.EventTypeWarning, workv1alpha2.EventAggregateStatusFailed, "%v", err)
		}
	}
	return err
}
