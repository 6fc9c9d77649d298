package clusterdns

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	mcscrd "sigs.k8s.io/mcs-api/config/crd"
	mcsv1alpha1 "sigs.k8s.io/mcs-api/pkg/apis/v1alpha1"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/pelago-net/pelago/dns"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// tables is the newest table that a controller has set.
type tables struct {
	mu     sync.Mutex
	newest dns.Table
	sets   int
}

func (r *tables) set(t dns.Table) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.newest, r.sets = t, r.sets+1
	return nil
}

// address is the first address of a service's first cluster, with "!" before it if it is not ready;
// "" without one.
func (r *tables) address(namespace, name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.newest.Services, func(s dns.Service) bool { return s.Namespace == namespace && s.Name == name })
	if i < 0 || len(r.newest.Services[i].Clusters) == 0 {
		return ""
	}
	e := r.newest.Services[i].Clusters[0].Endpoints[0]
	if !e.Ready {
		return "!" + e.IP.String()
	}
	return e.IP.String()
}

func (r *tables) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sets
}

// run runs a controller until the test ends.
func run(t *testing.T, api *rest.Config) (*TableController, *tables) {
	t.Helper()
	set := &tables{}
	c := NewTableController(api, g1, set.set, slog.New(slog.NewTextHandler(t.Output(), nil)))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c, set
}

// namespace makes one for this test.
func namespace(c *apiserver.Cluster) string {
	c.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "zone-"}}
	c.Make(ns)
	return ns.Name
}

func imported(ns, name string) *mcs.ServiceImport {
	s := serviceImport(name, mcs.ClusterSetIP)
	s.Namespace = ns
	return &s
}

func importedSlice(ns, name, address string) *discoveryv1.EndpointSlice {
	s := endpointSlice(name+"-g2", name, "g2", ready(address))
	s.Namespace = ns
	return &s
}

func TestFollowsTheAPI(t *testing.T) {
	api := shared.Config(t)
	c := apiserver.Connect(t, api, mcs.Install, mcsv1alpha1.Install)
	ns := namespace(c)
	local := importedSlice(ns, "local", "10.77.0.1")
	local.Labels = map[string]string{discoveryv1.LabelServiceName: "local"}
	c.Make(imported(ns, "web"), importedSlice(ns, "web", "120.2.0.1"), imported(ns, "local"), local)

	// Informers begin with what the API server has in its watch cache, which may be behind.
	for _, l := range []client.ObjectList{&mcs.ServiceImportList{}, &discoveryv1.EndpointSliceList{}} {
		await.True(t, "the watch cache has all that was made", func() bool {
			if err := c.List(t.Context(), l, client.InNamespace(ns), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}); err != nil {
				t.Fatal(err)
			}
			return meta.LenList(l) == 2
		})
	}
	controller, set := run(t, api)
	await.True(t, "synced", controller.Synced)
	if got := set.address(ns, "web"); got != "120.2.0.1" {
		t.Errorf("the first table has %q for web, want all that was there", got)
	}
	if got := set.address(ns, "local"); got != "" {
		t.Errorf("a slice of a cluster's own Service was taken: %s", got)
	}

	slice := importedSlice(ns, "web", "120.2.0.1")
	slice.Endpoints = []discoveryv1.Endpoint{ready("120.2.0.2")}
	if err := c.Update(t.Context(), slice); err != nil {
		t.Fatal(err)
	}
	await.True(t, "new address", func() bool { return set.address(ns, "web") == "120.2.0.2" })
	controller.SetDead([]string{"g2"})
	await.True(t, "the cluster is dead", func() bool { return set.address(ns, "web") == "!120.2.0.2" })
	controller.SetDead(nil)
	await.True(t, "and back", func() bool { return set.address(ns, "web") == "120.2.0.2" })
	if err := c.Delete(t.Context(), imported(ns, "web")); err != nil {
		t.Fatal(err)
	}
	await.True(t, "service gone", func() bool { return set.address(ns, "web") == "" })
}

