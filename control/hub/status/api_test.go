package status_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/status"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

func TestDeploymentOverTwoClusters(t *testing.T) {
	const delay = time.Second // long enough for a busy machine to make two reports
	h := newHub(t)
	h.run(delay)
	d := deployment()
	h.Make(d)
	b := h.bind(reference(d, appsv1.SchemeGroupVersion.WithKind("Deployment")), "m1", "m2")
	h.settled("1 0", delay)
	if got := h.condition(b.Name, "Scheduled")(); got != "True Success " {
		t.Errorf("Scheduled: %s", got)
	}
	h.send(b)
	h.report("m1", b.Name, replicas(1, 1))
	h.report("m2", b.Name, replicas(1, 1))
	await.Equal(t, "True FullyAppliedSuccess applied in 2 clusters", h.condition(b.Name, "FullyApplied"))
	h.settled("2 1", delay)
	if got, want := h.status(), "generation 1 of 1, ready 2 of 2"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	h.read(b, "default", b.Name)
	if s := b.Status; s.SchedulerObservedGeneration != b.Generation || s.SchedulerObservedAffinityName != "near" || s.LastScheduledTime == nil || len(s.AggregatedStatus) != 2 {
		t.Errorf("status %+v", s)
	}
}

// The first status write after a decision has an item for each cluster; the creation of their Works
// causes no further write.
func TestWorksThatComeCostNoWrite(t *testing.T) {
	h := newHub(t)
	d := deployment()
	h.Make(d)
	h.run(10 * time.Millisecond)
	b := h.bind(reference(d, appsv1.SchemeGroupVersion.WithKind("Deployment")), "m1", "m2")
	await.Equal(t, "1 0", h.writes)
	h.send(b)
	await.Never(t, 1300*time.Millisecond, "a write for Works that have come", func() bool { return h.writes() != "1 0" })
}

// While clusters are still to report, a binding is written once per progress interval; the last
// report is written at once.
func TestLastReportDoesNotWaitForTheProgressInterval(t *testing.T) {
	h := newHub(t)
	d := deployment()
	h.Make(d)
	h.runWith(status.Options{Interpreter: kinds.New(), Delay: 10 * time.Millisecond, Progress: time.Hour})
	b := h.bind(reference(d, appsv1.SchemeGroupVersion.WithKind("Deployment")), "m1", "m2")
	h.send(b)
	await.Equal(t, "1 0", h.writes)
	h.report("m1", b.Name, replicas(1, 1))
	await.Never(t, 300*time.Millisecond, "a write for the first of two clusters", func() bool { return h.writes() != "1 0" })
	h.report("m2", b.Name, replicas(1, 1))
	await.Equal(t, "2 1", h.writes)
}

// A report that comes before the cache shows our own write of the one before is not written over
// the old version.
func TestOwnWritesAreSeen(t *testing.T) {
	h := newHub(t)
	d := deployment()
	h.Make(d)
	var refused atomic.Int64
	h.refused = func(error) { refused.Add(1) }
	h.run(time.Millisecond)
	b := h.bind(reference(d, appsv1.SchemeGroupVersion.WithKind("Deployment")), "m1")
	h.send(b)
	for i := range 100 {
		h.report("m1", b.Name, replicas(i%2, 1))
	}
	await.Equal(t, "generation 1 of 1, ready 1 of 1", h.status)
	if n := refused.Load(); n > 0 {
		t.Errorf("%d writes were refused", n)
	}
}

