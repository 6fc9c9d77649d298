package propagate_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/pelago-net/pelago/api/apps/v1alpha1"
	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/placement"
	"github.com/pelago-net/pelago/control/hub/propagate"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

var server = apiserver.NewShared(apiserver.CRDs(), apiserver.HubControllers())

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

var schemes = []func(*runtime.Scheme) error{clusterv1alpha1.AddToScheme, policyv1alpha1.AddToScheme, workv1alpha1.AddToScheme,
	workv1alpha2.AddToScheme, pelagov1alpha1.AddToScheme, apiextensionsv1.AddToScheme, appsv1alpha1.AddToScheme}

// hub is a server with a namespace of the test's own and member clusters.
type hub struct {
	*apiserver.Cluster
	ns string
}

// newHub has members called as given. What is not in the test's namespace is gone after the test.
func newHub(t *testing.T, members ...string) *hub {
	t.Helper()
	return hubAt(t, server.Config(t), members...)
}

func hubAt(t *testing.T, config *rest.Config, members ...string) *hub {
	t.Helper()
	h := &hub{Cluster: apiserver.Connect(t, config, schemes...)}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "shop-"}}
	h.Make(ns)
	h.ns = ns.Name
	for _, m := range members {
		h.join(m)
	}
	t.Cleanup(h.clean)
	return h
}

// clean removes what would disturb the next test. The test's context has ended.
func (h *hub) clean() {
	ctx := context.Background()
	for _, list := range []client.ObjectList{&policyv1alpha1.PropagationPolicyList{}, &policyv1alpha1.ClusterPropagationPolicyList{},
		&workv1alpha2.ResourceBindingList{}, &workv1alpha2.ClusterResourceBindingList{}, &appsv1.DeploymentList{}, &clusterv1alpha1.ClusterList{}} {
		if err := h.List(ctx, list); err != nil {
			h.Fatal(err)
		}
		for _, o := range objects(h, list) {
			if err := h.Delete(ctx, o); client.IgnoreNotFound(err) != nil {
				h.Fatal(err)
			}
			err := h.Patch(ctx, o, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
			if client.IgnoreNotFound(err) != nil {
				h.Fatal(err)
			}
		}
	}
}

func objects(t testing.TB, list client.ObjectList) []client.Object {
	all, err := meta.ExtractList(list)
	if err != nil {
		t.Fatal(err)
	}
	var out []client.Object
	for _, o := range all {
		out = append(out, o.(client.Object))
	}
	return out
}

// join adds a member that serves what tests propagate.
func (h *hub) join(name string, taints ...clusterv1alpha1.Taint) *clusterv1alpha1.Cluster {
	h.Helper()
	c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Push, Taints: taints}}
	h.Make(c)
	h.report(c)
	return c
}

// report is what a cluster says of itself.
func (h *hub) report(c *clusterv1alpha1.Cluster) {
	h.Helper()
	c.Status.APIEnablements = []clusterv1alpha1.APIEnablement{
		{GroupVersion: "apps/v1", Resources: []clusterv1alpha1.APIResource{{Name: "deployments", Kind: "Deployment"}, {Name: "daemonsets", Kind: "DaemonSet"}}},
		{GroupVersion: "batch/v1", Resources: []clusterv1alpha1.APIResource{{Name: "jobs", Kind: "Job"}}},
		{GroupVersion: "v1", Resources: []clusterv1alpha1.APIResource{{Name: "configmaps", Kind: "ConfigMap"}, {Name: "secrets", Kind: "Secret"}}},
		{GroupVersion: "rbac.authorization.k8s.io/v1", Resources: []clusterv1alpha1.APIResource{{Name: "clusterroles", Kind: "ClusterRole"}}},
		{GroupVersion: "example.com/v1", Resources: []clusterv1alpha1.APIResource{{Name: "gadgets", Kind: "Gadget"}}},
		{GroupVersion: "example.com/v1alpha1", Resources: []clusterv1alpha1.APIResource{{Name: "gizmos", Kind: "Gizmo"}}},
	}
	c.Status.Conditions = []metav1.Condition{{Type: clusterv1alpha1.ConditionCompleteAPIEnablements, Status: metav1.ConditionTrue,
		Reason: "Complete", LastTransitionTime: metav1.Now()}}
	if err := h.Status().Update(h.Context(), c); err != nil {
		h.Fatal(err)
	}
}

