package work_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/work"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

var server = apiserver.NewShared(apiserver.CRDs())

func TestMain(m *testing.M) { os.Exit(apiserver.Run(m, server, namespaceServer)) }

// hub is an API server with the clusters m1, m2 and m3, and nothing to propagate.
type hub struct{ *apiserver.Cluster }

func newHub(t *testing.T) hub {
	t.Helper()
	h := hub{apiserver.Connect(t, server.Config(t), clusterv1alpha1.AddToScheme, policyv1alpha1.AddToScheme,
		workv1alpha1.AddToScheme, workv1alpha2.AddToScheme)}
	for _, list := range []client.ObjectList{
		&workv1alpha2.ResourceBindingList{}, &workv1alpha2.ClusterResourceBindingList{}, &workv1alpha1.WorkList{},
	} {
		h.clear(list)
	}
	h.Empty(&appsv1.Deployment{}, &corev1.ConfigMap{}, &corev1.Event{},
		&policyv1alpha1.OverridePolicy{}, &policyv1alpha1.ClusterOverridePolicy{}, &policyv1alpha1.PropagationPolicy{},
		&clusterv1alpha1.Cluster{})
	for _, name := range []string{"m1", "m2", "m3"} {
		h.Make(&clusterv1alpha1.Cluster{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Pull},
		})
		err := h.Create(h.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: workv1alpha2.ExecutionNamespace(name)}})
		if err != nil && !apierrors.IsAlreadyExists(err) { // namespaces stay from test to test
			t.Fatal(err)
		}
	}
	return h
}

// clear removes all objects of a kind with their finalizers.
func (h hub) clear(list client.ObjectList) {
	h.Helper()
	if err := h.List(h.Context(), list); err != nil {
		h.Fatal(err)
	}
	var all []client.Object
	switch l := list.(type) {
	case *workv1alpha2.ResourceBindingList:
		for i := range l.Items {
			all = append(all, &l.Items[i])
		}
	case *workv1alpha2.ClusterResourceBindingList:
		for i := range l.Items {
			all = append(all, &l.Items[i])
		}
	case *workv1alpha1.WorkList:
		for i := range l.Items {
			all = append(all, &l.Items[i])
		}
	}
	for _, o := range all {
		o.SetFinalizers(nil)
		if err := h.Update(h.Context(), o); err != nil {
			h.Fatal(err)
		}
		if err := h.Delete(h.Context(), o); client.IgnoreNotFound(err) != nil {
			h.Fatal(err)
		}
	}
}

// run starts the controller.
func (h hub) run(w *writes) (stop func()) {
	h.Helper()
	return h.manager(w).Run(h, h.Config)
}

func (h hub) manager(w *writes, with ...func(*work.BindingOptions)) apiserver.Manager {
	return apiserver.Manager{
		Scheme: h.Scheme(), NewClient: w.client, Cache: cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		Setup: []func(ctrl.Manager) error{work.AddIndexes, func(mgr ctrl.Manager) error {
			o := work.BindingOptions{HubID: "hub", Interpreter: kinds.New(), OrphanAfter: 200 * time.Millisecond}
			for _, set := range with {
				set(&o)
			}
			return work.SetupBindings(mgr, o)
		}},
	}
}

// writes are those of a manager, as its client sees them. With a limit the client is dead after so
// many.
type writes struct {
	limit *int
	mu    sync.Mutex
	made  []string
	dead  bool
}

func (w *writes) client(config *rest.Config, o client.Options) (client.Client, error) {
	c, err := client.NewWithWatch(config, o)
	if err != nil {
		return nil, err
	}
	return interceptor.NewClient(c, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return w.write("create", o, func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return w.write("update", o, func() error { return c.Update(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return w.write("delete", o, func() error { return c.Delete(ctx, o, opts...) })
		},
	}), nil
}

func (w *writes) write(verb string, o client.Object, do func() error) error {
	w.mu.Lock() // one at a time, so that the limit is exact
	defer w.mu.Unlock()
	if w.limit != nil && len(w.made) >= *w.limit {
		w.dead = true
		return errors.New("this process is dead")
	}
	w.made = append(w.made, fmt.Sprintf("%s %T %s/%s", verb, o, o.GetNamespace(), o.GetName()))
	return do()
}

func (w *writes) isDead() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead
}

func (w *writes) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.made)
}

