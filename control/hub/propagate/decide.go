package propagate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/placement"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/scheduler"
)

// decision is what an attempt to decide came to.
type decision struct {
	reservation *placement.Reservation // nil: nothing is assumed
	// written: the record of the decision differs from the former one; moved: the clusters do.
	written, moved bool
	// message says why there is no decision, or what has no part in it.
	message string
	retry   bool
	// Of an attempt to decide: when it began (zero: there was none), whether it was the first one, why it failed.
	began   time.Time
	first   bool
	failure error
}

func (d decision) release() {
	if d.reservation != nil {
		d.reservation.Release()
	}
}

// evict begins and ends evictions of a binding that this scheduler decides for.
func (r *reconciler) evict(b kube.Binding, nearer map[string]string, stays error) placement.Eviction {
	before, f := recorded(b), r.leaving.Load()
	s := b.Spec
	watched := s.Failover != nil && s.Failover.Application != nil || len(nearer) > 0 || before.Failback != nil
	if f == nil || !scheduled(b, before) || len(s.GracefulEvictionTasks) == 0 && !watched && !f.Concerns(s) {
		return placement.Eviction{}
	}
	after, _ := policyv1alpha1.FailbackOf(b.GetAnnotations()) // a policy with another value is not valid
	now := time.Now()
	v := placement.Evictor{EvictionOptions: r.Eviction, Clusters: *f, Now: now, FailbackAfter: after, Nearer: nearer, Stays: stays,
		Take: func(cluster string) time.Duration { return r.evictions.Take(cluster, capacityKey(b), now) }}
	return v.Evict(b, before)
}

// keepPlaces gives the binding back its places in the eviction rates if a step is not carried out, so that it need not queue again.
func (r *reconciler) keepPlaces(b kube.Binding, e placement.Eviction) {
	for _, task := range e.Began {
		if task.Reason != workv1alpha2.EvictionReasonFailback {
			r.evictions.Keep(task.FromCluster, capacityKey(b), time.Now())
		}
	}
	if len(e.Return.Clusters) > 0 { // one place, of the first
		r.evictions.Keep(e.Return.Clusters[0], capacityKey(b), time.Now())
	}
}

// place completes a binding with its evictions and with the decision where its template runs. The template leaves no cluster for which
// there is no replacement.
func (r *reconciler) place(ctx context.Context, b kube.Binding, remove bool) (kube.Binding, decision, placement.Eviction, error) {
	former := b.Copy()
	n, err := r.near(ctx, b)
	if err != nil {
		return b, decision{}, placement.Eviction{}, err
	}
	nearer := r.nearer(b, n)
	e := r.evict(b, nearer, nil)
	leaving := e.Began
	d, err := r.decide(ctx, b, n, remove && len(e.Began) == 0, &e)
	if err == nil && d.failure != nil && len(e.Began) > 0 {
		d.release()
		r.keepPlaces(b, placement.Eviction{Began: leaving})
		b = former
		e = r.evict(b, nearer, d.failure)
		d, err = r.decide(ctx, b, n, remove, &e)
	}
	return b, d, e, err
}

