package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
)

const (
	oneWork = `{"apiVersion":"work.karmada.io/v1alpha1","kind":"Work","metadata":{"name":"w","namespace":"karmada-es-m1","resourceVersion":"7",` +
		`"annotations":{"a":"1 < 2 \u0026 \"3\" {}}"}},"spec":{"workload":{"manifests":[{"apiVersion":"v1","kind":"ConfigMap","data":{"x":"\n}}","n":"1"}}]}}}`
	bookmark = `{"kind":"Work","apiVersion":"work.karmada.io/v1alpha1","metadata":{"resourceVersion":"99","creationTimestamp":null},"spec":{"workload":{}},"status":{}}`
	expired  = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version: 1 (9)","reason":"Expired","code":410}`
)

func line(kind, object string) string { return `{"type":"` + kind + `","object":` + object + "}\n" }

// As JSON has it, but not as API servers write it.
var indented = strings.NewReplacer(`{"type"`, "\n{\n \"type\"", `,"object"`, ",\n\n\t\"object\"", `}}]}}}}`, "}}]}}}\n}").Replace(line("MODIFIED", oneWork))

// What a watch brings is what client-go's brings, for objects with and without Go types.
func TestAsClientGo(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":            "",
		"each type":          line("ADDED", oneWork) + line("MODIFIED", oneWork) + line("BOOKMARK", bookmark) + line("DELETED", oneWork),
		"a refusal":          line("ADDED", oneWork) + line("ERROR", expired) + line("ADDED", oneWork),
		"no end of line":     line("ADDED", oneWork) + strings.TrimSpace(line("DELETED", oneWork)),
		"in several lines":   line("ADDED", oneWork) + indented + "\n\n" + line("DELETED", oneWork) + indented,
		"all in one line":    strings.ReplaceAll(line("ADDED", oneWork)+line("DELETED", oneWork), "\n", ""),
		"object before type": `{"object":` + oneWork + `,"type":"ADDED"}` + "\n" + line("DELETED", oneWork),
		"escaped type":       line(`\u0041DDED`, oneWork),
		"spaces":             `{ "type": "ADDED", "object": ` + oneWork + " }\r\n" + line("DELETED", oneWork),
		"large":              line("ADDED", strings.Replace(oneWork, "1 <", strings.Repeat("1 <", 400_000), 1)) + line("DELETED", oneWork),
		"half":               line("ADDED", oneWork) + line("DELETED", oneWork)[:150],
		"no event":           line("ADDED", oneWork) + "upstream is away\n" + line("DELETED", oneWork),
		"no JSON in it":      line("ADDED", oneWork) + line("DELETED", `{"metadata":{{}}`) + line("ADDED", oneWork),
		"unknown type":       line("ADDED", oneWork) + line("RENAMED", oneWork) + line("ADDED", oneWork),
		"wrong types":        line("ADDED", strings.Replace(oneWork, `"name":"w"`, `"name":[1]`, 1)) + line("ADDED", oneWork),
	} {
		t.Run(name, func(t *testing.T) {
			for _, of := range []runtime.Object{&workv1alpha1.Work{}, &unstructured.Unstructured{}} {
				o, its := from(t, serve(t, text)), fmt.Sprintf("%T", of)
				want, got := drain(t, clientGo(t, o, of)), drain(t, ours(t, o, of))
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-client-go +ours):\n%s", its, diff)
				}
				if len(got) == 0 != (text == "") {
					t.Errorf("%s: %d events", its, len(got))
				}
			}
		})
	}
}

// TestStreamedList: the bookmark that ends a list in a watch (sendInitialEvents) has its
// annotation, although the objects are decoded into a form that lacks it. Without it, a reflector
// never syncs.
func TestStreamedList(t *testing.T) {
	end := `{"apiVersion":"work.karmada.io/v1alpha1","kind":"Work","metadata":{"resourceVersion":"7",` +
		`"annotations":{"` + metav1.InitialEventsAnnotationKey + `":"true"}}}`
	o := from(t, serve(t, line("ADDED", oneWork)+line("BOOKMARK", end)))
	o.untyped = func([]byte) (*unstructured.Unstructured, error) { return &unstructured.Unstructured{}, nil }
	events := drain(t, ours(t, o, &unstructured.Unstructured{}))
	if len(events) != 2 || events[1].Type != watch.Bookmark {
		t.Fatalf("events %v, want an object and a bookmark", events)
	}
	got, err := meta.Accessor(events[1].Object)
	if err != nil {
		t.Fatal(err)
	}
	if got.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" || got.GetResourceVersion() != "7" {
		t.Errorf("bookmark %v", got)
	}
}

