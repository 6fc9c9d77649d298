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
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/placement"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/scheduler"
)

// decision is where a template runs, and the attempt to decide that led to it.
type decision struct {
	clusters    []workv1alpha2.TargetCluster
	record      *workv1alpha2.Decision
	fresh       bool                   // it was made without regard to the former one
	reservation *placement.Reservation // nil: nothing is assumed
	// written: the record of the decision differs from the former one; moved: the clusters do.
	written, moved bool
	// message reports why there is no decision, or what has no part in it.
	message string
	retry   bool
	// Of an attempt to decide: when it began (zero: there was none), whether it was the first one,
	// why it failed.
	began   time.Time
	first   bool
	failure error
	// made is what the scheduler returned; pending is why not all replicas have a cluster.
	made    scheduler.Decision
	pending error
	// descheduled are the replicas that move because no node can run them; stuck is why they stay.
	descheduled, stuck string
}

// pendingWhy is why there is no decision; empty: there is one.
func (d decision) pendingWhy() string {
	if d.record == nil || d.record.Reason == workv1alpha2.ReasonSuccess {
		return ""
	}
	return d.message
}

func (d decision) release() {
	if d.reservation != nil {
		d.reservation.Release()
	}
}

// decide completes a binding with the decision where its template runs: that by which it returns to
// clusters, else a new one if it is due, else the present one. refused is why the binding does not
// follow its template; nil: it does.
func (r *reconciler) decide(
	ctx context.Context, b binding.Binding, n *scheduler.Near, remove bool, refused error, e *placement.Eviction,
) (decision, error) {
	before := recorded(b)
	if !scheduled(b, before) {
		return decision{}, nil
	}
	now := time.Now()
	req, observed := request(b, before)
	req.Near, req.Stopped, req.Empty = n, before.Stopped, r.EmptyWorkloads
	var err error
	if req.Scores, err = r.scores(ctx, b); err != nil {
		return decision{}, err
	}
	returns, reservation, err := r.returned(b, req, e)
	if err != nil {
		return decision{}, err
	}
	hash, err := workv1alpha2.SpecHash(b.Spec)
	if err != nil {
		return decision{}, err
	}
	var out decision
	switch {
	case reservation != nil:
		out = decision{reservation: reservation, clusters: returns.Clusters, began: now,
			record: succeeded(returns, hash, now, observed.Rescheduled)}
	case b.GetAnnotations()[policyv1alpha1.AnnotationNear] != before.Near || r.Capacity.Need(req, observed) != "":
		if out, err = r.attempt(ctx, b, req, remove, e); err != nil {
			return decision{}, err
		}
		out.record = out.recordOf(before, hash, now, observed.Rescheduled)
	default:
		out = decision{clusters: b.Spec.Clusters, record: kept(before, hash, now)}
		if len(e.Unschedulable) > 0 && req.TakesRoom() && req.Undivided == "" {
			r.deschedule(b, req, e, before, hash, now, &out)
		}
	}
	if refused != nil && out.record.Reason == workv1alpha2.ReasonSuccess {
		out.record.Reason, out.record.Message = reasonOf(refused), refused.Error()
	}
	if err := out.complete(b, before, observed.Placement, e); err != nil {
		out.release()
		return decision{}, err
	}
	return out, nil
}

// attempt makes a new decision. If no affinity selects a cluster, or if remove is set and no
// cluster fits, the template is removed from all clusters; after another failure it stays where it
// is.
func (r *reconciler) attempt(ctx context.Context, b binding.Binding, req *scheduler.Request, remove bool, e *placement.Eviction) (decision, error) {
	first := recorded(b).Scheduled.IsZero()
	if len(b.Spec.Clusters) == 0 && first {
		if err := r.unreported(ctx, b.Spec.Placement); err != nil {
			return decision{}, err
		}
	}
	out := decision{began: time.Now(), first: first}
	out.made, out.reservation, out.pending, out.failure = r.reserve(b, req, e)
	if out.failure == nil {
		out.clusters, out.fresh = out.made.Clusters, req.Fresh
		return out, nil
	}
	var fit *scheduler.FitError
	if errors.As(out.failure, &fit) && (remove || fit.Unmatched) {
		return out, nil
	}
	var err error
	out.clusters, err = r.staying(ctx, b.Spec.Clusters)
	return out, err
}