// A tool that waits as Argo CD does sees the new generation only when the last cluster has it, and
// the replicas all the time.
func TestObservedGenerationWaitsForAll(t *testing.T) {
	h := newHub(t)
	h.run(10 * time.Millisecond)
	d := deployment()
	h.Make(d)
	b := h.bind(reference(d, appsv1.SchemeGroupVersion.WithKind("Deployment")), "m1", "m2")
	h.send(b)
	h.report("m1", b.Name, replicas(1, 1))
	h.report("m2", b.Name, replicas(1, 1))
	await.Equal(t, "generation 1 of 1, ready 2 of 2", h.status)

	h.read(d, "default", "nginx")
	d.Spec.Template.Spec.Containers[0].Image = "nginx:2"
	if err := h.Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{"m1", "m2"} {
		w := &workv1alpha1.Work{}
		h.read(w, "karmada-es-"+c, b.Name)
		w.Spec.Workload.Manifests = []workv1alpha1.Manifest{{RawExtension: runtime.RawExtension{Raw: []byte(`{"apiVersion":"v1","kind":"X","metadata":{"name":"x"}}`)}}}
		if err := h.Update(t.Context(), w); err != nil {
			t.Fatal(err)
		}
	}
	h.ready("m2", metav1.ConditionUnknown, "ClusterStatusUnknown")
	h.report("m1", b.Name, replicas(1, 2))
	await.Equal(t, "False FullyAppliedFailed m2: not applied yet: the cluster is not ready (ClusterStatusUnknown)", h.condition(b.Name, "FullyApplied"))
	if got, want := h.status(), "generation 1 of 2, ready 2 of 2"; got != want {
		t.Errorf("while m2 is away: %s, want %s", got, want)
	}
	h.ready("m2", metav1.ConditionTrue, "ClusterReady")
	await.Equal(t, "False FullyAppliedFailed m2: not applied yet", h.condition(b.Name, "FullyApplied"))
	h.report("m2", b.Name, replicas(1, 2))
	await.Equal(t, "generation 2 of 2, ready 2 of 2", h.status)
}

// An informer keeps the object that it was requested with and reads it when it starts, next to
// whoever asked: nothing is read into it.
func TestInformersKeepTheirObject(t *testing.T) {
	h := newHub(t)
	kept := &keeper{}
	apiserver.Manager{Scheme: h.Scheme(), Setup: []func(ctrl.Manager) error{func(mgr ctrl.Manager) error {
		kept.Cache = mgr.GetCache()
		return status.Setup(keeping{mgr, kept}, status.Options{Interpreter: kinds.New(), Delay: time.Millisecond})
	}}}.Run(h, h.Config)
	d := deployment()
	h.Make(d)
	b := h.bind(reference(d, appsv1.SchemeGroupVersion.WithKind("Deployment")), "m1")
	h.send(b)
	h.report("m1", b.Name, replicas(1, 1))
	await.Equal(t, "generation 1 of 1, ready 1 of 1", h.status)
	kept.mu.Lock()
	defer kept.mu.Unlock()
	if len(kept.objects) == 0 {
		t.Fatal("no informer was asked for")
	}
	for _, o := range kept.objects {
		if o.GetName() != "" {
			t.Errorf("the %T of an informer has become %s", o, o.GetName())
		}
	}
}

type keeping struct {
	ctrl.Manager
	cache cache.Cache
}

func (k keeping) GetCache() cache.Cache { return k.cache }

// keeper is a cache that keeps the objects with which informers are asked for.
type keeper struct {
	cache.Cache
	mu      sync.Mutex
	objects []client.Object
}

func (k *keeper) GetInformer(ctx context.Context, o client.Object, opts ...cache.InformerGetOption) (cache.Informer, error) {
	k.mu.Lock()
	k.objects = append(k.objects, o)
	k.mu.Unlock()
	return k.Cache.GetInformer(ctx, o, opts...)
}

// Karmada #7320: after a conflict the status of before must not be written.
func TestConflictComputesAnew(t *testing.T) {
	h := newHub(t)
	d := deployment()
	h.Make(d)
	b := h.bind(reference(d, appsv1.SchemeGroupVersion.WithKind("Deployment")), "m1")
	h.send(b)
	h.report("m1", b.Name, replicas(1, 1))
	var once atomic.Bool
	h.before = func() { // just before the first write the template and the member's object change
		if once.CompareAndSwap(false, true) {
			h.read(d, "default", "nginx")
			d.Spec.Paused = true
			if err := h.Update(t.Context(), d); err != nil {
				t.Error(err)
			}
			h.Nudge(b)
			h.report("m1", b.Name, replicas(0, 1))
		}
	}
	h.run(50 * time.Millisecond)
	await.Equal(t, "generation 0 of 2, ready 0 of 1", h.status)
	await.Equal(t, "True FullyAppliedSuccess applied in 1 clusters", h.condition(b.Name, "FullyApplied"))
	h.report("m1", b.Name, replicas(1, 2))
	await.Equal(t, "generation 2 of 2, ready 1 of 1", h.status)
}

