package work

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/placement"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/scheduler"
)

var quotaKind = corev1.SchemeGroupVersion.WithKind("ResourceQuota")

// usageInterval is the minimum between two writes of the use of a quota: each decision in its namespace changes it.
const usageInterval = time.Second

type quotaReconciler struct {
	hubID       string
	interpreter *kinds.Interpreter
	client      client.Client
	live        client.Reader // uncached, before a deletion
	events      record.EventRecorder
	writer      *Writer
	written     kube.Expectations[client.ObjectKey] // statuses
}

// SetupQuotas adds the controller of FederatedResourceQuotas to the manager; it needs AddIndexes. It writes the ResourceQuotas of static
// assignments, and the status. Enforcement is in control/hub/placement.
func SetupQuotas(mgr ctrl.Manager, hubID string) error {
	r := &quotaReconciler{hubID: hubID, interpreter: kinds.New(), client: mgr.GetClient(), live: mgr.GetAPIReader(),
		events: mgr.GetEventRecorderFor("pelago-hub"), writer: NewWriter(mgr.GetClient())}
	do, err := kube.Reconciler("federatedresourcequota", r.events, r.reconcile)
	if err != nil {
		return err
	}
	all := handler.EnqueueRequestsFromMapFunc(r.all)
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

// quotaChanged lets those updates of Works pass that bear on a ResourceQuota, without decoding the manifests of all others.
func quotaChanged(e event.UpdateEvent) bool {
	before, after := e.ObjectOld.(*workv1alpha1.Work), e.ObjectNew.(*workv1alpha1.Work)
	if before.Generation != after.Generation || (before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil) {
		return true
	}
	s := after.Status.ManifestStatuses
	return len(s) == 1 && s[0].Identifier.Kind == quotaKind.Kind && !equality.Semantic.DeepEqual(before.Status, after.Status)
}

// all are the FederatedResourceQuotas that there are, or those in the namespace of the object.
func (r *quotaReconciler) all(ctx context.Context, o client.Object) (out []reconcile.Request) {
	var list policyv1alpha1.FederatedResourceQuotaList
	if r.client.List(ctx, &list, client.InNamespace(o.GetNamespace()), client.UnsafeDisableDeepCopy) != nil {
		return nil // a running cache answers; before and after there is nothing to do
	}
	for i := range list.Items {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return out
}

func (r *quotaReconciler) reconcile(ctx context.Context, req reconcile.Request) (time.Duration, error) {
	key := req.NamespacedName
	q := &policyv1alpha1.FederatedResourceQuota{}
	if err := r.client.Get(ctx, key, q); client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("read the FederatedResourceQuota %s: %w", key, err)
	} else if err != nil || q.DeletionTimestamp != nil {
		r.written.Forget(key)
		q = nil
	} else if r.written.Stale(key, q.ResourceVersion, time.Now()) {
		return 0, kube.StaleCache(q, q.ResourceVersion, "that of our last write")
	}
	works, notes, failure := r.assign(ctx, key, q)
	if q == nil || kube.IsStale(failure) {
		return 0, failure
	}
	next := q.DeepCopy()
	if err := r.status(ctx, next, works, notes, failure); err != nil {
		return 0, errors.Join(failure, err)
	}
	if equality.Semantic.DeepEqual(q.Status, next.Status) {
		return 0, failure
	}
	if left := usageInterval - time.Since(r.written.LastWrite(key)); left > 0 && failure == nil {
		return left, nil
	}
	if err := r.client.Status().Patch(ctx, next, kube.MergeFrom(q)); client.IgnoreNotFound(err) != nil {
		return 0, errors.Join(failure, fmt.Errorf("write the status of the FederatedResourceQuota %s: %w", key, err))
	}
	r.written.Expect(key, next.ResourceVersion, time.Now())
	return 0, failure
}

// assign writes the Works with the ResourceQuotas of static assignments (q is nil: there are none any more), and returns those that exist,
// by cluster, and what a user should know of the others.
func (r *quotaReconciler) assign(ctx context.Context, key client.ObjectKey, q *policyv1alpha1.FederatedResourceQuota) (
	have map[string]*workv1alpha1.Work, notes []string, err error) {
	ref := workv1alpha2.ObjectReference{APIVersion: "v1", Kind: quotaKind.Kind, Namespace: key.Namespace, Name: key.Name}
	works, err := r.writer.Works(ctx, OfReference(ref))
	if err != nil {
		return nil, nil, err
	}
	have, placed := map[string]*workv1alpha1.Work{}, map[string]bool{}
	for _, w := range works {
		if cluster, ok := workv1alpha2.ClusterOfNamespace(w.Namespace); ok && OfBinding(w) {
			placed[cluster] = true
		} else if ok {
			have[cluster] = w
		}
	}
	surplus, seen := maps.Clone(have), map[string]bool{}
	var create, update []*workv1alpha1.Work
	if q != nil {
		for _, a := range q.Spec.StaticAssignments {
			c := &clusterv1alpha1.Cluster{}
			if err := r.client.Get(ctx, client.ObjectKey{Name: a.ClusterName}, c); client.IgnoreNotFound(err) != nil {
				return have, notes, fmt.Errorf("read Cluster %s: %w", a.ClusterName, err)
			} else if err != nil || c.DeletionTimestamp != nil {
				notes = append(notes, a.ClusterName+": no such cluster has joined")
				continue
			}
			if placed[a.ClusterName] {
				notes = append(notes, a.ClusterName+": a policy has placed a ResourceQuota of this name there: remove it from the policy")
				continue
			}
			if seen[a.ClusterName] {
				notes = append(notes, a.ClusterName+": only the first of its assignments applies")
				continue
			}
			seen[a.ClusterName] = true
			old := surplus[a.ClusterName]
			delete(surplus, a.ClusterName)
			if old != nil && old.DeletionTimestamp != nil {
				continue // a new one can be made when it has gone
			}
			next, err := r.work(ctx, ref, q, c, a.Hard, old)
			switch {
			case err != nil:
				return have, notes, fmt.Errorf("make the Work of the ResourceQuota %s for cluster %s: %w", key, a.ClusterName, err)
			case old == nil:
				create = append(create, next)
			default:
				if next = Updated(old, next); next != nil {
					update = append(update, next)
				}
			}
		}
	}
	err = errors.Join(r.writer.Create(ctx, OfReference(ref), create), r.writer.Update(ctx, OfReference(ref), update))
	if len(surplus) > 0 {
		err = errors.Join(err, r.remove(ctx, key, q, slices.Collect(maps.Values(surplus))))
	}
	return have, notes, err
}

func (r *quotaReconciler) work(ctx context.Context, ref workv1alpha2.ObjectReference, q *policyv1alpha1.FederatedResourceQuota,
	cluster *clusterv1alpha1.Cluster, hard corev1.ResourceList, old *workv1alpha1.Work) (*workv1alpha1.Work, error) {
	obj, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name, UID: q.UID}, Spec: corev1.ResourceQuotaSpec{Hard: hard}})
	if err != nil {
		return nil, err
	}
	delete(obj, "status")
	in := RenderInput{Object: &unstructured.Unstructured{Object: obj}, Cluster: cluster, HubID: r.hubID}
	in.Object.SetGroupVersionKind(quotaKind)
	if old != nil {
		in.Name, in.ID = old.Name, old.Labels[workv1alpha1.LabelWorkID]
	} else {
		names, err := ReadNames(ctx, r.client, ref, []string{cluster.Name})
		if err != nil {
			return nil, err
		}
		if in.Name, err = names.Free(cluster.Name); err != nil {
			return nil, err
		}
		in.ID = newID()
	}
	w, _, err := Render(r.interpreter, in)
	return w, err
}