// reserve asks the scheduler up to three times, each time for less: outside the clusters that the
// template has failed in, in any cluster, and for no more replicas than run. pending is why not all
// replicas have a cluster.
func (r *reconciler) reserve(b binding.Binding, req *scheduler.Request, e *placement.Eviction) (
	d scheduler.Decision, reservation *placement.Reservation, pending, err error) {
	key := capacityKey(b)
	req.Evicted = append(req.Evicted, e.Return.Excluded...)
	d, reservation, err = r.Capacity.Decide(key, req)
	if err != nil && len(e.Return.Excluded) > 0 && !e.Nearer { // better there than nowhere
		req.Evicted = req.Evicted[:len(req.Evicted)-len(e.Return.Excluded)]
		d, reservation, err = r.Capacity.Decide(key, req)
	}
	if n := e.Running(b); err != nil && n > 0 && n < req.Replicas {
		pending = err
		req.Replicas = n
		d, reservation, err = r.Capacity.Decide(key, req)
	}
	return d, reservation, pending, err
}

// recordOf is the record of an attempt; before is the record until then.
func (d decision) recordOf(before *workv1alpha2.Decision, hash string, now, asked time.Time) *workv1alpha2.Decision {
	if d.failure != nil {
		return failed(before, hash, reasonOf(d.failure), d.failure.Error(), rejections(d.made.Reasons), now)
	}
	out := succeeded(d.made, hash, now, asked)
	if d.pending != nil {
		out.Reason, out.Message = reasonOf(d.pending), d.pending.Error()
	}
	return out
}

// complete writes a decision into a binding, unless clusters and record are as before. decidedFrom
// is the placement of the former decision.
func (d *decision) complete(b binding.Binding, before *workv1alpha2.Decision, decidedFrom string, e *placement.Eviction) error {
	applied := decidedFrom
	if d.reservation != nil {
		d.record.Near = b.GetAnnotations()[policyv1alpha1.AnnotationNear]
		var err error
		if applied, err = scheduler.Applied(b.Spec.Placement); err != nil {
			return err
		}
	}
	// a fresh decision cancels the failback
	if len(e.Began) == 0 && (d.fresh || applied != decidedFrom) {
		e.Return.Record = nil
	}
	if d.record.Moved == nil || d.descheduled == "" {
		d.record.Moved = placement.Moved(before, time.Now())
	}
	d.record.Stopped = stopped(b.Spec, d.clusters, before.Stopped)
	d.record.Unhealthy, d.record.Failed, d.record.Held, d.record.Failback = e.Unhealthy, e.Failed, held(e.Held, d.stuck), e.Return.Record
	d.message, d.retry = d.record.Message, retried(d.record.Reason)
	d.moved = !equality.Semantic.DeepEqual(d.clusters, b.Spec.Clusters)
	// Karmada's order is another one
	if d.moved && equality.Semantic.DeepEqual(sortedByName(d.clusters), sortedByName(b.Spec.Clusters)) {
		d.clusters, d.moved = b.Spec.Clusters, false
	}
	if !d.moved && !d.fresh && sameRecord(before, d.record) && applied == decidedFrom {
		return nil
	}
	text, err := d.record.Encode()
	if err != nil {
		return err
	}
	d.written = true
	b.Spec.Clusters = d.clusters
	setAnnotation(b, policyv1alpha1.AnnotationAppliedPlacement, applied)
	setAnnotation(b, workv1alpha2.AnnotationDecision, text)
	return nil
}

// held is the record's reason why replicas stay in clusters that they should leave.
func held(evictions []string, stuck string) string {
	if stuck != "" {
		evictions = append(slices.Clone(evictions), stuck)
	}
	return strings.Join(evictions, "; ")
}

// stopped is the assignment to which a template returns that now has no replicas: the present one,
// or, if that has none either, the former record; nil: it has replicas, or is not divided.
func stopped(s *workv1alpha2.ResourceBindingSpec, next, former []workv1alpha2.TargetCluster) []workv1alpha2.TargetCluster {
	replicas := func(c workv1alpha2.TargetCluster) bool { return c.Replicas > 0 }
	switch {
	case !s.Placement.Divided() || len(next) == 0 || slices.ContainsFunc(next, replicas):
		return nil
	case slices.ContainsFunc(s.Clusters, replicas):
		return slices.Clone(s.Clusters)
	}
	return former
}

// sortedByName is a decision in the order of the clusters' names.
func sortedByName(clusters []workv1alpha2.TargetCluster) []workv1alpha2.TargetCluster {
	return slices.SortedFunc(slices.Values(clusters), func(a, b workv1alpha2.TargetCluster) int { return strings.Compare(a.Name, b.Name) })
}

// staying returns the clusters that are not being removed from the hub: without a decision a
// template stays where it is, but does not block the removal of a cluster. A Cluster that does not
// exist counts as staying.
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

// recorded returns the record of the last attempt to decide. For a binding decided by another
// implementation it is derived from status.
func recorded(b binding.Binding) *workv1alpha2.Decision {
	if d := workv1alpha2.ReadDecision(b.GetAnnotations()); d != nil {
		return d
	}
	d := &workv1alpha2.Decision{Term: b.Status.SchedulerObservedAffinityName}
	if b.Status.LastScheduledTime != nil {
		d.Scheduled = metav1.NewMicroTime(b.Status.LastScheduledTime.Time)
	}
	return d
}

