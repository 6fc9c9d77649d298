package node

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
	"github.com/pelago-net/pelago/test/clusterset"
)

// logged is what a daemon logs; safe for concurrent use.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// newDaemon makes the daemon of node n1 as cmd/pelago-node does, without a kernel: it reads and
// saves. It ends with the test.
func newDaemon(t *testing.T, cfg *rest.Config, file string) (*Daemon, *logged) {
	t.Helper()
	scheme := runtime.NewScheme()
	opts, err := CacheOptions("n1", config.SystemNamespace)
	if err := errors.Join(err, clientgoscheme.AddToScheme(scheme), submarinerv1.AddToScheme(scheme), pelagov1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	opts.Scheme = scheme
	objects, err := cache.New(cfg, opts)
	if err != nil {
		t.Fatalf("what needs no API server: %v", err)
	}
	cl, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatalf("what needs no API server: %v", err)
	}
	typed, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	out := &logged{}
	d := New(Options{
		NodeName: "n1", Namespace: config.SystemNamespace, CacheFile: file, Pods: PodsOfCluster(typed), Logger: slog.New(slog.NewTextHandler(out, nil)),
	}, objects, cl, nil)
	ended := make(chan error, 1)
	go func() { ended <- objects.Start(t.Context()) }()
	t.Cleanup(func() { // the context has ended
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return d, out
}

func peerNames(t *testing.T, d *Daemon) []string {
	t.Helper()
	objs, err := d.objects.read(t.Context(), &d.gateway)
	if err != nil {
		t.Error(err)
	}
	names := []string{}
	for _, p := range objs.Peers {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}

// A daemon saves what it reads; the next one, which starts without the API server, has the same,
// until the API server is back.
func TestStartWithoutTheAPIServer(t *testing.T) {
	server := apiserver.Start(t, apiserver.CRDs())
	c := apiserver.Connect(t, server, submarinerv1.AddToScheme, pelagov1alpha1.AddToScheme)
	c.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: config.SystemNamespace}})
	c.Make(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: config.SystemNamespace, Name: config.ConfigMapName}, Data: clusterset.Config(false).Data()})
	n := clusterset.Node("n1", "172.31.1.11", true)
	c.Make(&n, &pelagov1alpha1.NodeIndex{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: pelagov1alpha1.NodeIndexSpec{Index: 1}})
	p := clusterset.Peer("g2", metav1.ConditionTrue, pelagov1alpha1.ReasonAccepted)
	c.Make(&p)
	checkMapper(t, c)
	line := apiserver.NewLine(t, server)
	file := filepath.Join(t.TempDir(), "node", "state.json")

	first, _ := newDaemon(t, line.Config(), file)
	if _, err := first.objects.begin(t.Context(), first.log); err != nil {
		t.Fatal(err)
	}
	if first.FromCache() {
		t.Error("the first daemon does not work from the API server's objects")
	}
	live, err := first.objects.read(t.Context(), &first.gateway)
	if err != nil {
		t.Fatal(err)
	}
	kept, stop := context.WithCancel(t.Context())
	first.objects.saves.put(live)
	var saver sync.WaitGroup
	saver.Go(func() { first.objects.keep(kept, first.log) })
	await.True(t, "the objects are saved", func() bool { _, err := os.Stat(file); return err == nil })
	first.objects.pods.end()
	stop()
	saver.Wait()

	line.Cut()
	second, log := newDaemon(t, line.Config(), file)
	begin := time.Now()
	if _, err := second.objects.begin(t.Context(), second.log); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < startTimeout {
		t.Errorf("it began after %s, want %s at least", took, startTimeout)
	}
	// The cause is a refusal, or the end of a connection that the process still had.
	if !second.FromCache() || !strings.Contains(log.String(), "saved") || !strings.Contains(log.String(), line.Config().Host) {
		t.Errorf("it works from the saved objects: %t; it says\n%s", second.FromCache(), log)
	}
	back, err := second.objects.read(t.Context(), &second.gateway)
	if err != nil {
		t.Fatal(err)
	}
	want, err := tables.Encode(live, "boot", dropPart)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tables.Encode(back, "boot", dropPart); err != nil || !bytes.Equal(want, got) {
		t.Errorf("objects (%v): -of the API server +saved\n%s", err, cmp.Diff(string(want), string(got)))
	}
	select {
	case <-second.objects.synced.done:
		t.Error("the API server's objects are there, over a line that is cut")
	default:
	}

	p = clusterset.Peer("g3", metav1.ConditionTrue, pelagov1alpha1.ReasonAccepted)
	c.Make(&p)
	line.Heal()
	select {
	case <-second.objects.synced.done:
	case <-time.After(3 * time.Minute):
		t.Fatalf("the API server's objects do not come; it says\n%s", log)
	}
	if diff := cmp.Diff([]string{"g2"}, peerNames(t, second)); diff != "" {
		t.Errorf("peers before it goes over to the API server: -want +got\n%s", diff)
	}
	second.goLive(t.Context())
	defer second.objects.pods.end()
	if second.FromCache() || len(second.trigger) != 1 {
		t.Error("it did not go over to the API server's objects")
	}
	if diff := cmp.Diff([]string{"g2", "g3"}, peerNames(t, second)); diff != "" {
		t.Errorf("peers when it has gone over to the API server: -want +got\n%s", diff)
	}
	p = clusterset.Peer("g4", metav1.ConditionTrue, pelagov1alpha1.ReasonAccepted)
	c.Make(&p)
	await.Equal(t, []string{"g2", "g3", "g4"}, func() []string { return peerNames(t, second) })
}

