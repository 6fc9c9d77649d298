package placement

import (
	stdcmp "cmp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
)

func target(name string, replicas int32) workv1alpha2.TargetCluster {
	return workv1alpha2.TargetCluster{Name: name, Replicas: replicas}
}

func micro(ago time.Duration) metav1.MicroTime { return metav1.NewMicroTime(evictionTime.Add(-ago)) }

// readyFor are the clusters by how long they have been ready; 0: they are not.
func readyFor(ago map[string]time.Duration) map[string]Readiness {
	out := map[string]Readiness{}
	for name, d := range ago {
		r := Readiness{}
		if d != 0 {
			r.Since = evictionTime.Add(-d)
		}
		out[name] = r
	}
	return out
}

// What of a former assignment is to be restored, when, and what the binding shows of it. The
// template is in m1 (2) and m2 (3).
func TestFailback(t *testing.T) {
	noSchedule := corev1.Taint{Key: "drained", Effect: corev1.TaintEffectNoSchedule}
	left := func(healthy map[string]metav1.MicroTime, clusters ...workv1alpha2.TargetCluster) *workv1alpha2.Failback {
		return &workv1alpha2.Failback{Clusters: clusters, Term: "first", Healthy: healthy}
	}
	since := func(ago time.Duration) map[string]metav1.MicroTime {
		return map[string]metav1.MicroTime{"m3": micro(ago)}
	}
	running := func(b binding.Binding) {
		at := ago(time.Second)
		b.Spec.GracefulEvictionTasks = []workv1alpha2.GracefulEvictionTask{{FromCluster: "m9", CreationTimestamp: &at, SuppressDeletion: ptr.To(true)}}
	}
	failed := Clusters{Of: map[string]Fate{"m1": {Failed: evictionTime.Add(-time.Hour)}}}
	leaves := func(b binding.Binding) {
		b.Spec.Failover = &policyv1alpha1.FailoverBehavior{Cluster: &policyv1alpha1.ClusterFailoverBehavior{}}
	}
	month := map[string]time.Duration{"m1": 720 * time.Hour, "m2": 720 * time.Hour, "m3": 720 * time.Hour}
	for _, tt := range []struct {
		name     string
		ready    map[string]time.Duration
		taints   []corev1.Taint // of m3
		clusters Clusters
		before   *workv1alpha2.Failback
		change   func(binding.Binding)
		reason   string
		never    bool
		wait     time.Duration
		message  string // "": nothing is awaited
		to       []workv1alpha2.TargetCluster
		excluded []string
		next     time.Duration
		healthy  map[string]metav1.MicroTime
		terms    string
	}{
		{name: "nothing was left", ready: month},
		{name: "a cluster is left", ready: map[string]time.Duration{"m1": 0, "m2": time.Hour}, clusters: failed, change: leaves,
			message: "it returns to cluster m1 when that has been ready, without taints that are not tolerated, for 5m0s", next: 10 * time.Minute, terms: "second"},
		{name: "a cluster is left, and nothing is to return", ready: map[string]time.Duration{"m1": 0, "m2": time.Hour}, clusters: failed, change: leaves, never: true,
			next: 10 * time.Minute},
		{name: "a second one is left: the first assignment counts", ready: map[string]time.Duration{"m1": 0, "m2": time.Hour, "m3": 0}, clusters: failed, change: leaves,
			before: left(nil, target("m1", 1), target("m3", 4)), next: 10 * time.Minute,
			message: "it returns to cluster m1 when that has been ready, without taints that are not tolerated, for 5m0s; it returns to cluster m3 when"},
		{name: "one that is left because the template is unhealthy there", ready: month, before: left(nil, target("m1", 2)),
			change: func(b binding.Binding) {
				b.Spec.Failover = &policyv1alpha1.FailoverBehavior{Application: &policyv1alpha1.ApplicationFailoverBehavior{
					DecisionConditions: policyv1alpha1.DecisionConditions{TolerationSeconds: ptr.To[int32](0)}}}
				b.Status.AggregatedStatus[0].Health = workv1alpha2.ResourceUnhealthy
			}, next: 10 * time.Minute},
		{name: "not ready", ready: map[string]time.Duration{"m3": 0}, before: left(since(time.Hour), target("m3", 5)),
			message: "it returns to cluster m3 when that has been ready"},
		{name: "ready for the first time", ready: month, before: left(nil, target("m3", 5)), healthy: since(0), excluded: []string{"m3"},
			message: "it returns to cluster m3 at 2026-01-02T03:09:05Z if that stays ready until then", next: 5 * time.Minute},
		{name: "ready for a while", ready: month, before: left(since(2*time.Minute), target("m3", 5)), healthy: since(2 * time.Minute), excluded: []string{"m3"},
			message: "it returns to cluster m3 at 2026-01-02T03:07:05Z if that stays ready until then", next: 3 * time.Minute},
		{name: "not ready for a moment meanwhile", ready: map[string]time.Duration{"m3": time.Minute}, before: left(since(time.Hour), target("m3", 5)),
			healthy: since(time.Minute), excluded: []string{"m3"}, message: "at 2026-01-02T03:08:05Z", next: 4 * time.Minute},
		{name: "the clock was set back by an hour", ready: map[string]time.Duration{"m3": -time.Hour}, before: left(since(-time.Hour), target("m3", 5)),
			healthy: since(0), excluded: []string{"m3"}, message: "at 2026-01-02T03:09:05Z", next: 5 * time.Minute},
		{name: "ready but tainted", ready: month, taints: []corev1.Taint{noSchedule}, before: left(since(time.Hour), target("m3", 5)),
			message: "it returns to cluster m3 when that has been ready, without taints"},
		{name: "tainted, and the template tolerates it", ready: month, taints: []corev1.Taint{noSchedule}, before: left(since(time.Hour), target("m3", 5)), healthy: since(time.Hour),
			change: func(b binding.Binding) {
				b.Spec.Placement.ClusterTolerations = []policyv1alpha1.Toleration{{Key: "drained", Operator: corev1.TolerationOpExists}}
			}, to: []workv1alpha2.TargetCluster{target("m3", 5)}},
		{name: "tainted, and tolerated for a time", ready: month, taints: []corev1.Taint{noExecute(0)}, before: left(since(time.Hour), target("m3", 5)),
			change:  func(b binding.Binding) { b.Spec.Placement.ClusterTolerations = tolerating(ptr.To[int64](3600)) },
			message: "it returns to cluster m3 when that has been ready, without taints"},
		{name: "ready for long enough", ready: month, before: left(since(5*time.Minute), target("m1", 2), target("m3", 3)), healthy: since(5 * time.Minute),
			to: []workv1alpha2.TargetCluster{target("m1", 2), target("m3", 3)}},
		{name: "one of two is", ready: map[string]time.Duration{"m1": time.Hour, "m2": time.Hour, "m3": time.Hour, "m4": 0}, healthy: since(time.Hour),
			before: left(since(time.Hour), target("m3", 3), target("m4", 2)), to: []workv1alpha2.TargetCluster{target("m3", 3)},
			message: "it returns to cluster m4 when that has been ready"},
		{name: "another eviction is running", ready: month, before: left(since(time.Hour), target("m3", 5)), change: running, healthy: since(time.Hour),
			message: "it returns to cluster m3 when it has left cluster m9", excluded: []string{"m3"}},
		{name: "it is not scheduled", ready: month, before: left(since(time.Hour), target("m3", 5)), reason: workv1alpha2.ReasonUnschedulable, healthy: since(time.Hour),
			message: "it returns to cluster m3 when it is scheduled", excluded: []string{"m3"}},
		{name: "more return at once than the rate allows", ready: month, before: left(since(time.Hour), target("m3", 5)), wait: 3 * time.Second, healthy: since(time.Hour),
			message: "it returns to cluster m3 at 2026-01-02T02:09:05Z", excluded: []string{"m3"}, next: 3 * time.Second},
		{name: "the cluster is being removed", ready: map[string]time.Duration{"m1": time.Hour}, before: left(since(time.Hour), target("m3", 5))},
		{name: "it runs there again", ready: month, before: left(since(time.Hour), target("m1", 5))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := evicted()
			if tt.change != nil {
				tt.change(b)
			}
			tt.clusters.Ready = readyFor(tt.ready)
			if r, ok := tt.clusters.Ready["m3"]; ok {
				r.Taints = tt.taints
				tt.clusters.Ready["m3"] = r
			}
			if tt.reason == "" {
				tt.reason = workv1alpha2.ReasonSuccess
			}
			v := Evictor{EvictionOptions: EvictionOptions{}.Defaulted(), Clusters: tt.clusters, Now: evictionTime, FailbackAfter: 5 * time.Minute, Take: func(string) time.Duration { return tt.wait }}
			if tt.never {
				v.FailbackAfter = 0
			}
			e := v.Evict(b, &workv1alpha2.Decision{Reason: tt.reason, Term: "second", Failback: tt.before})
			got := workv1alpha2.Failback{Term: "first"}
			if e.Return.Record != nil {
				got = *e.Return.Record
			} else if tt.message != "" || tt.to != nil {
				t.Fatal("nothing is awaited")
			}
			if !strings.Contains(got.Message, tt.message) || (got.Message == "") != (tt.message == "") {
				t.Errorf("message %q, want %q", got.Message, tt.message)
			}
			if want := stdcmp.Or(tt.terms, "first"); got.Term != want {
				t.Errorf("affinity group %q, want %q", got.Term, want)
			}
			if len(got.Healthy) == 0 {
				got.Healthy = nil
			}
			if diff := cmp.Diff(tt.healthy, got.Healthy); diff != "" {
				t.Errorf("healthy -want +got\n%s", diff)
			}
			if diff := cmp.Diff(tt.to, e.Return.To); diff != "" {
				t.Errorf("returns to -want +got\n%s", diff)
			}
			if diff := cmp.Diff(tt.excluded, e.Return.Excluded); diff != "" {
				t.Errorf("excluded -want +got\n%s", diff)
			}
			if e.Next != tt.next {
				t.Errorf("next after %s, want %s", e.Next, tt.next)
			}
		})
	}
}