// decide completes a binding with the decision where its template runs: the existing one, unless a new one is due. If no affinity
// selects a cluster, or if remove is set and no cluster fits, the template is removed from all clusters.
func (r *reconciler) decide(ctx context.Context, b kube.Binding, n *scheduler.Near, remove bool, e *placement.Eviction) (decision, error) {
	before := recorded(b)
	if !scheduled(b, before) {
		return decision{}, nil
	}
	hash, err := workv1alpha2.SpecHash(b.Spec)
	if err != nil {
		return decision{}, err
	}
	now := time.Now()
	req, observed := request(b, before)
	req.Near = n
	wanted := b.GetAnnotations()[policyv1alpha1.AnnotationNear]
	applied, clusters, record := observed.Placement, b.Spec.Clusters, kept(before, hash, now)
	var out decision
	fresh := false
	d, reservation, err := r.returned(b, req, e)
	switch {
	case err != nil:
		return decision{}, err
	case reservation != nil:
		if hash, err = workv1alpha2.SpecHash(b.Spec); err != nil {
			return decision{}, err
		}
		out.began, out.reservation, clusters = now, reservation, d.Clusters
		record = succeeded(d, hash, now, observed.Rescheduled)
	case wanted != before.Near || r.Capacity.Need(req, observed) != "":
		if len(b.Spec.Clusters) == 0 && before.Scheduled.IsZero() {
			if err := r.unreported(ctx, b.Spec.Placement); err != nil {
				return decision{}, err
			}
		}
		out.began, out.first = time.Now(), before.Scheduled.IsZero()
		req.Evicted = append(req.Evicted, e.Return.Excluded...)
		d, reservation, err := r.Capacity.Decide(capacityKey(b), req)
		if err != nil && len(e.Return.Excluded) > 0 && !e.Nearer { // better there than nowhere
			req.Evicted = req.Evicted[:len(req.Evicted)-len(e.Return.Excluded)]
			d, reservation, err = r.Capacity.Decide(capacityKey(b), req)
		}
		pending := err
		if n := e.Running(b); pending != nil && n > 0 && n < req.Replicas {
			req.Replicas = n
			d, reservation, err = r.Capacity.Decide(capacityKey(b), req)
		}
		if err != nil {
			out.failure = err
			record = failed(before, hash, reasonOf(err), err.Error(), rejections(d.Reasons), now)
			var fit *scheduler.FitError
			if errors.As(err, &fit) && (remove || fit.Unmatched) {
				clusters = nil
			} else if clusters, err = r.staying(ctx, clusters); err != nil {
				return decision{}, err
			}
			break
		}
		out.reservation, fresh, clusters = reservation, req.Fresh, d.Clusters
		record = succeeded(d, hash, now, observed.Rescheduled)
		if pending != nil {
			record.Reason, record.Message = reasonOf(pending), pending.Error()
		}
	}
	if out.reservation != nil {
		record.Near = wanted
		if applied, err = scheduler.Applied(b.Spec.Placement); err != nil {
			out.release()
			return decision{}, err
		}
	}
	if len(e.Began) == 0 && (fresh || applied != observed.Placement) { // a fresh decision cancels the failback
		e.Return.Record = nil
	}
	record.Unhealthy, record.Failed, record.Held, record.Failback = e.Unhealthy, e.Failed, strings.Join(e.Held, "; "), e.Return.Record
	out.message, out.retry = record.Message, retried(record.Reason)
	out.moved = !equality.Semantic.DeepEqual(clusters, b.Spec.Clusters)
	if out.moved && equality.Semantic.DeepEqual(sortedByName(clusters), sortedByName(b.Spec.Clusters)) { // Karmada's order is another one
		clusters, out.moved = b.Spec.Clusters, false
	}
	if !out.moved && !fresh && sameRecord(before, record) && applied == observed.Placement {
		return out, nil
	}
	text, err := record.Encode()
	if err != nil {
		out.release()
		return decision{}, err
	}
	out.written = true
	b.Spec.Clusters = clusters
	setAnnotation(b, policyv1alpha1.AnnotationAppliedPlacement, applied)
	setAnnotation(b, workv1alpha2.AnnotationDecision, text)
	return out, nil
}

// places says in words where a template runs.
func places(clusters []workv1alpha2.TargetCluster) string {
	if len(clusters) == 0 {
		return "no cluster"
	}
	var out []string
	for _, c := range clusters {
		if c.Replicas > 0 {
			out = append(out, fmt.Sprintf("%s (%d)", c.Name, c.Replicas))
		} else {
			out = append(out, c.Name)
		}
	}
	return strings.Join(out, ", ")
}

