package placement

import (
	stdcmp "cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/scheduler"
)

var evictionTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(evictionTime.Add(-d)) }

func noExecute(age time.Duration) corev1.Taint {
	at := ago(age)
	return corev1.Taint{Key: "broken", Effect: corev1.TaintEffectNoExecute, TimeAdded: &at}
}

func tolerating(seconds *int64) []policyv1alpha1.Toleration {
	return []policyv1alpha1.Toleration{{Key: "broken", Operator: corev1.TolerationOpExists, TolerationSeconds: seconds}}
}

// evicted is a binding with 2 replicas in m1 and 3 in m2, both healthy.
func evicted() binding.Binding {
	b := binding.New(client.ObjectKey{Namespace: "shop", Name: "web"})
	b.Spec.Placement = &policyv1alpha1.Placement{}
	b.Spec.Replicas = 5
	b.Spec.Clusters = []workv1alpha2.TargetCluster{{Name: "m1", Replicas: 2}, {Name: "m2", Replicas: 3}}
	b.Status.AggregatedStatus = []workv1alpha2.AggregatedStatusItem{health("m1", 2), health("m2", 3)}
	return b
}

func health(cluster string, ready int) workv1alpha2.AggregatedStatusItem {
	return workv1alpha2.AggregatedStatusItem{ClusterName: cluster, Applied: true, Health: workv1alpha2.ResourceHealthy,
		Status: &runtime.RawExtension{Raw: fmt.Appendf(nil, `{"readyReplicas": %d, "job": {"id": "j-7"}}`, ready)}}
}