// run starts the controller; wrap, if not nil, sees its requests.
func (h *hub) run(wrap transport.WrapperFunc, with ...func(*propagate.Options)) (stop func()) {
	h.Helper()
	config := rest.CopyConfig(h.Config)
	config.Wrap(wrap)
	return apiserver.Manager{
		Scheme: h.Scheme(), Cache: cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		Setup: []func(ctrl.Manager) error{func(m ctrl.Manager) error {
			o := propagate.Options{Interpreter: kinds.New(), Capacity: placement.NewCache(placement.CacheOptions{}), Workers: 4}
			for _, set := range with {
				set(&o)
			}
			return propagate.Setup(m, o)
		}},
	}.Run(h, config)
}

// writes counts requests that change something, Events apart.
type writes struct {
	mu   sync.Mutex
	seen []string
}

func (w *writes) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(q *http.Request) (*http.Response, error) {
		if q.Method != http.MethodGet && !strings.HasSuffix(q.URL.Path, "/events") {
			w.mu.Lock()
			w.seen = append(w.seen, q.Method+" "+q.URL.Path)
			w.mu.Unlock()
		}
		return next.RoundTrip(q)
	})
}

// in are those in a namespace.
func (w *writes) in(namespace string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, s := range w.seen {
		if strings.Contains(s, "/namespaces/"+namespace+"/") {
			out = append(out, strings.Replace(s, "/namespaces/"+namespace, "", 1))
		}
	}
	return out
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

// policy makes one of either kind from YAML, with the marks that the policy controller gives it:
// its id is its name.
func (h *hub) policy(name, spec string) *policyv1alpha1.PropagationPolicy {
	h.Helper()
	p := &policyv1alpha1.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: h.ns, Name: name,
		Labels:     map[string]string{policyv1alpha1.LabelPropagationPolicyID: "id-" + name},
		Finalizers: []string{policyv1alpha1.FinalizerPropagationPolicy}}}
	read(h, spec, &p.Spec)
	h.Make(p)
	return p
}

func (h *hub) widePolicy(name, spec string) *policyv1alpha1.ClusterPropagationPolicy {
	h.Helper()
	p := &policyv1alpha1.ClusterPropagationPolicy{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels:     map[string]string{policyv1alpha1.LabelClusterPropagationPolicyID: "id-" + name},
		Finalizers: []string{policyv1alpha1.FinalizerClusterPropagationPolicy}}}
	read(h, spec, &p.Spec)
	h.Make(p)
	return p
}

func read(t testing.TB, text string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}

// edit changes an object as a user does, whoever else writes it meanwhile.
func edit[T client.Object](h *hub, o T, change func(T)) {
	h.Helper()
	await.True(h, "the object is edited", func() bool {
		if err := h.Get(h.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			h.Fatal(err)
		}
		change(o)
		err := h.Update(h.Context(), o)
		if err != nil && !apierrors.IsConflict(err) {
			h.Fatal(err)
		}
		return err == nil
	})
}

// release lets an object go, whoever it was that has waited for it.
func (h *hub) release(o client.Object) {
	h.Helper()
	if err := h.Patch(h.Context(), o, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
		h.Fatal(err)
	}
}

func (h *hub) deployment(name string, replicas int32, change ...func(*appsv1.Deployment)) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: h.ns, Name: name, Labels: labels},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To(replicas), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "nginx:1.19.0"}}}}}}
	for _, c := range change {
		c(d)
	}
	return d
}

// needs makes a Deployment use a ConfigMap.
func needs(configMap string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: configMap}}}}}
	}
}

func (h *hub) configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: h.ns, Name: name}, Data: map[string]string{"a": "b"}}
}