func TestManyChangesAreFewTables(t *testing.T) {
	api := shared.Config(t)
	c := apiserver.Connect(t, api, mcs.Install, mcsv1alpha1.Install)
	ns := namespace(c)
	controller, set := run(t, api)
	await.True(t, "synced", controller.Synced)
	before, begin := set.count(), time.Now()
	for i := range 50 {
		name := "web-" + string(rune('a'+i/26)) + string(rune('a'+i%26))
		c.Make(imported(ns, name), importedSlice(ns, name, "120.2.0.1"))
	}
	await.True(t, "last service", func() bool { return set.address(ns, "web-bx") == "120.2.0.1" })
	if sets, most := set.count()-before, int(time.Since(begin)/settle)+2; sets > most {
		t.Errorf("%d tables in %v; at most one per %v is wanted", sets, time.Since(begin), settle)
	}
}

// TestServerAway: the last table stays, and changes arrive once the API server
// can be reached again.
func TestServerAway(t *testing.T) {
	api := shared.Config(t)
	c := apiserver.Connect(t, api, mcs.Install, mcsv1alpha1.Install)
	ns := namespace(c)
	c.Make(imported(ns, "web"), importedSlice(ns, "web", "120.2.0.1"))

	line := apiserver.NewLine(t, api)
	line.Cut()
	controller, set := run(t, line.Config())
	time.Sleep(100 * time.Millisecond) // it may not believe itself synced
	if controller.Synced() {
		t.Error("synced without an API server")
	}
	line.Heal()
	await.True(t, "synced after the server came", controller.Synced)

	line.Cut()
	slice := importedSlice(ns, "web", "120.2.0.1")
	slice.Endpoints = []discoveryv1.Endpoint{ready("120.2.0.2")}
	if err := c.Update(t.Context(), slice); err != nil {
		t.Fatal(err)
	}
	time.Sleep(4 * settle) // no table may be set
	if got := set.address(ns, "web"); got != "120.2.0.1" || !controller.Synced() {
		t.Errorf("without the server: address %q, synced %v; want the last state", got, controller.Synced())
	}
	line.Heal()
	await.True(t, "new address after the server is back", func() bool { return set.address(ns, "web") == "120.2.0.2" })
}

// TestOldVersionOnly: another component installed the definition with v1alpha1
// alone, and later than we started.
func TestOldVersionOnly(t *testing.T) {
	api := apiserver.Start(t)
	controller, set := run(t, api)
	crd := new(apiextensionsv1.CustomResourceDefinition)
	if err := yaml.Unmarshal(mcscrd.ServiceImportCRD, crd); err != nil {
		t.Fatal(err)
	}
	crd.Spec.Versions = slices.DeleteFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return v.Name != "v1alpha1"
	})
	crd.Spec.Versions[0].Storage = true
	if _, err := envtest.InstallCRDs(api, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{crd}}); err != nil {
		t.Fatal(err)
	}
	c := apiserver.Connect(t, api, mcs.Install, mcsv1alpha1.Install)
	ns := namespace(c)
	c.Make(&mcsv1alpha1.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web"},
		Spec:       mcsv1alpha1.ServiceImportSpec{Type: mcsv1alpha1.ClusterSetIP, Ports: []mcsv1alpha1.ServicePort{{Name: "http", Port: 80}}},
	}, importedSlice(ns, "web", "120.2.0.1"))
	await.True(t, "synced", controller.Synced)
	await.True(t, "address", func() bool { return set.address(ns, "web") == "120.2.0.1" })
}

// TestRefusedTable: a wrong configuration ends the controller with the reason.
func TestRefusedTable(t *testing.T) {
	handler := dns.NewHandler(prometheus.NewRegistry())
	c := NewTableController(shared.Config(t), TableConfig{LocalCluster: "g1", Mode: dns.ModeMCS}, handler.Set, slog.New(slog.DiscardHandler))
	if err := c.Run(t.Context()); err == nil || c.Synced() {
		t.Errorf("error %v, synced %v; want the table without zones to be refused", err, c.Synced())
	}
}