// Which clusters keep what until the template is healthy where it returned to.
func TestLeave(t *testing.T) {
	b := evicted() // m1: 2, m2: 3
	to := []workv1alpha2.TargetCluster{target("m2", 1), target("m3", 4)}
	tasks, err := Leave(b, to, []string{"m3"}, evictionTime)
	if err != nil || len(tasks) != 2 {
		t.Fatalf("tasks %+v, %v", tasks, err)
	}
	for i, want := range []workv1alpha2.TargetCluster{target("m1", 2), target("m2", 3)} {
		task := tasks[i]
		if task.FromCluster != want.Name || *task.Replicas != want.Replicas || task.Reason != "Failback" || task.PurgeMode != policyv1alpha1.PurgeModeGracefully ||
			task.Message != "replicas return to cluster m3" || !cmp.Equal(task.ClustersBeforeFailover, []string{"m1", "m2"}) {
			t.Errorf("task %+v, want one of %v", task, want)
		}
	}
	b.Spec.Clusters, b.Spec.GracefulEvictionTasks = to, tasks
	if got := b.Spec.ReplicasIn(to[0]); got != 3 {
		t.Errorf("m2 has %d replicas meanwhile, want its former 3", got)
	}
	if got := b.Spec.ReplicasIn(to[1]); got != 4 {
		t.Errorf("m3 has %d replicas, want 4", got)
	}
	// They stay for as long as m3 is not healthy, and not for longer.
	v := Evictor{EvictionOptions: EvictionOptions{}.Defaulted(), Now: evictionTime.Add(24 * time.Hour), Take: func(string) time.Duration { return 0 }}
	if e := v.Evict(b, &workv1alpha2.Decision{Reason: workv1alpha2.ReasonSuccess}); len(e.Ended) > 0 || e.Next != 0 {
		t.Errorf("after a day in which m3 was not healthy %v ended, next %s", e.Ended, e.Next)
	}
	b.Status.AggregatedStatus = append(b.Status.AggregatedStatus, health("m3", 4))
	if e := v.Evict(b, &workv1alpha2.Decision{Reason: workv1alpha2.ReasonSuccess}); len(e.Ended) != 2 {
		t.Errorf("m3 is healthy: %v ended, want both", e.Ended)
	}
}