// What begins an eviction, how the task looks, and when it is inspected again.
func TestEvictionsBegin(t *testing.T) {
	gracefully := policyv1alpha1.PurgeModeGracefully
	cluster := func(mode policyv1alpha1.PurgeMode) *policyv1alpha1.FailoverBehavior {
		return &policyv1alpha1.FailoverBehavior{Cluster: &policyv1alpha1.ClusterFailoverBehavior{PurgeMode: mode}}
	}
	application := func(mode policyv1alpha1.PurgeMode, grace *int32) *policyv1alpha1.FailoverBehavior {
		return &policyv1alpha1.FailoverBehavior{Application: &policyv1alpha1.ApplicationFailoverBehavior{
			DecisionConditions: policyv1alpha1.DecisionConditions{TolerationSeconds: ptr.To[int32](60)}, PurgeMode: mode, GracePeriodSeconds: grace}}
	}
	unhealthy := func(b binding.Binding) { b.Status.AggregatedStatus[0].Health = workv1alpha2.ResourceUnhealthy }
	type want struct {
		from    string // of the task; "": none
		reason  string
		mode    policyv1alpha1.PurgeMode
		message string
		next    time.Duration
		held    string
	}
	tests := []struct {
		name   string
		fates  Clusters
		change func(binding.Binding)
		before workv1alpha2.Decision
		nearer map[string]string
		wait   time.Duration
		want   want
		check  func(*testing.T, workv1alpha2.GracefulEvictionTask)
	}{
		{name: "nothing is wrong", want: want{}},
		{name: "a taint that is not tolerated", fates: Clusters{Of: map[string]Fate{"m1": {Taints: []corev1.Taint{noExecute(time.Second)}}}},
			want: want{from: "m1", reason: "TaintUntolerated", mode: gracefully, message: "taint broken:NoExecute is not tolerated", next: 10 * time.Minute}},
		{name: "one that is tolerated", fates: Clusters{Of: map[string]Fate{"m1": {Taints: []corev1.Taint{noExecute(time.Hour)}}}},
			change: func(b binding.Binding) { b.Spec.Placement.ClusterTolerations = tolerating(nil) }},
		{name: "one that is tolerated for a time", fates: Clusters{Of: map[string]Fate{"m1": {Taints: []corev1.Taint{noExecute(20 * time.Second)}}}},
			change: func(b binding.Binding) { b.Spec.Placement.ClusterTolerations = tolerating(ptr.To[int64](50)) }, want: want{next: 30 * time.Second}},
		{name: "one that is tolerated for longer than a duration holds", fates: Clusters{Of: map[string]Fate{"m1": {Taints: []corev1.Taint{noExecute(time.Hour)}}}},
			change: func(b binding.Binding) {
				b.Spec.Placement.ClusterTolerations = tolerating(ptr.To[int64](math.MaxInt64))
			},
			want: want{next: time.Duration(math.MaxInt64/time.Second)*time.Second - time.Hour}},
		{name: "the first of two tolerations counts", fates: Clusters{Of: map[string]Fate{"m1": {Taints: []corev1.Taint{noExecute(20 * time.Second)}}}},
			change: func(b binding.Binding) {
				b.Spec.Placement.ClusterTolerations = append(tolerating(ptr.To[int64](50)), tolerating(ptr.To[int64](5))...)
			}, want: want{next: 30 * time.Second}},
		{name: "the first of two tolerations has no time", fates: Clusters{Of: map[string]Fate{"m1": {Taints: []corev1.Taint{noExecute(20 * time.Second)}}}},
			change: func(b binding.Binding) {
				b.Spec.Placement.ClusterTolerations = append(tolerating(nil), tolerating(ptr.To[int64](5))...)
			}},
		{name: "of two taints the one whose time ends first", want: want{next: 10 * time.Second}, change: func(b binding.Binding) {
			b.Spec.Placement.ClusterTolerations = append(tolerating(ptr.To[int64](50)), policyv1alpha1.Toleration{Operator: corev1.TolerationOpExists, TolerationSeconds: ptr.To[int64](30)})
		}, fates: Clusters{Of: map[string]Fate{"m1": {Taints: []corev1.Taint{noExecute(20 * time.Second),
			{Key: "other", Effect: corev1.TaintEffectNoExecute, TimeAdded: ptr.To(ago(20 * time.Second))}}}}}},
		{name: "the time is over", fates: Clusters{Of: map[string]Fate{"m1": {Taints: []corev1.Taint{noExecute(51 * time.Second)}}}},
			change: func(b binding.Binding) { b.Spec.Placement.ClusterTolerations = tolerating(ptr.To[int64](50)) },
			want:   want{from: "m1", reason: "TaintUntolerated", mode: gracefully, message: "not tolerated any longer", next: 10 * time.Minute}},
		{name: "a taint, and the policy wants it Directly", fates: Clusters{Of: map[string]Fate{"m2": {Taints: []corev1.Taint{noExecute(0)}}}},
			change: func(b binding.Binding) { b.Spec.Failover = cluster("Immediately") },
			want:   want{from: "m2", reason: "TaintUntolerated", mode: policyv1alpha1.PurgeModeDirectly}},
		{name: "more templates leave the cluster than its rate allows", fates: Clusters{Of: map[string]Fate{"m1": {Taints: []corev1.Taint{noExecute(0)}}}}, wait: 3 * time.Second,
			want: want{next: 3 * time.Second}},
		{name: "a failed cluster, and no failover", fates: Clusters{Of: map[string]Fate{"m1": {Failed: evictionTime.Add(-time.Hour)}}}},
		{name: "a failed cluster", fates: Clusters{Of: map[string]Fate{"m1": {Failed: evictionTime.Add(-6 * time.Second)}}},
			change: func(b binding.Binding) { b.Spec.Failover = cluster(gracefully) },
			want:   want{from: "m1", reason: "ClusterFailure", mode: gracefully, message: "cluster m1 has not been ready since 2026-01-02T03:03:59Z", next: 10 * time.Minute}},
		{name: "one that has just failed", fates: Clusters{Of: map[string]Fate{"m1": {Failed: evictionTime.Add(-2 * time.Second)}}},
			change: func(b binding.Binding) { b.Spec.Failover = cluster(gracefully) }, want: want{next: 3 * time.Second}},
		{name: "a failed cluster that others reach", fates: Clusters{Of: map[string]Fate{"m1": {Failed: evictionTime.Add(-time.Minute), Reachable: true}}},
			change: func(b binding.Binding) { b.Spec.Failover = cluster(gracefully) },
			want:   want{held: "it stays there until 2026-01-02T03:08:05Z, since other clusters reach its data plane", next: 4 * time.Minute}},
		{name: "one that others reach, for long", fates: Clusters{Of: map[string]Fate{"m1": {Failed: evictionTime.Add(-6 * time.Minute), Reachable: true}}},
			change: func(b binding.Binding) { b.Spec.Failover = cluster(gracefully) },
			want:   want{from: "m1", reason: "ClusterFailure", mode: gracefully, next: 10 * time.Minute}},
		{name: "too many at once", fates: Clusters{Of: map[string]Fate{"m1": {Failed: evictionTime.Add(-time.Hour)}}, Halted: "2 of 3 clusters are not ready at once"},
			change: func(b binding.Binding) { b.Spec.Failover = cluster(gracefully) }, want: want{held: "2 of 3 clusters"}},
		{name: "too many at once, with taints for that", want: want{held: "taint broken:NoExecute is not tolerated: it stays in cluster m1, since 2 of 3 clusters"},
			fates: Clusters{Of: map[string]Fate{"m1": {Failed: evictionTime.Add(-time.Hour), Taints: []corev1.Taint{noExecute(0)}}}, Halted: "2 of 3 clusters are not ready at once"}},
		{name: "too many at once, and a taint of one that is ready", want: want{from: "m1", reason: "TaintUntolerated", mode: gracefully, next: 10 * time.Minute},
			fates: Clusters{Of: map[string]Fate{"m1": {Taints: []corev1.Taint{noExecute(0)}}}, Halted: "2 of 3 clusters are not ready at once"}},
		{name: "another cluster is nearer", nearer: map[string]string{"m2": "m3 is nearer"},
			want: want{from: "m2", reason: "NearerCluster", mode: gracefully, message: "m3 is nearer"}},
		{name: "more templates move to nearer clusters than the rate allows", nearer: map[string]string{"m2": "m3 is nearer"}, wait: 3 * time.Second,
			want: want{next: 3 * time.Second}},
		{name: "unhealthy, and no failover", change: unhealthy},
		{name: "unhealthy since now", change: func(b binding.Binding) { unhealthy(b); b.Spec.Failover = application(gracefully, nil) }, want: want{next: time.Minute}},
		{name: "unhealthy for long", change: func(b binding.Binding) { unhealthy(b); b.Spec.Failover = application(gracefully, ptr.To[int32](90)) },
			before: workv1alpha2.Decision{Unhealthy: map[string]metav1.MicroTime{"m1": metav1.NewMicroTime(evictionTime.Add(-time.Minute))}},
			want:   want{from: "m1", reason: "ApplicationFailure", mode: gracefully, message: "unhealthy in cluster m1 since", next: 90 * time.Second},
			check: func(t *testing.T, task workv1alpha2.GracefulEvictionTask) {
				if ptr.Deref(task.GracePeriodSeconds, 0) != 90 {
					t.Errorf("grace period %v", task.GracePeriodSeconds)
				}
			}},
		{name: "unhealthy for long, to be purged Never", change: func(b binding.Binding) {
			unhealthy(b)
			b.Spec.Failover = application(policyv1alpha1.PurgeModeNever, nil)
		},
			before: workv1alpha2.Decision{Unhealthy: map[string]metav1.MicroTime{"m1": metav1.NewMicroTime(evictionTime.Add(-time.Hour))}},
			want:   want{from: "m1", reason: "ApplicationFailure", mode: policyv1alpha1.PurgeModeNever},
			check: func(t *testing.T, task workv1alpha2.GracefulEvictionTask) {
				if !ptr.Deref(task.SuppressDeletion, false) {
					t.Error("the task does not wait for a user")
				}
			}},
		{name: "the clock was set back by an hour", change: func(b binding.Binding) { unhealthy(b); b.Spec.Failover = application(gracefully, nil) },
			before: workv1alpha2.Decision{Unhealthy: map[string]metav1.MicroTime{"m1": metav1.NewMicroTime(evictionTime.Add(time.Hour))}}, want: want{next: time.Minute}},
		{name: "healthy again", change: func(b binding.Binding) { b.Spec.Failover = application(gracefully, nil) },
			before: workv1alpha2.Decision{Unhealthy: map[string]metav1.MicroTime{"m1": metav1.NewMicroTime(evictionTime.Add(-time.Hour))}}},
		{name: "state is preserved", fates: Clusters{Of: map[string]Fate{"m1": {Failed: evictionTime.Add(-time.Hour)}}},
			change: func(b binding.Binding) {
				b.Spec.Failover = cluster(policyv1alpha1.PurgeModeDirectly)
				b.Spec.Failover.Cluster.StatePreservation = &policyv1alpha1.StatePreservation{Rules: []policyv1alpha1.StatePreservationRule{{AliasLabelName: "job", JSONPath: "{.job.id}"}}}
			},
			want: want{from: "m1", reason: "ClusterFailure", mode: policyv1alpha1.PurgeModeDirectly},
			check: func(t *testing.T, task workv1alpha2.GracefulEvictionTask) {
				if diff := cmp.Diff(map[string]string{"job": "j-7"}, task.PreservedLabelState); diff != "" {
					t.Errorf("preserved -want +got\n%s", diff)
				}
			}},
		{name: "state that is not there", fates: Clusters{Of: map[string]Fate{"m1": {Failed: evictionTime.Add(-time.Hour)}}},
			change: func(b binding.Binding) {
				b.Spec.Failover = cluster(gracefully)
				b.Spec.Failover.Cluster.StatePreservation = &policyv1alpha1.StatePreservation{Rules: []policyv1alpha1.StatePreservationRule{{AliasLabelName: "job", JSONPath: "{.job.none}"}}}
			}, want: want{held: "its state cannot be preserved: statePreservation rule job"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := evicted()
			if tt.change != nil {
				tt.change(b)
			}
			clusters := b.Spec.Clusters
			tt.before.Reason = workv1alpha2.ReasonSuccess
			v := Evictor{EvictionOptions: EvictionOptions{}.Defaulted(), Clusters: tt.fates, Now: evictionTime, Nearer: tt.nearer, Take: func(string) time.Duration { return tt.wait }}
			e := v.Evict(b, &tt.before)
			if e.Next != tt.want.next {
				t.Errorf("looks again after %s, want %s", e.Next, tt.want.next)
			}
			if held := strings.Join(e.Held, "; "); (held == "") != (tt.want.held == "") || !strings.Contains(held, tt.want.held) {
				t.Errorf("held %q, want %q", held, tt.want.held)
			}
			if tt.want.from == "" {
				if len(e.Began) > 0 || len(b.Spec.GracefulEvictionTasks) > 0 || !cmp.Equal(clusters, b.Spec.Clusters) {
					t.Errorf("tasks %+v, clusters %v; want all to stay", b.Spec.GracefulEvictionTasks, b.Spec.Clusters)
				}
				return
			}
			if len(b.Spec.GracefulEvictionTasks) != 1 || len(b.Spec.Clusters) != 1 || b.Spec.Clusters[0].Name == tt.want.from {
				t.Fatalf("tasks %+v, clusters %v", b.Spec.GracefulEvictionTasks, b.Spec.Clusters)
			}
			task := b.Spec.GracefulEvictionTasks[0]
			if task.FromCluster != tt.want.from || task.Reason != tt.want.reason || task.PurgeMode != tt.want.mode || !strings.Contains(task.Message, tt.want.message) ||
				task.CreationTimestamp == nil || task.Replicas == nil || !cmp.Equal(task.ClustersBeforeFailover, []string{"m1", "m2"}) {
				t.Errorf("task %+v", task)
			}
			if tt.check != nil {
				tt.check(t, task)
			}
		})
	}
}

