package work

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/control/kube"
)

var quotaKind = corev1.SchemeGroupVersion.WithKind("ResourceQuota")

// usageInterval is the minimum between two writes of the use of a quota: each decision in its
// namespace changes it.
const usageInterval = time.Second

type quotaReconciler struct {
	hubID       string
	interpreter *kinds.Interpreter
	client      client.Client
	live        client.Reader // uncached, before a deletion
	events      record.EventRecorder
	writer      *Writer
	written     kube.Expectations[client.ObjectKey] // statuses
	allEvents   bool
}

// SetupQuotas adds the controller of FederatedResourceQuotas to the manager; it needs AddIndexes.
// It writes the ResourceQuotas of static assignments, and the status. Enforcement is in
// control/hub/placement. allEvents: successes have the Events of Karmada.
func SetupQuotas(mgr ctrl.Manager, hubID string, allEvents bool) error {
	r := &quotaReconciler{hubID: hubID, allEvents: allEvents, interpreter: kinds.New(),
		client: mgr.GetClient(), live: mgr.GetAPIReader(),
		events: kube.EventRecorder(mgr, "pelago-hub"), writer: NewWriter(mgr.GetClient())}
	do, err := kube.Reconciler("federatedresourcequota", r.events, r.reconcile)
	if err != nil {
		return err
	}
	all := kube.EnqueueAll(r.client, &policyv1alpha1.FederatedResourceQuotaList{})
	err = ctrl.NewControllerManagedBy(mgr).Named("federatedresourcequota").WithOptions(kube.HubControllerOptions(workers)).
		For(&policyv1alpha1.FederatedResourceQuota{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&workv1alpha1.Work{}, r.writer.Events(quotaOf), builder.WithPredicates(predicate.Funcs{UpdateFunc: quotaChanged})).
		Watches(&workv1alpha2.ResourceBinding{}, all, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&clusterv1alpha1.Cluster{}, all, builder.WithPredicates(clusterChanged())).
		Complete(do)
	if err != nil {
		return fmt.Errorf("set up the controller of FederatedResourceQuotas: %w", err)
	}
	return nil
}

// quotaOf is the FederatedResourceQuota of a Work: it has the name of the ResourceQuota in it.
func quotaOf(o client.Object) (client.ObjectKey, bool) {
	id, ok := OfWork(o.(*workv1alpha1.Work))
	return client.ObjectKey{Namespace: id.Namespace, Name: id.Name}, ok && id.Kind == quotaKind.Kind && id.Group == "" && !OfBinding(o.(*workv1alpha1.Work))
}

// quotaChanged lets those updates of Works pass that bear on a ResourceQuota, without decoding the
// manifests of all others.
func quotaChanged(e event.UpdateEvent) bool {
	before, after := e.ObjectOld.(*workv1alpha1.Work), e.ObjectNew.(*workv1alpha1.Work)
	if before.Generation != after.Generation || (before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil) {
		return true
	}
	s := after.Status.ManifestStatuses
	return len(s) == 1 && s[0].Identifier.Kind == quotaKind.Kind && !equality.Semantic.DeepEqual(before.Status, after.Status)
}

func (r *quotaReconciler) reconcile(ctx context.Context, req reconcile.Request) (time.Duration, error) {
	in, err := r.input(ctx, req.NamespacedName)
	if err != nil {
		return 0, err
	}
	plan := DesiredQuotaWorks(in)
	failure := errors.Join(plan.Err(), r.write(ctx, in, plan))
	if in.Quota == nil || kube.IsStale(failure) {
		return 0, failure
	}
	if r.allEvents && failure == nil && len(plan.Create)+len(plan.Update) > 0 {
		r.events.Event(in.Quota, corev1.EventTypeNormal, workv1alpha2.EventSyncWorkSucceed,
			"The ResourceQuotas of the clusters are written")
	}
	wait, err := r.report(ctx, in.Quota, plan, failure)
	return wait, errors.Join(failure, err)
}

// input reads what the Works of a FederatedResourceQuota are computed from.
func (r *quotaReconciler) input(ctx context.Context, key client.ObjectKey) (*QuotaInput, error) {
	ref := quotaReference(key)
	in := &QuotaInput{Interpreter: r.interpreter, HubID: r.hubID, Name: key, NewID: newID, Clusters: map[string]*clusterv1alpha1.Cluster{}}
	q := &policyv1alpha1.FederatedResourceQuota{}
	switch err := r.client.Get(ctx, key, q); {
	case client.IgnoreNotFound(err) != nil:
		return nil, fmt.Errorf("read the FederatedResourceQuota %s: %w", key, err)
	case err != nil || q.DeletionTimestamp != nil:
		r.written.Forget(key)
	case r.written.Stale(key, q.ResourceVersion, time.Now()):
		return nil, kube.StaleCache(q, q.ResourceVersion, "that of our last write")
	default:
		in.Quota = q
	}
	var err error
	if in.Works, err = r.writer.Works(ctx, OfReference(ref)); err != nil {
		return nil, err
	}
	var clusters []string
	for _, a := range in.assignments() {
		c := &clusterv1alpha1.Cluster{}
		if err := r.client.Get(ctx, client.ObjectKey{Name: a.ClusterName}, c); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read Cluster %s: %w", a.ClusterName, err)
		} else if err == nil && c.DeletionTimestamp == nil {
			in.Clusters[a.ClusterName] = c
			clusters = append(clusters, a.ClusterName)
		}
	}
	in.Names, err = ReadNames(ctx, r.client, ref, clusters)
	return in, err
}

