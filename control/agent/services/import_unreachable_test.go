package services

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/hubclient"
)

// A verdict starts a cluster's lease once; it ends with the verdict.
func TestStaleClusters(t *testing.T) {
	at := func(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }
	d := unreachableClusters(nil).next([]string{"g3", "g2"}, at(0)).next([]string{"g2", "g4"}, at(30)).next([]string{"g4", "g3", "g2"}, at(59))
	for _, tt := range []struct {
		minutes     int
		dead, stale string
	}{{59, "g2 g3 g4", ""}, {60, "g2 g3 g4", "g2"}, {90, "g2 g3 g4", "g2 g4"}, {119, "g2 g3 g4", "g2 g3 g4"}} {
		dead, stale := d.at(at(tt.minutes))
		if strings.Join(dead, " ") != tt.dead || strings.Join(stale, " ") != tt.stale {
			t.Errorf("after %d minutes %v are dead and %v stale, want %s and %s", tt.minutes, dead, stale, tt.dead, tt.stale)
		}
	}
	if dead, _ := d.next(nil, at(200)).at(at(200)); dead != nil {
		t.Errorf("%v are dead", dead)
	}
}

// readinessOf is a line for each endpoint of a cluster's slice.
func readinessOf(slices []discoveryv1.EndpointSlice, cluster string) (out []string) {
	for _, s := range slices {
		if s.Labels[mcs.LabelSourceCluster] != cluster {
			continue
		}
		for _, e := range s.Endpoints {
			line := e.Addresses[0] + " ready"
			if !ptr.Deref(e.Conditions.Ready, true) {
				line = e.Addresses[0] + " not ready"
			}
			out = append(out, line)
		}
	}
	return out
}

// importer is the controller of g1, with these objects in its cluster.
func importer(t *testing.T, hub *hubclient.Hub, objects ...client.Object) *importReconciler {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{mcs.Install, discoveryv1.AddToScheme, corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	local := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&mcs.ServiceImport{}).
		WithIndex(&discoveryv1.EndpointSlice{}, indexImported, func(o client.Object) []string { return importedService(o) }).
		WithIndex(&mcs.ServiceImport{}, indexImported, func(o client.Object) []string { return importedService(o) }).Build()
	writes := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "writes"}, []string{"operation"})
	return &importReconciler{cluster: g1, hub: hub, events: record.NewFakeRecorder(10), local: local, counted: counted{Client: local, writes: writes}}
}