// A template without status subresource is never written: that would make a new generation, without
// end.
func TestKindsWithoutStatusSubresource(t *testing.T) {
	h := newHub(t)
	farms := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Farm"}
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "farms.example.com"},
		"spec": map[string]any{"group": "example.com", "scope": "Namespaced", "names": map[string]any{"kind": "Farm", "plural": "farms"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{
				"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}},
	}}
	h.Make(crd)
	farm := &unstructured.Unstructured{}
	farm.SetGroupVersionKind(farms)
	farm.SetNamespace("default")
	farm.SetName("x")
	await.True(t, "farms are served", func() bool { return h.Create(t.Context(), farm.DeepCopy()) == nil })
	h.read(farm, "default", "x")
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "plain"}}
	h.Make(cm)
	t.Cleanup(func() { h.cleanUp(cm, crd) })

	// This user rule has a status for the kind all the same.
	source := func(gvk schema.GroupVersionKind) kinds.Kind {
		if gvk != farms {
			return kinds.Kind{}
		}
		return kinds.Kind{Aggregate: func(template *unstructured.Unstructured, _ []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
			return map[string]any{"generation": template.GetGeneration()}, nil
		}}
	}
	apiserver.Manager{Scheme: h.Scheme(), Setup: []func(ctrl.Manager) error{func(mgr ctrl.Manager) error {
		return status.Setup(mgr, status.Options{Interpreter: kinds.New(source), Delay: time.Millisecond})
	}}}.Run(t, h.Config)
	for _, ref := range []workv1alpha2.ObjectReference{reference(farm, farms), reference(cm, corev1.SchemeGroupVersion.WithKind("ConfigMap"))} {
		b := h.bind(ref, "m1")
		h.send(b)
		h.report("m1", b.Name, `{"eggs":3}`)
		await.Equal(t, "True FullyAppliedSuccess applied in 1 clusters", h.condition(b.Name, "FullyApplied"))
	}
	for range 3 { // more events
		h.report("m1", "x-farm", fmt.Sprintf(`{"eggs":%d}`, time.Now().UnixNano()%1000))
	}
	version := farm.GetResourceVersion()
	await.Never(t, 300*time.Millisecond, "the template is written", func() bool {
		h.read(farm, "default", "x")
		return farm.GetResourceVersion() != version || farm.GetGeneration() != 1
	})
}

// Other rules for its kind are another status of a template, although no member has reported
// anything new.
func TestRulesOfTheKindChange(t *testing.T) {
	h := newHub(t)
	d := deployment()
	h.Make(d)
	b := h.bind(reference(d, appsv1.SchemeGroupVersion.WithKind("Deployment")), "m1")
	h.send(b)
	h.report("m1", b.Name, replicas(2, 1))
	rules := kinds.NewCustom()
	rules.Set(nil)
	apiserver.Manager{Scheme: h.Scheme(), Setup: []func(ctrl.Manager) error{func(mgr ctrl.Manager) error {
		return status.Setup(mgr, status.Options{Interpreter: rules.Interpreter(), Delay: time.Millisecond})
	}}}.Run(t, h.Config)
	collisions := func() int32 {
		h.read(d, "default", d.Name)
		return ptr.Deref(d.Status.CollisionCount, 0)
	}
	await.Equal(t, "True FullyAppliedSuccess applied in 1 clusters", h.condition(b.Name, "FullyApplied"))
	rules.Set([]pelagov1alpha1.KindRules{{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: pelagov1alpha1.KindRulesSpec{
		Kinds: []pelagov1alpha1.RuledKind{{APIVersion: "apps/v1", Kind: "Deployment"}},
		Rules: pelagov1alpha1.Rules{Aggregate: "{'collisionCount': 7}"},
	}}})
	await.Equal(t, 7, collisions)
}

