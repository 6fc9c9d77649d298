package services_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1alpha1 "sigs.k8s.io/mcs-api/pkg/apis/v1alpha1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/agent/ipam"
	"github.com/pelago-net/pelago/control/agent/services"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// The endpoint slices are made, and owned objects removed, by Kubernetes' own controllers.
var server = apiserver.NewShared(apiserver.CRDs(), apiserver.Controllers("namespace-controller", "garbage-collector-controller", "endpointslice-controller"))

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

// cluster is a namespace of an API server, for one test.
type cluster struct {
	*apiserver.Cluster
	namespace string
}

func newCluster(t *testing.T, config *rest.Config) *cluster {
	t.Helper()
	c := &cluster{Cluster: apiserver.Connect(t, config, submarinerv1.AddToScheme, pelagov1alpha1.AddToScheme,
		apiextensionsv1.AddToScheme, mcsv1beta1.Install, mcsv1alpha1.Install)}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "ingress-"}}
	c.Make(ns)
	c.namespace = ns.Name
	c.Empty(&pelagov1alpha1.GlobalAddress{}, &pelagov1alpha1.NodeIndex{})
	t.Cleanup(func() {
		if err := c.Delete(t.Context(), ns); client.IgnoreNotFound(err) != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	return c
}

var cidr = []netip.Prefix{netip.MustParsePrefix("120.1.0.0/24")}

// agent runs the controllers until stop is called or the test ends.
func (c *cluster) agent(faults *apiserver.Faults) (stop func()) {
	c.Helper()
	return apiserver.Manager{Scheme: c.Scheme(), NewClient: faults.NewClient, Setup: []func(ctrl.Manager) error{
		func(mgr ctrl.Manager) error {
			return services.SetupIngress(mgr, services.IngressOptions{GlobalCIDR: cidr})
		},
		func(mgr ctrl.Manager) error {
			return ipam.SetupAddresses(mgr, ipam.AddressOptions{GlobalCIDR: cidr})
		},
	}}.Run(c, c.Config)
}

func (c *cluster) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: c.namespace, Name: name}
}

// service makes a Service for the pods with the label app=<name>; headless ones have ClusterIP
// None.
func (c *cluster) service(name string, headless bool) *corev1.Service {
	c.Helper()
	s := &corev1.Service{ObjectMeta: c.meta(name), Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80}},
	}}
	if headless {
		s.Spec.ClusterIP = corev1.ClusterIPNone
	}
	c.Make(s)
	return s
}

func (c *cluster) export(name string) *mcsv1beta1.ServiceExport {
	c.Helper()
	e := &mcsv1beta1.ServiceExport{ObjectMeta: c.meta(name)}
	c.Make(e)
	return e
}

// pod makes a running pod that is not ready.
func (c *cluster) pod(name, ip string, labels map[string]string) *corev1.Pod {
	c.Helper()
	p := &corev1.Pod{ObjectMeta: c.meta(name), Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	p.Labels = labels
	c.Make(p)
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}}
	if err := c.Status().Update(c.Context(), p); err != nil {
		c.Fatal(err)
	}
	return p
}

func (c *cluster) list() []submarinerv1.GlobalIngressIP {
	c.Helper()
	var list submarinerv1.GlobalIngressIPList
	if err := c.List(c.Context(), &list, client.InNamespace(c.namespace)); err != nil {
		c.Fatal(err)
	}
	return list.Items
}

// ingressIPs lists the objects that have an address: name → target and service.
func (c *cluster) ingressIPs() map[string]string {
	c.Helper()
	got := map[string]string{}
	for _, g := range c.list() {
		if g.Status.AllocatedIP != "" {
			got[g.Name] = string(g.Spec.Target) + " " + g.Spec.ServiceRef.Name
		}
	}
	return got
}

func (c *cluster) address(name string) string {
	c.Helper()
	for _, g := range c.list() {
		if g.Name == name {
			return g.Status.AllocatedIP
		}
	}
	return ""
}

type names = map[string]string

