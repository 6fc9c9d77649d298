package execute

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

var server = apiserver.NewShared(apiserver.CRDs("works.work.karmada.io", "kindrules.pelago.io", "resourceinterpretercustomizations.config.karmada.io",
	"resourceinterpreterwebhookconfigurations.config.karmada.io"))

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

const hubID = "hub-of-the-test"

var labs atomic.Int32

// lab is a hub, a member, and an execution between them.
type lab struct {
	*testing.T
	hub, member *apiserver.Cluster
	config      *rest.Config // the member's, as the execution sees it
	wire        *wire
	cluster     string
	ns          string // in the member, and part of objects' names that have none
	events      *record.FakeRecorder
	metrics     *Metrics
	execution   *Execution // the one that was run last
}

// newLab has a cluster of its own at the hub and a namespace of its own in the member. Nothing is
// executed yet.
func newLab(t *testing.T, member *rest.Config) *lab {
	t.Helper()
	id := labs.Add(1)
	l := &lab{
		T: t, cluster: fmt.Sprintf("m%d", id), ns: fmt.Sprintf("ns%d", id), wire: &wire{}, events: record.NewFakeRecorder(1000),
		hub:     apiserver.Connect(t, server.Config(t), workv1alpha1.AddToScheme),
		member:  apiserver.Connect(t, member),
		config:  rest.CopyConfig(member),
		metrics: NewMetrics(),
	}
	l.config.WrapTransport = func(next http.RoundTripper) http.RoundTripper { return &span{wire: l.wire, next: next} }
	l.hub.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: l.es()}})
	l.member.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: l.ns}})
	return l
}

func (l *lab) es() string { return "karmada-es-" + l.cluster }

// run executes the Works until stop is called, at the latest to the end of the test.
func (l *lab) run(change ...func(*Options)) (stop func()) {
	l.Helper()
	works, err := cache.New(l.hub.Config, cache.Options{Scheme: l.hub.Scheme(), DefaultTransform: cache.TransformStripManagedFields()})
	if err != nil {
		l.Fatal(err)
	}
	o := Options{
		Cluster: l.cluster, HubID: hubID, Interpreter: kinds.New(), Hub: l.hub.Client, Works: NewWorks(works), Member: l.config,
		Recorder: l.events, Log: slog.New(slog.DiscardHandler), Metrics: l.metrics,
	}
	for _, f := range change {
		f(&o)
	}
	e, err := New(o)
	if err != nil {
		l.Fatal(err)
	}
	l.execution = e
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := works.Start(ctx); err != nil {
			l.Error(err)
		}
	})
	running.Go(func() {
		if err := e.Start(ctx); err != nil {
			l.Error(err)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	l.Cleanup(stop)
	return stop
}

// object reads a manifest; NS stands for the namespace of the lab.
func (l *lab) object(manifest string) *unstructured.Unstructured {
	l.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(manifest, "NS", l.ns)), &u.Object); err != nil {
		l.Fatal(err)
	}
	return u
}

// work makes a Work at the hub.
func (l *lab) work(name, manifest string, change ...func(*workv1alpha1.Work)) *workv1alpha1.Work {
	l.Helper()
	w := &workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{
		Namespace: l.es(), Name: name, Finalizers: []string{workv1alpha1.FinalizerExecution},
	}}
	w.Spec.Workload.Manifests = l.manifests(manifest)
	for _, f := range change {
		f(w)
	}
	l.hub.Make(w)
	return w
}

func (l *lab) manifests(manifest string) []workv1alpha1.Manifest {
	l.Helper()
	raw, err := l.object(manifest).MarshalJSON()
	if err != nil {
		l.Fatal(err)
	}
	return []workv1alpha1.Manifest{{RawExtension: runtime.RawExtension{Raw: raw}}}
}

// edit changes a Work.
func (l *lab) edit(name string, change func(*workv1alpha1.Work)) {
	l.Helper()
	await.True(l, "Work "+name+" is written", func() bool {
		w := l.see(name)
		change(w)
		err := l.hub.Update(l.Context(), w)
		if err != nil && !apierrors.IsConflict(err) {
			l.Fatal(err)
		}
		return err == nil
	})
}

// manifest gives a Work another manifest.
func (l *lab) manifest(name, manifest string) {
	l.Helper()
	l.edit(name, func(w *workv1alpha1.Work) { w.Spec.Workload.Manifests = l.manifests(manifest) })
}

func (l *lab) see(name string) *workv1alpha1.Work {
	l.Helper()
	w := &workv1alpha1.Work{}
	if err := l.hub.Get(l.Context(), client.ObjectKey{Namespace: l.es(), Name: name}, w); err != nil {
		l.Fatal(err)
	}
	return w
}

// condition is status and reason of a condition for the present generation, "" before that, and its
// message.
func (l *lab) condition(name, kind string) (state, message string) {
	l.Helper()
	w := l.see(name)
	c := meta.FindStatusCondition(w.Status.Conditions, kind)
	if c == nil || c.ObservedGeneration != w.Generation {
		return "", ""
	}
	return string(c.Status) + " " + c.Reason, c.Message
}

