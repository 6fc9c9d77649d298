package autoscale

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	autoscalingv1alpha1 "github.com/pelago-net/pelago/api/autoscaling/v1alpha1"
)

// startingDeadline bounds how late a rule is applied: a time that is missed for longer is recorded
// as failed.
const startingDeadline = 24 * time.Hour

// rule is a rule of a CronFederatedHPA with its parsed schedule.
type rule struct {
	autoscalingv1alpha1.CronFederatedHPARule
	times cron.Schedule
}

// run is a rule that is due. A late one has missed its time for more than startingDeadline and is
// not applied.
type run struct {
	rule *rule
	at   time.Time
	late bool
}

// parseRules checks what the schema cannot. The error names each rule.
func parseRules(spec autoscalingv1alpha1.CronFederatedHPASpec) ([]rule, error) {
	var out []rule
	var errs []error
	for _, r := range spec.Rules {
		times, err := parseSchedule(r)
		if err == nil {
			err = validTargets(r, scalesHPA(spec))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("rule %s: %w", r.Name, err))
			continue
		}
		out = append(out, rule{r, times})
	}
	return out, errors.Join(errs...)
}

func parseSchedule(r autoscalingv1alpha1.CronFederatedHPARule) (cron.Schedule, error) {
	text := r.Schedule
	if strings.Contains(text, "TZ=") {
		return nil, fmt.Errorf("schedule %q: name the time zone in timeZone", text)
	}
	if r.TimeZone != nil {
		if _, err := time.LoadLocation(*r.TimeZone); err != nil {
			return nil, fmt.Errorf("timeZone: %w", err)
		}
		text = "TZ=" + *r.TimeZone + " " + text
	}
	times, err := cron.ParseStandard(text)
	if err != nil {
		return nil, fmt.Errorf("schedule %q: %w", r.Schedule, err)
	}
	return times, nil
}

func validTargets(r autoscalingv1alpha1.CronFederatedHPARule, hpa bool) error {
	low, high := r.TargetMinReplicas, r.TargetMaxReplicas
	switch {
	case hpa && low == nil && high == nil:
		return errors.New("targetMinReplicas or targetMaxReplicas is required, since the target is a FederatedHPA")
	case !hpa && r.TargetReplicas == nil:
		return errors.New("targetReplicas is required, since the target is a workload")
	case ptr.Deref(r.TargetReplicas, 0) < 0 || ptr.Deref(low, 1) < 1 || ptr.Deref(high, 1) < 1:
		return errors.New("targetReplicas must be at least 0, targetMinReplicas and targetMaxReplicas at least 1")
	case low != nil && high != nil && *low > *high:
		return errors.New("targetMinReplicas is above targetMaxReplicas")
	}
	return nil
}

func scalesHPA(spec autoscalingv1alpha1.CronFederatedHPASpec) bool {
	ref := spec.ScaleTargetRef
	group, _, _ := strings.Cut(ref.APIVersion, "/")
	return ref.Kind == "FederatedHPA" && group == autoscalingv1alpha1.GroupVersion.Group
}

// histories are the histories of the rules in their order, with the next execution times, and the
// runs that are due, the oldest first. edited: the spec is not the one that the histories were made
// from. Deduced from the times in the status alone, so neither a restart nor a clock that is set
// back runs anything twice.
func histories(rules []rule, have []autoscalingv1alpha1.ExecutionHistory, edited bool, now time.Time) (
	out []autoscalingv1alpha1.ExecutionHistory, due []run) {
	for i := range rules {
		r := &rules[i]
		h := autoscalingv1alpha1.ExecutionHistory{RuleName: r.Name}
		for _, old := range have {
			if old.RuleName == r.Name {
				h = *old.DeepCopy()
			}
		}
		if ptr.Deref(r.Suspend, false) {
			h.NextExecutionTime = nil
			out = append(out, h)
			continue
		}
		last := lastExecution(h)
		planned := ptr.Deref(h.NextExecutionTime, metav1.Time{}).Time
		switch valid := !planned.IsZero() && (!edited || on(r.times, planned)); {
		case valid && planned.After(now):
		case valid && planned.After(last):
			at, late := latest(r.times, planned, now)
			due = append(due, run{r, at, late})
			last = at
			fallthrough
		default:
			if last.Before(now) {
				last = now
			}
			h.NextExecutionTime = ptr.To(metav1.NewTime(r.times.Next(last)))
		}
		if h.NextExecutionTime.IsZero() {
			h.NextExecutionTime = nil // a date that does not exist
		}
		out = append(out, h)
	}
	slices.SortStableFunc(due, func(a, b run) int { return a.at.Compare(b.at) })
	return out, due
}

