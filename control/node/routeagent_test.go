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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
)

// town is cluster g1 with gateways n1 and n3 and a plain node n2, seen from one of them; g2 is cluster 2.
func town(from string) (snapshot, *links) {
	objs, host := world(from)
	objs.Nodes = append(objs.Nodes, node("n3", "172.31.1.13", true))
	n3 := objs.NodeIndexes[0].DeepCopy()
	n3.Name, n3.Spec.Index = "n3", 3
	objs.NodeIndexes = append(objs.NodeIndexes, *n3)
	host.Hops[ip("172.31.1.13")] = dataplane.Hop{Address: ip("172.31.1.13"), Next: ip("172.31.1.13"), Ifindex: 2}
	r := Desired(objs, host)
	return newSnapshot(objs, r, Reach{}), newLinks()
}

// slow is a path that has got slow.
func slow(p loader.Path) loader.Path {
	p.SRTT, p.RTT, p.Replies = 9*time.Millisecond, 9*time.Millisecond, p.Replies+1
	return p
}

func TestRemoteEndpoints(t *testing.T) {
	n1, n3, far := ip("172.31.1.11"), ip("172.31.1.13"), ip("172.31.2.11")
	type paths = map[netip.Addr]loader.Path
	lost := answering().WithUnreachable(2)
	dead := silent(time.Second)
	for _, tt := range []struct {
		what, from string
		before     paths // a second before
		now        paths
		status     submarinerv1.ConnectionStatus
		says       string
		latency    string // of the last answer
		silent     string
	}{
		{"all is well", "n2", nil, paths{n1: slow(answering()), n3: answering()},
			submarinerv1.Connected, "Through gateway n3, to which latencyRTT is.", "1.2ms", ""},
		{"a gateway is dead", "n2", paths{n1: answering(), n3: answering()}, paths{n1: slow(answering()), n3: dead},
			submarinerv1.Connected, "n3 does not answer. Through gateway n1, to which latencyRTT is.", "9ms", "n3"},
		{"a gateway is cut off from g2", "n2", nil, paths{n1: lost, n3: slow(answering())},
			submarinerv1.Connected, "n1 gets no answer from g2. Through gateway n3, to which latencyRTT is.", "9ms", ""},
		{"both are", "n2", paths{n1: lost, n3: lost}, paths{n1: lost, n3: lost},
			submarinerv1.Connecting, "n1, n3 gets no answer from g2. Waiting for the first answer of a gateway of this cluster.", "", ""},
		{"both are, after a good time", "n2", paths{n1: answering(), n3: lost}, paths{n1: lost, n3: lost},
			submarinerv1.ConnectionError, "n1, n3 gets no answer from g2.", "", ""},
		{"both are dead", "n2", paths{n1: answering(), n3: answering()}, paths{n1: dead, n3: dead},
			submarinerv1.ConnectionError, "n1, n3 does not answer.", "", "n1,n3"},
		{"nobody answered yet", "n2", nil, paths{},
			submarinerv1.Connecting, "Waiting for the first answer of a gateway of this cluster.", "", ""},
		{"at a gateway", "n1", nil, paths{n3: answering(), far: slow(answering())},
			submarinerv1.Connected, "", "9ms", ""},
		{"at a gateway that is cut off", "n1", paths{n3: answering(), far: answering()}, paths{n3: slow(answering()), far: dead},
			submarinerv1.Connected, "Through gateway n3, to which latencyRTT is. From here: probes are not answered any more: " +
				"does the node run, and does UDP 4500 to 172.31.2.11 of node g2-n1 pass?", "9ms", ""},
		{"at a gateway when g2 is dead", "n1", paths{n3: answering(), far: answering()}, paths{n3: lost, far: dead},
			submarinerv1.ConnectionError, "probes are not answered any more: does the node run, and does UDP 4500 to 172.31.2.11 of node g2-n1 pass?", "1.2ms", ""},
	} {
		t.Run(tt.what, func(t *testing.T) {
			snap, l := town(tt.from)
			at := begin
			if tt.before != nil {
				l.note(snap, tt.before, at)
				at = at.Add(time.Second)
				l.note(snap, tt.now, at)
				at = at.Add(time.Second)
			}
			l.note(snap, tt.now, at)
			r := routeAgentReport(snap, l, "v3")
			if len(r.status.RemoteEndpoints) != 1 {
				t.Fatalf("%d remote endpoints", len(r.status.RemoteEndpoints))
			}
			e := r.status.RemoteEndpoints[0]
			latency := ""
			if e.LatencyRTT != nil {
				latency = e.LatencyRTT.Last
			}
			got := []string{string(e.Status), e.StatusMessage, latency, r.silent, e.Spec.Hostname}
			if diff := cmp.Diff([]string{string(tt.status), tt.says, tt.latency, tt.silent, "g2-n1"}, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if (r.silent == "") != (r.status.StatusFailure == "") {
				t.Errorf("silent %q, failure %q", r.silent, r.status.StatusFailure)
			}
		})
	}
}

func TestNoGateway(t *testing.T) {
	objs, host := world("n2")
	objs.Nodes[0].Labels = nil
	r := Desired(objs, host)
	snap, l := newSnapshot(objs, r, Reach{}), newLinks()
	l.note(snap, nil, begin)
	e := routeAgentReport(snap, l, "v3").status.RemoteEndpoints[0]
	if e.Status != submarinerv1.ConnectionError || !strings.Contains(e.StatusMessage, "label one submariner.io/gateway=true") {
		t.Errorf("%s %q", e.Status, e.StatusMessage)
	}
}

func fakeAPI(t *testing.T, writes *int, objs ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, submarinerv1.AddToScheme, pelagov1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objs...).WithInterceptorFuncs(interceptor.Funcs{
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
	snap, l := town("n2")
	w := &agentWriter{client: c, key: types.NamespacedName{Namespace: "pelago-system", Name: "n2"}}
	n1, n3 := ip("172.31.1.11"), ip("172.31.1.13")
	write := func(want int, paths map[netip.Addr]loader.Path, at time.Duration) {
		t.Helper()
		l.note(snap, paths, begin.Add(at))
		if err := w.write(t.Context(), routeAgentReport(snap, l, "v3")); err != nil {
			t.Fatal(err)
		}
		if writes != want {
			t.Errorf("%d writes, want %d", writes, want)
		}
	}
	good := map[netip.Addr]loader.Path{n1: slow(answering()), n3: answering()}
	write(1, good, 0)
	write(1, good, time.Second)
	jitter := answering()
	jitter.Replies, jitter.RTT = 10, 2600*time.Microsecond
	write(1, map[netip.Addr]loader.Path{n1: slow(answering()), n3: jitter}, 2*time.Second)
	write(2, map[netip.Addr]loader.Path{n1: slow(answering()), n3: silent(time.Second)}, 3*time.Second)
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
	write(3, good, 4*time.Second) // n3 answers again
	write(4, good, 8*time.Second) // and has for three seconds
	have = submarinerv1.RouteAgent{}
	if err := c.Get(t.Context(), w.key, &have); err != nil {
		t.Fatal(err)
	}
	if _, silent := have.Annotations[submarinerv1.AnnotationSilentGateways]; silent || have.Status.StatusFailure != "" {
		t.Errorf("all answer: %v %q", have.Annotations, have.Status.StatusFailure)
	}
}

func TestGatewayObject(t *testing.T) {
	writes := 0
	published := &submarinerv1.Endpoint{Spec: submarinerv1.EndpointSpec{ClusterID: "g2", Hostname: "g2-n1", PrivateIP: "10.0.0.1"}}
	published.Namespace, published.Name = "pelago-system", "g2-x"
	c := fakeAPI(t, &writes, published)
	key := types.NamespacedName{Namespace: "pelago-system", Name: "n1"}
	w := newWriters(key, c, c, newLinks()).gateway
	snap, l := pair("n1")
	l.note(snap, map[netip.Addr]loader.Path{ip("241.0.128.1"): answering()}, begin)
	for range 2 {
		if err := w.write(t.Context(), gatewayReport(snap, l, "v3")); err != nil {
			t.Fatal(err)
		}
	}
	var g submarinerv1.Gateway
	if err := c.Get(t.Context(), key, &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Status.Connections) != 2 || g.Status.Connections[0].Endpoint.PrivateIP != "10.0.0.1" || g.Annotations[submarinerv1.AnnotationUpdated] == "" {
		t.Errorf("%+v", g)
	}
	writes = 0
	for range 3 {
		if err := w.write(t.Context(), nil); err != nil {
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
		go o.run(ctx, 0, func(ctx context.Context, v int) error {
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