func TestRefused(t *testing.T) {
	o := from(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusGone)
		_, _ = io.WriteString(w, expired)
	})
	gvk, as := o.asJSON(&workv1alpha1.Work{})
	if _, err := o.watch(t.Context(), gvk, as, metav1.ListOptions{}); !apierrors.IsResourceExpired(err) {
		t.Errorf("%v, want that the version has expired", err)
	}
	away := from(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	if got := drain(t, ours(t, away, &workv1alpha1.Work{})); len(got) > 0 {
		t.Errorf("%v of a server that hangs up, want an empty watch", got)
	}
}

// A reflector whose API server refuses connections, in the middle of its longest backoff, ends with
// its context.
func TestEndsWhileRefused(t *testing.T) {
	// One of them sleeps until a millisecond after the last error, whose time it took outside of the
	// bubble.
	handlers := utilruntime.ErrorHandlers
	utilruntime.ErrorHandlers = nil
	defer func() { utilruntime.ErrorHandlers = handlers }()
	synctest.Test(t, func(t *testing.T) {
		refused := &url.Error{Op: "Get", URL: "https://127.0.0.1:1", Err: syscall.ECONNREFUSED}
		lw := CancelableListWatch(&toolscache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) { return nil, refused },
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
				return nil, refused
			},
		})
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
		var running sync.WaitGroup
		running.Go(func() {
			toolscache.NewReflectorWithOptions(lw, &corev1.Pod{}, toolscache.NewStore(toolscache.MetaNamespaceKeyFunc),
				toolscache.ReflectorOptions{}).RunWithContext(ctx)
		})
		time.Sleep(5 * time.Minute) // of the bubble: the backoff is at its longest
		cancelled := time.Now()
		cancel()
		running.Wait()
		if took := time.Since(cancelled); took > 0 {
			t.Errorf("ended %v after its context", took)
		}
	})
}

// The cache's selector is applied, although the watch bypasses the code of client-go that applies
// it.
func TestAsked(t *testing.T) {
	var asked string
	o := from(t, func(_ http.ResponseWriter, r *http.Request) { asked = r.URL.String() + " " + r.Header.Get("Accept") })
	o.selector = labels.SelectorFromSet(labels.Set{"a": "b"})
	gvk, as := o.asJSON(&workv1alpha1.Work{})
	w, err := o.watch(t.Context(), gvk, as, metav1.ListOptions{AllowWatchBookmarks: true, ResourceVersion: "7"})
	if err != nil {
		t.Fatal(err)
	}
	drain(t, w)
	const want = "/apis/work.karmada.io/v1alpha1/works?allowWatchBookmarks=true&labelSelector=a%3Db&resourceVersion=7&watch=true application/json"
	if asked != want {
		t.Errorf("asked for %s, want %s", asked, want)
	}
}

// Of kinds that come as protobuf, and of metadata, the watch is client-go's.
func TestAsBefore(t *testing.T) {
	o := from(t, serve(t, ""))
	for _, of := range []runtime.Object{&metav1.PartialObjectMetadata{}, &corev1.Pod{}} {
		if _, as := o.asJSON(of); as != nil {
			t.Errorf("%T is read as JSON", of)
		}
	}
}