// The three rules by which a task ends.
func TestEvictionsEnd(t *testing.T) {
	task := func(change ...func(*workv1alpha2.GracefulEvictionTask)) func(binding.Binding) {
		return func(b binding.Binding) {
			at := ago(5 * time.Minute)
			t := workv1alpha2.GracefulEvictionTask{FromCluster: "m9", PurgeMode: policyv1alpha1.PurgeModeGracefully, CreationTimestamp: &at}
			for _, f := range change {
				f(&t)
			}
			b.Spec.GracefulEvictionTasks = []workv1alpha2.GracefulEvictionTask{t}
		}
	}
	suppress := func(v bool) func(*workv1alpha2.GracefulEvictionTask) {
		return func(t *workv1alpha2.GracefulEvictionTask) { t.SuppressDeletion = &v }
	}
	old := func(t *workv1alpha2.GracefulEvictionTask) { t.CreationTimestamp = ptr.To(ago(11 * time.Minute)) }
	unsettled := func(b binding.Binding) { b.Status.AggregatedStatus[1].Health = workv1alpha2.ResourceUnhealthy }
	fewer := func(b binding.Binding) { b.Status.AggregatedStatus[1] = health("m2", 2) }
	directly := func(t *workv1alpha2.GracefulEvictionTask) { t.PurgeMode = policyv1alpha1.PurgeModeDirectly }
	applied := func(generation int64) func(binding.Binding) {
		return func(b binding.Binding) {
			b.SetGeneration(7)
			meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: workv1alpha2.ConditionFullyApplied, Status: metav1.ConditionTrue,
				Reason: workv1alpha2.ReasonFullyAppliedSuccess, ObservedGeneration: generation})
		}
	}
	nowhere := func(b binding.Binding) { b.Spec.Clusters = nil }
	for _, tt := range []struct {
		name   string
		change []func(binding.Binding)
		reason string
		ends   bool
		next   time.Duration
		// decided is how long ago; failed are clusters that are not ready.
		decided time.Duration
		failed  string
	}{
		{name: "healthy in all clusters", change: []func(binding.Binding){task()}, ends: true},
		{name: "not healthy in one", change: []func(binding.Binding){task(), unsettled}, next: 5 * time.Minute},
		{name: "not all replicas are ready, but the status may be older than the decision", change: []func(binding.Binding){task(), fewer},
			decided: 40 * time.Second, next: 20 * time.Second},
		{name: "… Directly", change: []func(binding.Binding){task(old, directly), fewer}, decided: 40 * time.Second, next: 20 * time.Second},
		{name: "the member wants fewer replicas", change: []func(binding.Binding){task(), fewer}, decided: time.Minute, ends: true},
		{name: "… Directly", change: []func(binding.Binding){task(directly), fewer}, decided: time.Minute, ends: true},
		{name: "… or its cluster reports nothing any more", change: []func(binding.Binding){task(), fewer}, decided: time.Minute, failed: "m2", next: 5 * time.Minute},
		{name: "the last decision failed", change: []func(binding.Binding){task()}, reason: workv1alpha2.ReasonUnschedulable, next: 5 * time.Minute},
		{name: "the time is up", change: []func(binding.Binding){task(func(t *workv1alpha2.GracefulEvictionTask) { t.GracePeriodSeconds = ptr.To[int32](300) }), unsettled}, ends: true},
		{name: "the time is up, and it runs nowhere else", change: []func(binding.Binding){task(func(t *workv1alpha2.GracefulEvictionTask) { t.GracePeriodSeconds = ptr.To[int32](300) }), nowhere}},
		{name: "Directly: no time is up", change: []func(binding.Binding){task(old, directly), unsettled}},
		{name: "Directly, by its former name", change: []func(binding.Binding){task(old, func(t *workv1alpha2.GracefulEvictionTask) { t.PurgeMode = "Immediately" }), unsettled}},
		{name: "Directly, healthy in all clusters", change: []func(binding.Binding){task(directly)}, ends: true},
		{name: "Directly, more replicas are pending", change: []func(binding.Binding){task(directly), applied(7)}, reason: workv1alpha2.ReasonUnschedulable, ends: true},
		{name: "… its copy is still there", change: []func(binding.Binding){task(directly)}, reason: workv1alpha2.ReasonUnschedulable},
		{name: "… the status is older than the task", change: []func(binding.Binding){task(directly), applied(6)}, reason: workv1alpha2.ReasonUnschedulable},
		{name: "… what runs is not healthy", change: []func(binding.Binding){task(directly), applied(7), unsettled}, reason: workv1alpha2.ReasonUnschedulable},
		{name: "… Gracefully", change: []func(binding.Binding){task(), applied(7)}, reason: workv1alpha2.ReasonUnschedulable, next: 5 * time.Minute},
		{name: "for a nearer cluster: no time is up", change: []func(binding.Binding){task(old, func(t *workv1alpha2.GracefulEvictionTask) { t.Reason = workv1alpha2.EvictionReasonNearerCluster }), unsettled}},
		{name: "11 minutes old", change: []func(binding.Binding){task(old), unsettled}, ends: true},
		{name: "a user is to decide", change: []func(binding.Binding){task(suppress(true))}},
		{name: "a user has decided", change: []func(binding.Binding){task(suppress(false)), unsettled}, ends: true},
		{name: "another controller's task gets its time", change: []func(binding.Binding){task(func(t *workv1alpha2.GracefulEvictionTask) { t.CreationTimestamp = nil })}, next: 10 * time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := evicted()
			for _, f := range tt.change {
				f(b)
			}
			v := Evictor{EvictionOptions: EvictionOptions{}.Defaulted(), Now: evictionTime, Take: func(string) time.Duration { return 0 }}
			if tt.failed != "" {
				v.Clusters.Of = map[string]Fate{tt.failed: {Failed: evictionTime}}
			}
			e := v.Evict(b, &workv1alpha2.Decision{Reason: stdcmp.Or(tt.reason, workv1alpha2.ReasonSuccess), Scheduled: metav1.NewMicroTime(evictionTime.Add(-tt.decided))})
			if ends := len(b.Spec.GracefulEvictionTasks) == 0; ends != tt.ends || len(e.Ended) == 1 != tt.ends {
				t.Errorf("tasks %+v, ended %v; want it to end: %t", b.Spec.GracefulEvictionTasks, e.Ended, tt.ends)
			}
			if e.Next != tt.next {
				t.Errorf("looks again after %s, want %s", e.Next, tt.next)
			}
		})
	}
}

