package placement

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
)

// EvictionOptions are when templates leave clusters.
type EvictionOptions struct {
	// ClusterFailure is how long a cluster must not have been ready before templates with
	// failover.cluster leave it; 0: 5 s.
	ClusterFailure time.Duration
	// ReachableClusterFailure is the same for one that other clusters reach in the data plane: the
	// hub alone may be cut off from it; 0: 5 min.
	ReachableClusterFailure time.Duration
	// Timeout ends a graceful eviction that has no gracePeriodSeconds; 0: 10 min.
	Timeout time.Duration
	// Rate is how many templates leave one cluster per second at most, as many at once; 0: 20.
	Rate float64
	// HaltedAbove is the share of clusters that are not ready above which no template leaves for
	// that reason: the hub's own connection may be the fault; 0: 0.55.
	HaltedAbove float64
	// UnschedulableAfter is how long no node of a cluster must have been able to run replicas before
	// they move to others; 0: 5 min; below 0: they stay.
	UnschedulableAfter time.Duration
}

func (o EvictionOptions) Defaulted() EvictionOptions {
	o.ClusterFailure = cmp.Or(o.ClusterFailure, 5*time.Second)
	o.ReachableClusterFailure = cmp.Or(o.ReachableClusterFailure, 5*time.Minute)
	o.Timeout = cmp.Or(o.Timeout, 10*time.Minute)
	o.Rate = cmp.Or(o.Rate, 20)
	o.HaltedAbove = cmp.Or(o.HaltedAbove, 0.55)
	o.UnschedulableAfter = cmp.Or(o.UnschedulableAfter, 5*time.Minute)
	return o
}

// Fate is why templates may have to leave a cluster.
type Fate struct {
	Taints []corev1.Taint // NoExecute
	Failed time.Time      // since when it has not been ready; zero: it is
	// Reachable reports that other clusters reach it in the data plane, although it is not ready.
	Reachable bool
}

// Clusters are the clusters that templates may have to leave, by name.
type Clusters struct {
	Of map[string]Fate
	// Ready are the clusters to which templates may return; one that is being removed is not among
	// them.
	Ready map[string]Readiness
	// Halted is the reason why no template leaves a failed cluster; "" if templates leave it.
	Halted string
}

// ReadClusters reads the clusters. One that has never been ready is not failed: nothing has run
// there.
func ReadClusters(clusters []clusterv1alpha1.Cluster, haltedAbove float64) Clusters {
	out := Clusters{Of: map[string]Fate{}, Ready: map[string]Readiness{}}
	// only of clusters that can have a template: a cluster reports its kinds after it was accepted
	// and first ready
	members, failed := 0, 0
	for i := range clusters {
		c := &clusters[i]
		ready := c.Ready()
		if c.DeletionTimestamp != nil || c.Refused() || ready == nil {
			continue
		}
		counted := 0
		if c.Accepted() && (ready.Status == metav1.ConditionTrue || len(c.Status.APIEnablements) > 0) {
			counted = 1
		}
		members += counted
		var f Fate
		var back Readiness
		if ready.Status == metav1.ConditionTrue {
			back.Since = ready.LastTransitionTime.Time
		} else if ready.Reason != clusterv1alpha1.ReasonClusterStatusNeverUpdated {
			failed += counted
			f.Failed = ready.LastTransitionTime.Time
			f.Reachable = meta.IsStatusConditionTrue(c.Status.Conditions, clusterv1alpha1.ConditionDataPlaneReachable)
		}
		for _, t := range c.Spec.Taints {
			if t.Effect == corev1.TaintEffectNoExecute {
				f.Taints = append(f.Taints, corev1.Taint(t))
			}
			if t.Effect != corev1.TaintEffectPreferNoSchedule {
				back.Taints = append(back.Taints, corev1.Taint(t))
			}
		}
		out.Ready[c.Name] = back
		if len(f.Taints) > 0 || !f.Failed.IsZero() {
			out.Of[c.Name] = f
		}
	}
	if members > 0 && float64(failed)/float64(members) > haltedAbove {
		out.Halted = fmt.Sprintf("%d of %d clusters are not ready at once, which looks like a fault of the hub's own connection", failed, members)
	}
	return out
}

// Equal reports whether templates have to leave the same clusters for the same reasons.
func (f Clusters) Equal(other Clusters) bool {
	return f.Halted == other.Halted && maps.EqualFunc(f.Of, other.Of, func(a, b Fate) bool {
		return a.Failed.Equal(b.Failed) && a.Reachable == b.Reachable && equality.Semantic.DeepEqual(a.Taints, b.Taints)
	})
}