// An agent that starts while the hub is away follows the verdict on other clusters: what an agent
// before it marked unreachable becomes ready as it was, and what dies now becomes not ready.
func TestVerdictWithoutHub(t *testing.T) {
	s := sample(contribution("g2", "", 0), contribution("g3", "", 1))
	s.hubSlices[0] = hubSlice("g2", "g2.web.1", "120.2.0.8", "120.2.0.9", "120.2.0.10")
	s.hubSlices[0].Endpoints[1].Conditions.Ready = ptr.To(false)
	s.dead = []string{"g2"}
	before := g1.desired(s)
	objects := []client.Object{before.imported}
	for _, slice := range before.slices {
		objects = append(objects, slice)
	}
	hub, err := hubclient.New(hubclient.Options{Server: "https://127.0.0.1:1", Namespace: "broker", Token: func() string { return "" }, Logger: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	r := importer(t, hub, objects...)

	verdict := make(chan []string)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	told := make(chan struct{})
	err = r.watchDead(func(_ context.Context, set func([]string)) {
		for dead := range verdict {
			set(dead)
			told <- struct{}{}
		}
	})(t.Context(), queue)
	if err != nil {
		t.Fatal(err)
	}
	defer close(verdict)
	for _, tt := range []struct {
		name   string
		dead   []string
		g2, g3 []string
	}{
		{"still dead", []string{"g2"}, []string{"120.2.0.8 not ready", "120.2.0.9 not ready", "120.2.0.10 not ready"}, []string{"120.3.0.9 ready"}},
		{"recovered", nil, []string{"120.2.0.8 ready", "120.2.0.9 not ready", "120.2.0.10 ready"}, []string{"120.3.0.9 ready"}},
		{"another dies", []string{"g3"}, []string{"120.2.0.8 ready", "120.2.0.9 not ready", "120.2.0.10 ready"}, []string{"120.3.0.9 not ready"}},
		{"all recovered", nil, []string{"120.2.0.8 ready", "120.2.0.9 not ready", "120.2.0.10 ready"}, []string{"120.3.0.9 ready"}},
	} {
		verdict <- tt.dead
		<-told
		if queue.Len() != 1 {
			t.Fatalf("%s: %d requests, want that of the service", tt.name, queue.Len())
		}
		request, _ := queue.Get()
		queue.Done(request)
		if _, err := r.Reconcile(t.Context(), request); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		var list discoveryv1.EndpointSliceList
		if err := r.local.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([][]string{tt.g2, tt.g3}, [][]string{readinessOf(list.Items, "g2"), readinessOf(list.Items, "g3")}); diff != "" {
			t.Errorf("%s: -want +got\n%s", tt.name, diff)
		}
	}
}

// An agent takes over since when a cluster is unreachable: one that is gone does not get its say
// back, nor its slices, before or after the first verdict.
func TestGoneClustersOutliveTheAgent(t *testing.T) {
	peer := &v1alpha1.Peer{ObjectMeta: metav1.ObjectMeta{Name: "g3", Annotations: map[string]string{
		v1alpha1.AnnotationUnreachableSince: time.Now().Add(-2 * staleAfter).UTC().Format(time.RFC3339)}}}
	hub, err := hubclient.New(hubclient.Options{Server: "https://127.0.0.1:1", Namespace: "broker", Token: func() string { return "" }, Logger: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	r := importer(t, hub, peer)
	if _, stale := r.recorded(t.Context()).at(time.Now()); !slices.Equal(stale, []string{"g3"}) {
		t.Errorf("before a verdict %v are stale", stale)
	}
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	watching := make(chan func([]string))
	if err := r.watchDead(func(_ context.Context, set func([]string)) { watching <- set })(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	verdict := <-watching
	since := func() string {
		if err := r.local.Get(t.Context(), client.ObjectKeyFromObject(peer), peer); err != nil {
			t.Fatal(err)
		}
		return peer.Annotations[v1alpha1.AnnotationUnreachableSince]
	}
	before := since()
	verdict([]string{"g3"})
	if _, stale := r.dead.Load().at(time.Now()); !slices.Equal(stale, []string{"g3"}) || since() != before {
		t.Errorf("%v are stale, g3 since %s, before %s", stale, since(), before)
	}
	if event := <-r.events.(*record.FakeRecorder).Events; !strings.Contains(event, reasonClusterGone) || !strings.Contains(event, "pelago unjoin --clusterid g3") {
		t.Errorf("the event is %q", event)
	}
	verdict(nil)
	if at := since(); at != "" {
		t.Errorf("g3 answers, and is unreachable since %s", at)
	}
	verdict([]string{"g3"})
	if _, stale := r.dead.Load().at(time.Now()); stale != nil || since() <= before {
		t.Errorf("dies again: %v are stale, since %s", stale, since())
	}
}

func TestJudgedSlice(t *testing.T) {
	s := sample(contribution("g2", "", 0))
	s.hubSlices[0] = hubSlice("g2", "g2.web.1", "120.2.0.8", "120.2.0.9")
	s.hubSlices[0].Endpoints[0].Conditions.Terminating = ptr.To(true)
	slice := g1.desired(s).slices[0]
	dead := judgedSlice(slice, true)
	if again := judgedSlice(dead, true); cmp.Diff(dead, again) != "" {
		t.Errorf("judged twice: -once +twice\n%s", cmp.Diff(dead, again))
	}
	if _, marked := slice.Annotations[v1alpha1.AnnotationUnreachable]; marked || judgedSlice(slice, false) != slice {
		t.Error("the slice of a living cluster was changed")
	}
	alive := judgedSlice(dead, false)
	if got := alive.Endpoints[0].Conditions; !*got.Ready || !*got.Terminating {
		t.Errorf("the first endpoint is %+v, want ready, and terminating as before", got)
	}
	if diff := cmp.Diff(slice.Annotations, alive.Annotations); diff != "" {
		t.Errorf("annotations: -before +after\n%s", diff)
	}
	dead.Annotations[v1alpha1.AnnotationUnreachable] = "7,x,-1,,1"
	if got := judgedSlice(dead, false); *got.Endpoints[0].Conditions.Ready || !*got.Endpoints[1].Conditions.Ready {
		t.Errorf("with indexes that do not exist: %+v", got.Endpoints)
	}
}
