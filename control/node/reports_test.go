package node

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/node/status"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/liveness"
	"github.com/pelago-net/pelago/test/clusterset"
)

func fakeServer(t *testing.T, objs ...client.Object) *fake.ClientBuilder {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, submarinerv1.AddToScheme, pelagov1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objs...).WithStatusSubresource(&pelagov1alpha1.NodeIndex{}, &pelagov1alpha1.PortBlock{})
}

func fakeAPI(t *testing.T, writes *int, objs ...client.Object) client.Client {
	t.Helper()
	return fakeServer(t, objs...).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			*writes++
			return c.Create(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			*writes++
			return c.Patch(ctx, o, p, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			*writes++
			return c.Delete(ctx, o, opts...)
		},
	}).Build()
}

func TestRouteAgentIsWrittenOnChange(t *testing.T) {
	writes := 0
	c := fakeAPI(t, &writes)
	objs, host := clusterset.TwoGateways("n2")
	result := tables.Desired(objs, host)
	snap, tracker := status.NewSnapshot(objs, result, tables.Reach{}, false), status.NewTracker("v3")
	w := &agentWriter{client: c, key: types.NamespacedName{Namespace: "pelago-system", Name: "n2"}}
	n1, n3 := ip("172.31.1.11"), ip("172.31.1.13")
	write := func(want int, paths map[netip.Addr]liveness.Path, at time.Duration) {
		t.Helper()
		report := tracker.Observe(status.Observation{Snapshot: snap, Paths: paths, Now: time.Unix(1_700_000_000, 0).Add(at)}).Report
		if report == nil {
			t.Fatal("no report")
		}
		if err := w.write(t.Context(), report.RouteAgent); err != nil {
			t.Fatal(err)
		}
		if writes != want {
			t.Errorf("%d writes, want %d", writes, want)
		}
	}
	slow := clusterset.Answering()
	slow.SRTT, slow.RTT, slow.Replies = 9*time.Millisecond, 9*time.Millisecond, 10
	good := map[netip.Addr]liveness.Path{n1: slow, n3: clusterset.Answering()}
	write(1, good, 0)
	write(1, good, time.Minute) // numbers are reported every half minute
	jitter := clusterset.Answering()
	jitter.Replies, jitter.RTT = 10, 2600*time.Microsecond
	write(1, map[netip.Addr]liveness.Path{n1: slow, n3: jitter}, 2*time.Minute)
	write(2, map[netip.Addr]liveness.Path{n1: slow, n3: clusterset.Silent(time.Second)}, 3*time.Minute)
	var have submarinerv1.RouteAgent
	if err := c.Get(t.Context(), w.key, &have); err != nil {
		t.Fatal(err)
	}
	if have.Annotations[submarinerv1.AnnotationSilentGateways] != "n3" || have.Annotations[submarinerv1.AnnotationUpdated] == "" || have.Status.StatusFailure == "" {
		t.Errorf("%v %+v", have.Annotations, have.Status)
	}
	if o := have.OwnerReferences; len(o) != 1 || o[0].Kind != "Node" || o[0].Name != "n2" || o[0].UID != "uid-n2" {
		t.Errorf("owner %+v", o)
	}
	write(3, good, 4*time.Minute)               // n3 answers again
	write(4, good, 4*time.Minute+4*time.Second) // and has for three seconds
	have = submarinerv1.RouteAgent{}
	if err := c.Get(t.Context(), w.key, &have); err != nil {
		t.Fatal(err)
	}
	if _, silent := have.Annotations[submarinerv1.AnnotationSilentGateways]; silent || have.Status.StatusFailure != "" {
		t.Errorf("all answer: %v %q", have.Annotations, have.Status.StatusFailure)
	}
	result.LeftOut = []tables.LeftOut{{Pod: types.NamespacedName{Namespace: "sample", Name: "a"}, UID: "1", Reason: "macvlan"}}
	snap = status.NewSnapshot(objs, result, tables.Reach{}, false)
	write(5, good, 4*time.Minute+5*time.Second)
	have = submarinerv1.RouteAgent{}
	if err := c.Get(t.Context(), w.key, &have); err != nil {
		t.Fatal(err)
	}
	if have.Annotations[submarinerv1.AnnotationPodsLeftOut] != "1" || !strings.Contains(have.Status.StatusFailure, "(1): sample/a (macvlan)") {
		t.Errorf("a pod is left out: %v %q", have.Annotations, have.Status.StatusFailure)
	}
	result.LeftOut = nil
	snap = status.NewSnapshot(objs, result, tables.Reach{}, false)
	write(6, good, 4*time.Minute+6*time.Second)
	have = submarinerv1.RouteAgent{}
	if err := c.Get(t.Context(), w.key, &have); err != nil {
		t.Fatal(err)
	}
	if _, left := have.Annotations[submarinerv1.AnnotationPodsLeftOut]; left || have.Status.StatusFailure != "" {
		t.Errorf("no pod is left out: %v %q", have.Annotations, have.Status.StatusFailure)
	}
}