// binding reads one; nil if none exists.
func (h *hub) binding(name string) *workv1alpha2.ResourceBinding {
	h.Helper()
	var b workv1alpha2.ResourceBinding
	if err := h.Get(h.Context(), client.ObjectKey{Namespace: h.ns, Name: name}, &b); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		h.Fatal(err)
	}
	return &b
}

// where says in words where a binding's template runs, and why not.
func where(b *workv1alpha2.ResourceBinding) string {
	if b == nil {
		return "no binding"
	}
	var out []string
	for _, c := range b.Spec.Clusters {
		out = append(out, fmt.Sprintf("%s:%d", c.Name, c.Replicas))
	}
	if d := workv1alpha2.ReadDecision(b.Annotations); d != nil && d.Reason != workv1alpha2.ReasonSuccess {
		out = append(out, d.Reason)
	}
	return strings.Join(out, " ")
}

// runs waits until a binding reports where its template runs.
func (h *hub) runs(name, want string) *workv1alpha2.ResourceBinding {
	h.Helper()
	await.Equal(h, want, func() string { return where(h.binding(name)) })
	return h.binding(name)
}

// follows waits until an object is claimed by a policy, of either kind.
func (h *hub) follows(o client.Object, want string) {
	h.Helper()
	await.Equal(h, want, func() string {
		if err := h.Get(h.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err.Error()
		}
		a := o.GetAnnotations()
		labels := o.GetLabels()[policyv1alpha1.LabelPropagationPolicyID] + o.GetLabels()[policyv1alpha1.LabelClusterPropagationPolicyID]
		if labels == "" && len(a[policyv1alpha1.AnnotationPropagationPolicyNamespace]) > 0 {
			return "annotations without label"
		}
		if got := a[policyv1alpha1.AnnotationPropagationPolicyName] + a[policyv1alpha1.AnnotationClusterPropagationPolicyName]; got == "" || labels == "id-"+got {
			return got
		}
		return "label " + labels
	})
}

// selecting is a policy's spec that selects Deployments by a field of the selector, and sends them
// to clusters.
func selecting(by, clusters, more string) string {
	return fmt.Sprintf("{resourceSelectors: [{apiVersion: apps/v1, kind: Deployment%s}], placement: {clusterAffinity: {clusterNames: [%s]}}%s}", by, clusters, more)
}

func keyFor(o client.Object) client.ObjectKey { return client.ObjectKeyFromObject(o) }

// watches counts the watches that are open, by path.
type watches struct {
	mu   sync.Mutex
	live map[string]int
}

func (w *watches) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(q *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(q)
		if err != nil || q.URL.Query().Get("watch") != "true" {
			return response, err
		}
		w.add(q.URL.Path, 1)
		response.Body = &body{ReadCloser: response.Body, closed: sync.OnceFunc(func() { w.add(q.URL.Path, -1) })}
		return response, nil
	})
}

func (w *watches) add(path string, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.live == nil {
		w.live = map[string]int{}
	}
	w.live[path] += n
}

func (w *watches) open(path string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.live[path] > 0
}

func (w *watches) all() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.live)
}

type body struct {
	io.ReadCloser
	closed func()
}

func (b *body) Close() error {
	b.closed()
	return b.ReadCloser.Close()
}

// holdup keeps the events of watches of a path back.
type holdup struct {
	path string
	mu   sync.RWMutex // held for writing while they are kept back
}

func (h *holdup) hold()    { h.mu.Lock() }
func (h *holdup) release() { h.mu.Unlock() }

func (h *holdup) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(q *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(q)
		if err == nil && q.URL.Query().Get("watch") == "true" && q.URL.Path == h.path {
			response.Body = &heldBody{response.Body, h}
		}
		return response, err
	})
}

type heldBody struct {
	io.ReadCloser
	by *holdup
}

func (b *heldBody) Read(to []byte) (int, error) {
	n, err := b.ReadCloser.Read(to)
	b.by.mu.RLock()
	defer b.by.mu.RUnlock()
	return n, err
}
