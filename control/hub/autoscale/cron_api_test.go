package autoscale_test

import (
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autoscalingv1alpha1 "github.com/pelago-net/pelago/api/autoscaling/v1alpha1"
	"github.com/pelago-net/pelago/control/hub/autoscale"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

var server = apiserver.NewShared(apiserver.CRDs())

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

func deployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "i"}}}}}}
}

// A clock that a test moves.
type clock struct{ nanos atomic.Int64 }

func (c *clock) now() time.Time      { return time.Unix(0, c.nanos.Load()).UTC() }
func (c *clock) set(t time.Time)     { c.nanos.Store(t.UnixNano()) }
func day(hour, minute int) time.Time { return time.Date(2026, 3, 10, hour, minute, 0, 0, time.UTC) }

// The rules of Karmada: a template and a FederatedHPA are scaled at their times, the
// history tells, a suspended rule does nothing, and a restart neither repeats nor forgets a time.
func TestCron(t *testing.T) {
	c := connect(t)
	clock := &clock{}
	clock.set(day(5, 0))
	start := func() (stop func()) {
		return apiserver.Manager{Scheme: c.Scheme(), Setup: []func(ctrl.Manager) error{func(m ctrl.Manager) error {
			return autoscale.Setup(m, autoscale.Options{Now: clock.now})
		}}}.Run(t, c.Config)
	}
	stop := start()
	ref := func(apiVersion, kind, name string) autoscalingv2.CrossVersionObjectReference {
		return autoscalingv2.CrossVersionObjectReference{APIVersion: apiVersion, Kind: kind, Name: name}
	}
	utc, web := ptr.To("UTC"), deployment("web", 1)
	hpa := &autoscalingv1alpha1.FederatedHPA{ObjectMeta: web.ObjectMeta, Spec: autoscalingv1alpha1.FederatedHPASpec{
		ScaleTargetRef: ref("apps/v1", "Deployment", "other"), MaxReplicas: 4}}
	type rule = autoscalingv1alpha1.CronFederatedHPARule
	cron := func(name string, target autoscalingv2.CrossVersionObjectReference, rules ...rule) *autoscalingv1alpha1.CronFederatedHPA {
		for i := range rules {
			rules[i].TimeZone = utc
		}
		return &autoscalingv1alpha1.CronFederatedHPA{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: autoscalingv1alpha1.CronFederatedHPASpec{ScaleTargetRef: target, Rules: rules}}
	}
	workload := cron("workload", ref("apps/v1", "Deployment", "web"), rule{Name: "morning", Schedule: "0 6 * * *", TargetReplicas: ptr.To[int32](5)},
		rule{Name: "night", Schedule: "0 22 * * *", TargetReplicas: ptr.To[int32](0)})
	bounds := cron("bounds", ref("autoscaling.karmada.io/v1alpha1", "FederatedHPA", "web"),
		rule{Name: "morning", Schedule: "0 6 * * *", TargetMinReplicas: ptr.To[int32](2), TargetMaxReplicas: ptr.To[int32](9)},
		rule{Name: "crossed", Schedule: "30 6 * * *", TargetMinReplicas: ptr.To[int32](20)})
	absent := cron("absent", ref("apps/v1", "Deployment", "absent"), rule{Name: "r", Schedule: "0 6 * * *", TargetReplicas: ptr.To[int32](5)})
	invalid := cron("invalid", ref("apps/v1", "Deployment", "web"), rule{Name: "r", Schedule: "0 6 * *", TargetReplicas: ptr.To[int32](7)})
	all := []client.Object{web, hpa, workload, bounds, absent, invalid}
	c.Make(all...)

	get := func(o client.Object) {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Fatal(err)
		}
	}
	// show is the history of a rule: executions, newest first; ! for a failed one.
	show := func(o *autoscalingv1alpha1.CronFederatedHPA, rule string) func() string {
		return func() string {
			get(o)
			var out []string
			for _, h := range o.Status.ExecutionHistories {
				if h.RuleName != rule {
					continue
				}
				for _, e := range h.SuccessfulExecutions {
					out = append(out, e.ScheduleTime.UTC().Format("2T15:04"))
				}
				for _, e := range h.FailedExecutions {
					out = append(out, "!"+e.ScheduleTime.UTC().Format("2T15:04")+" "+e.Message)
				}
				if len(out) == 0 && h.NextExecutionTime != nil {
					out = append(out, "next "+h.NextExecutionTime.UTC().Format("2T15:04"))
				}
			}
			return strings.Join(out, ", ")
		}
	}
	jump := func(to time.Time) {
		clock.set(to)
		c.Nudge(workload)
		c.Nudge(bounds)
		c.Nudge(absent)
	}
	await.Equal(t, "next 10T06:00", show(workload, "morning"))
	await.Equal(t, "next 10T06:00", show(bounds, "morning"))
	await.Equal(t, "next 10T06:00", show(absent, "r"))
	jump(day(6, 0))
	await.Equal(t, "10T06:00", show(workload, "morning"))
	await.Equal(t, "10T06:00", show(bounds, "morning"))
	await.True(t, "the failure is recorded", func() bool {
		return strings.Contains(show(absent, "r")(), "!10T06:00 read the scale of Deployment default/absent:")
	})
	if get(web); *web.Spec.Replicas != 5 {
		t.Errorf("%d replicas, want 5", *web.Spec.Replicas)
	}
	if get(hpa); *hpa.Spec.MinReplicas != 2 || hpa.Spec.MaxReplicas != 9 {
		t.Errorf("bounds %d and %d, want 2 and 9", *hpa.Spec.MinReplicas, hpa.Spec.MaxReplicas)
	}
	await.True(t, "the condition names the rule and the reason", func() bool {
		get(invalid)
		a := meta.FindStatusCondition(invalid.Status.Conditions, "Accepted")
		return a != nil && a.Reason == "Invalid" && strings.Contains(a.Message, `rule r: schedule "0 6 * *": expected exactly 5 fields`)
	})
	if len(invalid.Status.ExecutionHistories) > 0 {
		t.Error("an invalid CronFederatedHPA has a history")
	}

	jump(day(6, 45))
	await.True(t, "crossed bounds are refused", func() bool {
		return strings.Contains(show(bounds, "crossed")(), "!10T06:30 not applied: minReplicas 20 of the FederatedHPA default/web would be above maxReplicas 9")
	})

	// The hub is away at night, and someone has scaled meanwhile: the missed time counts once.
	stop()
	clock.set(day(23, 30))
	stop = start()
	await.Equal(t, "10T22:00", show(workload, "night"))
	if get(web); *web.Spec.Replicas != 0 {
		t.Errorf("%d replicas, want 0", *web.Spec.Replicas)
	}
	web.Spec.Replicas = ptr.To[int32](3)
	if err := c.Update(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	stop()
	clock.set(day(21, 59)) // the clock is set back, and the time comes again
	start()
	clock.set(day(22, 1))
	c.Nudge(workload)
	jump(day(22, 2))
	get(workload)
	workload.Spec.Rules[0].Suspend = ptr.To(true)
	if err := c.Update(t.Context(), workload); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the suspension is seen", func() bool {
		get(workload)
		return workload.Status.ExecutionHistories[0].NextExecutionTime == nil
	})
	jump(day(30, 30))
	await.True(t, "others run on", func() bool { return strings.HasPrefix(show(bounds, "morning")(), "11T06:00, 10T06:00") })
	if get(web); *web.Spec.Replicas != 3 || show(workload, "night")() != "10T22:00" || show(workload, "morning")() != "10T06:00" {
		t.Errorf("%d replicas, want 3; %s; %s", *web.Spec.Replicas, show(workload, "night")(), show(workload, "morning")())
	}
}
