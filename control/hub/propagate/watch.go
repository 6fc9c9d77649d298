package propagate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/placement"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/control/kube"
)

const (
	// kindsInterval is the interval of the discovery of kinds that are named.
	kindsInterval = 10 * time.Second
	// gather is how long events of kinds or clusters are collected after one was handled.
	gather = 50 * time.Millisecond
)

// start is the controller's source. It returns when all is known from which templates are decided:
// policies, bindings, clusters.
func (r *reconciler) start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[Key]) error {
	r.queue = queue
	definition := &metav1.PartialObjectMetadata{}
	definition.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	for _, w := range []struct {
		kind   client.Object
		notice func(before, after client.Object)
	}{
		{&policyv1alpha1.PropagationPolicy{}, r.onPolicy},
		{&policyv1alpha1.ClusterPropagationPolicy{}, r.onPolicy},
		{&workv1alpha2.ResourceBinding{}, r.onBinding},
		{&workv1alpha2.ClusterResourceBinding{}, r.onBinding},
		{&workv1alpha1.Work{}, r.onWork},
		{&clusterv1alpha1.Cluster{}, r.onCluster},
		{&policyv1alpha1.FederatedResourceQuota{}, r.onQuota},
		{binding.Namespace(), r.onNamespace},
		{definition, func(_, _ client.Object) { r.wakeKinds() }},
	} {
		informer, err := r.informers.GetInformer(ctx, w.kind)
		if err != nil {
			return err
		}
		if _, err := informer.AddEventHandler(handler(w.notice)); err != nil {
			return err
		}
	}
	if err := binding.Each(ctx, r.cache, func(b binding.Binding) { r.Capacity.Observe(capacityKey(b), placement.ObservationOf(b)) }); err != nil {
		return err
	}
	if err := r.setQuotas(ctx, ""); err != nil {
		return err
	}
	if _, err := r.setClusters(ctx); err != nil {
		return err
	}
	if err := r.setKinds(ctx); err != nil {
		log.FromContext(ctx).Error(err, "not all kinds are watched")
	}
	r.Interpreter.Follow(ctx, func(changed func(schema.GroupVersionKind) bool) { r.onRules(ctx, changed) })
	go r.followKinds(ctx)
	go r.followClusters(ctx)
	return nil
}

// handler calls notice for each event: before is nil for an object that is new, after for one that
// is gone. Where the watch missed a deletion, before has no resourceVersion: its last one is not
// known.
func handler(notice func(before, after client.Object)) toolscache.ResourceEventHandler {
	object := func(o any) client.Object {
		t, missed := o.(toolscache.DeletedFinalStateUnknown)
		if missed {
			o = t.Obj
		}
		out, _ := o.(client.Object) // an informer holds nothing else
		if missed && out != nil {
			out = out.DeepCopyObject().(client.Object)
			out.SetResourceVersion("")
		}
		return out
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { notice(nil, object(o)) },
		UpdateFunc: func(before, after any) { notice(object(before), object(after)) },
		DeleteFunc: func(o any) { notice(object(o), nil) },
	}
}

func (r *reconciler) onTemplate() toolscache.ResourceEventHandler {
	return handler(func(before, after client.Object) {
		if r.onContribution(before, after) {
			return
		}
		if after == nil {
			key := keyOf(before.(*unstructured.Unstructured))
			r.templates.Forget(key)
			r.order.set(key, 0)
			r.queue.Add(key)
			return
		}
		now := after.(*unstructured.Unstructured)
		if ignored(now, now.GroupVersionKind().GroupKind()) {
			return
		}
		// The event of our own write of the claim needs no reconcile: the reconcile that wrote it
		// continues.
		ownWrite := r.templates.Observed(keyOf(now), now.GetResourceVersion())
		if !ownWrite && (before == nil || changed(before.(*unstructured.Unstructured), now)) {
			r.addAs(keyOf(now), now)
		}
	})
}