// remove deletes Works, but only if a live read confirms the cached FederatedResourceQuota that they are computed from.
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

// status computes the status: what the bindings of the namespace request, and what clusters report of their ResourceQuotas.
func (r *quotaReconciler) status(ctx context.Context, q *policyv1alpha1.FederatedResourceQuota, works map[string]*workv1alpha1.Work, notes []string, failure error) error {
	var bindings workv1alpha2.ResourceBindingList
	if err := r.client.List(ctx, &bindings, client.InNamespace(q.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list the ResourceBindings in namespace %s: %w", q.Namespace, err)
	}
	var used scheduler.Load
	for i := range bindings.Items {
		used.Add(placement.Total(&bindings.Items[i].Spec), 1)
	}
	q.Status.Overall, q.Status.OverallUsed, q.Status.AggregatedStatus = q.Spec.Overall, corev1.ResourceList{}, nil
	for name := range q.Spec.Overall {
		of, ok := placement.Counted(name)
		switch n := used.Amount(of); {
		case !ok:
			notes = append(notes, string(name)+" is not enforced: only requests and pods are")
		case n != 0: // what no workload requests is left out, as in Karmada
			q.Status.OverallUsed[name] = placement.Quantity(of, n)
		}
	}
	for _, cluster := range slices.Sorted(maps.Keys(works)) {
		w := works[cluster]
		if applied := meta.FindStatusCondition(w.Status.Conditions, workv1alpha1.ConditionApplied); applied != nil && applied.Status == metav1.ConditionFalse {
			notes = append(notes, cluster+": "+applied.Message)
		}
		s := policyv1alpha1.ClusterQuotaStatus{ClusterName: cluster}
		if m := w.Status.ManifestStatuses; len(m) == 1 && m[0].Status != nil && json.Unmarshal(m[0].Status.Raw, &s.ResourceQuotaStatus) == nil {
			q.Status.AggregatedStatus = append(q.Status.AggregatedStatus, s)
		}
	}
	slices.Sort(notes)
	c := metav1.Condition{Type: policyv1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: policyv1alpha1.ReasonAccepted,
		Message: strings.Join(notes, "; "), ObservedGeneration: q.Generation}
	if failure != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, policyv1alpha1.ReasonInvalid, failure.Error()
	}
	if meta.SetStatusCondition(&q.Status.Conditions, c) && c.Message != "" {
		r.events.Event(q, corev1.EventTypeWarning, c.Reason, c.Message)
	}
	return nil
}