func TestClusterIPServices(t *testing.T) {
	c := newCluster(t, server.Config(t))
	c.agent(nil)
	web := c.export("web") // before its service
	service := c.service("web", false)
	c.service("not-exported", false)
	await.Equal(c, names{"web": "ClusterIPService web"}, c.ingressIPs)
	c.Remove(service)
	await.Equal(c, names{}, c.ingressIPs)
	c.service("web", false)
	await.Equal(c, names{"web": "ClusterIPService web"}, c.ingressIPs)

	address := c.address("web")
	start := time.Now()
	c.Remove(web)
	await.Equal(c, 0, func() int { return len(c.list()) })
	t.Logf("removed %s after the export was deleted", time.Since(start).Round(time.Millisecond))
	await.Equal(c, true, func() bool {
		claim := &pelagov1alpha1.GlobalAddress{}
		err := c.Get(t.Context(), client.ObjectKey{Name: strings.ReplaceAll(address, ".", "-")}, claim)
		return err == nil && claim.Spec.ReleasedAt != nil
	})
	c.export("web")
	await.Equal(c, names{"web": "ClusterIPService web"}, c.ingressIPs)
	if c.address("web") == address {
		t.Errorf("%s is given out again before it has rested", address)
	}
}

func TestHeadlessServices(t *testing.T) {
	c := newCluster(t, server.Config(t))
	c.agent(nil)
	// pods of unknown nodes get into no slice
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	c.Make(node)
	defer c.Remove(node)
	c.service("db", true)
	c.service("all", true)
	db0 := c.pod("db-0", "10.7.0.5", map[string]string{"app": "db"})
	c.pod("db-1", "10.7.0.6", map[string]string{"app": "db"})
	export := c.export("db")
	await.Equal(c, names{"pod-db-0": "HeadlessServicePod db", "pod-db-1": "HeadlessServicePod db"}, c.ingressIPs)
	label := client.MatchingLabels{"submariner.io/serviceRef": "db"}
	var labelled submarinerv1.GlobalIngressIPList
	if err := c.List(t.Context(), &labelled, client.InNamespace(c.namespace), label); err != nil || len(labelled.Items) != 2 {
		t.Errorf("%d objects have the label %v, want 2 (%v)", len(labelled.Items), label, err)
	}

	// Another pod of the name gets another address.
	first := c.address("pod-db-0")
	c.Remove(db0)
	await.Equal(c, names{"pod-db-1": "HeadlessServicePod db"}, c.ingressIPs)
	c.pod("db-0", "10.7.0.7", map[string]string{"app": "db"})
	await.Equal(c, names{"pod-db-0": "HeadlessServicePod db", "pod-db-1": "HeadlessServicePod db"}, c.ingressIPs)
	if c.address("pod-db-0") == first {
		t.Errorf("the new pod has the old one's address %s", first)
	}

	// A pod of two services has one address and keeps it when the older service is un-exported.
	time.Sleep(1100 * time.Millisecond) // creation times are whole seconds
	c.export("all")
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: c.meta("all-by-hand"), AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"192.0.2.7"}},
			{Addresses: []string{"10.7.0.7"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: c.namespace, Name: "db-0", UID: c.podUID("db-0")}},
		},
	}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: "all"}
	c.Make(slice)
	await.Equal(c, names{
		"pod-db-0": "HeadlessServicePod db", "pod-db-1": "HeadlessServicePod db", "ep-all-192.0.2.7": "HeadlessServiceEndpoints all",
	}, c.ingressIPs)
	kept := c.address("pod-db-0")
	c.Remove(export)
	await.Equal(c, names{"pod-db-0": "HeadlessServicePod all", "ep-all-192.0.2.7": "HeadlessServiceEndpoints all"}, c.ingressIPs)
	if got := c.address("pod-db-0"); got != kept {
		t.Errorf("the pod's address changed from %s to %s", kept, got)
	}
	c.Remove(slice)
	await.Equal(c, names{}, c.ingressIPs)
}

func (c *cluster) podUID(name string) types.UID {
	c.Helper()
	p := &corev1.Pod{}
	if err := c.Get(c.Context(), client.ObjectKey{Namespace: c.namespace, Name: name}, p); err != nil {
		c.Fatal(err)
	}
	return p.UID
}

func TestForeignObjectsAreNotTouched(t *testing.T) {
	c := newCluster(t, server.Config(t))
	foreign := &submarinerv1.GlobalIngressIP{
		ObjectMeta: c.meta("web"), Spec: submarinerv1.GlobalIngressIPSpec{Target: submarinerv1.HeadlessServicePod},
	}
	other := foreign.DeepCopy()
	other.Name = "other"
	c.Make(foreign, other)
	c.agent(nil)
	c.service("web", false)
	c.export("web")
	await.Equal(c, true, func() bool {
		var events corev1.EventList
		if err := c.List(t.Context(), &events, client.InNamespace(c.namespace)); err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.Reason == services.ReasonNotOurs && e.InvolvedObject.Kind == "ServiceExport" && strings.Contains(e.Message, "delete it")
		})
	})
	for _, g := range c.list() {
		if g.Generation != 1 || g.Status.AllocatedIP != "" || len(g.Status.Conditions) > 0 {
			t.Errorf("%s was changed: %+v", g.Name, g)
		}
	}
	c.Remove(foreign)
	await.Equal(c, names{"web": "ClusterIPService web"}, c.ingressIPs)
}