// onPolicy enqueues the templates that a policy selects or selected, and those that follow it.
func (r *reconciler) onPolicy(before, after client.Object) {
	if before != nil && after != nil && before.GetGeneration() == after.GetGeneration() && sameMetadata(before, after) {
		return // its status
	}
	ctx := context.Background() // all is in memory
	for _, o := range []client.Object{before, after} {
		if o == nil {
			continue
		}
		r.addPolicy(ctx, policyOf(o))
	}
	if after == nil {
		return
	}
	if s := policyOf(after).Spec.SchedulePriority; s != nil {
		if _, known := r.classes.get(s.PriorityClassName); !known {
			r.wakeKinds()
		}
	}
}

// addPolicy enqueues the templates that a policy selects, and those that follow it.
func (r *reconciler) addPolicy(ctx context.Context, p *propagationPolicy) {
	for i := range p.Spec.ResourceSelectors {
		r.addSelected(ctx, p, &p.Spec.ResourceSelectors[i])
	}
	if p.id() != "" {
		r.addBindings(ctx, indexPolicy, p.id())
	}
}

func (r *reconciler) addSelected(ctx context.Context, p *propagationPolicy, s *policyv1alpha1.ResourceSelector) {
	gvk, ok := selected(s)
	if !ok {
		return
	}
	if gvk = r.kinds.current(gvk); !r.kinds.has(gvk) { // the first list of the kind shows all
		if r.kinds.unasked(gvk) {
			r.wakeKinds()
		}
		return
	}
	namespace := s.Namespace
	if !p.clusterWide {
		namespace = p.GetNamespace()
	}
	if s.Name != "" && namespace != "" {
		r.add(Key{GVK: gvk, Namespace: namespace, Name: s.Name})
		return
	}
	all, err := r.kinds.list(ctx, gvk, namespace, labels.Everything())
	if err != nil {
		return // the kind is being listed for the first time, which shows all
	}
	for i := range all {
		t := &all[i]
		if precision, err := precisionOf(p, t); err != nil || precision > 0 || claimOf(t).of(p) {
			r.addAs(keyOf(t), t)
		}
	}
}

// addBindings enqueues the templates of the bindings that an index holds under a value.
func (r *reconciler) addBindings(ctx context.Context, field, value string) {
	err := binding.Each(ctx, r.cache, r.addTemplate, client.MatchingFields{field: value})
	if err != nil {
		log.FromContext(ctx).Error(err, "bindings cannot be listed")
	}
}

func (r *reconciler) addTemplate(b binding.Binding) {
	if key, ok := keyOfReference(b.Spec.Resource); ok {
		key.GVK = r.kinds.current(key.GVK)
		r.add(key)
	}
}

// onBinding enqueues the template of a binding, and those that its template depends on.
func (r *reconciler) onBinding(before, after client.Object) {
	if after == nil {
		r.forget(binding.Of(before))
	} else {
		b := binding.Of(after)
		r.Capacity.Observe(capacityKey(b), placement.ObservationOf(b))
	}
	if before != nil && after != nil && before.GetGeneration() == after.GetGeneration() && sameMetadata(before, after) {
		if b := binding.Of(after); evictsByStatus(binding.Of(before), b) {
			r.addTemplate(b)
		}
		return
	}
	if after == nil {
		r.addTemplate(binding.Of(before))
	} else if b := binding.Of(after); !r.ownWrite(b) {
		r.addTemplate(b)
	}
	if before != nil && after != nil && sameForDependents(binding.Of(before), binding.Of(after)) {
		return
	}
	for _, o := range []client.Object{before, after} {
		if o == nil {
			continue
		}
		for _, d := range dependenciesOf(o) {
			r.addDependent(context.Background(), d) // all is in memory
		}
	}
}