// What is read after changes is what a daemon reads that has read nothing before.
func TestReadFollowsChanges(t *testing.T) {
	server := apiserver.Start(t, apiserver.CRDs())
	c := apiserver.Connect(t, server, submarinerv1.AddToScheme, pelagov1alpha1.AddToScheme, mcs.Install)
	c.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: config.SystemNamespace}})
	c.Make(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: config.SystemNamespace, Name: config.ConfigMapName}, Data: clusterset.Config(false).Data()})
	d, _ := newDaemon(t, server, filepath.Join(t.TempDir(), "state.json"))
	if _, err := d.objects.begin(t.Context(), d.log); err != nil {
		t.Fatal(err)
	}
	defer d.objects.pods.end()
	read := func() tables.Objects {
		t.Helper()
		objs, err := d.objects.read(t.Context(), &d.gateway)
		if err != nil {
			t.Fatal(err)
		}
		return objs
	}
	meta := func(name string, labels ...string) metav1.ObjectMeta {
		m := metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{}}
		for i := 0; i < len(labels); i += 2 {
			m.Labels[labels[i]] = labels[i+1]
		}
		return m
	}
	slice := func(name, label, service, address string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{ObjectMeta: meta(name, label, service), AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{{Port: ptr.To(int32(80))}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}}}
	}
	web, db := types.NamespacedName{Namespace: "default", Name: "web"}, types.NamespacedName{Namespace: "default", Name: "db"}
	first, imported := slice("web-1", discoveryv1.LabelServiceName, "web", "10.7.0.1"), slice("db-g2", mcs.LabelServiceName, "db", "242.2.0.1")
	export, index := &mcs.ServiceExport{ObjectMeta: meta("web")}, &pelagov1alpha1.NodeIndex{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: pelagov1alpha1.NodeIndexSpec{Index: 1}}
	service := &corev1.Service{ObjectMeta: meta("web"), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	policies := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "ciliumnetworkpolicies.cilium.io"},
		"spec": map[string]any{
			"group": "cilium.io", "scope": "Namespaced",
			"names": map[string]any{"plural": "ciliumnetworkpolicies", "singular": "ciliumnetworkpolicy", "kind": "CiliumNetworkPolicy"},
			"versions": []any{map[string]any{"name": "v2", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
		},
	}}
	policy := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": map[string]any{"namespace": "default", "name": "deny"},
	}}
	update := func(o client.Object) {
		t.Helper()
		if err := c.Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		what   string
		change func()
		holds  func(tables.Objects) bool
	}{
		{"slices before their Service", func() { c.Make(first, imported) }, func(o tables.Objects) bool { return len(o.Slices[web]) == 1 && len(o.Imported[db]) == 1 }},
		{"a Service", func() { c.Make(service) }, func(o tables.Objects) bool { return o.Services[web] != nil }},
		{"an export", func() { c.Make(export) }, func(o tables.Objects) bool { return o.Exports[web] }},
		{"a restricted export", func() {
			export.Annotations = map[string]string{pelagov1alpha1.AnnotationExportTo: "g2"}
			update(export)
		}, func(o tables.Objects) bool { return o.ExportTo[web] == "g2" }},
		{"an import", func() {
			c.Make(&mcs.ServiceImport{ObjectMeta: meta("db"), Spec: mcs.ServiceImportSpec{Type: mcs.ClusterSetIP, IPs: []string{"243.0.0.1"}, Ports: []mcs.ServicePort{{Port: 80}}}})
		}, func(o tables.Objects) bool { return o.Imports[db].IP.IsValid() }},
		{"a second slice", func() { c.Make(slice("web-2", discoveryv1.LabelServiceName, "web", "10.7.0.2")) }, func(o tables.Objects) bool { return len(o.Slices[web]) == 2 }},
		{"another address", func() {
			first.Endpoints[0].Addresses = []string{"10.7.0.9"}
			update(first)
		}, func(o tables.Objects) bool {
			return slices.ContainsFunc(o.Slices[web], func(s discoveryv1.EndpointSlice) bool { return s.Endpoints[0].Addresses[0] == "10.7.0.9" })
		}},
		{"a slice of another Service", func() {
			first.Labels[discoveryv1.LabelServiceName] = "db"
			update(first)
		}, func(o tables.Objects) bool { return len(o.Slices[web]) == 1 && len(o.Slices[db]) == 1 }},
		{"a slice of none", func() {
			delete(first.Labels, discoveryv1.LabelServiceName)
			update(first)
		}, func(o tables.Objects) bool { _, ok := o.Slices[db]; return !ok }},
		{"a slice that goes", func() { c.Remove(imported) }, func(o tables.Objects) bool { _, ok := o.Imported[db]; return !ok }},
		{"a NodeIndex", func() { c.Make(index) }, func(o tables.Objects) bool { return len(o.NodeIndexes) == 1 }},
		{"a kind of policies", func() { c.Make(policies) }, func(o tables.Objects) bool { return len(o.OtherPolicies) == 0 }},
		{"a policy of it", func() { await.Equal(t, nil, func() error { return c.Create(t.Context(), policy.DeepCopy()) }) }, func(o tables.Objects) bool {
			return maps.Equal(o.OtherPolicies, map[string]string{"default": "CiliumNetworkPolicy"})
		}},
		{"a policy that goes", func() { c.Remove(policy) }, func(o tables.Objects) bool { return len(o.OtherPolicies) == 0 }},
		{"a kind of policies that goes", func() { c.Remove(policies) }, func(tables.Objects) bool { return len(d.objects.policies) == 0 }},
		{"a Service that goes", func() { c.Remove(service) }, func(o tables.Objects) bool { return o.Services[web] == nil }},
	} {
		former := read()
		kept := cmp.Diff(former, tables.Objects{}, clusterset.Comparable)
		step.change()
		await.True(t, step.what, func() bool { return step.holds(read()) })
		// Updates of the caches that step.holds does not see may still come.
		await.Equal(t, "", func() string {
			got := read()
			// It may see the definition of policies first, and then follows them by itself.
			anew := objectSource{node: d.objects.node, namespace: d.objects.namespace, cache: d.objects.cache, mapper: d.objects.mapper,
				policies: maps.Clone(d.objects.policies), changed: func() {}, readAll: true}
			want, err := anew.readChanged(t.Context(), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			byName := func(a, b discoveryv1.EndpointSlice) bool { return a.Name < b.Name }
			want.Answering, want.PodNodes = got.Answering, got.PodNodes
			return cmp.Diff(want, got, clusterset.Comparable, cmpopts.SortSlices(byName), cmpopts.EquateEmpty())
		})
		if now := cmp.Diff(former, tables.Objects{}, clusterset.Comparable); now != kept {
			t.Errorf("%s: what was read before has changed:\n%s", step.what, cmp.Diff(kept, now))
		}
	}
}

