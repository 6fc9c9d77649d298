package placement

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// RolloutTarget is a cluster of a binding.
type RolloutTarget struct {
	Name     string
	Wave     int
	Replicas int32
	// Out is why the cluster can apply nothing: it is not ready, or suspended; "": it can.
	Out string
	// Work is the cluster's; nil: none.
	Work *workv1alpha1.Work
}

// Roller advances the rollout of a binding. It is pure.
type Roller struct {
	Rollout *policyv1alpha1.Rollout
	// Revision is that of the template. Former is the one before if the binding has no state; "":
	// the binding is new.
	Revision, Former string
	Targets          []RolloutTarget
	// Evicted are the clusters that the template leaves because it is unhealthy there.
	Evicted []string
	// Unmatched are the selectors of the order that match no Cluster of the hub.
	Unmatched []string
	Now       time.Time
}

// Roll returns the state that follows before (nil: none), and after what time it changes without an
// event; 0: not at all.
func (r *Roller) Roll(before *workv1alpha2.Rollout) (workv1alpha2.Rollout, time.Duration) {
	s := workv1alpha2.Rollout{Revision: r.Revision, Passed: cmp.Or(r.Former, r.Revision)}
	if before != nil {
		s.Passed, s.Hold = before.Passed, before.Hold
		if before.Revision != r.Revision && s.Hold == workv1alpha2.RolloutAborted {
			s.Hold = ""
		}
		if before.Revision == r.Revision {
			s.Clusters = r.carried(before.Clusters)
		}
	}
	if !s.InProgress() || s.Hold == workv1alpha2.RolloutAborted {
		s.Clusters = nil
		r.describe(&s)
		return s, 0
	}
	next := r.advance(&s)
	undone := func(t RolloutTarget) bool { return !s.Clusters[t.Name].Done }
	if !slices.ContainsFunc(r.Targets, undone) && len(r.failed(&s)) == 0 {
		s.Passed, s.Clusters = s.Revision, nil
		r.describe(&s)
		return s, 0
	}
	if r.describe(&s); s.Reason == workv1alpha2.ReasonRolloutProgressing {
		if r.give(&s) {
			next = least(next, r.Rollout.ProgressDeadline.Duration)
		}
		r.describe(&s)
	}
	return s, next
}

// carried are the clusters with the revision, without those that are no targets any more. One that
// the template has left because it was unhealthy stays: it stops the rollout.
func (r *Roller) carried(before map[string]workv1alpha2.RolloutCluster) map[string]workv1alpha2.RolloutCluster {
	out := map[string]workv1alpha2.RolloutCluster{}
	for name, c := range before {
		is := slices.ContainsFunc(r.Targets, func(t RolloutTarget) bool { return t.Name == name })
		if !is && !c.Done && c.Failed == "" && r.Rollout.Stops() && slices.Contains(r.Evicted, name) {
			c.Failed = "the template left it because it was unhealthy there"
		}
		if is || c.Failed != "" {
			out[name] = c
		}
	}
	return out
}

// advance updates the clusters that have the revision and are not done.
func (r *Roller) advance(s *workv1alpha2.Rollout) (next time.Duration) {
	now := metav1.NewMicroTime(r.Now)
	for _, t := range r.Targets {
		c, ok := s.Clusters[t.Name]
		if !ok || c.Done || c.Failed != "" {
			continue
		}
		if c.Replicas != t.Replicas { // scaling is no failure of the revision
			c = workv1alpha2.RolloutCluster{Since: now, Replicas: t.Replicas}
		}
		health, why := rolledOut(t.Work, s.Revision)
		if t.Out != "" {
			health, why = workv1alpha1.ResourceUnknown, t.Out
		}
		switch {
		case c.Healthy != nil && health == workv1alpha1.ResourceUnhealthy && r.Rollout.Stops():
			c.Failed = "it became unhealthy in its soak"
		case c.Healthy != nil && health != workv1alpha1.ResourceHealthy:
			c.Healthy, c.Since = nil, now
		case c.Healthy == nil && health == workv1alpha1.ResourceHealthy:
			c.Healthy = &now
		}
		switch {
		case c.Failed != "":
		case c.Healthy != nil:
			left := r.Rollout.Soak.Duration - r.Now.Sub(c.Healthy.Time)
			c.Done = left <= 0
			next = least(next, left)
		default:
			left := r.Rollout.ProgressDeadline.Duration - r.Now.Sub(c.Since.Time)
			next = least(next, left)
			if left <= 0 && r.Rollout.Stops() {
				c.Failed = fmt.Sprintf("it is not healthy after %s: %s", r.Rollout.ProgressDeadline.Duration, why)
			} else if left <= 0 {
				c.Done = true
			}
		}
		s.Clusters[t.Name] = c
	}
	return next
}

// least is the shorter of two times, without those that are not positive.
func least(a, b time.Duration) time.Duration {
	if a <= 0 || b > 0 && b < a {
		return max(b, 0)
	}
	return a
}

// give adds the clusters that get the revision now: of the first wave that is not done, as many as
// the bound allows. Clusters that can apply nothing hold up no wave. It reports whether there are
// any.
func (r *Roller) give(s *workv1alpha2.Rollout) (given bool) {
	wave, under := 0, 0
	for _, t := range r.Targets {
		c, has := s.Clusters[t.Name]
		if has && !c.Done {
			under++
		}
		if !c.Done && (has || t.Out == "") && (wave == 0 || t.Wave < wave) {
			wave = t.Wave
		}
	}
	for _, t := range r.sorted() {
		if _, has := s.Clusters[t.Name]; has || t.Wave != wave || t.Out != "" {
			continue
		}
		if most := r.Rollout.MaxClusters; most > 0 && under >= most {
			break
		}
		if s.Clusters == nil {
			s.Clusters = map[string]workv1alpha2.RolloutCluster{}
		}
		s.Clusters[t.Name] = workv1alpha2.RolloutCluster{Since: metav1.NewMicroTime(r.Now), Replicas: t.Replicas}
		given = true
		under++
	}
	return given
}