// Times of tasks are stored in whole seconds: a grace period must not be too short.
func TestEvictionBeginsInWholeSeconds(t *testing.T) {
	b := evicted()
	b.Spec.GracefulEvictionTasks = []workv1alpha2.GracefulEvictionTask{{FromCluster: "m9", GracePeriodSeconds: ptr.To[int32](10)}}
	b.Status.AggregatedStatus[1].Health = workv1alpha2.ResourceUnhealthy
	began := evictionTime.Truncate(time.Second).Add(900 * time.Millisecond)
	v := Evictor{EvictionOptions: EvictionOptions{}.Defaulted(), Now: began, Take: func(string) time.Duration { return 0 }}
	v.Evict(b, &workv1alpha2.Decision{Reason: workv1alpha2.ReasonSuccess})
	// as stored
	*b.Spec.GracefulEvictionTasks[0].CreationTimestamp = b.Spec.GracefulEvictionTasks[0].CreationTimestamp.Rfc3339Copy()
	for after, tasks := range map[time.Duration]int{9900 * time.Millisecond: 1, 10100 * time.Millisecond: 0} {
		c := b.Copy()
		v.Now = began.Add(after)
		v.Evict(c, &workv1alpha2.Decision{Reason: workv1alpha2.ReasonSuccess})
		if got := len(c.Spec.GracefulEvictionTasks); got != tasks {
			t.Errorf("%s after it began there are %d tasks, want %d", after, got, tasks)
		}
	}
}