// What the watches do not do is refused, rather than done for lists alone.
func TestRefusedOptions(t *testing.T) {
	o := from(t, serve(t, ""))
	for name, change := range map[string]func(*cache.Options){
		"no client": func(c *cache.Options) { c.HTTPClient = nil },
		"no mapper": func(c *cache.Options) { c.Mapper = nil },
		"a kind's own selector": func(c *cache.Options) {
			c.ByObject = map[client.Object]cache.ByObject{&workv1alpha1.Work{}: {Label: labels.Nothing()}}
		},
		"namespaces": func(c *cache.Options) { c.DefaultNamespaces = map[string]cache.Config{"default": {}} },
		"fields":     func(c *cache.Options) { c.DefaultFieldSelector = fields.Nothing() },
	} {
		opts := cache.Options{HTTPClient: o.http, Mapper: o.mapper}
		change(&opts)
		if _, err := NewStreamCache(nil)(o.config, opts); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// serve is an API server with one watch.
func serve(t testing.TB, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		// as they come, not where an event ends
		for piece := range slices.Chunk([]byte(text), 100_000) {
			if _, err := w.Write(piece); err != nil {
				t.Error(err)
			}
			_ = http.NewResponseController(w).Flush()
		}
	}
}

func from(t testing.TB, h http.HandlerFunc) watchSource {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), workv1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(workv1alpha1.GroupVersion.WithKind("Work"), meta.RESTScopeNamespace)
	return watchSource{config: &rest.Config{Host: s.URL}, http: s.Client(), mapper: mapper, scheme: scheme}
}

func withKind(of runtime.Object) runtime.Object {
	if u, ok := of.(*unstructured.Unstructured); ok {
		u.SetGroupVersionKind(workv1alpha1.GroupVersion.WithKind("Work"))
	}
	return of
}

func ours(t testing.TB, o watchSource, of runtime.Object) watch.Interface {
	t.Helper()
	gvk, as := o.asJSON(withKind(of))
	w, err := o.watch(t.Context(), gvk, as, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// clientGo is the watch that an informer of controller-runtime's cache would have.
func clientGo(t testing.TB, o watchSource, of runtime.Object) (w watch.Interface) {
	t.Helper()
	gvk := workv1alpha1.GroupVersion.WithKind("Work")
	var err error
	if _, untyped := of.(*unstructured.Unstructured); untyped {
		c, cerr := dynamic.NewForConfigAndClient(o.config, o.http)
		if cerr != nil {
			t.Fatal(cerr)
		}
		w, err = c.Resource(gvk.GroupVersion().WithResource("works")).Watch(t.Context(), metav1.ListOptions{})
	} else {
		c, cerr := apiutil.RESTClientForGVK(gvk, false, false, o.config, serializer.NewCodecFactory(o.scheme), o.http)
		if cerr != nil {
			t.Fatal(cerr)
		}
		w, err = c.Get().Resource("works").VersionedParams(&metav1.ListOptions{Watch: true}, runtime.NewParameterCodec(o.scheme)).Watch(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// drain reads a watch to its end. Of an error made by the client, only the fact is kept, because
// the wordings differ. The kind of a Status from the server is ignored.
func drain(t testing.TB, w watch.Interface) (events []watch.Event) {
	t.Helper()
	defer w.Stop()
	for e := range w.ResultChan() {
		if s, ok := e.Object.(*metav1.Status); ok {
			if s.TypeMeta = (metav1.TypeMeta{}); s.Reason == metav1.StatusReasonInternalError {
				e.Object = nil
			}
		}
		events = append(events, e)
	}
	return events
}

// BenchmarkEvent reads an event of a Work that holds a Deployment, client-go's way and ours, with
// what HTTP costs.
func BenchmarkEvent(b *testing.B) {
	text := strings.Repeat(line("MODIFIED", deployment(b)), 1000)
	for _, of := range []runtime.Object{&workv1alpha1.Work{}, &unstructured.Unstructured{}} {
		o := from(b, serve(b, text))
		for _, way := range []struct {
			name  string
			watch func(testing.TB, watchSource, runtime.Object) watch.Interface
		}{{"client-go", clientGo}, {"ours", ours}} {
			b.Run(fmt.Sprintf("%T/%s", of, way.name), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(text)) / 1000)
				for n := 0; n < b.N; n += 1000 {
					if events := drain(b, way.watch(b, o, of)); len(events) != 1000 {
						b.Fatalf("%d events", len(events))
					}
				}
			})
		}
	}
}

func deployment(b *testing.B) string {
	b.Helper()
	text, err := os.ReadFile("testdata/work.json")
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}