// Concerns reports whether a binding may have to leave a cluster.
func (f Clusters) Concerns(s *workv1alpha2.ResourceBindingSpec) bool {
	return slices.ContainsFunc(s.Clusters, func(t workv1alpha2.TargetCluster) bool { _, ok := f.Of[t.Name]; return ok })
}

// Eviction is what Evict has changed of a binding.
type Eviction struct {
	Began []workv1alpha2.GracefulEvictionTask
	Ended []string // clusters
	// Unhealthy is since when the template has been unhealthy in clusters.
	Unhealthy map[string]metav1.MicroTime
	// Failed are the clusters that this very template has left because it was unhealthy there, with
	// its hash.
	Failed map[string]string
	// Nearer: it leaves a cluster for a nearer one, but stays if no other than Return.Excluded can
	// have it.
	Nearer bool
	// Held is why the template stays in a cluster that it should leave.
	Held   []string
	Return Return
	// Unschedulable are replicas that no node of their cluster can run.
	Unschedulable []workv1alpha2.TargetCluster
	// Next is how long until something may be due; 0: never.
	Next time.Duration
}

func (e *Eviction) wait(d time.Duration) {
	d = max(d, 100*time.Millisecond)
	if e.Next == 0 || d < e.Next {
		e.Next = d
	}
}

// Running is how many replicas of a divided template run while it begins to leave clusters: these
// are replaced, even if more that are pending fit nowhere. It is 0 if it leaves none.
func (e *Eviction) Running(b binding.Binding) (n int32) {
	if len(e.Began) == 0 || len(b.Spec.Components) > 0 || !b.Spec.Placement.Divided() {
		return 0
	}
	for _, c := range b.Spec.Clusters {
		n += c.Replicas
	}
	for i := range e.Began {
		n += ptr.Deref(e.Began[i].Replicas, 0)
	}
	return n
}

// Evictor decides which clusters templates leave.
type Evictor struct {
	EvictionOptions
	Clusters
	Now time.Time
	// FailbackAfter is how long a cluster must have been healthy before a template returns to it;
	// 0: it does not.
	FailbackAfter time.Duration
	// Take takes a place in the rate of a cluster, and returns how long the template waits for it;
	// 0: it leaves now.
	Take func(cluster string) time.Duration
	// Nearer is why the template leaves clusters for nearer ones, by cluster.
	Nearer map[string]string
	// Barred are the clusters that its namespace must not use any longer.
	Barred []string
	// Stays is why no template leaves a cluster: no other can have it.
	Stays error
}

// Evict ends the eviction tasks of a binding that are over, and begins those that are due: the
// cluster is taken from spec.clusters and becomes a task. The rules are Karmada's, except that for
// templates with failover.cluster a cluster's failure itself is a reason.
func (v *Evictor) Evict(b binding.Binding, before *workv1alpha2.Decision) Eviction {
	var e Eviction
	former := b.Spec.Clusters
	v.end(b, before, &e)
	v.watchHealth(b, before, &e)
	failed := FailedIn(b, before)
	for _, name := range failed {
		e.failed(b, name)
	}
	names := make([]string, 0, len(b.Spec.Clusters))
	for _, t := range b.Spec.Clusters {
		names = append(names, t.Name)
	}
	var stay []workv1alpha2.TargetCluster
	for _, t := range b.Spec.Clusters {
		task, ok := v.due(b, t, &e)
		switch {
		case ok && v.Stays != nil:
			e.Held = append(e.Held, fmt.Sprintf("%s: it stays in cluster %s, since no other can have it: %v", task.Message, t.Name, v.Stays))
			ok = false
		case ok:
			if d := v.Take(t.Name); d > 0 {
				e.wait(d)
				ok = false
			}
		}
		if !ok {
			stay = append(stay, t)
			continue
		}
		task.FromCluster, task.CreationTimestamp, task.ClustersBeforeFailover = t.Name, v.began(), names
		if t.Replicas > 0 {
			task.Replicas = ptr.To(t.Replicas)
		}
		e.Began = append(e.Began, task)
		delete(e.Unhealthy, t.Name)
		switch task.Reason {
		case workv1alpha2.EvictionReasonApplicationFailure:
			e.failed(b, t.Name)
		case workv1alpha2.EvictionReasonNearerCluster:
			e.Nearer = true
		}
	}
	if len(e.Began) > 0 {
		b.Spec.Clusters = stay
		b.Spec.GracefulEvictionTasks = append(b.Spec.GracefulEvictionTasks, e.Began...)
	}
	v.failback(b, before, former, &e)
	v.unschedulable(b, &e)
	// else the cluster where it runs is preferred
	if b.GetAnnotations()[policyv1alpha1.AnnotationNear] != "" {
		e.Return.Excluded = append(e.Return.Excluded, failed...)
	}
	for _, t := range b.Spec.GracefulEvictionTasks {
		if !timed(t) {
			continue
		}
		if left := t.CreationTimestamp.Add(v.timeout(t)).Sub(v.Now); t.SuppressDeletion == nil && left > 0 {
			e.wait(left)
		}
	}
	return e
}