// checkMapper compares what is known by heart with what the API server serves.
func checkMapper(t *testing.T, c *apiserver.Cluster) {
	t.Helper()
	known := mapper()
	source := objectSource{mapper: known}
	kinds, err := source.kinds()
	if err != nil {
		t.Fatal(err)
	}
	objects := []client.Object{&submarinerv1.Gateway{}}
	for _, k := range kinds {
		objects = append(objects, k.object)
	}
	for _, o := range objects {
		kind, err := c.GroupVersionKindFor(o)
		if err != nil {
			t.Fatal(err)
		}
		want, err := c.RESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			t.Fatal(err)
		}
		got, err := known.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			t.Errorf("%s is not known: %v", kind, err)
			continue
		}
		if got.Resource != want.Resource || got.Scope.Name() != want.Scope.Name() {
			t.Errorf("%s is taken to be %s, scope %s; it is %s, scope %s", kind, got.Resource, got.Scope.Name(), want.Resource, want.Scope.Name())
		}
	}
}

// dropPart drops a part: the file names its content.
func dropPart(string, []byte) error { return nil }

func encoded(t *testing.T, objs tables.Objects) []byte {
	t.Helper()
	content, err := tables.Encode(objs, "boot", dropPart)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// Without the API server and without a copy that fits there is nothing to work from.
func TestStartWithNothing(t *testing.T) {
	objs, _ := clusterset.Full(true)
	other := objs
	other.Name = "n9"
	good := encoded(t, objs)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	tests := map[string]struct {
		host    string
		content []byte
		refused string // what it says of the file
		waits   bool   // for the API server, instead of ending with what that says
	}{
		"no file, the API server refuses":      {host: "127.0.0.1:1"},
		"a broken file":                        {host: "127.0.0.1:1", content: good[:100], refused: "it is broken"},
		"that of another node":                 {host: "127.0.0.1:1", content: encoded(t, other), refused: `that of node \"n9\"`},
		"no file, the API server says nothing": {host: silent.Addr().String(), waits: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "state.json")
			if tt.content != nil {
				if err := os.WriteFile(file, tt.content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			d, log := newDaemon(t, &rest.Config{Host: "http://" + tt.host}, file)
			ctx, cancel := context.WithTimeout(t.Context(), 2*startTimeout)
			defer cancel()
			_, err := d.objects.begin(ctx, d.log)
			switch {
			case tt.waits && !errors.Is(err, context.DeadlineExceeded):
				t.Errorf("it ends with %v, want it to wait", err)
			case !tt.waits && (err == nil || !strings.Contains(err.Error(), "connection refused")):
				t.Errorf("it ends with %v, want what the API server says", err)
			}
			if d.FromCache() || !strings.Contains(log.String(), tt.refused) || (tt.refused == "") != (log.String() == "") {
				t.Errorf("it works from saved objects: %t; it says\n%s", d.FromCache(), log)
			}
		})
	}
}

// An API server that takes connections and says nothing is away, too.
func TestStartWithASilentAPIServer(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	objs, _ := clusterset.Full(true)
	f := cacheFile{path: filepath.Join(t.TempDir(), "state.json")}
	if err := f.save(objs, bootID()); err != nil {
		t.Fatal(err)
	}
	d, log := newDaemon(t, &rest.Config{Host: "http://" + silent.Addr().String()}, f.path)
	if _, err := d.objects.begin(t.Context(), d.log); err != nil || !d.FromCache() {
		t.Errorf("it begins with %v; it says\n%s", err, log)
	}
	if diff := cmp.Diff([]string{"g2"}, peerNames(t, d)); diff != "" {
		t.Errorf("peers: -want +got\n%s", diff)
	}
}

// What comes in a burst is written once in a while, and the last of it when the daemon ends.
func TestSavesAreSpread(t *testing.T) {
	dir := t.TempDir()
	objs, _ := clusterset.Full(true)
	synctest.Test(t, func(t *testing.T) {
		source := objectSource{saves: newOutbox[tables.Objects](), file: cacheFile{path: filepath.Join(dir, "state.json")}}
		have := func() int {
			t.Helper()
			synctest.Wait()
			back, _, err := source.file.load("n1", "boot")
			if err != nil {
				t.Fatal(err)
			}
			return len(back.Peers)
		}
		put := func(peers int) {
			o := objs
			o.Peers = nil
			for range peers {
				o.Peers = append(o.Peers, objs.Peers[0])
			}
			source.saves.put(o)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); source.keep(ctx, slog.New(slog.DiscardHandler)) }()
		put(1)
		if n := have(); n != 1 {
			t.Errorf("%d peers are saved, want the 1 that came first, at once", n)
		}
		put(2)
		put(3)
		time.Sleep(saveInterval / 2) // in synctest: no time passes
		if n := have(); n != 1 {
			t.Errorf("%d peers are saved, want still 1", n)
		}
		time.Sleep(saveInterval) // likewise
		if n := have(); n != 3 {
			t.Errorf("%d peers are saved, want the 3 that came last", n)
		}
		put(4)
		cancel()
		<-ended
		if n := have(); n != 4 {
			t.Errorf("%d peers are saved, want the 4 of the end", n)
		}
	})
}