// A cluster whose MCS API came with another component may serve v1alpha1 alone.
func TestOldMCSAPI(t *testing.T) {
	c := newCluster(t, apiserver.Start(t, apiserver.CRDs()))
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "serviceexports.multicluster.x-k8s.io"}, crd); err != nil {
		t.Fatal(err)
	}
	for i := range crd.Spec.Versions {
		crd.Spec.Versions[i].Served = crd.Spec.Versions[i].Name == "v1alpha1"
	}
	if err := c.Update(t.Context(), crd); err != nil {
		t.Fatal(err)
	}
	c.service("web", false)
	await.Equal(c, nil, func() error { return c.Create(t.Context(), &mcsv1alpha1.ServiceExport{ObjectMeta: c.meta("web")}) })
	api, err := discovery.NewDiscoveryClientForConfig(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	await.Equal(c, true, func() bool { // discovery lags behind
		list, err := api.ServerResourcesForGroupVersion(mcsv1beta1.GroupVersion.String())
		return err != nil || !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Kind == "ServiceExport" })
	})
	c.agent(nil)
	await.Equal(c, names{"web": "ClusterIPService web"}, c.ingressIPs)
	if owner := c.list()[0].OwnerReferences[0].APIVersion; owner != "multicluster.x-k8s.io/v1alpha1" {
		t.Errorf("owned by a %s", owner)
	}
}

// A hundred exports while the agent is killed twenty times, between any two writes: all get an
// address, none is given out twice, and what was un-exported in between is gone.
func TestKilledAgents(t *testing.T) {
	c := newCluster(t, server.Config(t))
	const exports, kills = 100, 20
	var removed []*mcsv1beta1.ServiceExport
	distinct := func() int {
		t.Helper()
		owner := map[string]string{}
		for _, g := range c.list() {
			if other, twice := owner[g.Status.AllocatedIP]; twice && g.Status.AllocatedIP != "" {
				t.Errorf("%s is given to %s and %s", g.Status.AllocatedIP, other, g.Name)
			}
			owner[g.Status.AllocatedIP] = g.Name
		}
		delete(owner, "")
		return len(owner)
	}
	for round := range kills {
		faults := &apiserver.Faults{Every: 10, Fatal: true}
		stop := c.agent(faults)
		for i := range exports / kills {
			name := fmt.Sprintf("svc-%d-%d", round, i)
			c.service(name, false)
			e := c.export(name)
			if i == 0 && round%4 == 0 {
				removed = append(removed, e)
			}
		}
		faults.AwaitDeath()
		stop()
		distinct()
	}
	for _, e := range removed {
		c.Remove(e)
	}
	c.agent(nil)
	await.Equal(c, exports-len(removed), distinct)
	await.Equal(c, exports-len(removed), func() int { return len(c.list()) })
}

// Addresses are announced when the gateways have them, however the objects came to be.
func TestExportIsAnnouncedAfterGateways(t *testing.T) {
	c := newCluster(t, server.Config(t))
	c.agent(nil)
	c.service("web", false)
	c.export("web")
	condition := func() string {
		for _, g := range c.list() {
			for _, condition := range g.Status.Conditions {
				return string(condition.Status) + " " + condition.Reason
			}
		}
		return ""
	}
	await.Equal(c, "False AwaitingGateways", condition)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "g1"}}
	c.Make(node)
	n := &pelagov1alpha1.NodeIndex{ObjectMeta: metav1.ObjectMeta{Name: "g1"}, Spec: pelagov1alpha1.NodeIndexSpec{Index: 1, NodeUID: string(node.UID)}}
	c.Make(n)
	n.Status = pelagov1alpha1.NodeIndexStatus{Ready: true, Gateway: true, Acks: []string{string(c.list()[0].UID)}}
	if err := c.Status().Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	await.Equal(c, "True Success", condition)
	c.Remove(node)
}