// undecided reports whether the last attempt failed, so that another one may succeed when clusters
// change.
func undecided(b binding.Binding) bool {
	d := workv1alpha2.ReadDecision(b.GetAnnotations())
	return d != nil && retried(d.Reason)
}

func retried(reason string) bool {
	return slices.Contains([]string{workv1alpha2.ReasonSchedulerError, workv1alpha2.ReasonNoClusterFit,
		workv1alpha2.ReasonUnschedulable, workv1alpha2.ReasonQuotaExceeded}, reason)
}

// scheduled reports whether this scheduler decides for the binding and scheduling is not suspended.
func scheduled(b binding.Binding, before *workv1alpha2.Decision) bool {
	s := b.Spec
	if s.Placement == nil || foreign(s.SchedulerName) {
		return false
	}
	held := s.Suspension != nil && ptr.Deref(s.Suspension.Scheduling, false)
	return !held || !before.Scheduled.IsZero() || len(s.Clusters) > 0
}

// foreign reports whether another scheduler decides.
func foreign(schedulerName string) bool {
	return !slices.Contains([]string{"", policyv1alpha1.DefaultSchedulerName}, schedulerName)
}

// request is what is asked of the scheduler, and observed what the last decision was made from.
func request(b binding.Binding, before *workv1alpha2.Decision) (*scheduler.Request, scheduler.Observed) {
	s := b.Spec
	key, _ := keyOfReference(s.Resource) // the reference is our own
	o := scheduler.Observed{Placement: b.GetAnnotations()[policyv1alpha1.AnnotationAppliedPlacement], Scheduled: before.Scheduled.Time}
	if s.RescheduleTriggeredAt != nil {
		o.Rescheduled = s.RescheduleTriggeredAt.Time
	}
	r := &scheduler.Request{UID: s.Resource.UID, Kind: key.GVK, Namespace: s.Resource.Namespace, Placement: s.Placement, Within: b.GetAnnotations()[policyv1alpha1.AnnotationClusters],
		Replicas: s.Replicas, Requirements: s.ReplicaRequirements, Groups: s.WorkloadAffinityGroups, Components: len(s.Components), ComponentsLoad: placement.ComponentsLoad(s.Components), Current: s.Clusters, Term: before.Term,
		Undivided: b.GetAnnotations()[workv1alpha2.AnnotationUndivided], Fresh: o.Rescheduled.After(o.Scheduled)}
	for i := range s.GracefulEvictionTasks {
		// that cluster is healthy
		if t := &s.GracefulEvictionTasks[i]; t.Reason != workv1alpha2.EvictionReasonFailback {
			r.Evicted = append(r.Evicted, t.FromCluster)
		}
	}
	return r, o
}

// reasonOf is the reason of the condition Scheduled for an error of the scheduler.
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

// succeeded is the record of a decision. asked is the time of the request for rescheduling; zero if
// there was none.
func succeeded(d scheduler.Decision, hash string, now, asked time.Time) *workv1alpha2.Decision {
	at := now
	if asked.After(at) { // by a clock ahead of ours: the request is met all the same
		at = asked
	}
	return &workv1alpha2.Decision{For: hash, Time: metav1.NewMicroTime(now), Reason: workv1alpha2.ReasonSuccess, Message: d.Note,
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
	if before.Reason == workv1alpha2.ReasonSuccess {
		out.Message = before.Message // a Note
	}
	return &out
}

// sameRecord compares two records without their times, and without the reasons for which other
// clusters were not chosen: these change with every decision and are not worth a write.
func sameRecord(a, b *workv1alpha2.Decision) bool {
	return a.For == b.For && a.Held == b.Held && equality.Semantic.DeepEqual(a.Stopped, b.Stopped) && equality.Semantic.DeepEqual(a.Unhealthy, b.Unhealthy) && equality.Semantic.DeepEqual(a.Failback, b.Failback) && a.Reason == b.Reason &&
		a.Message == b.Message && a.Term == b.Term && a.Near == b.Near && maps.Equal(a.Failed, b.Failed) && equality.Semantic.DeepEqual(a.Moved, b.Moved) &&
		a.Scheduled.IsZero() == b.Scheduled.IsZero() && (!retried(a.Reason) || equality.Semantic.DeepEqual(a.Rejected, b.Rejected))
}

// unreported returns a StaleCacheError if a cluster younger than FirstReport that the placement
// selects has not reported its APIs yet or is not ready. First decisions wait for it: in a hub that
// was restored with new UIDs all clusters are in this state, and the first one to report would get
// all replicas for good.
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