// sortedByName is a decision in the order of the clusters' names.
func sortedByName(clusters []workv1alpha2.TargetCluster) []workv1alpha2.TargetCluster {
	return slices.SortedFunc(slices.Values(clusters), func(a, b workv1alpha2.TargetCluster) int { return strings.Compare(a.Name, b.Name) })
}

// staying returns the clusters that are not being removed from the hub: without a decision a template stays where it is, but does not
// block the removal of a cluster. A Cluster that does not exist counts as staying.
func (r *reconciler) staying(ctx context.Context, all []workv1alpha2.TargetCluster) ([]workv1alpha2.TargetCluster, error) {
	var out []workv1alpha2.TargetCluster
	for _, t := range all {
		var c clusterv1alpha1.Cluster
		err := r.cache.Get(ctx, client.ObjectKey{Name: t.Name}, &c)
		switch {
		case err != nil && !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("read Cluster %s: %w", t.Name, err)
		case c.DeletionTimestamp == nil:
			out = append(out, t)
		}
	}
	return out, nil
}

// named is how many clusters are named in a record for each reason.
const named = 10

// recorded returns the record of the last attempt to decide. For a binding decided by another implementation it is derived from status.
func recorded(b kube.Binding) *workv1alpha2.Decision {
	if d := workv1alpha2.ReadDecision(b.GetAnnotations()); d != nil {
		return d
	}
	d := &workv1alpha2.Decision{Term: b.Status.SchedulerObservedAffinityName}
	if b.Status.LastScheduledTime != nil {
		d.Scheduled = metav1.NewMicroTime(b.Status.LastScheduledTime.Time)
	}
	return d
}

// undecided reports whether the last attempt failed, so that another one may succeed when clusters change.
func undecided(b kube.Binding) bool {
	d := workv1alpha2.ReadDecision(b.GetAnnotations())
	return d != nil && retried(d.Reason)
}

func retried(reason string) bool {
	return slices.Contains([]string{workv1alpha2.ReasonSchedulerError, workv1alpha2.ReasonNoClusterFit,
		workv1alpha2.ReasonUnschedulable, workv1alpha2.ReasonQuotaExceeded}, reason)
}

// scheduled reports whether this scheduler decides for the binding and scheduling is not suspended.
func scheduled(b kube.Binding, before *workv1alpha2.Decision) bool {
	s := b.Spec
	if s.Placement == nil || foreign(s.SchedulerName) {
		return false
	}
	held := s.Suspension != nil && ptr.Deref(s.Suspension.Scheduling, false)
	return !held || !before.Scheduled.IsZero() || len(s.Clusters) > 0
}

// request is what is asked of the scheduler, and observed what the last decision was made from.
func request(b kube.Binding, before *workv1alpha2.Decision) (*scheduler.Request, scheduler.Observed) {
	s := b.Spec
	key, _ := keyOfReference(s.Resource) // the reference is our own
	o := scheduler.Observed{Placement: b.GetAnnotations()[policyv1alpha1.AnnotationAppliedPlacement], Scheduled: before.Scheduled.Time}
	if s.RescheduleTriggeredAt != nil {
		o.Rescheduled = s.RescheduleTriggeredAt.Time
	}
	r := &scheduler.Request{UID: s.Resource.UID, Kind: key.GVK, Placement: s.Placement, Replicas: s.Replicas,
		Requirements: s.ReplicaRequirements, Groups: s.WorkloadAffinityGroups, Components: len(s.Components), ComponentsLoad: placement.ComponentsLoad(s.Components), Current: s.Clusters, Term: before.Term,
		Fresh: o.Rescheduled.After(o.Scheduled)}
	for i := range s.GracefulEvictionTasks {
		if t := &s.GracefulEvictionTasks[i]; t.Reason != workv1alpha2.EvictionReasonFailback { // that cluster is healthy
			r.Evicted = append(r.Evicted, t.FromCluster)
		}
	}
	return r, o
}