// Where no other cluster can have the template, it stays and reports why.
func TestEvictionWithoutReplacement(t *testing.T) {
	b := evicted()
	v := Evictor{EvictionOptions: EvictionOptions{}.Defaulted(), Clusters: Clusters{Of: map[string]Fate{"m1": {Taints: []corev1.Taint{noExecute(0)}}}}, Now: evictionTime,
		Take: func(string) time.Duration { return 0 }, Stays: errors.New("0/2 clusters are available")}
	e := v.Evict(b, &workv1alpha2.Decision{})
	if len(b.Spec.Clusters) != 2 || len(b.Spec.GracefulEvictionTasks) > 0 || !strings.Contains(strings.Join(e.Held, ""), "it stays in cluster m1, since no other can have it: 0/2") {
		t.Errorf("clusters %v, tasks %v, held %q", b.Spec.Clusters, b.Spec.GracefulEvictionTasks, e.Held)
	}
}

func TestFates(t *testing.T) {
	cluster := func(name string, ready metav1.ConditionStatus, reason string, taints ...clusterv1alpha1.Taint) clusterv1alpha1.Cluster {
		c := clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: clusterv1alpha1.ClusterSpec{Taints: taints}}
		c.Status.Conditions = []metav1.Condition{{Type: clusterv1alpha1.ConditionReady, Status: ready, Reason: reason, LastTransitionTime: ago(time.Minute)}}
		if reason != clusterv1alpha1.ReasonClusterStatusNeverUpdated && reason != clusterv1alpha1.ReasonStatusCollectionFailed {
			c.Status.APIEnablements = []clusterv1alpha1.APIEnablement{{GroupVersion: "apps/v1"}}
		}
		return c
	}
	good := cluster("good", metav1.ConditionTrue, clusterv1alpha1.ReasonClusterReady, clusterv1alpha1.Taint{Key: "x", Effect: corev1.TaintEffectNoSchedule})
	silent := cluster("silent", metav1.ConditionUnknown, clusterv1alpha1.ReasonClusterStatusUnknown)
	never := cluster("never", metav1.ConditionUnknown, clusterv1alpha1.ReasonClusterStatusNeverUpdated)
	tainted := cluster("tainted", metav1.ConditionTrue, clusterv1alpha1.ReasonClusterReady, clusterv1alpha1.Taint{Key: "x", Effect: corev1.TaintEffectNoExecute})
	f := ReadClusters([]clusterv1alpha1.Cluster{good, silent, never, tainted, {}}, 0.55)
	if len(f.Of) != 2 || f.Of["silent"].Failed.IsZero() || len(f.Of["tainted"].Taints) != 1 || f.Halted != "" {
		t.Errorf("fates %+v", f)
	}
	if f := ReadClusters([]clusterv1alpha1.Cluster{good, silent, silent}, 0.55); !strings.Contains(f.Halted, "2 of 3") {
		t.Errorf("two of three have failed: %+v", f)
	}
	unusable := cluster("unusable", metav1.ConditionFalse, clusterv1alpha1.ReasonStatusCollectionFailed)
	unapproved := cluster("unapproved", metav1.ConditionTrue, clusterv1alpha1.ReasonClusterReady, clusterv1alpha1.Taint{Key: clusterv1alpha1.TaintUnapproved})
	lost := cluster("lost", metav1.ConditionUnknown, clusterv1alpha1.ReasonClusterStatusUnknown, clusterv1alpha1.Taint{Key: clusterv1alpha1.TaintUnapproved})
	for name, other := range map[string]clusterv1alpha1.Cluster{"never ready": never, "unapproved": unapproved} {
		if f := ReadClusters([]clusterv1alpha1.Cluster{good, silent, silent, other, other}, 0.55); !strings.Contains(f.Halted, "2 of 3") {
			t.Errorf("%s: it counts among those that are there: %+v", name, f)
		}
	}
	for name, other := range map[string]clusterv1alpha1.Cluster{"never ready": unusable, "unapproved": lost} {
		if f := ReadClusters([]clusterv1alpha1.Cluster{good, silent, other, other}, 0.55); f.Halted != "" {
			t.Errorf("%s: it counts among those that have failed: %+v", name, f)
		}
	}
	if f := ReadClusters([]clusterv1alpha1.Cluster{silent}, 0.55); f.Halted == "" {
		t.Error("all clusters have failed, and templates leave them")
	}
}