// evictsByStatus reports whether evictions may begin or end, or replicas move that no node can run,
// by a change of a binding's status.
func evictsByStatus(before, after binding.Binding) bool {
	if len(after.Spec.GracefulEvictionTasks) == 0 && (after.Spec.Failover == nil || after.Spec.Failover.Application == nil) &&
		!placement.HasUnschedulable(before.Status) && !placement.HasUnschedulable(after.Status) {
		return false
	}
	applied := func(b binding.Binding) *metav1.Condition {
		return meta.FindStatusCondition(b.Status.Conditions, workv1alpha2.ConditionFullyApplied)
	}
	return !equality.Semantic.DeepEqual(before.Status.AggregatedStatus, after.Status.AggregatedStatus) ||
		!equality.Semantic.DeepEqual(applied(before), applied(after))
}

// onRules enqueues the templates of kinds whose rules have changed: their replicas and dependencies
// may be others.
func (r *reconciler) onRules(ctx context.Context, changed func(schema.GroupVersionKind) bool) {
	err := binding.Each(ctx, r.cache, func(b binding.Binding) {
		if changed(schema.FromAPIVersionAndKind(b.Spec.Resource.APIVersion, b.Spec.Resource.Kind)) {
			r.addTemplate(b)
		}
	})
	if err != nil && ctx.Err() == nil {
		log.FromContext(ctx).Error(err, "bindings cannot be listed")
	}
}

// ownWrite reports whether what the watch shows of a binding is what we have just written.
func (r *reconciler) ownWrite(b binding.Binding) bool {
	key, ok := keyOfReference(b.Spec.Resource)
	return ok && r.bindings.Observed(key, b.GetResourceVersion())
}

// forget drops the state kept for a binding that is gone, and records that it is gone.
func (r *reconciler) forget(b binding.Binding) {
	r.Capacity.Forget(capacityKey(b), b.GetResourceVersion())
	if key, ok := keyOfReference(b.Spec.Resource); ok {
		r.bindings.Forget(key)
		key.GVK = r.kinds.current(key.GVK)
		r.mu.Lock()
		r.ended[key] = true
		r.mu.Unlock()
	}
}

// sameForDependents reports whether two states of a binding ask the same of what its template
// depends on.
func sameForDependents(a, b binding.Binding) bool {
	return a.GetAnnotations()[workv1alpha2.AnnotationDependencies] == b.GetAnnotations()[workv1alpha2.AnnotationDependencies] &&
		equality.Semantic.DeepEqual(a.Spec.Clusters, b.Spec.Clusters) &&
		equality.Semantic.DeepEqual(a.Spec.GracefulEvictionTasks, b.Spec.GracefulEvictionTasks) && a.Spec.ConflictResolution == b.Spec.ConflictResolution &&
		equality.Semantic.DeepEqual(a.Spec.PreserveResourcesOnDeletion, b.Spec.PreserveResourcesOnDeletion)
}

func (r *reconciler) addDependent(ctx context.Context, d kinds.DependentReference) {
	gv, err := schema.ParseGroupVersion(d.APIVersion)
	if err != nil || policy.OwnKind(gv.WithKind(d.Kind).GroupKind()) {
		return
	}
	gvk := r.kinds.current(gv.WithKind(d.Kind))
	if r.kinds.unasked(gvk) {
		r.wakeKinds()
	}
	if d.Name != "" {
		r.add(Key{GVK: gvk, Namespace: d.Namespace, Name: d.Name})
		return
	}
	selector, err := metav1.LabelSelectorAsSelector(d.LabelSelector)
	if err != nil {
		return // it selects nothing
	}
	all, err := r.kinds.list(ctx, gvk, d.Namespace, selector)
	if err != nil {
		return // the kind is being listed for the first time, which shows all
	}
	for i := range all {
		r.addAs(keyOf(&all[i]), &all[i])
	}
}