// reasonOf is that of the condition Scheduled for what the scheduler says.
func reasonOf(err error) string {
	var fit *scheduler.FitError
	var quota *placement.QuotaError
	switch {
	case errors.As(err, &fit):
		return workv1alpha2.ReasonNoClusterFit
	case errors.As(err, &quota):
		return workv1alpha2.ReasonQuotaExceeded
	case scheduler.Invalid(err):
		return workv1alpha2.ReasonSchedulerError
	}
	return workv1alpha2.ReasonUnschedulable
}

// rejections are the reasons as a record has them.
func rejections(of scheduler.Reasons) (out []workv1alpha2.Rejection) {
	for _, r := range of.Grouped(named) {
		out = append(out, workv1alpha2.Rejection{Why: r.Why, Clusters: r.Clusters, More: r.Count - len(r.Clusters)})
	}
	return out
}

// succeeded is the record of a decision. asked is the time of the request for rescheduling; zero if there was none.
func succeeded(d scheduler.Decision, hash string, now, asked time.Time) *workv1alpha2.Decision {
	at := now
	if asked.After(at) { // by a clock ahead of ours: the request is met all the same
		at = asked
	}
	return &workv1alpha2.Decision{For: hash, Time: metav1.NewMicroTime(now), Reason: workv1alpha2.ReasonSuccess,
		Scheduled: metav1.NewMicroTime(at), Term: d.Term, Rejected: rejections(d.Reasons)}
}

// failed is the record of an attempt that led to nothing; before is the record until then.
func failed(before *workv1alpha2.Decision, hash, reason, message string, rejected []workv1alpha2.Rejection,
	now time.Time) *workv1alpha2.Decision {
	return &workv1alpha2.Decision{For: hash, Time: metav1.NewMicroTime(now), Reason: reason, Message: message,
		Scheduled: before.Scheduled, Term: before.Term, Near: before.Near, Rejected: rejected}
}

// kept is the record if what was decided holds for a changed binding, too.
func kept(before *workv1alpha2.Decision, hash string, now time.Time) *workv1alpha2.Decision {
	out := *before
	out.For, out.Time, out.Reason, out.Message = hash, metav1.NewMicroTime(now), workv1alpha2.ReasonSuccess, ""
	return &out
}

// sameRecord compares two records without their times, and without the reasons for which other clusters were not chosen: these
// change with every decision and are not worth a write.
func sameRecord(a, b *workv1alpha2.Decision) bool {
	return a.For == b.For && a.Held == b.Held && equality.Semantic.DeepEqual(a.Unhealthy, b.Unhealthy) && equality.Semantic.DeepEqual(a.Failback, b.Failback) && a.Reason == b.Reason &&
		a.Message == b.Message && a.Term == b.Term && a.Near == b.Near && maps.Equal(a.Failed, b.Failed) &&
		a.Scheduled.IsZero() == b.Scheduled.IsZero() && (!retried(a.Reason) || equality.Semantic.DeepEqual(a.Rejected, b.Rejected))
}

// unreported returns a StaleCacheError if a cluster younger than FirstReport that the placement selects has not reported its APIs yet
// or is not ready. First decisions wait for it: in a hub that was restored with new UIDs all clusters are in this state, and the first
// one to report would get all replicas for good.
func (r *reconciler) unreported(ctx context.Context, p *policyv1alpha1.Placement) error {
	var list clusterv1alpha1.ClusterList
	if err := r.cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list Clusters: %w", err)
	}
	for i := range list.Items {
		c := &list.Items[i]
		tainted := slices.ContainsFunc(c.Spec.Taints, func(t clusterv1alpha1.Taint) bool {
			return t.Key == clusterv1alpha1.TaintNotReady
		})
		silent := (len(c.Status.APIEnablements) == 0 || tainted) && c.DeletionTimestamp == nil && !c.Refused() && c.Accepted()
		if silent && time.Since(c.CreationTimestamp.Time) < r.FirstReport && scheduler.Selects(p, c) {
			return kube.StaleCache(c.DeepCopy(), c.ResourceVersion, "its first report")
		}
	}
	return nil
}