// began is the time of a new task. It is stored in whole seconds, so it is rounded up: a grace
// period must not be too short.
func (v *Evictor) began() *metav1.Time {
	at := v.Now.Truncate(time.Second)
	if at.Before(v.Now) {
		at = at.Add(time.Second)
	}
	return &metav1.Time{Time: at}
}

func (v *Evictor) timeout(t workv1alpha2.GracefulEvictionTask) time.Duration {
	if t.GracePeriodSeconds != nil {
		return time.Duration(*t.GracePeriodSeconds) * time.Second
	}
	return v.Timeout
}

// timed reports whether a task ends when its time is up. One of purge mode Directly does not: until
// its copy is gone, another one could run next to it. Nor does one by which a template only moves:
// its former cluster is as good as the new one.
func timed(t workv1alpha2.GracefulEvictionTask) bool {
	return t.PurgeMode.Current() != policyv1alpha1.PurgeModeDirectly && t.Reason != workv1alpha2.EvictionReasonFailback &&
		t.Reason != workv1alpha2.EvictionReasonNearerCluster
}

// purged reports whether purge mode Directly has removed the copy of the template: no Work is left
// but those of spec.clusters.
func purged(b binding.Binding, t workv1alpha2.GracefulEvictionTask) bool {
	c := meta.FindStatusCondition(b.Status.Conditions, workv1alpha2.ConditionFullyApplied)
	return t.PurgeMode.Current() == policyv1alpha1.PurgeModeDirectly && c != nil && c.Status == metav1.ConditionTrue &&
		c.ObservedGeneration == b.GetGeneration()
}

// statusDelay is how long a status may be older than a decision. Then what is healthy counts
// whatever its replicas: overrides, an autoscaler or an owner in the member may want fewer than the
// scheduler has assigned.
const statusDelay = time.Minute

// end removes the tasks that are over: a user has allowed it, the time is up and another cluster
// has the template, or it is healthy in all chosen clusters. While more replicas are pending, that
// ends only tasks Directly whose copy is gone: they may need that cluster.
func (v *Evictor) end(b binding.Binding, before *workv1alpha2.Decision, e *Eviction) {
	healthy := len(b.Spec.Clusters) > 0
	for _, t := range b.Spec.Clusters {
		if healthy && !Settled(b.Status, t.Name, t.Replicas) {
			healthy = v.Of[t.Name].Failed.IsZero() && Settled(b.Status, t.Name, 0)
			if left := statusDelay - v.Now.Sub(before.Scheduled.Time); healthy && left > 0 {
				healthy = false
				if len(b.Spec.GracefulEvictionTasks) > 0 {
					e.wait(left)
				}
			}
		}
	}
	b.Spec.GracefulEvictionTasks = slices.DeleteFunc(b.Spec.GracefulEvictionTasks, func(t workv1alpha2.GracefulEvictionTask) bool {
		over := false
		switch {
		case t.SuppressDeletion != nil:
			over = !*t.SuppressDeletion
		case t.CreationTimestamp != nil:
			over = healthy && (before.Reason == workv1alpha2.ReasonSuccess || purged(b, t)) ||
				timed(t) && len(b.Spec.Clusters) > 0 && v.Now.Sub(t.CreationTimestamp.Time) >= v.timeout(t)
		}
		if over {
			e.Ended = append(e.Ended, t.FromCluster)
		}
		return over
	})
	for i := range b.Spec.GracefulEvictionTasks { // of another controller
		if t := &b.Spec.GracefulEvictionTasks[i]; t.CreationTimestamp == nil {
			t.CreationTimestamp = v.began()
		}
	}
}

// watchHealth notes since when the template has been unhealthy.
func (v *Evictor) watchHealth(b binding.Binding, before *workv1alpha2.Decision, e *Eviction) {
	if b.Spec.Failover == nil || b.Spec.Failover.Application == nil {
		return
	}
	for _, t := range b.Spec.Clusters {
		if s := statusIn(b.Status, t.Name); s == nil || s.Health != workv1alpha2.ResourceUnhealthy {
			continue
		}
		since, ok := before.Unhealthy[t.Name]
		if !ok || since.After(v.Now) { // the clock was set back
			since = metav1.NewMicroTime(v.Now)
		}
		if e.Unhealthy == nil {
			e.Unhealthy = map[string]metav1.MicroTime{}
		}
		e.Unhealthy[t.Name] = since
	}
}

