package status_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
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
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/status"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

var server = apiserver.NewShared(apiserver.CRDs())

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

// hub is a hub with the members m1 and m2 and no templates. The test plays all other controllers.
type hub struct {
	*apiserver.Cluster
	// bindings and templates count the status writes of the code under test that reached the
	// server.
	bindings, templates atomic.Int64
	// before is called before each of them, refused after each that the server refuses.
	before  func()
	refused func(error)
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{Cluster: apiserver.Connect(t, server.Config(t), clusterv1alpha1.AddToScheme, workv1alpha1.AddToScheme, workv1alpha2.AddToScheme)}
	h.Empty(&workv1alpha2.ResourceBinding{}, &workv1alpha2.ClusterResourceBinding{}, &appsv1.Deployment{}, &batchv1.Job{}, &corev1.Event{},
		&clusterv1alpha1.Cluster{})
	for _, name := range []string{"m1", "m2"} {
		ns := "karmada-es-" + name
		if err := h.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}); client.IgnoreAlreadyExists(err) != nil {
			t.Fatal(err)
		}
		if err := h.DeleteAllOf(t.Context(), &workv1alpha1.Work{}, client.InNamespace(ns)); err != nil {
			t.Fatal(err)
		}
		c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Pull}}
		h.Make(c)
		h.ready(name, metav1.ConditionTrue, "ClusterReady")
	}
	return h
}

func (h *hub) ready(cluster string, status metav1.ConditionStatus, reason string) {
	h.Helper()
	c := &clusterv1alpha1.Cluster{}
	h.read(c, "", cluster)
	meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{Type: "Ready", Status: status, Reason: reason})
	if err := h.Status().Update(h.Context(), c); err != nil {
		h.Fatal(err)
	}
}

func (h *hub) read(o client.Object, namespace, name string) {
	h.Helper()
	if err := h.Get(h.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o); err != nil {
		h.Fatal(err)
	}
}

// run starts the code under test; its status writes are counted.
func (h *hub) run(delay time.Duration) (stop func()) {
	h.Helper()
	return h.runWith(status.Options{Interpreter: kinds.New(), Delay: delay})
}

func (h *hub) runWith(o status.Options) (stop func()) {
	h.Helper()
	count := func(o client.Object, write func() error) error {
		if h.before != nil {
			h.before()
		}
		err := write()
		if err != nil && h.refused != nil {
			h.refused(err)
		}
		if err == nil {
			if _, template := o.(*unstructured.Unstructured); template {
				h.templates.Add(1)
			} else {
				h.bindings.Add(1)
			}
		}
		return err
	}
	newClient := func(cfg *rest.Config, opts client.Options) (client.Client, error) {
		c, err := client.NewWithWatch(cfg, opts)
		if err != nil {
			return nil, err
		}
		return interceptor.NewClient(c, interceptor.Funcs{
			SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
				return count(o, func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				return count(o, func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
			},
		}), nil
	}
	return apiserver.Manager{Scheme: h.Scheme(), NewClient: newClient, Setup: []func(ctrl.Manager) error{func(mgr ctrl.Manager) error {
		return status.Setup(mgr, o)
	}}}.Run(h, h.Config)
}

// cleanUp deletes objects when the test's own context has ended.
func (h *hub) cleanUp(objects ...client.Object) {
	for _, o := range objects {
		if err := h.Delete(context.Background(), o); err != nil {
			h.Error(err)
		}
	}
}

// writes are those of bindings and those of templates.
func (h *hub) writes() string { return fmt.Sprint(h.bindings.Load(), " ", h.templates.Load()) }

// settled waits until so much is written, and nothing more within the next delay.
func (h *hub) settled(want string, delay time.Duration) {
	h.Helper()
	await.Equal(h, want, h.writes)
	await.Never(h, delay+delay/2, "another write of a binding's or a template's status than "+want, func() bool { return h.writes() != want })
}

func deployment() *appsv1.Deployment {
	labels := map[string]string{"app": "nginx"}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "nginx"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "nginx", Image: "nginx"}}}}}}
}