// N clusters that report within the delay make one write; a steady stream is written at the pace of
// the delay.
func TestEventsAreTakenTogether(t *testing.T) {
	const delay = 2 * time.Second
	h := newHub(t)
	d := deployment()
	h.Make(d)
	b := h.bind(reference(d, appsv1.SchemeGroupVersion.WithKind("Deployment")), "m1", "m2")
	h.send(b)
	h.run(delay)
	await.Equal(t, "1 0", h.writes)
	began, reports := time.Now(), 0
	await.True(t, "4 more writes for a stream of reports", func() bool {
		reports++
		// Never the count that was written last, which would need no write.
		h.report("m1", b.Name, fmt.Sprintf(`{"replicas":%d,"generation":1,"observedGeneration":1,"resourceTemplateGeneration":1}`, reports))
		h.report("m2", b.Name, replicas(reports%2, 1))
		return h.bindings.Load() >= 5
	})
	// The first write of the stream follows its first report by delay, and each further one a later
	// report.
	if took := time.Since(began); took < 4*delay-time.Second {
		t.Errorf("4 writes for %d reports in %v, want one in %v", 2*reports, took, delay)
	}
}

// What the API server refuses is said on template and binding, and the binding's own status is
// there all the same.
func TestRefusedStatus(t *testing.T) {
	h := newHub(t)
	h.run(10 * time.Millisecond)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "sum"}, Spec: batchv1.JobSpec{
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: "Never", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}}}
	h.Make(job)
	b := h.bind(reference(job, batchv1.SchemeGroupVersion.WithKind("Job")), "m1")
	h.send(b)
	h.report("m1", b.Name, `{"active":"many"}`)
	await.True(t, "events on Job and binding", func() bool {
		var events corev1.EventList
		if err := h.List(t.Context(), &events, client.InNamespace("default")); err != nil {
			t.Fatal(err)
		}
		on := map[string]bool{}
		for _, e := range events.Items {
			if e.Reason == "AggregateStatusFailed" && strings.Contains(e.Message, "m1") {
				on[e.InvolvedObject.Kind] = true
			}
		}
		return on["Job"] && on["ResourceBinding"]
	})
	await.True(t, "FullyApplied is True", func() bool { return strings.HasPrefix(h.condition(b.Name, "FullyApplied")(), "True") })
	await.True(t, "the binding names the failure", func() bool {
		return strings.HasPrefix(h.condition(b.Name, "Interpreted")(), "False RuleFailed aggregate the status of Job default/sum: status of cluster m1")
	})
	h.report("m1", b.Name, `{"active":1,"startTime":"2026-01-01T00:00:00Z"}`)
	await.Equal(t, int32(1), func() int32 { h.read(job, "default", "sum"); return job.Status.Active })
	await.Equal(t, "", h.condition(b.Name, "Interpreted"))
}

// A cluster-wide binding: of a dependent, without decision; and the load balancers of a Service.
func TestClusterBindingAndService(t *testing.T) {
	h := newHub(t)
	h.run(10 * time.Millisecond)
	crb := &workv1alpha2.ClusterResourceBinding{ObjectMeta: metav1.ObjectMeta{Name: "x-clusterrole"}, Spec: workv1alpha2.ResourceBindingSpec{
		Resource:   workv1alpha2.ObjectReference{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole", Name: "x"},
		RequiredBy: []workv1alpha2.BindingSnapshot{{Name: "y", Clusters: []workv1alpha2.TargetCluster{{Name: "m2"}}}}}}
	h.Make(crb, &workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-es-m2", Name: "x-clusterrole",
		Annotations: map[string]string{workv1alpha2.AnnotationClusterBindingName: "x-clusterrole"}}})
	h.report("m2", "x-clusterrole", `{}`)
	await.True(t, "the cluster-wide binding is fully applied", func() bool {
		h.read(crb, "", "x-clusterrole")
		return meta.IsStatusConditionTrue(crb.Status.Conditions, "FullyApplied")
	})
	if len(crb.Status.Conditions) != 1 {
		t.Errorf("conditions %+v, want FullyApplied only", crb.Status.Conditions)
	}

	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}}}
	h.Make(svc)
	t.Cleanup(func() { h.cleanUp(svc) })
	b := h.bind(reference(svc, corev1.SchemeGroupVersion.WithKind("Service")), "m1")
	h.send(b)
	h.report("m1", b.Name, `{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}`)
	await.Equal(t, "192.0.2.1 ", func() string {
		h.read(svc, "default", "web")
		if len(svc.Status.LoadBalancer.Ingress) == 0 {
			return ""
		}
		in := svc.Status.LoadBalancer.Ingress[0]
		return in.IP + " " + in.Hostname
	})
}