// deployment is a template.
func deployment(name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(9)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "nginx:1"}}},
			},
		},
	}
}

// bindingOf is the binding of a template, as control/hub/propagate would make it.
func bindingOf(of client.Object, apiVersion, kind, id string, targets ...workv1alpha2.TargetCluster) *workv1alpha2.ResourceBinding {
	ref := workv1alpha2.ObjectReference{
		APIVersion: apiVersion, Kind: kind, Namespace: of.GetNamespace(), Name: of.GetName(),
		UID: of.GetUID(), ResourceVersion: of.GetResourceVersion(),
	}
	return &workv1alpha2.ResourceBinding{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: of.GetNamespace(), Name: workv1alpha2.BindingName(ref), Finalizers: []string{workv1alpha2.FinalizerBinding},
			Labels: map[string]string{workv1alpha2.LabelBindingID: id},
		},
		Spec: workv1alpha2.ResourceBindingSpec{Resource: ref, Clusters: targets},
	}
}

// state lists the Works of a template: cluster → what it holds.
func (h hub) state(template string) map[string]string {
	h.Helper()
	out := map[string]string{}
	for cluster, w := range h.works(template) {
		u := holds(h, w)
		text := "there"
		if spec, ok := u.Object["spec"].(map[string]any); ok {
			text = fmt.Sprintf("%v replicas of %v", spec["replicas"], image(spec))
		}
		if w.DeletionTimestamp != nil {
			text = "ending"
		}
		out[cluster] = text
	}
	return out
}

func image(spec map[string]any) any {
	pod := spec["template"].(map[string]any)["spec"].(map[string]any)
	return pod["containers"].([]any)[0].(map[string]any)["image"]
}

func (h hub) works(template string) map[string]*workv1alpha1.Work {
	h.Helper()
	var list workv1alpha1.WorkList
	if err := h.List(h.Context(), &list); err != nil {
		h.Fatal(err)
	}
	out := map[string]*workv1alpha1.Work{}
	for i := range list.Items {
		w := &list.Items[i]
		if holds(h, w).GetName() != template {
			continue
		}
		cluster, _ := workv1alpha2.ClusterOfNamespace(w.Namespace) // "" shows in the result
		if out[cluster] != nil {
			h.Errorf("two Works of %s in %s", template, cluster)
		}
		out[cluster] = w
	}
	return out
}

// end lets the Works go that are being deleted, as control/execute does once the member's object is
// gone.
func (h hub) end(template string) {
	h.Helper()
	for _, w := range h.works(template) {
		if w.DeletionTimestamp == nil {
			continue
		}
		w.Finalizers = nil
		if err := h.Update(h.Context(), w); client.IgnoreNotFound(err) != nil {
			h.Fatal(err)
		}
	}
}

// becomes waits until the Works of a template are so; those that end do.
func (h hub) becomes(template string, want map[string]string) {
	h.Helper()
	await.Equal(h, want, func() map[string]string {
		h.end(template)
		return h.state(template)
	})
}

func (h hub) uids(template string) map[string]types.UID {
	h.Helper()
	out := map[string]types.UID{}
	for cluster, w := range h.works(template) {
		out[cluster] = w.UID
	}
	return out
}

// change writes a binding as f makes it.
func (h hub) change(b *workv1alpha2.ResourceBinding, f func(*workv1alpha2.ResourceBinding)) {
	h.Helper()
	if err := h.Get(h.Context(), client.ObjectKeyFromObject(b), b); err != nil {
		h.Fatal(err)
	}
	f(b)
	if err := h.Update(h.Context(), b); err != nil {
		h.Fatal(err)
	}
}

// goes waits until a binding is gone.
func (h hub) goes(b *workv1alpha2.ResourceBinding) {
	h.Helper()
	await.True(h, "the binding is gone", func() bool {
		return apierrors.IsNotFound(h.Get(h.Context(), client.ObjectKeyFromObject(b), b))
	})
}