func (r *Roller) sorted() []RolloutTarget {
	byName := func(a, b RolloutTarget) int { return strings.Compare(a.Name, b.Name) }
	return slices.SortedFunc(slices.Values(r.Targets), byName)
}

// failed are the clusters that stop the rollout, sorted, each with the cause.
func (r *Roller) failed(s *workv1alpha2.Rollout) (out []string) {
	for name, c := range s.Clusters {
		if c.Failed != "" {
			out = append(out, fmt.Sprintf("cluster %s: %s", name, c.Failed))
		}
	}
	slices.Sort(out)
	return out
}

// describe sets the condition.
func (r *Roller) describe(s *workv1alpha2.Rollout) {
	s.Reason, s.Message = "", ""
	continues := "`pelago rollout resume` continues"
	failed := r.failed(s)
	switch {
	case s.Hold == workv1alpha2.RolloutAborted && s.InProgress():
		s.Reason = s.Hold
		s.Message = fmt.Sprintf("all clusters return to revision %s until the template changes; %s with %s",
			s.Passed, continues, s.Revision)
	case s.Hold == workv1alpha2.RolloutPaused && !s.InProgress():
		s.Reason, s.Message = s.Hold, "the next revision reaches no cluster; "+continues
	case !s.InProgress():
	case len(failed) > 0:
		s.Reason = workv1alpha2.ReasonRolloutStopped
		s.Message = fmt.Sprintf("revision %s reaches no further cluster: %s; %s, `pelago rollout abort` returns to %s",
			s.Revision, listed(failed), continues, s.Passed)
	case s.Hold == workv1alpha2.RolloutPaused:
		s.Reason = s.Hold
		s.Message = fmt.Sprintf("revision %s reaches no further cluster; %s", s.Revision, continues)
	case len(r.Unmatched) > 0:
		s.Reason = workv1alpha2.ReasonRolloutInvalidOrder
		s.Message = fmt.Sprintf("revision %s reaches no further cluster: no Cluster matches %s of the order in annotation "+
			"%s of the policy: correct it, or label a Cluster", s.Revision, listed(r.Unmatched), policyv1alpha1.AnnotationRollout)
	default:
		s.Reason = workv1alpha2.ReasonRolloutProgressing
		s.Message = r.progress(s)
	}
}

func (r *Roller) progress(s *workv1alpha2.Rollout) string {
	in := map[string][]string{}
	for _, t := range r.sorted() {
		_, state := s.In(t.Name)
		if state == workv1alpha2.RolloutWaiting && t.Out != "" {
			in[""] = append(in[""], t.Name+" ("+t.Out+")")
			continue
		}
		in[state] = append(in[state], t.Name)
	}
	done := len(in[workv1alpha2.RolloutDone])
	out := fmt.Sprintf("revision %s is done in %d of %d clusters", s.Revision, done, len(r.Targets))
	for _, state := range []string{workv1alpha2.RolloutApplying, workv1alpha2.RolloutSoaking} {
		if len(in[state]) > 0 {
			out += fmt.Sprintf("; %s: %s", state, listed(in[state]))
		}
	}
	if len(in[""]) > 0 {
		out += "; left out: " + listed(in[""])
	}
	return out
}

// rolledOut is the health of a revision in a cluster; Unknown as long as the cluster has not
// reported about this revision, and why.
func rolledOut(w *workv1alpha1.Work, revision string) (workv1alpha1.ResourceHealth, string) {
	if w == nil || w.DeletionTimestamp != nil || w.Annotations[workv1alpha2.AnnotationRevision] != revision {
		return workv1alpha1.ResourceUnknown, "its Work is not written"
	}
	applied := meta.FindStatusCondition(w.Status.Conditions, workv1alpha1.ConditionApplied)
	switch {
	case applied == nil || applied.ObservedGeneration < w.Generation:
		return workv1alpha1.ResourceUnknown, "not applied yet"
	case applied.Status != metav1.ConditionTrue:
		return workv1alpha1.ResourceUnknown, cmp.Or(applied.Message, applied.Reason)
	case len(w.Status.ManifestStatuses) == 0 || !reported(w):
		return workv1alpha1.ResourceUnknown, "its status is not reported yet"
	}
	health := w.Status.ManifestStatuses[0].Health // the hub puts one manifest into a Work
	if health == workv1alpha1.ResourceUnhealthy {
		return health, "it is unhealthy"
	}
	return health, "its health is unknown"
}

// reported reports whether a status with generations is that of the manifest: the member's object
// was made from the same generation of the template, and its controller has observed it.
func reported(w *workv1alpha1.Work) bool {
	var status struct{ ResourceTemplateGeneration, Generation, ObservedGeneration *int64 }
	if raw := w.Status.ManifestStatuses[0].Status; raw == nil || json.Unmarshal(raw.Raw, &status) != nil {
		return true // of a kind that reports none
	}
	if status.Generation != nil && status.ObservedGeneration != nil && *status.ObservedGeneration < *status.Generation {
		return false
	}
	var sent metav1.PartialObjectMetadata
	if status.ResourceTemplateGeneration == nil || json.Unmarshal(w.Spec.Workload.Manifests[0].Raw, &sent) != nil {
		return true
	}
	generation := strconv.FormatInt(*status.ResourceTemplateGeneration, 10)
	return sent.Annotations[workv1alpha2.AnnotationTemplateGeneration] == generation
}
