package services

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"path"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/hubclient"
)

// syncedHub is a hub that has what the state says, all of it in the cache.
func syncedHub(t *testing.T, s importState) *hubclient.Hub {
	t.Helper()
	list := func(version, kind string) (metav1.TypeMeta, metav1.ListMeta) {
		return metav1.TypeMeta{APIVersion: version, Kind: kind + "List"}, metav1.ListMeta{ResourceVersion: "1"}
	}
	var clusters submarinerv1.ClusterList
	var endpoints submarinerv1.EndpointList
	var contributions v1alpha1.ServiceContributionList
	var slices discoveryv1.EndpointSliceList
	var set corev1.ConfigMapList
	clusters.TypeMeta, clusters.ListMeta = list(submarinerv1.GroupVersion.String(), "Cluster")
	endpoints.TypeMeta, endpoints.ListMeta = list(submarinerv1.GroupVersion.String(), "Endpoint")
	contributions.TypeMeta, contributions.ListMeta = list(v1alpha1.GroupVersion.String(), "ServiceContribution")
	slices.TypeMeta, slices.ListMeta = list("discovery.k8s.io/v1", "EndpointSlice")
	set.TypeMeta, set.ListMeta = list("v1", "ConfigMap")
	set.Items = []corev1.ConfigMap{}
	for id, since := range s.joined {
		clusters.Items = append(clusters.Items, submarinerv1.Cluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: "broker", Name: id, CreationTimestamp: metav1.NewTime(since)}, Spec: submarinerv1.ClusterSpec{ClusterID: id},
		})
	}
	endpoints.Items, contributions.Items = []submarinerv1.Endpoint{}, s.contributions
	for i := range contributions.Items {
		c := &contributions.Items[i]
		c.Namespace, c.Name = "broker", c.Spec.Cluster+".sample.web"
		c.Labels = identity("sample", "web", c.Spec.Cluster)
		c.Labels[submarinerv1.LabelClusterID] = c.Spec.Cluster
	}
	slices.Items = s.hubSlices
	for i := range slices.Items {
		slice := &slices.Items[i]
		slice.Namespace, slice.Labels = "broker", identity("sample", "web", slice.Labels[mcs.LabelSourceCluster])
		slice.Labels[discoveryv1.LabelManagedBy] = v1alpha1.ExportedSliceManager
	}
	lists := map[string]any{"clusters": clusters, "endpoints": endpoints, "servicecontributions": contributions, "endpointslices": slices, "configmaps": set}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Get("sendInitialEvents") != "":
			w.WriteHeader(http.StatusUnprocessableEntity) // as an API server without streamed lists
			return
		case r.URL.Query().Get("watch") != "":
			<-r.Context().Done() // nothing changes
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(lists[path.Base(r.URL.Path)]); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	hub, err := hubclient.New(hubclient.Options{Server: server.URL, CA: ca, Namespace: "broker", Token: func() string { return "t" }, MinPause: time.Millisecond,
		MaxPause: time.Millisecond, Logger: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- hub.Start(t.Context()) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	for deadline := time.Now().Add(3 * time.Minute); !hub.Synced(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the hub is not synced")
		}
	}
	return hub
}

// imported is what an agent before this one made of a service of g2, which was dead, and of g3;
// with what it is made of.
func imported() (s importState, objects []client.Object) {
	s = sample(contribution("g2", "", 0), contribution("g3", "", 1))
	s.dead = []string{"g2"}
	before := g1.desired(s)
	objects = append(objects, before.imported, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "sample"}})
	for _, slice := range before.slices {
		objects = append(objects, slice)
	}
	for _, id := range []string{"g2", "g3"} {
		p := peer(id, metav1.ConditionTrue, "Accepted", "")
		p.Spec.Subnets = []string{"120.0.0.0/8"}
		objects = append(objects, p)
	}
	return s, objects
}

func slicesOf(t *testing.T, r *importReconciler) []discoveryv1.EndpointSlice {
	t.Helper()
	if _, err := r.Reconcile(t.Context(), request("sample", "web")); err != nil {
		t.Fatal(err)
	}
	var list discoveryv1.EndpointSliceList
	if err := r.local.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// Until the first verdict what an agent before this one marked unreachable stays so.
func TestBeforeTheFirstVerdict(t *testing.T) {
	s, objects := imported()
	r := importer(t, syncedHub(t, s), objects...)
	check := func(what, g2 string) {
		t.Helper()
		slices := slicesOf(t, r)
		if diff := cmp.Diff([][]string{{g2}, {"120.3.0.9 ready"}}, [][]string{readinessOf(slices, "g2"), readinessOf(slices, "g3")}); diff != "" {
			t.Errorf("%s: -want +got\n%s", what, diff)
		}
	}
	check("no verdict", "120.2.0.9 not ready")
	r.dead.Store(&unreachableClusters{"g2": time.Now()})
	check("still dead", "120.2.0.9 not ready")
	r.dead.Store(nil)
	if err := r.watchDead(nil)(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	check("there are no verdicts", "120.2.0.9 ready")
}

// A slice that someone took the label from by which the service's slices are found is repaired.
func TestSliceWithoutItsLabel(t *testing.T) {
	s, objects := imported()
	for _, o := range objects {
		delete(o.GetLabels(), mcs.LabelServiceName)
	}
	slices := slicesOf(t, importer(t, syncedHub(t, s), objects...))
	for _, slice := range slices {
		if got := slice.Labels[mcs.LabelServiceName]; got != "web" {
			t.Errorf("slice %s is of service %q", slice.Name, got)
		}
	}
	if len(slices) != 2 {
		t.Errorf("%d slices, want 2", len(slices))
	}
}
