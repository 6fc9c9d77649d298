package work_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/test/await"
)

// TestTemplateBehind: what is older than the binding was made from is not written, so one Work
// costs one write.
func TestTemplateBehind(t *testing.T) {
	h := newHub(t)
	d := deployment("behind")
	h.Make(d)
	before := &unstructured.Unstructured{}
	before.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
	if err := h.Get(t.Context(), client.ObjectKeyFromObject(d), before); err != nil {
		t.Fatal(err)
	}
	d.Spec.Template.Spec.Containers[0].Image = "nginx:2"
	if err := h.Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	h.Make(bindingOf(d, "apps/v1", "Deployment", "b1", on("m1", 1)))
	var behind atomic.Bool // as long as it is set the cache shows the Deployment as it was before
	behind.Store(true)
	w := &writes{}
	m := h.manager(w)
	m.Cache.DefaultTransform = func(o any) (any, error) {
		if u, ok := o.(*unstructured.Unstructured); ok && u.GetName() == "behind" && behind.Load() {
			return before.DeepCopy(), nil
		}
		return o, nil
	}
	m.Run(h, h.Config)
	other := deployment("behind-other")
	h.Make(other)
	h.Make(bindingOf(other, "apps/v1", "Deployment", "b2", on("m1", 1)))
	h.becomes("behind-other", map[string]string{"m1": "1 replicas of nginx:1"})
	if got := h.state("behind"); len(got) != 0 {
		t.Errorf("written from a template that is too old: %v", got)
	}

	behind.Store(false)
	h.Nudge(d)
	h.becomes("behind", map[string]string{"m1": "1 replicas of nginx:2"})
	if got := w.all(); len(got) != 2 {
		t.Errorf("two Works by %d writes: %v", len(got), got)
	}
}

// TestVersionOfBefore: a binding that was restored into another hub was made from a version that
// the template will not reach for long.
func TestVersionOfBefore(t *testing.T) {
	h := newHub(t)
	d := deployment("version")
	h.Make(d)
	version, err := strconv.Atoi(d.ResourceVersion)
	if err != nil {
		t.Fatal(err)
	}
	b := bindingOf(d, "apps/v1", "Deployment", "b1", on("m1", 1))
	b.Spec.Resource.ResourceVersion = strconv.Itoa(version + 1_000_000)
	h.Make(b)
	h.run(&writes{})
	h.becomes("version", map[string]string{"m1": "1 replicas of nginx:1"})
}

// TestQuiet: a process that starts writes nothing if nothing has changed, and N Works cost N
// writes.
func TestQuiet(t *testing.T) {
	h := newHub(t)
	d := deployment("quiet")
	d.Annotations = map[string]string{"text": "<a & b>", "empty": ""}
	h.Make(d)
	h.Make(bindingOf(d, "apps/v1", "Deployment", "b1", on("m1", 2), on("m2", 1), on("m3", 0)))
	c := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "quiet-config"}, Data: map[string]string{"k": "é\n"},
	}
	h.Make(c)
	h.Make(bindingOf(c, "v1", "ConfigMap", "b2", on("m1", 0)))
	first := &writes{}
	stop := h.run(first)
	h.becomes("quiet", map[string]string{"m1": "2 replicas of nginx:1", "m2": "1 replicas of nginx:1", "m3": "0 replicas of nginx:1"})
	h.becomes("quiet-config", map[string]string{"m1": "there"})
	// Echoes of Works come after half a second.
	await.Never(t, 1500*time.Millisecond, "four Works take another number of writes", func() bool { return len(first.all()) != 4 })
	stop()

	second := &writes{}
	h.run(second)
	marker := deployment("quiet-marker")
	h.Make(marker)
	h.Make(bindingOf(marker, "apps/v1", "Deployment", "b3", on("m1", 1)))
	h.becomes("quiet-marker", map[string]string{"m1": "1 replicas of nginx:1"})
	await.Never(t, 1500*time.Millisecond, "the second process writes more than the marker's Work", func() bool {
		got := second.all()
		return len(got) != 1 || !strings.Contains(got[0], "quiet-marker")
	})
}

// A Work that we have made and the cache does not show yet is not made again.
func TestCacheWithoutOurWork(t *testing.T) {
	h := newHub(t)
	b, w, late := h.runLate("late")
	h.Nudge(b)
	await.Never(t, time.Second, "the Work is made again", func() bool { return len(w.all()) > 1 })
	late.Store(false)
	h.becomes("late", map[string]string{"m1": "2 replicas of nginx:1"})
}

// A Work of ours that the cache does not show yet is deleted all the same when its cluster is no
// longer a target, although the event with which it appears in the cache, being that of our own
// write, enqueues nothing.
func TestClusterLeftBeforeItsWorkIsShown(t *testing.T) {
	h := newHub(t)
	b, _, late := h.runLate("left")
	h.change(b, func(b *workv1alpha2.ResourceBinding) { b.Spec.Clusters = []workv1alpha2.TargetCluster{on("m2", 2)} })
	await.Never(t, time.Second, "the Work of a cluster goes although the cache does not show it", func() bool {
		return h.state("left")["m1"] == ""
	})
	late.Store(false)
	h.becomes("left", map[string]string{"m2": "2 replicas of nginx:1"})
}

// A binding that goes while its template lives waits until its Work is shown, which is no failure,
// and marks it.
func TestBindingGoneBeforeItsWorkIsShown(t *testing.T) {
	h := newHub(t)
	b, w, late := h.runLate("gone")
	h.Remove(b)
	await.Never(t, time.Second, "the binding goes, or says that it cannot", func() bool {
		return apierrors.IsNotFound(h.Get(t.Context(), client.ObjectKeyFromObject(b), b)) || h.said(workv1alpha2.EventCleanupWorkFailed) != ""
	})
	late.Store(false)
	await.True(t, "the binding is gone", func() bool { return apierrors.IsNotFound(h.Get(t.Context(), client.ObjectKeyFromObject(b), b)) })
	if all := w.all(); len(all) < 2 || !strings.HasPrefix(all[1], "update") {
		t.Errorf("written: %v; want the Work's mark before the binding goes", all)
	}
}

// runLate runs the controller with a cache that shows no Works of cluster m1 as long as late is
// set, until it has made that of a binding.
func (h *hub) runLate(name string) (b *workv1alpha2.ResourceBinding, w *writes, late *atomic.Bool) {
	h.Helper()
	d := deployment(name)
	h.Make(d)
	b = bindingOf(d, "apps/v1", "Deployment", "b1", on("m1", 2))
	h.Make(b)
	w, late = &writes{}, &atomic.Bool{}
	late.Store(true)
	m := h.manager(w)
	m.NewClient = func(config *rest.Config, o client.Options) (client.Client, error) {
		c, err := w.client(config, o)
		if err != nil {
			return nil, err
		}
		return interceptor.NewClient(c.(client.WithWatch), interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				err := c.List(ctx, list, opts...)
				if works, ok := list.(*workv1alpha1.WorkList); ok && late.Load() {
					works.Items = slices.DeleteFunc(works.Items, func(x workv1alpha1.Work) bool {
						return x.Namespace == workv1alpha2.ExecutionNamespace("m1")
					})
				}
				return err
			},
		}), nil
	}
	m.Run(h, h.Config)
	await.Equal(h, 1, func() int { return len(w.all()) })
	return b, w, late
}