// FailedIn are the clusters that this very template has left because it was unhealthy there,
// sorted: it does not move there to be nearer to something, since it would leave them again.
func FailedIn(b binding.Binding, before *workv1alpha2.Decision) (out []string) {
	if b.Spec.Failover == nil || b.Spec.Failover.Application == nil {
		return nil
	}
	for _, cluster := range slices.Sorted(maps.Keys(before.Failed)) {
		if before.Failed[cluster] == b.GetAnnotations()[workv1alpha2.AnnotationTemplate] && !has(b.Spec.Clusters, cluster) {
			out = append(out, cluster)
		}
	}
	return out
}

func (e *Eviction) failed(b binding.Binding, cluster string) {
	if e.Failed == nil {
		e.Failed = map[string]string{}
	}
	e.Failed[cluster] = b.GetAnnotations()[workv1alpha2.AnnotationTemplate]
}

// due is the task of a cluster that the template is to leave now.
func (v *Evictor) due(b binding.Binding, t workv1alpha2.TargetCluster, e *Eviction) (workv1alpha2.GracefulEvictionTask, bool) {
	f := v.Of[t.Name]
	failover := ptr.Deref(b.Spec.Failover, policyv1alpha1.FailoverBehavior{})
	if slices.Contains(v.Barred, t.Name) {
		reason := fmt.Sprintf("namespace %s must not use cluster %s (annotation %s)", b.GetNamespace(), t.Name, policyv1alpha1.AnnotationClusters)
		return v.task(b, t, clusterTask(failover.Cluster, workv1alpha2.EvictionReasonNotOpen, workv1alpha2.EvictionProducerHub, reason),
			preservationOf(failover.Cluster), e)
	}
	if reason, after := untolerated(f.Taints, b.Spec.Placement, v.Now); reason != "" {
		switch {
		case after > 0:
			e.wait(after)
		case v.Halted != "" && !f.Failed.IsZero():
			// a ClusterTaintPolicy may have tainted it because it failed
			e.Held = append(e.Held, reason+": it stays in cluster "+t.Name+", since "+v.Halted)
		default:
			return v.task(b, t, clusterTask(failover.Cluster, workv1alpha2.EvictionReasonTaintUntolerated, workv1alpha2.EvictionProducerTaintManager, reason),
				preservationOf(failover.Cluster), e)
		}
	}
	if failover.Cluster != nil && !f.Failed.IsZero() {
		reason := fmt.Sprintf("cluster %s has not been ready since %s", t.Name, f.Failed.UTC().Format(time.RFC3339))
		patience := v.ClusterFailure
		if f.Reachable {
			patience = max(patience, v.ReachableClusterFailure)
		}
		until := f.Failed.Add(patience)
		switch after := until.Sub(v.Now); {
		case after > 0 && f.Reachable:
			e.Held = append(e.Held, fmt.Sprintf("%s: it stays there until %s, since other clusters reach its data plane", reason,
				until.UTC().Format(time.RFC3339)))
			e.wait(after)
		case after > 0:
			e.wait(after)
		case v.Halted != "":
			e.Held = append(e.Held, reason+": it stays there, since "+v.Halted)
		default:
			return v.task(b, t, clusterTask(failover.Cluster, workv1alpha2.EvictionReasonClusterFailure, workv1alpha2.EvictionProducerHub, reason),
				preservationOf(failover.Cluster), e)
		}
	}
	since, unhealthy := e.Unhealthy[t.Name]
	if a := failover.Application; a != nil && unhealthy {
		tolerated := time.Duration(ptr.Deref(a.DecisionConditions.TolerationSeconds, defaultUnhealthy)) * time.Second
		if after := since.Add(tolerated).Sub(v.Now); after > 0 {
			e.wait(after)
			return workv1alpha2.GracefulEvictionTask{}, false
		}
		task := workv1alpha2.GracefulEvictionTask{
			Reason: workv1alpha2.EvictionReasonApplicationFailure, Producer: workv1alpha2.EvictionProducerHub, PurgeMode: a.PurgeMode.Current(),
			Message: fmt.Sprintf("unhealthy in cluster %s since %s", t.Name, since.UTC().Format(time.RFC3339)),
		}
		switch task.PurgeMode {
		case policyv1alpha1.PurgeModeGracefully:
			task.GracePeriodSeconds = a.GracePeriodSeconds
		case policyv1alpha1.PurgeModeNever:
			task.SuppressDeletion = ptr.To(true)
		}
		return v.task(b, t, task, a.StatePreservation, e)
	}
	if reason := v.Nearer[t.Name]; reason != "" {
		return workv1alpha2.GracefulEvictionTask{Reason: workv1alpha2.EvictionReasonNearerCluster, Producer: workv1alpha2.EvictionProducerHub,
			PurgeMode: policyv1alpha1.PurgeModeGracefully, Message: reason}, true
	}
	return workv1alpha2.GracefulEvictionTask{}, false
}