// onQuota updates the quotas of a namespace and enqueues the templates that exceeded them.
func (r *reconciler) onQuota(before, after client.Object) {
	o := cmp.Or(after, before)
	if before != nil && after != nil && before.GetGeneration() == after.GetGeneration() {
		return // its status
	}
	if err := r.setQuotas(context.Background(), o.GetNamespace()); err != nil { // all is in memory
		log.Log.Error(err, "quotas cannot be listed")
	}
	r.generation.Add(1) // for the decisions that are being written
	err := binding.Each(context.Background(), r.cache, func(b binding.Binding) {
		if b.GetNamespace() == o.GetNamespace() && recorded(b).Reason == workv1alpha2.ReasonQuotaExceeded {
			r.addTemplate(b)
		}
	}, client.MatchingFields{indexUndecided: kube.IndexFlag})
	if err != nil {
		log.Log.Error(err, "bindings cannot be listed")
	}
}

// onNamespace enqueues the templates of a namespace that may use other clusters than before.
func (r *reconciler) onNamespace(before, after client.Object) {
	if before == nil || after == nil ||
		before.GetAnnotations()[policyv1alpha1.AnnotationClusters] == after.GetAnnotations()[policyv1alpha1.AnnotationClusters] {
		return
	}
	r.generation.Add(1) // for the decisions that are being written
	if err := binding.Each(context.Background(), r.cache, r.addTemplate, client.InNamespace(after.GetName())); err != nil {
		log.Log.Error(err, "bindings cannot be listed")
	}
}

// setQuotas sets the quotas of a namespace; "": of all, at the start.
func (r *reconciler) setQuotas(ctx context.Context, namespace string) error {
	var list policyv1alpha1.FederatedResourceQuotaList
	if err := r.cache.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list FederatedResourceQuotas: %w", err)
	}
	by := map[string][]placement.Quota{namespace: nil}
	for i := range list.Items {
		if q := &list.Items[i]; q.DeletionTimestamp == nil {
			by[q.Namespace] = append(by[q.Namespace], placement.Quota{Name: q.Name, Hard: q.Spec.Overall})
		}
	}
	for namespace, quotas := range by {
		slices.SortFunc(quotas, func(a, b placement.Quota) int { return strings.Compare(a.Name, b.Name) })
		r.Capacity.SetQuotas(namespace, quotas)
	}
	return nil
}

// wakeKinds wakes followKinds.
func (r *reconciler) wakeKinds() {
	select {
	case r.wake <- struct{}{}:
	default: // it is awake
	}
}

// followKinds watches the kinds that are named as soon as they are served, and no longer than that.
func (r *reconciler) followKinds(ctx context.Context) {
	tick := time.NewTicker(kindsInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-r.wake:
		}
		if err := r.setKinds(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "not all kinds are watched")
		}
		if !pause(ctx, gather) {
			return
		}
	}
}

// setKinds watches what policies select and what depends on it. Priorities come first: what is
// listed then has them.
func (r *reconciler) setKinds(ctx context.Context) error {
	want := wanted{}
	policies, err := r.policies(ctx)
	if err != nil {
		return err
	}
	r.learn(ctx, policies)
	for _, p := range policies {
		for i := range p.Spec.ResourceSelectors {
			if gvk, ok := selected(&p.Spec.ResourceSelectors[i]); ok {
				want.add(gvk)
			}
		}
		if n, err := policyv1alpha1.NearOf(p.GetAnnotations()); err == nil && n != nil && n.Service != "" {
			want[contributionKind.GroupKind()] = []string{contributionKind.Version}
		}
	}
	err = binding.Each(ctx, r.cache, func(b binding.Binding) {
		for _, d := range dependenciesOf(b) {
			if gv, err := schema.ParseGroupVersion(d.APIVersion); err == nil {
				want.add(gv.WithKind(d.Kind))
			}
		}
	})
	if err != nil {
		return err
	}
	return r.kinds.set(ctx, want)
}

// pause returns false if the context ended meanwhile.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
