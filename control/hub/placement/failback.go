package placement

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
)

// Readiness is whether templates may return to a cluster.
type Readiness struct {
	Since  time.Time      // since when it has been ready; zero: it is not
	Taints []corev1.Taint // that keep templates out: NoSchedule and NoExecute
}

// Return is what Evict has found of a failback.
type Return struct {
	// Record is the assignment that is to be restored; nil: none.
	Record *workv1alpha2.Failback
	// To is the assignment as of now, and Clusters are those of it that have been healthy for long
	// enough; none: nothing returns yet.
	To       []workv1alpha2.TargetCluster
	Clusters []string
	// Excluded are clusters that are ready, but have not been for long enough, and those of
	// FailedIn: nothing is scheduled there if there is another cluster.
	Excluded []string
	// Failed: something is due to return, and cannot.
	Failed bool
}

// Blocked notes why nothing returns although it is due.
func (r *Return) Blocked(why error) {
	r.Record.Message = fmt.Sprintf("it does not return to cluster %s now: %v", listed(r.Clusters), why)
	r.Clusters, r.To, r.Failed = nil, nil, true
}

// Returned notes the decision by which replicas return.
func (r *Return) Returned(to []workv1alpha2.TargetCluster) {
	left := slices.DeleteFunc(slices.Clone(r.Record.Clusters), func(c workv1alpha2.TargetCluster) bool { return has(to, c.Name) })
	if len(left) == 0 {
		r.Record = nil
	} else if r.Record.Message == "" {
		r.Record.Message = fmt.Sprintf("it returns to cluster %s after those to which it returns now", left[0].Name)
	}
}

// failback carries on what a template returns to. former are its clusters before this step, whose
// tasks are in e.
func (v *Evictor) failback(b binding.Binding, before *workv1alpha2.Decision, former []workv1alpha2.TargetCluster, e *Eviction) {
	if v.FailbackAfter == 0 {
		return
	}
	var f workv1alpha2.Failback
	if before.Failback != nil {
		f.Clusters, f.Term, f.Healthy = slices.Clone(before.Failback.Clusters), before.Failback.Term, maps.Clone(before.Failback.Healthy)
	}
	for _, t := range e.Began {
		switch {
		case t.Reason != workv1alpha2.EvictionReasonClusterFailure && t.Reason != workv1alpha2.EvictionReasonTaintUntolerated:
			f.Clusters = slices.DeleteFunc(f.Clusters, func(c workv1alpha2.TargetCluster) bool { return c.Name == t.FromCluster })
		case len(f.Clusters) == 0:
			f.Clusters, f.Term = slices.Clone(former), before.Term
		}
	}
	f.Clusters = slices.DeleteFunc(f.Clusters, func(c workv1alpha2.TargetCluster) bool { _, ok := v.Ready[c.Name]; return !ok })
	left := slices.DeleteFunc(slices.Clone(f.Clusters), func(c workv1alpha2.TargetCluster) bool { return has(b.Spec.Clusters, c.Name) })
	if len(left) == 0 {
		return
	}
	f.Healthy = v.healthy(left, f.Healthy, b.Spec.Placement)
	var messages []string
	for _, c := range left {
		since, ok := f.Healthy[c.Name]
		at := since.Add(v.FailbackAfter)
		timed := fmt.Sprintf("it returns to cluster %s at %s if that stays ready until then", c.Name, at.Add(time.Second-1).UTC().Format(time.RFC3339))
		switch {
		case !ok:
			messages = append(messages, fmt.Sprintf("it returns to cluster %s when that has been ready, without taints that are not tolerated, for %s",
				c.Name, v.FailbackAfter))
			continue
		case at.After(v.Now):
			messages = append(messages, timed)
			e.wait(at.Sub(v.Now))
		case len(b.Spec.GracefulEvictionTasks) > 0:
			messages = append(messages, fmt.Sprintf("it returns to cluster %s when it has left cluster %s", c.Name, b.Spec.GracefulEvictionTasks[0].FromCluster))
		case before.Reason != workv1alpha2.ReasonSuccess:
			messages = append(messages, fmt.Sprintf("it returns to cluster %s when it is scheduled", c.Name))
		default:
			var d time.Duration
			if len(e.Return.Clusters) == 0 {
				d = v.Take(c.Name)
			}
			if d == 0 {
				e.Return.Clusters = append(e.Return.Clusters, c.Name)
				continue
			}
			messages = append(messages, timed) // unchanged: not worth a write
			e.wait(d)
		}
		e.Return.Excluded = append(e.Return.Excluded, c.Name)
	}
	if len(e.Return.Clusters) > 0 {
		e.Return.To = slices.DeleteFunc(slices.Clone(f.Clusters), func(c workv1alpha2.TargetCluster) bool {
			return has(left, c.Name) && !slices.Contains(e.Return.Clusters, c.Name)
		})
	}
	f.Message = strings.Join(messages, "; ")
	e.Return.Record = &f
}

