package status

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// work is the Work of a cluster, applied unless changed.
func work(cluster string, change ...func(*workv1alpha1.Work)) *workv1alpha1.Work {
	w := &workv1alpha1.Work{
		ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-es-" + cluster, Name: "x", Generation: 2},
		Status: workv1alpha1.WorkStatus{
			Conditions: []metav1.Condition{{Type: "Applied", Status: metav1.ConditionTrue, Reason: "AppliedSuccessful", ObservedGeneration: 2}},
			ManifestStatuses: []workv1alpha1.ManifestStatus{{Health: workv1alpha1.ResourceHealthy,
				Status: &runtime.RawExtension{Raw: []byte(`{"replicas":1}`)}}},
		},
	}
	for _, c := range change {
		c(w)
	}
	return w
}

func failed(message string) func(*workv1alpha1.Work) {
	return func(w *workv1alpha1.Work) {
		w.Status.Conditions[0].Status, w.Status.Conditions[0].Reason, w.Status.Conditions[0].Message = metav1.ConditionFalse, "AppliedFailed", message
	}
}

func behind(w *workv1alpha1.Work)     { w.Generation = 3 }
func unreported(w *workv1alpha1.Work) { w.Status = workv1alpha1.WorkStatus{} }
func deleted(w *workv1alpha1.Work)    { w.DeletionTimestamp = &metav1.Time{Time: noon} }

// bindingFor is a binding, not decided, of the clusters.
func bindingFor(clusters ...string) binding.Binding {
	b := binding.Of(&workv1alpha2.ResourceBinding{})
	for _, c := range clusters {
		b.Spec.Clusters = append(b.Spec.Clusters, workv1alpha2.TargetCluster{Name: c, Replicas: 1})
	}
	return b
}

// ready says of each cluster that it is.
func ready(string) string { return "" }

