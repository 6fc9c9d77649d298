// Package policy contains the hub's logic for policies: the controllers that set permanent id and
// finalizer of propagation policies, and the condition Accepted of all policies, ResourceRegistries
// and kinds without a controller; Match, which tells whether a resource selector selects an object
// and how precisely; and ApplyOverrides, which applies override policies to a template for one
// cluster.
//
// Match and ApplyOverrides are pure. The controller neither claims nor releases templates
// (control/hub/propagate does).
package policy

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/source"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/kube"
)

const (
	// workers: no template of a policy is propagated before the policy has its id, so many policies
	// at once must not queue here.
	workers = 16
	// gather is the delay of a reconcile after a report of skipped rules: many objects may report
	// at once.
	gather = 500 * time.Millisecond
	// pageSize bounds the templates of one list request.
	pageSize = 500
	// claimsInterval is the interval at which the claims of a policy that is being deleted are
	// checked.
	claimsInterval = time.Second
)

// reconciler reconciles the policies of one kind.
type reconciler struct {
	client client.Client
	live   client.Reader
	fresh  func() (client.Object, func() policy)
	skips  *Skips
	// written are the versions that our own writes made.
	written kube.Expectations[client.ObjectKey]
}

// Setup adds the controllers to the manager, whose scheme has policies and bindings.
func Setup(mgr ctrl.Manager, skips *Skips) error {
	for name, fresh := range policyKinds {
		o, _ := fresh()
		r := &reconciler{client: mgr.GetClient(), live: mgr.GetAPIReader(), fresh: fresh, skips: skips}
		policies, err := kube.Reconciler(name, kube.EventRecorder(mgr, "pelago-hub"), r.reconcile)
		if err != nil {
			return fmt.Errorf("set up the controller of policies %s: %w", name, err)
		}
		err = ctrl.NewControllerManagedBy(mgr).Named(name).
			For(o).
			WatchesRawSource(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
				skips.follow(func(key client.ObjectKey) { queue.AddAfter(ctrl.Request{NamespacedName: key}, gather) })
				return nil
			})).
			WithOptions(kube.HubControllerOptions(workers)).
			Complete(policies)
		if err != nil {
			return fmt.Errorf("set up the controller of policies %s: %w", name, err)
		}
	}
	return nil
}

func (r *reconciler) reconcile(ctx context.Context, req ctrl.Request) (time.Duration, error) {
	key := req.NamespacedName
	o, read := r.fresh()
	if err := r.client.Get(ctx, key, o); err != nil {
		r.written.Forget(key)
		return 0, client.IgnoreNotFound(fmt.Errorf("read the policy %s: %w", key, err))
	}
	p := read()
	if r.written.Stale(key, p.GetResourceVersion(), time.Now()) {
		return 0, kube.StaleCache(p.Object, p.GetResourceVersion(), "that of our last write")
	}
	if p.GetDeletionTimestamp() != nil {
		return r.release(ctx, p)
	}
	if err := r.mark(ctx, p); err != nil {
		return 0, err
	}
	p = read()                                      // the answer to the patch
	before, _ := p.DeepCopyObject().(client.Object) // a copy is what the object is
	changed := accept(p.status, p.GetGeneration(), p.validate(p.GetNamespace()))
	if p.claims == nil {
		changed = skip(p.status, p.GetGeneration(), r.skips.message(key)) || changed
	}
	unresolved, err := p.refs.unresolved(p.GetNamespace(), r.client.RESTMapper(), r.joined(ctx))
	if err != nil {
		return 0, fmt.Errorf("read what the policy %s refers to: %w", key, err)
	}
	again := time.Duration(0)
	if changed = resolve(p.status, p.GetGeneration(), unresolved) || changed; len(unresolved) > 0 {
		again = refsInterval
	}
	if !changed {
		return again, nil
	}
	err = r.client.Status().Patch(ctx, p.Object, kube.MergeFrom(before))
	if err != nil {
		return 0, client.IgnoreNotFound(fmt.Errorf("write the status of the policy %s: %w", key, err))
	}
	r.written.Expect(key, p.GetResourceVersion(), time.Now())
	return again, nil
}

// mark gives a policy its id and its finalizer, in one write: a claim requires both.
func (r *reconciler) mark(ctx context.Context, p policy) error {
	if p.claims == nil {
		return nil
	}
	before, _ := p.DeepCopyObject().(client.Object) // a copy is what the object is
	labels := p.GetLabels()
	added := controllerutil.AddFinalizer(p, p.claims.finalizer)
	if labels[p.claims.label] != "" && !added {
		return nil
	}
	if labels[p.claims.label] == "" {
		if labels == nil {
			labels = map[string]string{}
		}
		labels[p.claims.label] = string(uuid.NewUUID())
		p.SetLabels(labels)
	}
	err := r.client.Patch(ctx, p.Object, kube.MergeFrom(before))
	if err != nil {
		return client.IgnoreNotFound(fmt.Errorf("mark the policy %s: %w", client.ObjectKeyFromObject(p), err))
	}
	r.written.Expect(client.ObjectKeyFromObject(p), p.GetResourceVersion(), time.Now())
	return nil
}

