package node

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clientcache "k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/test/clusterset"
)

// server is a list of pods and a stream of events, as an API server gives them.
type server struct {
	pods   []corev1.Pod
	events *watch.FakeWatcher
	lists  atomic.Int32
	gate   chan struct{} // the list is answered once this is closed
}

func newServer(pods ...corev1.Pod) *server {
	gate := make(chan struct{})
	close(gate)
	return &server{pods: pods, events: watch.NewFake(), gate: gate}
}

func (s *server) source() clientcache.ListerWatcher { return listWatch{s.listWatch()} }

// listWatch is a source that does not stream lists.
type listWatch struct{ *clientcache.ListWatch }

func (listWatch) IsWatchListSemanticsUnSupported() bool { return true }

func (s *server) listWatch() *clientcache.ListWatch {
	return &clientcache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (kruntime.Object, error) {
			s.lists.Add(1)
			select {
			case <-s.gate:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: s.pods}, nil
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return s.events, nil },
	}
}

func TestPodNodes(t *testing.T) {
	inNode := clusterset.Pod("daemon", "n1", "172.31.1.11")
	inNode.Spec.HostNetwork = true
	s := newServer(clusterset.Pod("a", "n1", "10.7.1.5"), clusterset.Pod("b", "n2", "10.7.2.5"), inNode)
	changes := make(chan struct{}, 100)
	p := newPodNodes(s.source(), func() { changes <- struct{}{} })
	defer p.end()
	is := func(want map[netip.Addr]string) {
		t.Helper()
		got, err := p.all(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, clusterset.Comparable); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	}
	change := func(what string) {
		t.Helper()
		select {
		case <-changes:
		case <-time.After(3 * time.Minute):
			t.Fatalf("%s: nobody was told", what)
		}
	}
	is(map[netip.Addr]string{ip("10.7.1.5"): "n1", ip("10.7.2.5"): "n2"})
	change("the list")

	starting := clusterset.Pod("c", "n2", "10.7.2.6")
	starting.Status.PodIPs = nil
	s.events.Add(&starting)
	beat := clusterset.Pod("a", "n1", "10.7.1.5")
	beat.Labels = map[string]string{"of": "no interest"}
	s.events.Modify(&beat)
	started := clusterset.Pod("c", "n2", "10.7.2.6")
	s.events.Modify(&started)
	change("a pod that got an address")
	is(map[netip.Addr]string{ip("10.7.1.5"): "n1", ip("10.7.2.5"): "n2", ip("10.7.2.6"): "n2"})

	// of an address whose former pod is not known to be gone
	heir := clusterset.Pod("d", "n1", "10.7.2.5")
	heir.CreationTimestamp = metav1.NewTime(time.Unix(100, 0))
	s.events.Add(&heir)
	change("an heir")
	ended := clusterset.Pod("c", "n2", "10.7.2.6")
	ended.Status.Phase = corev1.PodFailed
	s.events.Modify(&ended)
	change("a pod that ended")
	gone := clusterset.Pod("a", "n1", "10.7.1.5")
	s.events.Delete(&gone)
	change("a pod that is gone")
	is(map[netip.Addr]string{ip("10.7.2.5"): "n1"})
	if len(changes) > 0 {
		t.Errorf("%d more calls than changes", len(changes))
	}

	// No gateway any more, and one again: a new list.
	p.end()
	p.end()
	s.events = watch.NewFake()
	is(map[netip.Addr]string{ip("10.7.1.5"): "n1", ip("10.7.2.5"): "n2"})
	if got := s.lists.Load(); got != 2 {
		t.Errorf("%d lists, want 2", got)
	}
}

// A gateway that is taken out of service continues switching for a while, without a gap.
func TestNeedsPodNodes(t *testing.T) {
	objs, _ := clusterset.Flat("n1")
	now := time.Unix(1000, 0)
	var tn role
	step := func(what string, want bool) {
		t.Helper()
		if got := needsPodNodes(objs, tn, now); got != want {
			t.Errorf("%s: %t, want %t", what, got, want)
		}
		tn.update(tables.Wanted(objs), false, now)
	}
	step("a gateway", true)
	step("still one", true)
	delete(objs.Nodes[0].Labels, submarinerv1.LabelGateway)
	step("just taken out of service", true)
	now = now.Add(drainTime - time.Second)
	step("draining", true)
	now = now.Add(2 * time.Second)
	step("drained", false)
	objs, _ = clusterset.Globalnet("n1")
	step("a gateway with globalnet", false)
}