// defaultUnhealthy is decisionConditions.tolerationSeconds where it is not set.
const defaultUnhealthy = 300

// clusterTask is the task of a template that leaves a cluster because of the cluster.
func clusterTask(c *policyv1alpha1.ClusterFailoverBehavior, reason, producer, message string) workv1alpha2.GracefulEvictionTask {
	mode := policyv1alpha1.PurgeModeGracefully
	if c != nil && c.PurgeMode != "" {
		mode = c.PurgeMode.Current()
	}
	return workv1alpha2.GracefulEvictionTask{Reason: reason, Producer: producer, Message: message, PurgeMode: mode}
}

// task completes a task with the state to be preserved. A template whose state cannot be read
// stays: it would start from nothing.
func (v *Evictor) task(b binding.Binding, t workv1alpha2.TargetCluster, task workv1alpha2.GracefulEvictionTask, p *policyv1alpha1.StatePreservation,
	e *Eviction,
) (workv1alpha2.GracefulEvictionTask, bool) {
	labels, err := preserve(p, statusIn(b.Status, t.Name))
	if err != nil {
		e.Held = append(e.Held, fmt.Sprintf("%s: it stays there, since its state cannot be preserved: %v", task.Message, err))
		return task, false
	}
	task.PreservedLabelState = labels
	return task, true
}

// tolerationOf is the first toleration of a taint, the one that counts for pods, too; nil: it is
// not tolerated.
func tolerationOf(t corev1.Taint, p *policyv1alpha1.Placement) *policyv1alpha1.Toleration {
	i := slices.IndexFunc(p.ClusterTolerations, func(c policyv1alpha1.Toleration) bool {
		return c.Tolerates(t)
	})
	if i < 0 {
		return nil
	}
	return &p.ClusterTolerations[i]
}

// longest is the longest time of a toleration that a time.Duration holds, in seconds.
const longest = int64(math.MaxInt64 / time.Second)

// untolerated is why the taints of a cluster make a template leave it, and how long until then; "":
// they do not. A toleration with a time counts from when the taint was added (as of pods:
// corev1.Toleration).
func untolerated(taints []corev1.Taint, p *policyv1alpha1.Placement, now time.Time) (reason string, after time.Duration) {
	for _, t := range taints {
		left := time.Duration(0)
		toleration := tolerationOf(t, p)
		if toleration != nil {
			if toleration.TolerationSeconds == nil {
				continue
			}
			left = time.Duration(min(max(0, *toleration.TolerationSeconds), longest)) * time.Second
			if t.TimeAdded != nil { // else its time is being filled in
				left = max(0, t.TimeAdded.Add(left).Sub(now))
			}
		}
		if reason == "" || left < after {
			reason, after = "taint "+t.ToString()+" is not tolerated", left
			if toleration != nil {
				reason = "taint " + t.ToString() + " is not tolerated any longer"
			}
		}
	}
	return reason, after
}

// statusIn is what a cluster reports of a template; nil: nothing yet.
func statusIn(s *workv1alpha2.ResourceBindingStatus, cluster string) *workv1alpha2.AggregatedStatusItem {
	i := slices.IndexFunc(s.AggregatedStatus, func(a workv1alpha2.AggregatedStatusItem) bool { return a.ClusterName == cluster })
	if i < 0 {
		return nil
	}
	return &s.AggregatedStatus[i]
}

// Settled reports whether the replicas of a cluster are healthy. A status that counts ready
// replicas must count as many: it may be older than the decision.
func Settled(s *workv1alpha2.ResourceBindingStatus, cluster string, replicas int32) bool {
	in := statusIn(s, cluster)
	if in == nil || !in.Applied || in.Health != workv1alpha2.ResourceHealthy {
		return false
	}
	var counts struct {
		ReadyReplicas *int32 `json:"readyReplicas"`
	}
	if raw := in.Status; raw != nil && json.Unmarshal(raw.Raw, &counts) != nil {
		return false // it may count them in a way that is not known here
	}
	return counts.ReadyReplicas == nil || *counts.ReadyReplicas >= replicas
}