// release removes the finalizer of a policy whose id no object carries any more.
func (r *reconciler) release(ctx context.Context, p policy) (time.Duration, error) {
	if p.claims == nil || !controllerutil.ContainsFinalizer(p, p.claims.finalizer) {
		return 0, nil
	}
	if claimed, err := r.claimed(ctx, p); err != nil || claimed {
		return claimsInterval, err
	}
	before, _ := p.DeepCopyObject().(client.Object) // a copy is what the object is
	controllerutil.RemoveFinalizer(p, p.claims.finalizer)
	err := r.client.Patch(ctx, p.Object, kube.MergeFrom(before))
	if err != nil {
		return 0, client.IgnoreNotFound(fmt.Errorf("remove the finalizer of the policy %s: %w", client.ObjectKeyFromObject(p), err))
	}
	return 0, nil
}

// claimed reports whether a binding or a template carries the policy's id. One that is being
// deleted does not count: it may wait for a cluster that is unreachable, and needs no policy for
// its end.
func (r *reconciler) claimed(ctx context.Context, p policy) (bool, error) {
	id := p.GetLabels()[p.claims.label]
	if id == "" {
		return false, nil // a policy without an id has no claims
	}
	opts := []client.ListOption{client.MatchingLabels{p.claims.label: id}, client.InNamespace(p.GetNamespace())}
	bound := false
	err := binding.Each(ctx, r.client, func(b binding.Binding) { bound = bound || b.GetDeletionTimestamp() == nil }, opts...)
	if err != nil || bound {
		return bound, err
	}
	for _, gvk := range kindsOf(p.claims.selectors) {
		some, err := r.anyTemplate(ctx, gvk, opts)
		if err != nil || some {
			return some, err
		}
	}
	return false, nil
}

// anyTemplate asks the API server, not a cache, whether a template exists; a kind that is not
// served has no templates.
func (r *reconciler) anyTemplate(ctx context.Context, gvk schema.GroupVersionKind, opts []client.ListOption) (bool, error) {
	var list metav1.PartialObjectMetadataList
	for {
		list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		err := r.live.List(ctx, &list, append(slices.Clone(opts), client.Limit(pageSize), client.Continue(list.Continue))...)
		switch {
		case apierrors.IsNotFound(err), kube.NotServed(err):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("list the %s that a policy has claimed: %w", gvk.Kind, err)
		case slices.ContainsFunc(list.Items, func(o metav1.PartialObjectMetadata) bool { return o.DeletionTimestamp == nil }):
			return true, nil
		case list.Continue == "":
			return false, nil
		}
	}
}

// policy is one policy and what its kind has.
type policy struct {
	client.Object
	status   *policyv1alpha1.PolicyStatus
	refs     refs
	validate func(namespace string) field.ErrorList
	// claims is nil for policies that claim nothing.
	claims *claims
}

// claims is how a policy marks what it has claimed, and which kinds that may be.
type claims struct {
	label, finalizer string
	selectors        []policyv1alpha1.ResourceSelector
}

// policyKinds are the five kinds: the name of the controller, and a policy without content.
var policyKinds = map[string]func() (client.Object, func() policy){
	"propagationpolicy": func() (client.Object, func() policy) {
		o := &policyv1alpha1.PropagationPolicy{}
		return o, func() policy {
			validate := func(string) field.ErrorList { return policyv1alpha1.ValidatePropagation(o, o.Spec) }
			return policy{o, &o.Status, refsOfPropagation(&o.Spec), validate, &claims{
				policyv1alpha1.LabelPropagationPolicyID, policyv1alpha1.FinalizerPropagationPolicy, o.Spec.ResourceSelectors}}
		}
	},
	"clusterpropagationpolicy": func() (client.Object, func() policy) {
		o := &policyv1alpha1.ClusterPropagationPolicy{}
		return o, func() policy {
			validate := func(string) field.ErrorList { return policyv1alpha1.ValidatePropagation(o, o.Spec) }
			return policy{o, &o.Status, refsOfPropagation(&o.Spec), validate, &claims{
				policyv1alpha1.LabelClusterPropagationPolicyID, policyv1alpha1.FinalizerClusterPropagationPolicy, o.Spec.ResourceSelectors}}
		}
	},
	"overridepolicy": func() (client.Object, func() policy) {
		o := &policyv1alpha1.OverridePolicy{}
		return o, func() policy { return policy{o, &o.Status, refsOfOverride(&o.Spec), o.Spec.Validate, nil} }
	},
	"clusteroverridepolicy": func() (client.Object, func() policy) {
		o := &policyv1alpha1.ClusterOverridePolicy{}
		return o, func() policy { return policy{o, &o.Status, refsOfOverride(&o.Spec), o.Spec.Validate, nil} }
	},
	"clustertaintpolicy": func() (client.Object, func() policy) {
		o := &policyv1alpha1.ClusterTaintPolicy{}
		return o, func() policy { return policy{o, &o.Status, refsOfTaint(&o.Spec), o.Spec.Validate, nil} }
	},
}