func TestPreserve(t *testing.T) {
	for name, c := range map[string]struct{ status, want, err string }{
		"a text":         {status: `{"job":{"id":"j-7"}}`, want: "j-7"},
		"a large number": {status: `{"job":{"id":1767323045000}}`, want: "1767323045000"},
		"a fraction":     {status: `{"job":{"id":0.5}}`, want: "0.5"},
		"null":           {status: `{"job":{"id":null}}`, err: "statePreservation rule job: {.job.id} is null"},
		"nothing":        {status: `{"job":{}}`, err: "statePreservation rule job: id is not found"},
		"an empty text":  {status: `{"job":{"id":""}}`, err: `statePreservation rule job: "" is no value of a label`},
		"an object":      {status: `{"job":{"id":{}}}`, err: `statePreservation rule job: "{}" is no value of a label`},
	} {
		p := &policyv1alpha1.StatePreservation{Rules: []policyv1alpha1.StatePreservationRule{{AliasLabelName: "job", JSONPath: "{.job.id}"}}}
		got, err := preserve(p, &workv1alpha2.AggregatedStatusItem{Status: &runtime.RawExtension{Raw: []byte(c.status)}})
		if got["job"] != c.want || (err == nil) != (c.err == "") || err != nil && !strings.HasPrefix(err.Error(), c.err) {
			t.Errorf("%s: %q, error %v; want %q, %q", name, got, err, c.want, c.err)
		}
	}
}

