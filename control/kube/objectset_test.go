package kube_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

var owner = kube.Owner{HubID: "hub-1"}

func object(name, data string, marked bool) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: map[string]string{"v": data}}
	if marked {
		owner.Mark(cm)
	}
	return cm
}

// world is an API with objects in it, and the set that an owner wants to have there.
type world struct {
	t      *testing.T
	client client.Client
	set    kube.ObjectSet[*corev1.ConfigMap]
}

func newWorld(t *testing.T, objs ...client.Object) world {
	c := fake.NewClientBuilder().WithObjects(objs...).Build()
	return world{t: t, client: c, set: kube.ObjectSet[*corev1.ConfigMap]{
		Client: c, Owns: owner.Owns, Copy: func(dst, src *corev1.ConfigMap) { dst.Data = src.Data },
	}}
}

func (w world) have() []*corev1.ConfigMap {
	w.t.Helper()
	var list corev1.ConfigMapList
	if err := w.client.List(context.Background(), &list); err != nil {
		w.t.Fatal(err)
	}
	return kube.Pointers(list.Items)
}

func (w world) content() map[string]string {
	content := map[string]string{}
	for _, cm := range w.have() {
		content[cm.Name] = cm.Data["v"]
	}
	return content
}

func TestApplyMakesTheSetWhatIsWanted(t *testing.T) {
	w := newWorld(t, object("same", "1", true), object("old", "1", true), object("surplus", "1", true), object("theirs", "1", false))
	before := map[string]string{}
	for _, cm := range w.have() {
		before[cm.Name] = cm.ResourceVersion
	}
	err := w.set.Apply(t.Context(), w.have(), []*corev1.ConfigMap{object("same", "1", true), object("old", "2", true), object("new", "1", true)})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"same": "1", "old": "2", "new": "1", "theirs": "1"}
	if diff := cmp.Diff(want, w.content()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	for _, cm := range w.have() {
		if cm.Name == "same" && cm.ResourceVersion != before["same"] {
			t.Error("an object that is as wanted was written")
		}
	}
}

func TestForeignObjectsAreLeftAloneAndReported(t *testing.T) {
	other := object("theirs", "1", false)
	kube.Owner{HubID: "hub-2"}.Mark(other)
	w := newWorld(t, other)
	err := w.set.Apply(t.Context(), w.have(), []*corev1.ConfigMap{object("theirs", "2", true), object("new", "1", true)})
	if !errors.Is(err, kube.ErrForeign) || !strings.Contains(err.Error(), "ConfigMap ns/theirs") {
		t.Errorf("error %v names neither the reason nor the object", err)
	}
	if diff := cmp.Diff(map[string]string{"theirs": "1", "new": "1"}, w.content()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// An object that the caller did not find, as it lost the label by which it is listed, is repaired;
// a foreign one is reported.
func TestObjectsThatLostTheirLabels(t *testing.T) {
	w := newWorld(t, object("lost", "1", true), object("theirs", "1", false))
	want := object("lost", "2", true)
	want.Labels["listed-by"] = "yes"
	if err := w.set.Apply(t.Context(), nil, []*corev1.ConfigMap{want}); err != nil {
		t.Fatal(err)
	}
	if got := w.have()[0]; got.Name != "lost" || got.Labels["listed-by"] != "yes" {
		t.Errorf("%s has labels %v", got.Name, got.Labels)
	}
	if err := w.set.Apply(t.Context(), nil, []*corev1.ConfigMap{object("theirs", "2", true)}); !errors.Is(err, kube.ErrForeign) {
		t.Errorf("of another owner: %v", err)
	}
	if diff := cmp.Diff(map[string]string{"lost": "2", "theirs": "1"}, w.content()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	w.set.Client = interceptor.NewClient(fake.NewClientBuilder().WithObjects(object("new", "1", true)).Build(), interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, key.Name)
		},
	})
	if err := w.set.Apply(t.Context(), nil, []*corev1.ConfigMap{object("new", "1", true)}); !kube.IsStale(err) {
		t.Errorf("while the cache does not show it: %v, want the error of a stale cache", err)
	}
}

func TestLabelsOfOthersStay(t *testing.T) {
	have := object("a", "1", true)
	have.Labels["team"] = "blue"
	w := newWorld(t, have)
	want := object("a", "2", true)
	want.Labels["new"] = "yes"
	if err := w.set.Apply(t.Context(), w.have(), []*corev1.ConfigMap{want}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"team": "blue", "new": "yes", v1alpha1.LabelManagedBy: v1alpha1.ManagedBy}, w.have()[0].Labels); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// What was changed since the cache saw it is neither overwritten nor deleted.
func TestStaleWritesAreRefused(t *testing.T) {
	w := newWorld(t, object("changed", "1", true), object("deleted", "1", true))
	stale := w.have()
	for _, cm := range w.have() {
		cm.Data["v"] = "newer"
		if err := w.client.Update(t.Context(), cm); err != nil {
			t.Fatal(err)
		}
	}
	err := w.set.Apply(t.Context(), stale, []*corev1.ConfigMap{object("changed", "2", true)})
	if !kube.IsStale(err) {
		t.Errorf("error %v is not seen as that of a stale cache", err)
	}
	if diff := cmp.Diff(map[string]string{"changed": "newer", "deleted": "newer"}, w.content()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestIsStale(t *testing.T) {
	resource := schema.GroupResource{Resource: "things"}
	conflict, exists := apierrors.NewConflict(resource, "a", nil), apierrors.NewAlreadyExists(resource, "a")
	tests := map[string]struct {
		err  error
		want bool
	}{
		"no error":          {nil, false},
		"conflict":          {fmt.Errorf("update: %w", conflict), true},
		"exists":            {exists, true},
		"both, joined":      {fmt.Errorf("two: %w", errors.Join(conflict, exists)), true},
		"nested joins":      {errors.Join(errors.Join(conflict), exists), true},
		"one of another":    {errors.Join(conflict, errors.New("connection refused")), false},
		"nested of another": {errors.Join(errors.Join(errors.New("connection refused")), conflict), false},
		"another":           {apierrors.NewForbidden(resource, "a", nil), false},
		"foreign":           {kube.ErrForeign, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := kube.IsStale(tt.err); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