// A gateway that restarts must not take the pods away that it has not heard of yet.
func TestPodNodesWaitForTheFirstList(t *testing.T) {
	s := newServer(clusterset.Pod("a", "n1", "10.7.1.5"))
	s.gate = make(chan struct{})
	p := newPodNodes(s.source(), func() {})
	defer p.end()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if got, err := p.all(ctx); err == nil {
		t.Fatalf("%v before the list was in", got)
	}
	p.end()
	time.AfterFunc(50*time.Millisecond, func() { close(s.gate) })
	if got, err := p.all(t.Context()); err != nil || len(got) != 1 {
		t.Errorf("%v, %v; want the one pod", got, err)
	}
}

// Whatever happens to pods, what is known is what a new list would say.
func TestPodNodesFollowEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPodNodes(nil, func() {})
		p.stop, p.synced, p.pods = func() {}, make(chan struct{}), map[string]podNode{}
		store := &podNodesStore{podNodes: p, synced: p.synced}
		have := map[string]corev1.Pod{}
		if err := store.Replace(nil, "1"); err != nil {
			t.Fatal(err)
		}
		for i := range rapid.IntRange(1, 30).Draw(t, "events") {
			name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name")
			x := clusterset.Pod(name, rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "node"), fmt.Sprintf("10.7.1.%d", rapid.IntRange(1, 3).Draw(t, "address")))
			x.CreationTimestamp = metav1.NewTime(time.Unix(int64(i), 0))
			x.Spec.HostNetwork = rapid.Bool().Draw(t, "in the network of the node")
			x.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded}).Draw(t, "phase")
			var err error
			if rapid.Bool().Draw(t, "gone") {
				delete(have, name)
				err = store.Delete(&x)
			} else {
				have[name] = x
				err = store.Update(&x)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		var list []any
		for name := range have {
			x := have[name]
			list = append(list, &x)
		}
		got, err := p.all(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Replace(list, "2"); err != nil {
			t.Fatal(err)
		}
		want, err := p.all(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, clusterset.Comparable); diff != "" {
			t.Fatalf("-new list +events\n%s", diff)
		}
	})
}

// What is kept of 10,000 pods is about a hundred bytes of each.
func TestPodNodesAreSmall(t *testing.T) {
	const pods = 10000
	p := newPodNodes(nil, func() {})
	p.stop, p.synced, p.pods = func() {}, make(chan struct{}), map[string]podNode{}
	store := &podNodesStore{podNodes: p, synced: p.synced}
	// What other tests left, in pools and behind finalizers, takes more than one collection to go.
	memory := func() int64 {
		var m runtime.MemStats
		for before := uint64(math.MaxUint64); ; before = m.HeapAlloc {
			runtime.GC()
			if runtime.ReadMemStats(&m); m.HeapAlloc+1024 > before {
				return int64(m.HeapAlloc)
			}
		}
	}
	before := memory()
	for i := range pods {
		x := clusterset.Pod(fmt.Sprintf("web-7d9c5b8f64-%05d", i), fmt.Sprintf("node-%d", i%300), fmt.Sprintf("10.7.%d.%d", i/250, i%250))
		if err := store.Add(&x); err != nil {
			t.Fatal(err)
		}
	}
	close(p.synced)
	if known, err := p.all(t.Context()); err != nil || len(known) != pods {
		t.Fatalf("%d pods are known, %v; want %d", len(known), err, pods)
	}
	each := (memory() - before) / pods
	t.Logf("%d bytes for each of %d pods", each, pods)
	if each > 300 {
		t.Errorf("%d bytes are kept of each pod, want at most 300", each)
	}
	runtime.KeepAlive(p)
}