// healthy returns since when clusters have been ready and without taints that are not tolerated.
// The time starts when this is first observed; if a cluster was unready in between, it restarts at
// the transition of condition Ready.
func (v *Evictor) healthy(left []workv1alpha2.TargetCluster, before map[string]metav1.MicroTime, p *policyv1alpha1.Placement) map[string]metav1.MicroTime {
	out := map[string]metav1.MicroTime{}
	for _, c := range left {
		r := v.Ready[c.Name]
		if r.Since.IsZero() || slices.ContainsFunc(r.Taints, func(t corev1.Taint) bool { return !toleratedForGood(t, p) }) {
			continue
		}
		since, ok := before[c.Name]
		if !ok || since.Time.Before(r.Since) {
			since = metav1.NewMicroTime(r.Since)
		}
		if !ok || since.After(v.Now) { // the clock was set back
			since = metav1.NewMicroTime(v.Now)
		}
		out[c.Name] = since
	}
	return out
}

func toleratedForGood(t corev1.Taint, p *policyv1alpha1.Placement) bool {
	toleration := tolerationOf(t, p)
	return toleration != nil && (t.Effect != corev1.TaintEffectNoExecute || toleration.TolerationSeconds == nil)
}

// Leave adds the tasks of the clusters from which replicas return by a decision: those that lose
// the template, and those that keep a part of it. They keep all of their previous replicas until
// the template is healthy where it returns to. With purge mode Directly nothing may run twice: the
// previous replicas are removed first, and their state is preserved; the error is that it cannot
// be.
func Leave(b binding.Binding, to []workv1alpha2.TargetCluster, returned []string, now time.Time) ([]workv1alpha2.GracefulEvictionTask, error) {
	c := ptr.Deref(b.Spec.Failover, policyv1alpha1.FailoverBehavior{}).Cluster
	directly := c != nil && c.PurgeMode.Current() == policyv1alpha1.PurgeModeDirectly
	var tasks []workv1alpha2.GracefulEvictionTask
	var names []string
	for _, from := range b.Spec.Clusters {
		names = append(names, from.Name)
	}
	v := Evictor{Now: now}
	for _, from := range b.Spec.Clusters {
		keeps := slices.IndexFunc(to, func(t workv1alpha2.TargetCluster) bool { return t.Name == from.Name })
		if keeps >= 0 && (directly || to[keeps].Replicas >= from.Replicas) {
			continue
		}
		t := workv1alpha2.GracefulEvictionTask{FromCluster: from.Name, Reason: workv1alpha2.EvictionReasonFailback, Producer: workv1alpha2.EvictionProducerHub,
			PurgeMode: policyv1alpha1.PurgeModeGracefully, CreationTimestamp: v.began(), ClustersBeforeFailover: names,
			Message: "replicas return to cluster " + listed(returned)}
		if from.Replicas > 0 {
			t.Replicas = ptr.To(from.Replicas)
		}
		if directly {
			t.PurgeMode = policyv1alpha1.PurgeModeDirectly
			var err error
			if t.PreservedLabelState, err = preserve(preservationOf(c), statusIn(b.Status, from.Name)); err != nil {
				return nil, fmt.Errorf("its state in cluster %s cannot be preserved: %w", from.Name, err)
			}
		}
		tasks = append(tasks, t)
	}
	return tasks, nil
}

// listed names clusters, of many the first: the message of a task is bounded.
func listed(clusters []string) string {
	const most = 10
	if len(clusters) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(clusters[:most], ", "), len(clusters)-most)
	}
	return strings.Join(clusters, ", ")
}

func has(all []workv1alpha2.TargetCluster, name string) bool {
	return slices.ContainsFunc(all, func(c workv1alpha2.TargetCluster) bool { return c.Name == name })
}
