package autoscale_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autoscalingv1alpha1 "github.com/pelago-net/pelago/api/autoscaling/v1alpha1"
	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/autoscale"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// fleet is a hub with ready clusters, and a Deployment that a binding has placed.
type fleet struct {
	*apiserver.Cluster
	*testing.T
}

func connect(t *testing.T) *apiserver.Cluster {
	t.Helper()
	return apiserver.Connect(t, server.Config(t), autoscalingv1alpha1.AddToScheme, clusterv1alpha1.AddToScheme, workv1alpha1.AddToScheme,
		workv1alpha2.AddToScheme, policyv1alpha1.AddToScheme)
}

func newFleet(t *testing.T, clusters ...string) fleet {
	t.Helper()
	c := connect(t)
	f := fleet{c, t}
	for _, name := range clusters {
		m := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Pull}}
		c.Make(m, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: workv1alpha2.ExecutionNamespace(name)}})
		f.ready(name, true)
	}
	apiserver.Manager{Scheme: c.Scheme(), Setup: []func(ctrl.Manager) error{func(m ctrl.Manager) error {
		return autoscale.Setup(m, autoscale.Options{Interval: 50 * time.Millisecond})
	}}}.Run(t, c.Config)
	return f
}

func (f fleet) ready(cluster string, is bool) {
	f.T.Helper()
	m := &clusterv1alpha1.Cluster{}
	f.see(client.ObjectKey{Name: cluster}, m)
	status := metav1.ConditionFalse
	if is {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{Type: clusterv1alpha1.ConditionReady, Status: status, Reason: "Test"})
	if err := f.Cluster.Status().Update(f.T.Context(), m); err != nil {
		f.T.Fatal(err)
	}
}

func (f fleet) see(key client.ObjectKey, o client.Object) {
	f.T.Helper()
	if err := f.Get(f.T.Context(), key, o); err != nil {
		f.T.Fatal(err)
	}
}