// applied waits until a Work is executed.
func (l *lab) applied(names ...string) {
	l.Helper()
	for _, name := range names {
		await.Equal(l, "True AppliedSuccessful", func() string {
			state, message := l.condition(name, workv1alpha1.ConditionApplied)
			if strings.HasPrefix(state, "False") {
				return state + ": " + message
			}
			return state
		})
	}
}

// failed waits until a Work reports that it failed, in words that hold all of those given.
func (l *lab) failed(name string, words ...string) {
	l.Helper()
	var state, message string
	defer func() {
		if l.Failed() {
			l.Logf("Work %s said %s: %s", name, state, message)
		}
	}()
	await.True(l, fmt.Sprintf("Work %s says %q", name, words), func() bool {
		state, message = l.condition(name, workv1alpha1.ConditionApplied)
		for _, word := range words {
			if !strings.Contains(message, word) {
				return false
			}
		}
		return state == "False AppliedFailed"
	})
}

// find returns the object of a manifest as the member has it, nil if it has not.
func (l *lab) find(manifest string) *unstructured.Unstructured {
	l.Helper()
	want := l.object(manifest)
	u := ofKind(want.GroupVersionKind())
	err := l.member.Get(l.Context(), client.ObjectKeyFromObject(want), u)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		l.Fatal(err)
	}
	return u
}

// there is the object of a manifest that must be there.
func (l *lab) there(manifest string) *unstructured.Unstructured {
	l.Helper()
	u := l.find(manifest)
	if u == nil {
		l.Fatalf("the member has no %s", describe(l.object(manifest)))
	}
	return u
}

// patch changes an object of the member as a user there would, under a name.
func (l *lab) patch(manifest, by, patch string) *unstructured.Unstructured {
	l.Helper()
	u := l.object(manifest)
	how := client.RawPatch("application/merge-patch+json", []byte(patch))
	if err := l.member.Patch(l.Context(), u, how, client.FieldOwner(by)); err != nil {
		l.Fatal(err)
	}
	return u
}

// heard waits for an Event that holds the words.
func (l *lab) heard(words ...string) {
	l.Helper()
	await.True(l, fmt.Sprintf("an Event with %q", words), func() bool {
		for {
			select {
			case event := <-l.events.Events:
				all := true
				for _, word := range words {
					all = all && strings.Contains(event, word)
				}
				if all {
					return true
				}
			default:
				return false
			}
		}
	})
}

// value is a field as text.
func value(u *unstructured.Unstructured, path ...string) string {
	v, found, err := unstructured.NestedFieldNoCopy(u.Object, path...)
	if err != nil || !found {
		return "-"
	}
	return fmt.Sprint(v)
}

// foreign makes an object of a manifest in the member that has nothing to do with us.
func (l *lab) foreign(manifest, by string) *unstructured.Unstructured {
	l.Helper()
	u := l.object(manifest)
	if err := l.member.Create(l.Context(), u, client.FieldOwner(by)); err != nil {
		l.Fatal(err)
	}
	return u
}

// marked makes an object as an execution has left it.
func (l *lab) marked(manifest, hub, work string) *unstructured.Unstructured {
	l.Helper()
	u := l.object(manifest)
	u.SetLabels(map[string]string{workv1alpha1.LabelManaged: "true"})
	annotate(u, pelagov1alpha1.AnnotationHubID, hub)
	annotate(u, workv1alpha1.AnnotationWorkNamespace, l.es())
	annotate(u, workv1alpha1.AnnotationWorkName, work)
	l.member.Make(u)
	return u
}

// wire is the way to the member: it notes requests, and answers itself where a test reports it.
type wire struct {
	mu     sync.Mutex
	answer func(*http.Request) (*http.Response, error) // nil, nil: let through
	notes  []string
}

type span struct {
	wire *wire
	next http.RoundTripper
}

func (s *span) RoundTrip(r *http.Request) (*http.Response, error) {
	s.wire.mu.Lock()
	s.wire.notes = append(s.wire.notes, r.Method+" "+r.URL.Path)
	answer := s.wire.answer
	s.wire.mu.Unlock()
	if answer != nil {
		if resp, err := answer(r); resp != nil || err != nil {
			return resp, err
		}
	}
	return s.next.RoundTrip(r)
}

// set answers requests from now on; nil: all go through.
func (w *wire) set(answer func(*http.Request) (*http.Response, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = answer
}

// forget begins a new list of notes.
func (w *wire) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notes = nil
}

// writes returns the requests that are no reads, with the part in their path.
func (w *wire) writes(part string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := []string{}
	for _, note := range w.notes {
		if !strings.HasPrefix(note, http.MethodGet) && strings.Contains(note, part) {
			out = append(out, note)
		}
	}
	return out
}