func TestGatewayObject(t *testing.T) {
	writes := 0
	published := &submarinerv1.Endpoint{Spec: submarinerv1.EndpointSpec{ClusterID: "g2", Hostname: "g2-n1", PrivateIP: "10.0.0.1"}}
	published.Namespace, published.Name = "pelago-system", "g2-x"
	c := fakeAPI(t, &writes, published)
	key := types.NamespacedName{Namespace: "pelago-system", Name: "n1"}
	var created time.Time
	reports := newReports(key, c, c, func(at time.Time) { created = at }, slog.New(slog.DiscardHandler))
	w := &reports.gateways
	objs, host := clusterset.Encrypted("n1")
	want := status.NewTracker("v3").Observe(status.Observation{
		Snapshot: status.NewSnapshot(objs, tables.Desired(objs, host), tables.Reach{}, false), Now: time.Now(),
		Paths: map[netip.Addr]liveness.Path{ip("241.0.128.1"): clusterset.Answering()},
	}).Report.Gateway
	for range 2 {
		if err := w.write(t.Context(), gatewayReport{want, &metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "u1"}}); err != nil {
			t.Fatal(err)
		}
	}
	var g submarinerv1.Gateway
	if err := c.Get(t.Context(), key, &g); err != nil {
		t.Fatal(err)
	}
	if !created.Equal(g.CreationTimestamp.Time) {
		t.Errorf("created at %v, want %v", created, g.CreationTimestamp)
	}
	if len(g.Status.Connections) != 2 || g.Status.Connections[0].Endpoint.PrivateIP != "10.0.0.1" || g.Annotations[submarinerv1.AnnotationUpdated] == "" ||
		len(g.OwnerReferences) != 1 || g.OwnerReferences[0].Name != "n1" {
		t.Errorf("%+v", g)
	}
	writes = 0
	for range 3 {
		if err := w.write(t.Context(), gatewayReport{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Get(t.Context(), key, &g); client.IgnoreNotFound(err) != nil || err == nil || writes != 1 {
		t.Errorf("after the node was relieved: %v, %d writes, want 1", err, writes)
	}
}

// An API server that is away holds nobody up, and gets the newest value when it is back.
func TestOutbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var away atomic.Bool
		away.Store(true)
		got := []int{}
		o := newOutbox[int]()
		go o.run(ctx, atOnce, func(ctx context.Context, v int) error {
			if away.Load() {
				<-ctx.Done() // hangs
				return errors.New("no route to host")
			}
			got = append(got, v)
			return nil
		}, slog.New(slog.DiscardHandler))
		start := time.Now()
		for v := range 5 {
			o.put(v)
		}
		if time.Since(start) > 0 {
			t.Errorf("put took %s", time.Since(start))
		}
		time.Sleep(writeTime / 2)
		o.put(5)
		away.Store(false)
		time.Sleep(writeTime/2 + retry + time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]int{5}, got); diff != "" {
			t.Error(diff)
		}
		cancel()
		synctest.Wait()
	})
}

// leavingBlock is cluster g1 at n1, with a port block that the agent wants back and that is out of
// use.
func leavingBlock() (*Daemon, tables.Objects, tables.Result) {
	objs, host := clusterset.Globalnet("n1")
	block := pelagov1alpha1.PortBlock{
		ObjectMeta: metav1.ObjectMeta{Name: "leaving"},
		Spec:       pelagov1alpha1.PortBlockSpec{EgressIP: "120.1.0.77", FirstPort: 2048, Node: "n1", State: pelagov1alpha1.BlockReleasing},
	}
	objs.PortBlocks = append(objs.PortBlocks, block)
	d := &Daemon{flows: flows{idle: map[string]int{"leaving": 0}, begun: 1, done: 1, inUse: map[dataplane.BlockKey]bool{}}}
	return d, objs, tables.Desired(objs, host)
}

