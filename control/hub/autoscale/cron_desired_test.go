package autoscale

import (
	"fmt"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	autoscalingv1alpha1 "github.com/pelago-net/pelago/api/autoscaling/v1alpha1"
)

func at(s string) time.Time {
	t, err := time.Parse(time.DateTime, "2026-03-"+s)
	if err != nil {
		panic(err)
	}
	return t
}

func cronSpec(kind string, rules ...autoscalingv1alpha1.CronFederatedHPARule) autoscalingv1alpha1.CronFederatedHPASpec {
	ref := autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: kind, Name: "web"}
	if kind == "FederatedHPA" {
		ref.APIVersion = autoscalingv1alpha1.GroupVersion.String()
	}
	return autoscalingv1alpha1.CronFederatedHPASpec{ScaleTargetRef: ref, Rules: rules}
}

func every(schedule string) autoscalingv1alpha1.CronFederatedHPARule {
	return autoscalingv1alpha1.CronFederatedHPARule{Name: "r", Schedule: schedule, TimeZone: ptr.To("UTC"), TargetReplicas: ptr.To[int32](3)}
}

func TestParseRules(t *testing.T) {
	with := func(change func(*autoscalingv1alpha1.CronFederatedHPARule)) autoscalingv1alpha1.CronFederatedHPARule {
		r := every("0 6 * * *")
		change(&r)
		return r
	}
	type rule = autoscalingv1alpha1.CronFederatedHPARule
	for name, c := range map[string]struct {
		spec autoscalingv1alpha1.CronFederatedHPASpec
		want string
	}{
		"a workload":          {cronSpec("Deployment", every("0 6 * * 1-5")), ""},
		"a descriptor":        {cronSpec("Deployment", every("@every 90s")), ""},
		"a FederatedHPA":      {cronSpec("FederatedHPA", rule{Name: "r", Schedule: "@daily", TargetMinReplicas: ptr.To[int32](2)}), ""},
		"no schedule":         {cronSpec("Deployment", every("6 o'clock")), `rule r: schedule "6 o'clock":`},
		"six fields":          {cronSpec("Deployment", every("0 0 6 * * *")), `expected exactly 5 fields`},
		"a zone in the text":  {cronSpec("Deployment", every("CRON_TZ=Asia/Tokyo 0 6 * * *")), "name the time zone in timeZone"},
		"an unknown zone":     {cronSpec("Deployment", with(func(r *rule) { r.TimeZone = ptr.To("Mars/Olympus") })), "timeZone: unknown time zone Mars/Olympus"},
		"nothing to set":      {cronSpec("Deployment", with(func(r *rule) { r.TargetReplicas = nil })), "targetReplicas is required, since the target is a workload"},
		"no bounds to set":    {cronSpec("FederatedHPA", every("@daily")), "targetMinReplicas or targetMaxReplicas is required"},
		"fewer than none":     {cronSpec("Deployment", with(func(r *rule) { r.TargetReplicas = ptr.To[int32](-1) })), "targetReplicas must be at least 0"},
		"bounds crossed":      {cronSpec("FederatedHPA", with(func(r *rule) { r.TargetMinReplicas, r.TargetMaxReplicas = ptr.To[int32](3), ptr.To[int32](2) })), "targetMinReplicas is above targetMaxReplicas"},
		"each rule is listed": {cronSpec("Deployment", every("a"), rule{Name: "s", Schedule: "b", TargetReplicas: ptr.To[int32](1)}), "rule s: schedule"},
	} {
		_, err := parseRules(c.spec)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

// A history in one line: next, then executions, newest first; ! for a failed one.
func show(h autoscalingv1alpha1.ExecutionHistory) string {
	short := func(m *metav1.Time) string { return m.UTC().Format("02 15:04:05") }
	var out []string
	if h.NextExecutionTime != nil {
		out = append(out, "next "+short(h.NextExecutionTime))
	}
	for _, e := range h.SuccessfulExecutions {
		out = append(out, short(e.ScheduleTime))
	}
	for _, e := range h.FailedExecutions {
		out = append(out, "!"+short(e.ScheduleTime))
	}
	return strings.Join(out, ", ")
}

func TestHistories(t *testing.T) {
	suspended := every("0 6 * * *")
	suspended.Suspend = ptr.To(true)
	berlin := every("30 2 * * *")
	berlin.TimeZone = ptr.To("Europe/Berlin")
	history := func(next string, last ...string) *autoscalingv1alpha1.ExecutionHistory {
		h := &autoscalingv1alpha1.ExecutionHistory{RuleName: "r"}
		if next != "" {
			h.NextExecutionTime = ptr.To(metav1.NewTime(at(next)))
		}
		for _, l := range last {
			h.SuccessfulExecutions = append(h.SuccessfulExecutions, autoscalingv1alpha1.SuccessfulExecution{ScheduleTime: ptr.To(metav1.NewTime(at(l)))})
		}
		return h
	}
	for name, c := range map[string]struct {
		rule   autoscalingv1alpha1.CronFederatedHPARule
		have   *autoscalingv1alpha1.ExecutionHistory
		edited bool
		now    string
		due    string // "": nothing
		want   string
	}{
		"a new rule runs at its next time":        {every("0 6 * * *"), nil, true, "10 07:00:00", "", "next 11 06:00:00"},
		"not yet":                                 {every("0 6 * * *"), history("11 06:00:00"), false, "11 05:59:59", "", "next 11 06:00:00"},
		"now":                                     {every("0 6 * * *"), history("11 06:00:00"), false, "11 06:00:00", "11 06:00:00", "next 12 06:00:00"},
		"missed by hours":                         {every("0 6 * * *"), history("11 06:00:00"), false, "11 09:30:00", "11 06:00:00", "next 12 06:00:00"},
		"missed several times: the last":          {every("*/5 * * * *"), history("11 06:00:00"), false, "11 09:32:00", "11 09:30:00", "next 11 09:35:00"},
		"missed for days: the last":               {every("0 6 * * *"), history("11 06:00:00"), false, "17 05:00:00", "16 06:00:00", "next 17 06:00:00"},
		"missed for too long":                     {every("0 6 1 * *"), history("01 06:00:00"), false, "02 06:00:02", "late 01 06:00:00", ""},
		"suspended":                               {suspended, history("11 06:00:00"), false, "11 06:00:00", "", ""},
		"unsuspended: nothing missed":             {every("0 6 * * *"), history("", "10 06:00:00"), true, "11 07:00:00", "", "next 12 06:00:00, 10 06:00:00"},
		"clock set back: nothing twice":           {every("0 6 * * *"), history("12 06:00:00", "11 06:00:00"), false, "11 05:00:00", "", "next 12 06:00:00, 11 06:00:00"},
		"clock set back, then edited":             {every("0 6 * * *"), history("12 06:00:00", "11 06:00:00"), true, "11 05:00:00", "", "next 12 06:00:00, 11 06:00:00"},
		"clock set forward: once":                 {every("0 * * * *"), history("11 06:00:00", "11 05:00:00"), false, "11 08:10:00", "11 08:00:00", "next 11 09:00:00, 11 05:00:00"},
		"another schedule":                        {every("0 9 * * *"), history("11 06:00:00"), true, "11 07:00:00", "", "next 11 09:00:00"},
		"another rule was edited when it was due": {every("0 6 * * *"), history("11 06:00:00"), true, "11 06:00:01", "11 06:00:00", "next 12 06:00:00"},
		"an hour that summer time skips":          {berlin, history("28 01:30:00"), false, "29 00:00:00", "28 01:30:00", "next 30 00:30:00"},
		"a date that does not exist":              {every("0 6 30 2 *"), nil, true, "11 06:00:00", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			rules, err := parseRules(cronSpec("Deployment", c.rule))
			if err != nil {
				t.Fatal(err)
			}
			var have []autoscalingv1alpha1.ExecutionHistory
			if c.have != nil {
				have = append(have, *c.have)
			}
			all, due := histories(rules, have, c.edited, at(c.now))
			got := ""
			for _, d := range due {
				got += map[bool]string{true: "late "}[d.late] + d.at.UTC().Format("02 15:04:05")
			}
			if got != c.due {
				t.Errorf("due %q, want %q", got, c.due)
			}
			if next := show(all[0]); c.want != "" && next != c.want {
				t.Errorf("history %q, want %q", next, c.want)
			}
		})
	}
}

func TestRunsInOrderOfTime(t *testing.T) {
	night, morning := every("0 22 * * *"), every("0 6 * * *")
	night.Name, morning.Name = "night", "morning"
	rules, err := parseRules(cronSpec("Deployment", morning, night))
	if err != nil {
		t.Fatal(err)
	}
	all, _ := histories(rules, nil, true, at("10 12:00:00"))
	all, due := histories(rules, all, false, at("11 07:00:00"))
	if len(due) != 2 || due[0].rule.Name != "night" || due[1].rule.Name != "morning" {
		t.Errorf("due: %v", due)
	}
	for i := range 5 {
		for _, d := range due {
			recordRun(all, d, at("11 07:00:00").Add(time.Duration(i)*time.Second), map[bool]error{true: errRefused}[i%2 == 1])
		}
	}
	all[0].FailedExecutions[0].Message = "x"
	rules[1].SuccessfulHistoryLimit, rules[1].FailedHistoryLimit = ptr.To[int32](1), ptr.To[int32](0)
	trim(all, rules)
	got := ""
	for _, h := range all {
		got += fmt.Sprint(h.RuleName, " ", len(h.SuccessfulExecutions), " ", len(h.FailedExecutions), " ", *h.SuccessfulExecutions[0].AppliedReplicas, "; ")
	}
	if want := "morning 3 2 3; night 1 0 3; "; got != want {
		t.Errorf("histories %q, want %q", got, want)
	}
}

// However the clock jumps and whenever the hub restarts, a time of the schedule is run at most
// once, the times rise, and a rule that waits for a whole period runs.
func TestNothingTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		schedules := []string{"*/7 * * * *", "0 * * * *", "30 6 * * *", "@every 11m"}
		r := every(rapid.SampledFrom(schedules).Draw(t, "schedule"))
		now, last := at("10 06:00:00"), time.Time{}
		var have []autoscalingv1alpha1.ExecutionHistory
		edited := true
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				now = now.Add(-time.Duration(rapid.IntRange(1, 7200).Draw(t, "back")) * time.Second)
			case 1:
				edited = true
				r.Schedule = rapid.SampledFrom(schedules).Draw(t, "schedule")
			default:
				now = now.Add(time.Duration(rapid.IntRange(1, 7200).Draw(t, "forward")) * time.Second)
			}
			rules, err := parseRules(cronSpec("Deployment", r))
			if err != nil {
				t.Fatal(err)
			}
			all, due := histories(rules, have, edited, now)
			for _, d := range due {
				if !d.at.After(last) || d.at.After(now) || now.Sub(d.at) > startingDeadline {
					t.Fatalf("at %s: runs %s after %s", now, d.at, last)
				}
				last = d.at
				recordRun(all, d, now, nil)
			}
			if n := all[0].NextExecutionTime; n == nil || !n.After(now) && !n.After(last) {
				t.Fatalf("at %s: next %v, last %s", now, n, last)
			}
			have, edited = all, false
		}
		end := now.Add(50 * time.Hour)
		rules, _ := parseRules(cronSpec("Deployment", r))
		if _, due := histories(rules, have, false, end); len(due) != 1 || !due[0].at.After(last) {
			t.Fatalf("at %s: due %v, last %s", end, due, last)
		}
	})
}