// place makes the binding and the Works of a Deployment.
func (f fleet) place(name string, kind policyv1alpha1.ReplicaSchedulingType, targets ...workv1alpha2.TargetCluster) {
	f.T.Helper()
	b := &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name + "-deployment"}, Spec: workv1alpha2.ResourceBindingSpec{
		Resource: workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "default", Name: name}, Clusters: targets,
		Placement: &policyv1alpha1.Placement{ReplicaScheduling: &policyv1alpha1.ReplicaSchedulingStrategy{ReplicaSchedulingType: kind}}}}
	f.Make(b)
	for _, t := range targets {
		f.Make(&workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{Namespace: workv1alpha2.ExecutionNamespace(t.Name), Name: name, Annotations: map[string]string{
			workv1alpha2.AnnotationBindingNamespace: "default", workv1alpha2.AnnotationBindingName: b.Name}},
			Spec: workv1alpha1.WorkSpec{Workload: workv1alpha1.WorkloadTemplate{Manifests: []workv1alpha1.Manifest{{
				RawExtension: runtime.RawExtension{Raw: []byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"default"}}`)}}}}}})
	}
}

// request waits until a Work has a request of the FederatedHPA.
func (f fleet) request(cluster, name string) (w *workv1alpha1.Work, r workv1alpha1.ScalingRequest) {
	f.T.Helper()
	w = &workv1alpha1.Work{}
	await.True(f.T, "the Work in "+cluster+" has a request", func() bool {
		f.see(client.ObjectKey{Namespace: workv1alpha2.ExecutionNamespace(cluster), Name: name}, w)
		return w.Annotations[workv1alpha1.AnnotationScaling] != ""
	})
	if err := json.Unmarshal([]byte(w.Annotations[workv1alpha1.AnnotationScaling]), &r); err != nil {
		f.T.Fatal(err)
	}
	return w, r
}

// report answers for the agent of a cluster: so many pods, which use so many percent of what they
// request.
func (f fleet) report(cluster, name string, pods, percent int64) {
	f.T.Helper()
	m := workv1alpha1.MetricReport{Ready: workv1alpha1.PodSum{Pods: pods, Usage: pods * percent, Requests: pods * 100}}
	if percent < 0 {
		m = workv1alpha1.MetricReport{Error: "no metrics-server"}
	}
	await.True(f.T, "the report is written", func() bool {
		w, _ := f.request(cluster, name)
		w.Status.Scaling = &workv1alpha1.ScalingStatus{Request: workv1alpha1.ScalingRequestID(w.Annotations[workv1alpha1.AnnotationScaling]),
			Pods: int32(pods), ReadyPods: int32(pods), Metrics: []workv1alpha1.MetricReport{m}}
		return f.Cluster.Status().Update(f.T.Context(), w) == nil
	})
}

func hpa(name string, change ...func(*autoscalingv1alpha1.FederatedHPASpec)) *autoscalingv1alpha1.FederatedHPA {
	h := &autoscalingv1alpha1.FederatedHPA{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: autoscalingv1alpha1.FederatedHPASpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name}, MinReplicas: ptr.To[int32](2), MaxReplicas: 30,
		Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: ptr.To[int32](0)}}}}
	for _, f := range change {
		f(&h.Spec)
	}
	return h
}

// condition is status, reason and message of a condition.
func (f fleet) condition(h *autoscalingv1alpha1.FederatedHPA, of string) func() string {
	return func() string {
		f.see(client.ObjectKeyFromObject(h), h)
		c := meta.FindStatusCondition(h.Status.Conditions, of)
		if c == nil {
			return ""
		}
		return strings.TrimSpace(fmt.Sprintln(c.Status, c.Reason, c.Message))
	}
}

func (f fleet) replicas(name string) func() int32 {
	return func() int32 {
		d := deployment(name, 0)
		f.see(client.ObjectKeyFromObject(d), d)
		return *d.Spec.Replicas
	}
}

// The template is scaled by the sum of all clusters; one that is silent delays; without metrics
// nothing happens and the condition names the cause; the requests go with the FederatedHPA.
func TestFederatedHPA(t *testing.T) {
	f := newFleet(t, "h1", "h2")
	h := hpa("divided")
	f.Make(deployment("divided", 4), h)
	await.Equal(t, "False FailedGetResourceMetric the replica count was not computed: cpu resource: no cluster reports it: the target runs in no cluster, or no policy propagates it",
		f.condition(h, "ScalingActive"))
	f.place("divided", policyv1alpha1.ReplicaSchedulingTypeDivided, workv1alpha2.TargetCluster{Name: "h1", Replicas: 3}, workv1alpha2.TargetCluster{Name: "h2", Replicas: 1})
	_, r := f.request("h1", "divided")
	if r.HPA != "default/divided" || r.Selector != "app=divided" || len(r.Metrics) != 1 || *r.Metrics[0].Resource.Target.AverageUtilization != 80 {
		t.Errorf("request %+v", r)
	}
	await.Equal(t, "False FailedGetResourceMetric the replica count was not computed: cpu resource: no cluster reports it: h1: it has not reported yet; h2: it has not reported yet",
		f.condition(h, "ScalingActive"))
	f.report("h1", "divided", 3, -1)
	f.report("h2", "divided", 1, -1)
	await.Equal(t, "False FailedGetResourceMetric the replica count was not computed: cpu resource: no cluster reports it: h1: no metrics-server; h2: no metrics-server",
		f.condition(h, "ScalingActive"))
	if n := f.replicas("divided")(); n != 4 {
		t.Errorf("%d replicas without metrics, want 4", n)
	}
	f.ready("h2", false)
	f.report("h1", "divided", 3, 80)
	await.Equal(t, "True ValidMetricFound the replica count was computed from cpu resource; without h2: the cluster is not ready", f.condition(h, "ScalingActive"))
	f.report("h2", "divided", 1, 240)
	f.ready("h2", true) // 480 of 400, where 80 % are wanted
	await.Equal(t, int32(6), f.replicas("divided"))
	f.report("h1", "divided", 3, 40)
	f.report("h2", "divided", 3, 40)
	await.Equal(t, int32(3), f.replicas("divided"))
	f.report("h1", "divided", 1, 1)
	f.report("h2", "divided", 2, 1)
	await.Equal(t, int32(2), f.replicas("divided"))
	await.Equal(t, "True TooFewReplicas the desired replica count is less than the minimum replica count", f.condition(h, "ScalingLimited"))
	if h.Status.LastScaleTime == nil || len(h.Status.CurrentMetrics) != 1 || *h.Status.ObservedGeneration != h.Generation {
		t.Errorf("status %+v", h.Status)
	}

	// A second one for the same target does nothing.
	second := hpa("second", func(s *autoscalingv1alpha1.FederatedHPASpec) { s.ScaleTargetRef.Name = "divided" })
	f.Make(second)
	await.Equal(t, "False AmbiguousSelector the FederatedHPA divided scales the same target: delete one of them", f.condition(second, "ScalingActive"))
	f.Remove(second)

	// An edit that makes it invalid, and its end, withdraw the requests.
	quiet := func() bool {
		w := &workv1alpha1.Work{}
		f.see(client.ObjectKey{Namespace: workv1alpha2.ExecutionNamespace("h1"), Name: "divided"}, w)
		return w.Annotations[workv1alpha1.AnnotationScaling] == ""
	}
	limits := func(low, high int32) {
		await.True(t, "the bounds are written", func() bool {
			f.see(client.ObjectKeyFromObject(h), h)
			h.Spec.MinReplicas, h.Spec.MaxReplicas = &low, high
			return f.Update(t.Context(), h) == nil
		})
	}
	limits(9, 8)
	await.True(t, "the request is withdrawn", quiet)
	await.Equal(t, "False Invalid minReplicas must be at least 1, and maxReplicas (8) at least minReplicas (9)", f.condition(h, "Accepted"))
	valid := hpa("valid", func(s *autoscalingv1alpha1.FederatedHPASpec) { s.ScaleTargetRef.Name = "divided" })
	f.Make(valid)
	await.True(t, "a younger, valid one acts", func() bool { return !quiet() })
	f.Remove(valid)
	await.True(t, "the request is withdrawn again", quiet)
	limits(5, 8)
	await.Equal(t, int32(5), f.replicas("divided"))
	await.Equal(t, "True Accepted", f.condition(h, "Accepted"))
	f.request("h1", "divided")
	f.Remove(h)
	await.True(t, "the request is withdrawn", quiet)
}

// Of a duplicated template each cluster has all replicas: the busiest of two does not count twice.
func TestFederatedHPADuplicated(t *testing.T) {
	f := newFleet(t, "k1", "k2")
	h := hpa("copies")
	f.Make(deployment("copies", 3), h)
	f.place("copies", policyv1alpha1.ReplicaSchedulingTypeDuplicated, workv1alpha2.TargetCluster{Name: "k1", Replicas: 3}, workv1alpha2.TargetCluster{Name: "k2", Replicas: 3})
	f.report("k1", "copies", 3, 160)
	f.report("k2", "copies", 3, 80)
	await.Equal(t, int32(5), f.replicas("copies")) // 720 of 600, so 9 in two clusters

	absent := hpa("absent")
	f.Make(absent)
	await.True(t, "an absent target is reported", func() bool {
		return strings.HasPrefix(f.condition(absent, "AbleToScale")(), "False FailedGetScale read the scale of Deployment default/absent:")
	})
	idle := hpa("idle")
	f.Make(deployment("idle", 0), idle)
	await.Equal(t, "False ScalingDisabled scaling is disabled since the replica count of the target is zero", f.condition(idle, "ScalingActive"))
}
