package hubclient

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/test/await"
)

// fakeHub answers lists and watches of ServiceContributions; it has no objects of other kinds.
type fakeHub struct {
	mu       sync.Mutex
	revision int
	objects  map[string]*v1alpha1.ServiceContribution
	watch    chan metav1.WatchEvent // the open one; closed: it ends
}

func (f *fakeHub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// apis/GROUP/VERSION/namespaces/NAMESPACE/RESOURCE, api/v1/namespaces/NAMESPACE/configmaps
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	contributions := parts[len(parts)-1] == "servicecontributions"
	w.Header().Set("Content-Type", "application/json")
	send := func(v any) {
		_ = json.NewEncoder(w).Encode(v) // the client has gone
		w.(http.Flusher).Flush()
	}
	if r.URL.Query().Get("watch") == "" {
		f.mu.Lock()
		defer f.mu.Unlock()
		list := map[string]any{"apiVersion": strings.Join(parts[1:3], "/"), "metadata": map[string]any{"resourceVersion": fmt.Sprint(f.revision)}}
		items := []any{}
		for _, o := range f.objects {
			if contributions {
				items = append(items, o)
			}
		}
		if parts[0] == "api" {
			list["apiVersion"] = parts[1]
		}
		list["kind"], list["items"] = map[string]string{"servicecontributions": "ServiceContributionList", "clusters": "ClusterList",
			"configmaps": "ConfigMapList", "endpoints": "EndpointList", "endpointslices": "EndpointSliceList"}[parts[len(parts)-1]], items
		send(list)
		return
	}
	if r.URL.Query().Get("sendInitialEvents") != "" {
		w.WriteHeader(http.StatusUnprocessableEntity)
		send(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity})
		return
	}
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	if !contributions {
		<-r.Context().Done()
		return
	}
	f.mu.Lock()
	events := make(chan metav1.WatchEvent, 10)
	f.watch = events
	f.mu.Unlock()
	for {
		select {
		case <-r.Context().Done():
			return
		case e, open := <-events:
			if !open {
				return
			}
			send(e)
		}
	}
}

// set makes an object, or removes it, and sends an event of the type; without one, watches expire.
func (f *fakeHub) set(t *testing.T, name string, present bool, event string) {
	t.Helper()
	await.True(t, "the hub is watched", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.watch != nil })
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revision++
	o := &v1alpha1.ServiceContribution{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ServiceContribution"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "broker", Name: name, UID: types.UID(fmt.Sprint(f.revision)), ResourceVersion: fmt.Sprint(f.revision),
			Labels: map[string]string{submarinerv1.LabelClusterID: "g2", submarinerv1.LabelSourceNamespace: "sample", mcs.LabelServiceName: name}},
		Spec: v1alpha1.ServiceContributionSpec{Cluster: "g2", Namespace: "sample", Service: name},
	}
	delete(f.objects, name)
	if present {
		f.objects[name] = o
	}
	if event != "" {
		f.watch <- metav1.WatchEvent{Type: event, Object: runtime.RawExtension{Object: o}}
		return
	}
	f.watch <- metav1.WatchEvent{Type: "ERROR", Object: runtime.RawExtension{Object: &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: http.StatusGone}}}
	close(f.watch)
	f.watch = nil
}

// TestMissingObjects: a hub that was restored from a backup lacks objects without an event: they
// count as present until their owner writes them again, or for the grace. Deletions count at once.
func TestMissingObjects(t *testing.T) {
	f := &fakeHub{revision: 10, objects: map[string]*v1alpha1.ServiceContribution{}}
	server := httptest.NewTLSServer(f)
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	h, err := New(Options{Server: server.URL, CA: ca, Namespace: "broker", Token: func() string { return "t" },
		MinPause: time.Millisecond, MaxPause: 2 * time.Millisecond, QPS: 1000, Burst: 1000, Logger: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	h.missing.grace = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Start(ctx) }()
	defer func() {
		cancel()
		server.CloseClientConnections()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	if err := h.Source(&v1alpha1.ServiceContribution{}, h.OfContribution).Start(ctx, queue); err != nil {
		t.Fatal(err)
	}
	// A controller: what it has found of each service.
	var mu sync.Mutex
	found := map[string]string{}
	go func() {
		for {
			request, shutdown := queue.Get()
			if shutdown {
				return
			}
			items, err := h.Contributions(ctx, request.NamespacedName)
			state := "none"
			if len(items) > 0 {
				state = "missing"
			}
			if len(Present(h, items)) > 0 {
				state = "present"
			}
			if err != nil {
				state = err.Error()
			}
			mu.Lock()
			found[request.Name] = state
			mu.Unlock()
			queue.Done(request)
		}
	}()
	is := func(name, want string) {
		t.Helper()
		await.Equal(t, want, func() string { mu.Lock(); defer mu.Unlock(); return found[name] })
	}

	for _, name := range []string{"web", "db"} {
		f.set(t, name, true, "ADDED")
		is(name, "present")
	}
	f.set(t, "web", false, "")
	is("web", "missing")
	is("db", "present")
	f.set(t, "web", true, "ADDED")
	is("web", "present")
	f.set(t, "db", false, "DELETED")
	is("db", "none")

	f.set(t, "web", false, "")
	is("web", "missing")
	f.set(t, "web", true, "") // the next list has it
	is("web", "present")

	h.missing.mu.Lock()
	h.missing.grace = 50 * time.Millisecond
	h.missing.mu.Unlock()
	f.set(t, "web", false, "")
	is("web", "none")
}

// A gateway that moved has one Endpoint, whichever of the two the hub lacks: the older one (it was
// deleted meanwhile) or the newer one (a backup from before).
func TestMissingEndpoints(t *testing.T) {
	endpoint := func(name, cluster, host string, second int64) submarinerv1.Endpoint {
		return submarinerv1.Endpoint{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(second, 0)},
			Spec: submarinerv1.EndpointSpec{ClusterID: cluster, Hostname: host}}
	}
	before, after := endpoint("g2-10-0-0-1", "g2", "gw", 1), endpoint("g2-10-0-0-2", "g2", "gw", 2)
	others := []submarinerv1.Endpoint{endpoint("g2-10-0-0-3", "g2", "gw2", 1), endpoint("g3-10-0-0-1", "g3", "gw", 3)}
	for name, tt := range map[string]struct {
		present, missing submarinerv1.Endpoint
	}{"the older one is missing": {after, before}, "the newer one is missing": {before, after}} {
		var got []string
		for _, e := range newest(append(slices.Clone(others), tt.present, tt.missing), len(others)+1) {
			got = append(got, e.Name)
		}
		if want := "g2-10-0-0-3 g3-10-0-0-1 g2-10-0-0-2"; strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", name, got, want)
		}
	}
}