func quotaReference(key client.ObjectKey) workv1alpha2.ObjectReference {
	return workv1alpha2.ObjectReference{APIVersion: "v1", Kind: quotaKind.Kind, Namespace: key.Namespace, Name: key.Name}
}

// write executes the plan. Works are deleted only if a live read confirms the cached
// FederatedResourceQuota.
func (r *quotaReconciler) write(ctx context.Context, in *QuotaInput, plan QuotaPlan) error {
	err := r.writer.Write(ctx, OfReference(quotaReference(in.Name)), plan.Writes)
	if len(plan.Delete) == 0 {
		return err
	}
	return errors.Join(err, r.remove(ctx, in.Name, in.Quota, plan.Delete))
}

// remove deletes Works, but only if a live read confirms the cached FederatedResourceQuota that
// they are computed from.
func (r *quotaReconciler) remove(ctx context.Context, key client.ObjectKey, q *policyv1alpha1.FederatedResourceQuota, works []*workv1alpha1.Work) error {
	now := &policyv1alpha1.FederatedResourceQuota{}
	err := r.live.Get(ctx, key, now)
	switch gone := apierrors.IsNotFound(err) || err == nil && now.DeletionTimestamp != nil; {
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("read the FederatedResourceQuota %s, whose ResourceQuotas are to go: %w", key, err)
	case gone != (q == nil) || q != nil && now.Generation != q.Generation:
		now.Namespace, now.Name = key.Namespace, key.Name
		return kube.StaleCache(now, "an older one", "a newer one")
	}
	return r.writer.Delete(ctx, works)
}

// report writes the status, at most once per usageInterval unless something failed, and an Event
// for a condition that is new.
func (r *quotaReconciler) report(ctx context.Context, q *policyv1alpha1.FederatedResourceQuota, plan QuotaPlan, failure error) (time.Duration, error) {
	if left := usageInterval - time.Since(r.written.LastWrite(client.ObjectKeyFromObject(q))); left > 0 && failure == nil {
		return left, nil
	}
	var bindings workv1alpha2.ResourceBindingList
	if err := r.client.List(ctx, &bindings, client.InNamespace(q.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("list the ResourceBindings in namespace %s: %w", q.Namespace, err)
	}
	next := q.DeepCopy()
	next.Status = DesiredQuotaStatus(q, bindings.Items, plan, failure)
	if equality.Semantic.DeepEqual(q.Status, next.Status) {
		return 0, nil
	}
	before := meta.FindStatusCondition(q.Status.Conditions, policyv1alpha1.ConditionAccepted)
	now := meta.FindStatusCondition(next.Status.Conditions, policyv1alpha1.ConditionAccepted)
	if now.Message != "" && (before == nil || !equality.Semantic.DeepEqual(*before, *now)) {
		r.events.Event(q, corev1.EventTypeWarning, now.Reason, now.Message)
	}
	if err := r.client.Status().Patch(ctx, next, kube.MergeFrom(q)); client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("write the status of the FederatedResourceQuota %s: %w", client.ObjectKeyFromObject(q), err)
	}
	r.written.Expect(client.ObjectKeyFromObject(q), next.ResourceVersion, time.Now())
	if r.allEvents {
		for _, reason := range []string{workv1alpha2.EventAggregateStatusSucceed,
			policyv1alpha1.EventCollectOverallStatusSucceed} {
			r.events.Event(q, corev1.EventTypeNormal, reason, "The status has what the clusters report and what is used in all")
		}
	}
	return 0, nil
}
