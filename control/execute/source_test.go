package execute

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// Each follower hears of the Works of its namespace, those that are there and those that come, and
// of no others; after its end of none.
func TestWorksAreShared(t *testing.T) {
	config := rest.CopyConfig(server.Config(t))
	hub := apiserver.Connect(t, config, workv1alpha1.AddToScheme)
	work := func(namespace, name string) *workv1alpha1.Work {
		return &workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	for _, ns := range []string{"karmada-es-shared1", "karmada-es-shared2"} {
		hub.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	}
	hub.Make(work("karmada-es-shared1", "before"), work("karmada-es-shared2", "before"))
	c, err := cache.New(config, cache.Options{Scheme: hub.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	works := NewWorks(c)
	follow := func(ctx context.Context, ns string) chan string {
		heard := make(chan string, 100)
		if err := works.follow(ctx, ns, func(o client.Object) { heard <- o.GetNamespace() + "/" + o.GetName() }); err != nil {
			t.Fatal(err)
		}
		return heard
	}
	until := func(heard chan string, want string) {
		t.Helper()
		for {
			select {
			case got := <-heard:
				if got == want {
					return
				}
				if got != "karmada-es-shared1/before" && got != "karmada-es-shared2/before" || got[:18] != want[:18] {
					t.Fatalf("heard of %s, waiting for %s", got, want)
				}
			case <-time.After(3 * time.Minute):
				t.Fatalf("not heard of %s", want)
			}
		}
	}
	first, end := context.WithCancel(t.Context())
	one := follow(first, "karmada-es-shared1") // before the cache has been filled
	go func() { _ = c.Start(t.Context()) }()   // ends with the test
	until(one, "karmada-es-shared1/before")
	two := follow(t.Context(), "karmada-es-shared2") // after that
	until(two, "karmada-es-shared2/before")
	hub.Make(work("karmada-es-shared2", "later"), work("karmada-es-shared1", "later"))
	until(one, "karmada-es-shared1/later")
	until(two, "karmada-es-shared2/later")
	end()
	await.True(t, "one follows", func() bool {
		works.mu.RLock()
		defer works.mu.RUnlock()
		return len(works.followers) == 1
	})
	hub.Make(work("karmada-es-shared1", "last"), work("karmada-es-shared2", "last"))
	until(two, "karmada-es-shared2/last")
	for len(one) > 0 { // the initial list may repeat earlier events
		if got := <-one; got == "karmada-es-shared1/last" {
			t.Errorf("heard of %s after its end", got)
		}
	}
}

// The echo of our own write in the member is no news of a Work; anything else is, also the end of
// what we wrote, and a change that took our marks away.
func TestEcho(t *testing.T) {
	e, err := New(Options{Cluster: "m", HubID: "hub", Member: &rest.Config{}})
	if err != nil {
		t.Fatal(err)
	}
	object := func(version string, marks map[string]string) client.Object {
		u := ofKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
		u.SetResourceVersion(version)
		u.SetAnnotations(marks)
		return u
	}
	ours := map[string]string{workv1alpha1.AnnotationWorkNamespace: e.namespace, workv1alpha1.AnnotationWorkName: "w"}
	e.objectVersions.Expect("w", "5", time.Now())
	var news []string
	made, _ := object("5", ours).(*unstructured.Unstructured) // what it makes
	e.objects.put("w", made)
	e.states.get("w", "")
	e.states.setObject("w", keyOf(made))
	h := e.withoutOwnWrites(func(o client.Object) { news = append(news, o.GetResourceVersion()) })
	h.OnAdd(object("5", ours), false)
	h.OnUpdate(object("4", ours), object("5", ours))
	if len(news) > 0 {
		t.Errorf("news of our own write: %v", news)
	}
	if len(e.objects.of) > 0 {
		t.Error("the object that our write made is still remembered when the cache has it")
	}
	h.OnAdd(object("3", ours), false)
	h.OnUpdate(object("5", ours), object("6", nil))
	h.OnDelete(object("5", ours))
	if want := []string{"3", "5", "6", "5"}; !slices.Equal(news, want) {
		t.Errorf("news of %v, want %v", news, want)
	}
}