// on reports whether a time is one of the schedule.
func on(times cron.Schedule, at time.Time) bool { return times.Next(at.Add(-time.Second)).Equal(at) }

// latest is the last time of the schedule until now, of which planned is one; late: that was more
// than startingDeadline ago.
func latest(times cron.Schedule, planned, now time.Time) (at time.Time, late bool) {
	at, late = planned, true
	for _, window := range []time.Duration{time.Minute, time.Hour, startingDeadline} {
		from := now.Add(-window - time.Second)
		if planned.After(from) {
			late = false
		} else if next := times.Next(from); !next.After(now) && !next.IsZero() {
			at, late = next, false
		} else {
			continue
		}
		for next := times.Next(at); !next.After(now) && !next.IsZero(); next = times.Next(at) {
			at = next
		}
		break
	}
	return at, late
}

// lastExecution is the latest schedule time in a history.
func lastExecution(h autoscalingv1alpha1.ExecutionHistory) (last time.Time) {
	for _, e := range h.SuccessfulExecutions {
		if e.ScheduleTime.After(last) {
			last = e.ScheduleTime.Time
		}
	}
	for _, e := range h.FailedExecutions {
		if e.ScheduleTime.After(last) {
			last = e.ScheduleTime.Time
		}
	}
	return last
}

// recordRun adds the outcome of a run to the history of its rule, the newest first.
func recordRun(all []autoscalingv1alpha1.ExecutionHistory, d run, now time.Time, failure error) {
	at, done := metav1.NewTime(d.at), metav1.NewTime(now)
	for i := range all {
		h := &all[i]
		if h.RuleName != d.rule.Name {
			continue
		}
		if failure != nil {
			e := autoscalingv1alpha1.FailedExecution{ScheduleTime: &at, ExecutionTime: &done, Message: failure.Error()}
			h.FailedExecutions = append([]autoscalingv1alpha1.FailedExecution{e}, h.FailedExecutions...)
			continue
		}
		h.SuccessfulExecutions = append([]autoscalingv1alpha1.SuccessfulExecution{{ScheduleTime: &at, ExecutionTime: &done,
			AppliedReplicas: d.rule.TargetReplicas, AppliedMinReplicas: d.rule.TargetMinReplicas, AppliedMaxReplicas: d.rule.TargetMaxReplicas,
		}}, h.SuccessfulExecutions...)
	}
}

// trim shortens the histories to the limits of their rules.
func trim(all []autoscalingv1alpha1.ExecutionHistory, rules []rule) {
	for i := range all {
		h, r := &all[i], rules[i]
		h.SuccessfulExecutions = h.SuccessfulExecutions[:min(len(h.SuccessfulExecutions), int(ptr.Deref(r.SuccessfulHistoryLimit, 3)))]
		h.FailedExecutions = h.FailedExecutions[:min(len(h.FailedExecutions), int(ptr.Deref(r.FailedHistoryLimit, 3)))]
	}
}

// untilNext is when the next rule is due, at most maxWait from now: timers do not follow a clock
// that is set forward.
func untilNext(all []autoscalingv1alpha1.ExecutionHistory, now time.Time) time.Duration {
	wait := maxWait
	for _, h := range all {
		if h.NextExecutionTime != nil {
			wait = min(wait, cmp.Or(max(h.NextExecutionTime.Sub(now), 0), time.Millisecond))
		}
	}
	return wait
}