// What the reconcile has to report it hands on at once, also while the API server hangs; afterwards
// the newest is written.
func TestReportsDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, objs, result := leavingBlock()
		var away atomic.Bool
		away.Store(true)
		var stored []client.Object
		for i := range objs.NodeIndexes {
			stored = append(stored, objs.NodeIndexes[i].DeepCopy())
		}
		stored = append(stored, objs.PortBlocks[len(objs.PortBlocks)-1].DeepCopy())
		written := 0
		c := fakeServer(t, stored...).WithInterceptorFuncs(interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				if away.Load() {
					<-ctx.Done()
				}
				if ctx.Err() != nil {
					return ctx.Err()
				}
				written++
				return c.SubResource(sub).Patch(ctx, o, p, opts...)
			},
		}).Build()
		var indexes pelagov1alpha1.NodeIndexList
		var blocks pelagov1alpha1.PortBlockList
		for _, list := range []client.ObjectList{&indexes, &blocks} {
			if err := c.List(t.Context(), list); err != nil {
				t.Fatal(err)
			}
		}
		objs.NodeIndexes, objs.PortBlocks = indexes.Items, blocks.Items
		ctx, cancel := context.WithCancel(t.Context())
		d.reports = newReports(types.NamespacedName{Name: "n1"}, c, c, nil, slog.New(slog.DiscardHandler))
		go d.reports.node.run(ctx, atOnce, d.reports.nodes.write, d.reports.log)
		begin := time.Now()
		for _, ack := range []string{"a", "b", "c"} {
			result.Acks = []string{ack}
			d.reports.node.put(d.nodeReport(objs, result, tables.Reach{}, true, nil))
			synctest.Wait() // the writer has it, and hangs
		}
		if took := time.Since(begin); took > 0 {
			t.Errorf("three reconciles waited for %s", took)
		}
		away.Store(false)
		time.Sleep(writeTime + retry + time.Second)
		cancel()
		synctest.Wait()
		var n pelagov1alpha1.NodeIndex
		var p pelagov1alpha1.PortBlock
		if err := errors.Join(c.Get(t.Context(), client.ObjectKey{Name: "n1"}, &n), c.Get(t.Context(), client.ObjectKey{Name: "leaving"}, &p)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"c"}, n.Status.Acks); diff != "" || !p.Status.Released || written != 2 {
			t.Errorf("%d writes, released %t, acks: %s", written, p.Status.Released, diff)
		}
	})
}

// What is known already is not written again, and a block or an index that has become another's
// meanwhile stays as it is.
func TestReportsAreOfWhatWasRead(t *testing.T) {
	d, objs, result := leavingBlock()
	block := objs.PortBlocks[len(objs.PortBlocks)-1].DeepCopy()
	c := fakeServer(t, tables.OwnIndex(objs).DeepCopy(), block).Build()
	w := nodeWriter{c, c}
	d.latch(result, true)
	r := d.nodeReport(objs, result, tables.Reach{}, true, nil)
	if len(r.released) != 1 || r.index == nil || !r.index.Status.Ready {
		t.Fatalf("report %+v", r)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(block), r.released[0]); err != nil {
		t.Fatal(err)
	}
	again := r.released[0].DeepCopy()
	again.Spec.Node, again.Spec.State = "n2", pelagov1alpha1.BlockActive
	if err := c.Update(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	read := func() (n pelagov1alpha1.NodeIndex) {
		t.Helper()
		if err := c.Get(t.Context(), client.ObjectKey{Name: "n1"}, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	foreign := nodeReport{index: r.index.DeepCopy()}
	foreign.index.UID = "another"
	before := read()
	for _, r := range []nodeReport{{}, foreign} {
		if err := w.write(t.Context(), r); err != nil || read().ResourceVersion != before.ResourceVersion {
			t.Errorf("%v; version %s, want %s", err, read().ResourceVersion, before.ResourceVersion)
		}
	}
	if err := w.write(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	first := read()
	if err := w.write(t.Context(), nodeReport{index: r.index}); err != nil || first.ResourceVersion == before.ResourceVersion || read().ResourceVersion != first.ResourceVersion {
		t.Errorf("%v; versions %s, %s, %s", err, before.ResourceVersion, first.ResourceVersion, read().ResourceVersion)
	}
	var p pelagov1alpha1.PortBlock
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(block), &p); err != nil || p.Status.Released {
		t.Errorf("the block of n2 is released (%v)", err)
	}
}

// TestSpread: in a small cluster reports are not delayed, and those of a large one are spread over a
// second.
func TestSpread(t *testing.T) {
	for nodes, want := range map[int]time.Duration{0: 0, 3: 3 * time.Millisecond, 500: 500 * time.Millisecond, 5000: time.Second} {
		if got := spread(nodes); got != want {
			t.Errorf("%d nodes: %s, want %s", nodes, got, want)
		}
	}
}