// Whatever the path and the status, preserve returns values of labels or an error.
func FuzzPreserve(f *testing.F) {
	f.Add("{.job.id}", `{"job":{"id":"j-7"}}`)
	f.Add("{.items[*].x}", `{"items":[{"x":1},{"x":"y"}]}`)
	f.Add("{range .a[*]}{.b}{end}", `{"a":[]}`)
	f.Add("{.items[*]}", `{"items":[1767323045000,null]}`)
	f.Fuzz(func(t *testing.T, path, status string) {
		if !json.Valid([]byte(status)) {
			return
		}
		p := &policyv1alpha1.StatePreservation{Rules: []policyv1alpha1.StatePreservationRule{{AliasLabelName: "a", JSONPath: path}}}
		labels, err := preserve(p, &workv1alpha2.AggregatedStatusItem{Status: &runtime.RawExtension{Raw: []byte(status)}})
		if err == nil && (len(labels) != 1 || labels["a"] == "" || len(labels["a"]) > 63) {
			t.Errorf("labels %q", labels)
		}
	})
}

func TestClustersEqual(t *testing.T) {
	of := func(f Fate) Clusters { return Clusters{Of: map[string]Fate{"m1": f}} }
	added := metav1.NewTime(evictionTime)
	failed := Fate{Failed: evictionTime, Taints: []corev1.Taint{{Key: "a", TimeAdded: &added}}}
	same := Fate{Failed: evictionTime.In(time.FixedZone("east", 3600)), Taints: []corev1.Taint{{Key: "a", TimeAdded: ptr.To(metav1.NewTime(evictionTime.Local()))}}}
	if !of(failed).Equal(of(same)) {
		t.Error("the same fate is another one")
	}
	later, reachable, untainted := failed, failed, failed
	later.Failed, reachable.Reachable, untainted.Taints = evictionTime.Add(time.Second), true, nil
	for name, other := range map[string]Clusters{"since later": of(later), "reachable": of(reachable), "without the taint": of(untainted),
		"no cluster": {}, "another cluster": {Of: map[string]Fate{"m2": failed}}, "halted": {Of: of(failed).Of, Halted: "too many"}} {
		if of(failed).Equal(other) {
			t.Errorf("%s: equal", name)
		}
	}
}