// With purge mode Directly nothing runs twice, and the state goes along; without state nothing
// returns.
func TestLeaveDirectly(t *testing.T) {
	b := evicted()
	b.Spec.Failover = &policyv1alpha1.FailoverBehavior{Cluster: &policyv1alpha1.ClusterFailoverBehavior{PurgeMode: policyv1alpha1.PurgeModeDirectly,
		StatePreservation: &policyv1alpha1.StatePreservation{Rules: []policyv1alpha1.StatePreservationRule{{AliasLabelName: "job", JSONPath: "{.job.id}"}}}}}
	tasks, err := Leave(b, []workv1alpha2.TargetCluster{target("m2", 1), target("m3", 4)}, []string{"m3"}, evictionTime)
	if err != nil || len(tasks) != 1 || tasks[0].FromCluster != "m1" || tasks[0].PurgeMode != policyv1alpha1.PurgeModeDirectly || tasks[0].PreservedLabelState["job"] != "j-7" {
		t.Errorf("tasks %+v, %v; want m1 to be left Directly, with its state", tasks, err)
	}
	b.Status.AggregatedStatus = nil
	if _, err := Leave(b, []workv1alpha2.TargetCluster{target("m3", 5)}, []string{"m3"}, evictionTime); err == nil || !strings.Contains(err.Error(), "its state in cluster m1 cannot be preserved") {
		t.Errorf("error %v", err)
	}
}

// A task names so many clusters that its message stays within what the API server accepts.
func TestTaskMessageIsBounded(t *testing.T) {
	var many []string
	for range 200 {
		many = append(many, strings.Repeat("m", 63))
	}
	tasks, err := Leave(evicted(), nil, many, evictionTime)
	if err != nil || len(tasks[0].Message) > 1024 || !strings.HasSuffix(tasks[0].Message, "and 190 more") {
		t.Errorf("%v, message %q", err, tasks[0].Message)
	}
}