func reference(o client.Object, gvk schema.GroupVersionKind) workv1alpha2.ObjectReference {
	apiVersion, kind := gvk.ToAPIVersionAndKind()
	return workv1alpha2.ObjectReference{APIVersion: apiVersion, Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID()}
}

// bind makes the binding of a template, decided for the clusters.
func (h *hub) bind(ref workv1alpha2.ObjectReference, clusters ...string) *workv1alpha2.ResourceBinding {
	h.Helper()
	b := &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: ref.Name + "-" + strings.ToLower(ref.Kind)},
		Spec: workv1alpha2.ResourceBindingSpec{Resource: ref, Placement: &policyv1alpha1.Placement{}, ConflictResolution: policyv1alpha1.ConflictAbort}}
	for _, c := range clusters {
		b.Spec.Clusters = append(b.Spec.Clusters, workv1alpha2.TargetCluster{Name: c, Replicas: 1})
	}
	b.Annotations = map[string]string{workv1alpha2.AnnotationDecision: h.decision(&b.Spec)}
	h.Make(b)
	return b
}

func (h *hub) decision(spec *workv1alpha2.ResourceBindingSpec) string {
	h.Helper()
	hash, err := workv1alpha2.SpecHash(spec)
	if err != nil {
		h.Fatal(err)
	}
	text, err := workv1alpha2.Decision{For: hash, Reason: "Success", Time: metav1.NowMicro(), Scheduled: metav1.NowMicro(), Term: "near"}.Encode()
	if err != nil {
		h.Fatal(err)
	}
	return text
}

// send makes the Works of a binding.
func (h *hub) send(b *workv1alpha2.ResourceBinding) {
	h.Helper()
	for _, c := range b.Spec.Clusters {
		h.Make(&workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-es-" + c.Name, Name: b.Name, Annotations: map[string]string{
			workv1alpha2.AnnotationBindingNamespace: b.Namespace, workv1alpha2.AnnotationBindingName: b.Name}}})
	}
}

// report plays the execution in a cluster: the Work is applied, the object has this status.
func (h *hub) report(cluster, name, status string) {
	h.Helper()
	w := &workv1alpha1.Work{}
	h.read(w, "karmada-es-"+cluster, name)
	meta.SetStatusCondition(&w.Status.Conditions, metav1.Condition{Type: "Applied", Status: metav1.ConditionTrue, Reason: "AppliedSuccessful", ObservedGeneration: w.Generation})
	w.Status.ManifestStatuses = []workv1alpha1.ManifestStatus{{Health: workv1alpha1.ResourceHealthy,
		Identifier: workv1alpha1.ResourceIdentifier{Version: "v1", Kind: "X", Resource: "xs", Name: "x"}, Status: &runtime.RawExtension{Raw: []byte(status)}}}
	if err := h.Status().Update(h.Context(), w); err != nil {
		h.Fatal(err)
	}
}

// replicas is what a member says of a Deployment with one replica that has reached a generation of
// the template.
func replicas(ready, generation int) string {
	status := map[string]int{"replicas": 1, "readyReplicas": ready, "updatedReplicas": 1, "availableReplicas": ready,
		"generation": generation, "observedGeneration": generation, "resourceTemplateGeneration": generation}
	text, _ := json.Marshal(status) // numbers cannot fail
	return string(text)
}

// condition is status, reason and message of a binding's condition.
func (h *hub) condition(name, kind string) func() string {
	return func() string {
		b := &workv1alpha2.ResourceBinding{}
		h.read(b, "default", name)
		c := meta.FindStatusCondition(b.Status.Conditions, kind)
		if c == nil {
			return ""
		}
		return fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
	}
}

// status is generation observed and replicas ready of the Deployment.
func (h *hub) status() string {
	d := &appsv1.Deployment{}
	h.read(d, "default", "nginx")
	return fmt.Sprintf("generation %d of %d, ready %d of %d", d.Status.ObservedGeneration, d.Generation, d.Status.ReadyReplicas, d.Status.Replicas)
}

// An ordinary propagation takes two writes of the binding's status and one of the template's.