// 500 templates leave a cluster at its rate; each asks once more than it has to.
func TestEvictionRates(t *testing.T) {
	r := EvictionRates{QPS: 20}
	due := map[string]time.Time{}
	for i := range 500 {
		due[fmt.Sprint(i)] = evictionTime
	}
	asked, left := 0, map[int]int{} // by second
	for clock := evictionTime; len(due) > 0; clock = clock.Add(10 * time.Millisecond) {
		for key, at := range due {
			if at.After(clock) {
				continue
			}
			asked++
			if d := r.Take("m1", key, clock); d > 0 {
				due[key] = clock.Add(d)
				continue
			}
			left[int(clock.Sub(evictionTime)/time.Second)]++
			delete(due, key)
		}
	}
	if asked > 980 || left[0] > 40 || len(left) > 25 {
		t.Errorf("asked %d times; left by second: %v", asked, left)
	}
	for second, n := range left {
		if second > 0 && n > 20 {
			t.Errorf("%d in second %d", n, second)
		}
	}
	if d := r.Take("m2", "0", evictionTime); d != 0 {
		t.Errorf("another cluster: wait %s", d)
	}
	// A place that its binding does not use is kept for it for a while, and then lost.
	lost := EvictionRates{QPS: 1}
	for i, want := range []time.Duration{0, time.Second, 2 * time.Second} {
		if d := lost.Take("m1", fmt.Sprint(i), evictionTime); d != want {
			t.Errorf("binding %d waits %s, want %s", i, d, want)
		}
	}
	if d := lost.Take("m1", "1", evictionTime.Add(30*time.Second)); d != 0 {
		t.Errorf("a place is lost after 30 s: wait %s", d)
	}
	if d := lost.Take("m1", "3", evictionTime.Add(2*time.Minute)); d != 0 || len(lost.of["m1"].given) != 0 {
		t.Errorf("wait %s, kept places %v", d, lost.of["m1"].given)
	}
	// A binding that could not use its place has it the next time, whoever has asked meanwhile.
	held := EvictionRates{QPS: 1}
	for i := range 10 {
		now := evictionTime.Add(time.Duration(i) * 30 * time.Second)
		if d := held.Take("m1", "held", now); d != 0 {
			t.Fatalf("the %d. time it waits %s", i, d)
		}
		held.Keep("m1", "held", now)
		for n := range 30 {
			held.Take("m1", fmt.Sprint(i, n), now)
		}
	}
	// Places are not given without end: templates may stay after all.
	full := EvictionRates{QPS: 1}
	for n := range 1000 {
		full.Take("m1", fmt.Sprint(n), evictionTime)
	}
	if d := full.Take("m1", "late", evictionTime); d != time.Minute || len(full.of["m1"].given) > 60 {
		t.Errorf("the 1,001st waits %s; %d places are given", d, len(full.of["m1"].given))
	}
}

// Only replicas that are ready count as the cluster's own report of them.
func TestObservation(t *testing.T) {
	b := binding.New(client.ObjectKey{Namespace: "shop"})
	b.SetResourceVersion("5")
	b.Spec.Clusters = []workv1alpha2.TargetCluster{{Name: "m1", Replicas: 2}, {Name: "m2", Replicas: 3}, {Name: "m3", Replicas: 1}, {Name: "m4", Replicas: 1}}
	b.Spec.GracefulEvictionTasks = []workv1alpha2.GracefulEvictionTask{{FromCluster: "m5", Replicas: ptr.To[int32](4)}, {FromCluster: "m1"}}
	item := func(cluster string, applied bool, health workv1alpha2.ResourceHealth, raw string) workv1alpha2.AggregatedStatusItem {
		return workv1alpha2.AggregatedStatusItem{ClusterName: cluster, Applied: applied, Health: health, Status: &runtime.RawExtension{Raw: []byte(raw)}}
	}
	b.Status.AggregatedStatus = []workv1alpha2.AggregatedStatusItem{
		item("m1", true, workv1alpha2.ResourceHealthy, `{"readyReplicas":2}`), item("m2", true, workv1alpha2.ResourceHealthy, `{"readyReplicas":2}`),
		item("m3", true, workv1alpha2.ResourceUnhealthy, `{"readyReplicas":1}`), item("m4", true, workv1alpha2.ResourceHealthy, `{"succeeded":1}`)}
	want := Observation{ResourceVersion: "5", Size: scheduler.Load{Pods: 1}, Total: scheduler.Load{Pods: 7}, Parts: []ReservedPart{
		{Cluster: "m1", Replicas: 2, Settled: true},
		{Cluster: "m2", Replicas: 3, Settled: false},
		{Cluster: "m3", Replicas: 1, Settled: false},
		{Cluster: "m4", Replicas: 1, Settled: true},
		{Cluster: "m5", Replicas: 4, Settled: false},
	}}
	if diff := cmp.Diff(want, ObservationOf(b)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	b.Spec.Clusters, b.Spec.GracefulEvictionTasks = []workv1alpha2.TargetCluster{{Name: "m1"}, {Name: "m3"}}, nil
	b.Spec.Components = []workv1alpha2.Component{{Name: "a", Replicas: 1}, {Name: "b", Replicas: 4}}
	want = Observation{ResourceVersion: "5", Size: scheduler.Load{Pods: 5}, Total: scheduler.Load{Pods: 10}, Parts: []ReservedPart{
		{Cluster: "m1", Replicas: 1, Settled: true}, {Cluster: "m3", Replicas: 1, Settled: false}}}
	if diff := cmp.Diff(want, ObservationOf(b)); diff != "" {
		t.Errorf("components: -want +got:\n%s", diff)
	}
}