// A rule that fails on a member's object or on the template is named on the binding, until it does
// not.
func TestInterpreted(t *testing.T) {
	failing := func(message string) func(*workv1alpha1.Work) {
		return func(w *workv1alpha1.Work) {
			w.Status.Conditions = append(w.Status.Conditions, metav1.Condition{Type: "Interpreted", Status: metav1.ConditionFalse, Message: message})
		}
	}
	var status workv1alpha2.ResourceBindingStatus
	for _, tt := range []struct {
		name    string
		works   []*workv1alpha1.Work
		failure error
		want    string
	}{
		{"nothing fails", []*workv1alpha1.Work{work("m1")}, nil, ""},
		{"in one member", []*workv1alpha1.Work{work("m1"), work("m2", failing("rule healthy"))}, nil, "m2: rule healthy"},
		{"there and on the template", []*workv1alpha1.Work{work("m2", failing("rule healthy"))}, errors.New("rule aggregate"), "rule aggregate; m2: rule healthy"},
		{"in a Work that goes", []*workv1alpha1.Work{work("m2", failing("rule healthy"), deleted)}, nil, ""},
	} {
		interpreted(&status, bindingFor("m1", "m2"), tt.works, tt.failure, metav1.NewTime(noon))
		got := ""
		if c := meta.FindStatusCondition(status.Conditions, workv1alpha1.ConditionInterpreted); c != nil {
			got = c.Message
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestFullyApplied(t *testing.T) {
	for name, tt := range map[string]struct {
		clusters  []string
		requires  []string
		suspended *policyv1alpha1.Suspension
		directly  string // has an eviction task with this purge mode
		works     []*workv1alpha1.Work
		unready   map[string]string
		unmade    map[string]string
		want      string // status, message
		items     string // cluster, applied, health, message
	}{
		"all applied": {
			clusters: []string{"m2", "m1"}, works: []*workv1alpha1.Work{work("m2"), work("m1")},
			want: "True applied in 2 clusters", items: "m1 true Healthy |m2 true Healthy |",
		},
		"a Work that cannot be made": {
			clusters: []string{"m1", "m2"}, works: []*workv1alpha1.Work{work("m1")}, unmade: map[string]string{"m2": "request is too large"},
			want: "False m2: request is too large", items: "m1 true Healthy |m2 false Unknown not applied yet|",
		},
		"no Work can be made, and the former ones are applied": {
			clusters: []string{"m1"}, works: []*workv1alpha1.Work{work("m1")}, unmade: map[string]string{"": "rule replicas"},
			want: "False all clusters: rule replicas", items: "m1 true Healthy |",
		},
		"clusters of those that require it": {
			requires: []string{"m1"}, works: []*workv1alpha1.Work{work("m1")}, want: "True applied in 1 clusters", items: "m1 true Healthy |",
		},
		"nothing there yet (#5241: no word of statuses that do not exist)": {
			clusters: []string{"m1", "m2"}, want: "False m1: not applied yet; m2: not applied yet",
			items: "m1 false Unknown not applied yet|m2 false Unknown not applied yet|",
		},
		"some are missing, one is not wanted": {
			clusters: []string{"m4", "m2", "m1"}, works: []*workv1alpha1.Work{work("m9"), work("m2")},
			want:  "False m1: not applied yet; m4: not applied yet; m9: still there, but not wanted any more",
			items: "m1 false Unknown not applied yet|m2 true Healthy |m4 false Unknown not applied yet|m9 true Healthy |",
		},
		"one is missing": {
			clusters: []string{"m1", "m2"}, works: []*workv1alpha1.Work{work("m1")}, want: "False m2: not applied yet",
			items: "m1 true Healthy |m2 false Unknown not applied yet|",
		},
		"one failed": {
			clusters: []string{"m1"}, works: []*workv1alpha1.Work{work("m1", failed("the quota is used up"))},
			want: "False m1: the quota is used up", items: "m1 false Unknown the quota is used up|",
		},
		"one has not seen its last change": {
			clusters: []string{"m1"}, works: []*workv1alpha1.Work{work("m1", behind)},
			want: "False m1: not applied yet", items: "m1 false Unknown not applied yet|",
		},
		"an old failure says nothing of the last change": {
			clusters: []string{"m1"}, works: []*workv1alpha1.Work{work("m1", failed("old"), behind)},
			want: "False m1: not applied yet", items: "m1 false Unknown not applied yet|",
		},
		"not reported, the cluster is away": {
			clusters: []string{"m1"}, works: []*workv1alpha1.Work{work("m1", unreported)}, unready: map[string]string{"m1": "is not ready (Away)"},
			want: "False m1: not applied yet: the cluster is not ready (Away)", items: "m1 false Unknown not applied yet: the cluster is not ready (Away)|",
		},
		"applied, and then the cluster went away": {
			clusters: []string{"m1"}, works: []*workv1alpha1.Work{work("m1")}, unready: map[string]string{"m1": "is not ready (Away)"},
			want: "True applied in 1 clusters", items: "m1 true Healthy |",
		},
		"suspended": {
			clusters: []string{"m1"}, suspended: &policyv1alpha1.Suspension{Dispatching: ptr.To(true)}, works: []*workv1alpha1.Work{work("m1", behind)},
			want: "False m1: not applied: dispatching is suspended", items: "m1 false Unknown not applied: dispatching is suspended|",
		},
		"still where it is not wanted": {
			clusters: []string{"m1"}, works: []*workv1alpha1.Work{work("m1"), work("m9")},
			want: "False m9: still there, but not wanted any more", items: "m1 true Healthy |m9 true Healthy |",
		},
		"a Work that is being deleted does not count": {
			clusters: []string{"m1"}, works: []*workv1alpha1.Work{work("m1"), work("m9", deleted)},
			want: "True applied in 1 clusters", items: "m1 true Healthy |",
		},
		"a dead cluster that Directly purges first": {
			clusters: []string{"m1"}, directly: "m9", works: []*workv1alpha1.Work{work("m1"), work("m9", deleted)}, unready: map[string]string{"m9": "is not ready (Away)"},
			want:  "False m9: purge mode Directly removes this copy before anything is written elsewhere, and the cluster is not ready (Away)",
			items: "m1 true Healthy |",
		},
		"purged, and gone": {
			clusters: []string{"m1"}, directly: "m9", works: []*workv1alpha1.Work{work("m1")}, want: "True applied in 1 clusters", items: "m1 true Healthy |",
		},
		"no cluster": {want: "False no cluster is chosen"},
		"left by a former binding of the name": {
			clusters: []string{"m1"}, works: []*workv1alpha1.Work{work("m1", func(w *workv1alpha1.Work) {
				w.Labels = map[string]string{workv1alpha2.LabelBindingID: "former"}
			})},
			want: "False m1: not applied yet", items: "m1 false Unknown not applied yet|",
		},
		"made of the template as it was before": {
			clusters: []string{"m1"}, works: []*workv1alpha1.Work{work("m1", func(w *workv1alpha1.Work) {
				w.Annotations = map[string]string{workv1alpha2.AnnotationTemplate: "before"}
			})},
			want: "False m1: not applied yet", items: "m1 false Unknown not applied yet|",
		},
		"two Works of a cluster: the one that is not done speaks": {
			clusters: []string{"m1"}, works: []*workv1alpha1.Work{work("m1"), work("m1", behind)},
			want: "False m1: not applied yet", items: "m1 false Unknown not applied yet|",
		},
		"many": {
			clusters: []string{"a", "b", "c", "d", "e", "f", "g"},
			want:     "False a: not applied yet; b: not applied yet; c: not applied yet; d: not applied yet; e: not applied yet; and 2 more",
			items:    strings.Join([]string{"a", "b", "c", "d", "e", "f", "g", ""}, " false Unknown not applied yet|"),
		},
		"a long message is cut": {
			clusters: []string{"m1"}, works: []*workv1alpha1.Work{work("m1", failed(strings.Repeat("é", 200)))},
			want:  "False m1: " + strings.Repeat("é", 148) + " …",
			items: "m1 false Unknown " + strings.Repeat("é", 200) + "|",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := bindingFor(tt.clusters...)
			if len(tt.requires) > 0 {
				b.Spec.RequiredBy = []workv1alpha2.BindingSnapshot{{Name: "y", Clusters: bindingFor(tt.requires...).Spec.Clusters}}
			}
			if tt.directly != "" {
				b.Spec.GracefulEvictionTasks = []workv1alpha2.GracefulEvictionTask{{FromCluster: tt.directly, PurgeMode: policyv1alpha1.PurgeModeDirectly}}
			}
			if tt.suspended != nil {
				b.Spec.Suspension = &workv1alpha2.Suspension{Suspension: *tt.suspended}
			}
			got, err := Desired(b, tt.works, tt.unmade, func(cluster string) string { return tt.unready[cluster] }, metav1.NewTime(noon))
			if err != nil {
				t.Fatal(err)
			}
			c := meta.FindStatusCondition(got.Conditions, "FullyApplied")
			if diff := cmp.Diff(tt.want, string(c.Status)+" "+c.Message); diff != "" {
				t.Errorf("FullyApplied: -want +got\n%s", diff)
			}
			items := ""
			for _, it := range got.AggregatedStatus {
				items += fmt.Sprintf("%s %v %s %s|", it.ClusterName, it.Applied, it.Health, it.AppliedMessage)
			}
			if diff := cmp.Diff(tt.items, items); diff != "" {
				t.Errorf("aggregatedStatus: -want +got\n%s", diff)
			}
		})
	}
}

// A status that is too large for the binding is omitted, with a message; that of the other clusters
// is kept.
func TestLargeStatus(t *testing.T) {
	large := work("m1", func(w *workv1alpha1.Work) {
		w.Status.ManifestStatuses[0].Status.Raw = []byte(`{"text":"` + strings.Repeat("x", 2<<20) + `"}`)
	})
	got, err := Desired(bindingFor("m1", "m2"), []*workv1alpha1.Work{large, work("m2")}, nil, ready, metav1.NewTime(noon))
	if err != nil {
		t.Fatal(err)
	}
	if items := got.AggregatedStatus; len(items) != 2 || items[0].Status != nil || !items[0].Applied || items[0].Health != workv1alpha2.ResourceHealthy ||
		!strings.HasPrefix(items[0].AppliedMessage, "the status is omitted: it has 2097163 bytes, at most 65536") ||
		items[1].AppliedMessage != "" || string(items[1].Status.Raw) != `{"replicas":1}` {
		t.Errorf("%d items; of the first: applied %v, status omitted %v, message %q", len(items), items[0].Applied, items[0].Status == nil, items[0].AppliedMessage)
	}
	if c := meta.FindStatusCondition(got.Conditions, workv1alpha2.ConditionFullyApplied); c.Status != metav1.ConditionTrue {
		t.Errorf("condition %+v", c)
	}
}

// decided puts the record of a decision for the present spec, or for another one, on a binding.
func decided(t *testing.T, b binding.Binding, d workv1alpha2.Decision, current bool) {
	t.Helper()
	hash, err := workv1alpha2.SpecHash(b.Spec)
	if err != nil {
		t.Fatal(err)
	}
	if d.For = hash; !current {
		d.For = "another"
	}
	text, err := d.Encode()
	if err != nil {
		t.Fatal(err)
	}
	b.SetAnnotations(map[string]string{workv1alpha2.AnnotationDecision: text})
}

func TestScheduled(t *testing.T) {
	at := metav1.NewMicroTime(noon.Add(700 * time.Millisecond))
	old := metav1.Condition{Type: "Scheduled", Status: metav1.ConditionTrue, Reason: "Success", ObservedGeneration: 4, LastTransitionTime: metav1.NewTime(noon.Add(-time.Hour))}
	foreign := metav1.Condition{Type: "Mine", Status: metav1.ConditionTrue, Reason: "Because"}
	for name, tt := range map[string]struct {
		decision *workv1alpha2.Decision
		stale    bool
		attached bool
		before   []metav1.Condition
		want     workv1alpha2.ResourceBindingStatus
	}{
		"a success": {
			decision: &workv1alpha2.Decision{Reason: "Success", Message: "fine", Time: at, Scheduled: at, Term: "near"},
			want: workv1alpha2.ResourceBindingStatus{SchedulerObservedGeneration: 7, SchedulerObservedAffinityName: "near", LastScheduledTime: &metav1.Time{Time: noon},
				Conditions: []metav1.Condition{{Type: "Scheduled", Status: metav1.ConditionTrue, Reason: "Success", Message: "fine", ObservedGeneration: 7, LastTransitionTime: metav1.NewTime(noon)}}},
		},
		"a failure after a success": {
			decision: &workv1alpha2.Decision{Reason: "NoClusterFit", Message: "0 of 2", Time: at, Scheduled: metav1.NewMicroTime(noon.Add(-time.Hour))},
			before:   []metav1.Condition{old},
			want: workv1alpha2.ResourceBindingStatus{SchedulerObservedGeneration: 7, LastScheduledTime: &metav1.Time{Time: noon.Add(-time.Hour)},
				Conditions: []metav1.Condition{{Type: "Scheduled", Status: metav1.ConditionFalse, Reason: "NoClusterFit", Message: "0 of 2", ObservedGeneration: 7, LastTransitionTime: metav1.NewTime(noon)}}},
		},
		"for another spec": {
			decision: &workv1alpha2.Decision{Reason: "Success", Time: at, Scheduled: at}, stale: true, before: []metav1.Condition{old},
			want: workv1alpha2.ResourceBindingStatus{SchedulerObservedGeneration: 4, LastScheduledTime: &metav1.Time{Time: noon}, Conditions: []metav1.Condition{old}},
		},
		"it stays, and returns later": {
			decision: &workv1alpha2.Decision{Reason: "Success", Time: at, Scheduled: at, Held: "m1 is held", Failback: &workv1alpha2.Failback{Message: "it returns to m2"}},
			want: workv1alpha2.ResourceBindingStatus{SchedulerObservedGeneration: 7, LastScheduledTime: &metav1.Time{Time: noon}, Conditions: []metav1.Condition{
				{Type: "Scheduled", Status: metav1.ConditionTrue, Reason: "Success", ObservedGeneration: 7, LastTransitionTime: metav1.NewTime(noon)},
				{Type: "Failover", Status: metav1.ConditionFalse, Reason: "Held", Message: "m1 is held", ObservedGeneration: 7, LastTransitionTime: metav1.NewTime(noon)},
				{Type: "Failback", Status: metav1.ConditionFalse, Reason: "Awaited", Message: "it returns to m2", ObservedGeneration: 7, LastTransitionTime: metav1.NewTime(noon)}}},
		},
		"neither any more": {
			decision: &workv1alpha2.Decision{Reason: "Success", Time: at, Scheduled: at},
			before:   []metav1.Condition{{Type: "Failover", Status: metav1.ConditionFalse}, {Type: "Failback", Status: metav1.ConditionFalse}},
			want: workv1alpha2.ResourceBindingStatus{SchedulerObservedGeneration: 7, LastScheduledTime: &metav1.Time{Time: noon}, Conditions: []metav1.Condition{
				{Type: "Scheduled", Status: metav1.ConditionTrue, Reason: "Success", ObservedGeneration: 7, LastTransitionTime: metav1.NewTime(noon)}}},
		},
		"no record: another scheduler's words stay": {
			before: []metav1.Condition{old, foreign},
			want:   workv1alpha2.ResourceBindingStatus{SchedulerObservedGeneration: 4, Conditions: []metav1.Condition{old, foreign}},
		},
		"a dependent's": {
			decision: &workv1alpha2.Decision{Reason: "Success", Time: at}, attached: true, before: []metav1.Condition{old, foreign},
			want: workv1alpha2.ResourceBindingStatus{Conditions: []metav1.Condition{foreign}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := bindingFor("m1")
			b.SetGeneration(7)
			if !tt.attached {
				b.Spec.Placement = &policyv1alpha1.Placement{}
			}
			b.Status.Conditions = tt.before
			if len(tt.before) > 0 {
				b.Status.SchedulerObservedGeneration = 4
			}
			if tt.decision != nil {
				decided(t, b, *tt.decision, !tt.stale)
			}
			got, err := Desired(b, nil, nil, ready, metav1.NewTime(noon))
			if err != nil {
				t.Fatal(err)
			}
			meta.RemoveStatusCondition(&got.Conditions, "FullyApplied")
			tt.want.AggregatedStatus = []workv1alpha2.AggregatedStatusItem{{ClusterName: "m1", Health: "Unknown", AppliedMessage: "not applied yet"}}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// Clients of Karmada may write Ready without a reason.
func TestReadinessWithoutReason(t *testing.T) {
	c := &clusterv1alpha1.Cluster{Status: clusterv1alpha1.ClusterStatus{Conditions: []metav1.Condition{{Type: "Ready", Status: "False"}}}}
	if got := readiness(c); got != "is not ready (no reason)" {
		t.Error(got)
	}
}

// A desired status that equals the current one must compare as equal, otherwise it is written
// forever.
func TestDesiredIsStable(t *testing.T) {
	b := bindingFor("m1", "m2")
	b.Spec.Placement = &policyv1alpha1.Placement{}
	decided(t, b, workv1alpha2.Decision{Reason: "Success", Time: metav1.NowMicro(), Scheduled: metav1.NowMicro()}, true)
	works := []*workv1alpha1.Work{work("m1"), work("m2", failed("no"))}
	first, err := Desired(b, works, nil, ready, metav1.NewTime(noon))
	if err != nil {
		t.Fatal(err)
	}
	*b.Status = *first.DeepCopy()
	// as another server may print it
	b.Status.AggregatedStatus[0].Status.Raw = []byte(` { "replicas" : 1 } `)
	second, err := Desired(b, works, nil, ready, metav1.NewTime(noon.Add(time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	if !same.DeepEqual(*b.Status, second) {
		t.Errorf("the same again is not the same:\n%s", cmp.Diff(*b.Status, second))
	}
	b.Status.AggregatedStatus[0].Status.Raw = []byte(`{"replicas":2}`)
	if same.DeepEqual(*b.Status, second) {
		t.Error("another status passes for the same")
	}
}

func TestAnswers(t *testing.T) {
	counted := `{"generation":9,"observedGeneration":8,"replicas":2,"resourceTemplateGeneration":4}`
	for name, tt := range map[string]struct {
		clusters  []string
		suspended []string
		decision  string
		// cluster, "+" if applied, status; the cluster alone if it has not reported
		items string
		want  string
	}{
		"a cluster that has caught up says what it says": {clusters: []string{"m1"}, items: "m1+" + counted, want: "m1 " + counted},
		"one that has not is counted, but agrees to no generation": {
			clusters: []string{"m1"}, items: "m1 " + counted, want: `m1 {"generation":9,"observedGeneration":8,"replicas":2}`,
		},
		"one that has not, of a kind without generations": {clusters: []string{"m1"}, items: `m1 {"phase":"Bound"}`, want: `m1 {"phase":"Bound"}`},
		"one that has not reported":                       {clusters: []string{"m2", "m1"}, items: "m1+" + counted + "\nm2", want: "m1 " + counted + "\nm2 "},
		"a suspended one is counted and agrees": {
			clusters: []string{"m1"}, suspended: []string{"m1"}, items: "m1 " + counted,
			want: `m1 {"generation":9,"observedGeneration":9,"replicas":2,"resourceTemplateGeneration":5}`,
		},
		"a suspended one that has nothing is left out":     {clusters: []string{"m1"}, suspended: []string{"m1"}, decision: "Success", items: "m1"},
		"one that is not wanted":                           {clusters: []string{"m1"}, items: "m1+{}\nm9+{}", want: "m1 {}"},
		"no cluster fits, and nobody can agree":            {decision: "NoClusterFit", want: " "},
		"nothing is decided, and nobody can agree":         {want: " "},
		"decided for no cluster (no replicas): all agreed": {decision: "Success"},
	} {
		t.Run(name, func(t *testing.T) {
			b := bindingFor(tt.clusters...)
			if tt.suspended != nil {
				b.Spec.Suspension = &workv1alpha2.Suspension{Suspension: policyv1alpha1.Suspension{
					DispatchingOnClusters: &policyv1alpha1.SuspendClusters{ClusterNames: tt.suspended}}}
			}
			if tt.decision != "" {
				decided(t, b, workv1alpha2.Decision{Reason: tt.decision}, true)
			}
			var items []workv1alpha2.AggregatedStatusItem
			for line := range strings.Lines(tt.items) {
				line = strings.TrimSpace(line)
				it := workv1alpha2.AggregatedStatusItem{ClusterName: line[:2]}
				if status := line[2:]; status != "" {
					it.Applied = status[0] == '+'
					it.Status = &runtime.RawExtension{Raw: []byte(strings.TrimSpace(status[1:]))}
				}
				items = append(items, it)
			}
			answers, err := Answers(b, items, 5)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, it := range answers {
				line := it.ClusterName + " "
				if it.Status != nil {
					line += string(it.Status.Raw)
				}
				got = append(got, line)
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, "\n")); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// TestRolloutCondition: it is there while the state has a reason.
func TestRolloutCondition(t *testing.T) {
	b := bindingFor("m1", "m2")
	a := b.GetAnnotations()
	if a == nil {
		a = map[string]string{}
		b.SetAnnotations(a)
	}
	for _, step := range []struct{ state, want string }{
		{`{"revision": "b", "passed": "a", "reason": "Stopped", "message": "m1"}`, "False Stopped m1"},
		{`{"revision": "b", "passed": "b"}`, ""},
		{`{`, ""},
	} {
		a[workv1alpha2.AnnotationRollout] = step.state
		next, err := Desired(b, nil, nil, ready, metav1.NewTime(noon))
		if err != nil {
			t.Fatal(err)
		}
		*b.Status = next
		got := ""
		if c := meta.FindStatusCondition(next.Conditions, workv1alpha2.ConditionRollout); c != nil {
			got = string(c.Status) + " " + c.Reason + " " + c.Message
		}
		if got != step.want {
			t.Errorf("%s: condition %q, want %q", step.state, got, step.want)
		}
	}
}
