package work_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	networkingv1alpha1 "github.com/pelago-net/pelago/api/networking/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/work"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// serviceHub is a hub with a Service web in a namespace of its own, of which the tests make
// MultiClusterServices.
type serviceHub struct {
	namespaceHub
	ns string
}

func newServiceHub(t *testing.T, ns string, clusters ...string) serviceHub {
	h := serviceHub{namespaceHub{apiserver.Connect(t, namespaceServer.Config(t), clusterv1alpha1.AddToScheme, policyv1alpha1.AddToScheme,
		workv1alpha1.AddToScheme, workv1alpha2.AddToScheme, networkingv1alpha1.AddToScheme)}, ns}
	// of other tests, and for them; the test's context has ended when its clean-ups run
	none := func() {
		if err := h.DeleteAllOf(context.Background(), &clusterv1alpha1.Cluster{}); err != nil {
			t.Error(err)
		}
	}
	none()
	t.Cleanup(none)
	h.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	for _, c := range clusters {
		h.join(c)
	}
	return h
}

func (h serviceHub) start() (stop func()) {
	h.Helper()
	return apiserver.Manager{Scheme: h.Scheme(), Setup: []func(ctrl.Manager) error{work.AddIndexes, func(mgr ctrl.Manager) error {
		return work.SetupMultiClusterServices(mgr, work.MultiClusterOptions{HubID: "hub"})
	}}}.Run(h, h.Config)
}

func (h serviceHub) service(labels map[string]string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: h.ns, Name: "web", Labels: labels},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}}}
}

func (h serviceHub) exposure(spec networkingv1alpha1.MultiClusterServiceSpec) *networkingv1alpha1.MultiClusterService {
	if spec.Types == nil {
		spec.Types = []networkingv1alpha1.ExposureType{networkingv1alpha1.ExposureTypeCrossCluster}
	}
	return &networkingv1alpha1.MultiClusterService{ObjectMeta: metav1.ObjectMeta{Namespace: h.ns, Name: "web"}, Spec: spec}
}

func of(names ...string) (out []networkingv1alpha1.ClusterSelector) {
	for _, n := range names {
		out = append(out, networkingv1alpha1.ClusterSelector{Name: n})
	}
	return out
}

// works are the Works of the namespace, sorted.
func (h serviceHub) works() []workv1alpha1.Work {
	h.Helper()
	var list workv1alpha1.WorkList
	if err := h.List(h.Context(), &list); err != nil {
		h.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(w workv1alpha1.Work) bool {
		return !strings.Contains(string(w.Spec.Workload.Manifests[0].Raw), fmt.Sprintf(`"namespace":%q`, h.ns))
	})
}

// holds lists what clusters are to have: "cluster Service", "cluster Service>name" of type
// ExternalName, "cluster ServiceExport to clusters".
func (h serviceHub) holds() []string {
	h.Helper()
	h.end()
	var out []string
	for _, w := range h.works() {
		var o struct {
			Kind     string
			Metadata struct{ Annotations map[string]string }
			Spec     struct{ ExternalName string }
		}
		if err := json.Unmarshal(w.Spec.Workload.Manifests[0].Raw, &o); err != nil {
			h.Fatal(err)
		}
		text := strings.TrimPrefix(w.Namespace, "karmada-es-") + " " + o.Kind
		if o.Spec.ExternalName != "" {
			text += ">" + o.Spec.ExternalName
		}
		if to := o.Metadata.Annotations["pelago.io/export-to"]; to != "" {
			text += " to " + to
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}

// says are the conditions as type=status reason.
func (h serviceHub) says(m *networkingv1alpha1.MultiClusterService) string {
	h.Helper()
	if err := h.Get(h.Context(), client.ObjectKeyFromObject(m), m); err != nil {
		h.Fatal(err)
	}
	var out []string
	for _, c := range m.Status.Conditions {
		if c.ObservedGeneration != m.Generation {
			return ""
		}
		out = append(out, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func (h serviceHub) message(m *networkingv1alpha1.MultiClusterService, condition string) string {
	if c := meta.FindStatusCondition(m.Status.Conditions, condition); c != nil {
		return c.Message
	}
	return ""
}

// applied sets the condition Applied of all Works, as control/execute does.
func (h serviceHub) applied(status metav1.ConditionStatus, message string) {
	h.Helper()
	for _, w := range h.works() {
		meta.SetStatusCondition(&w.Status.Conditions, metav1.Condition{Type: workv1alpha1.ConditionApplied, Status: status,
			Reason: workv1alpha1.ReasonAppliedSuccessful, Message: message})
		if err := h.Status().Update(h.Context(), &w); err != nil {
			h.Fatal(err)
		}
	}
}

const (
	accepted   = "Accepted=True Accepted"
	succeeded  = accepted + ", EndpointSliceDispatched=True EndpointSliceDispatchedSucceed, ServiceApplied=True ServiceAppliedSucceed"
	dispatches = accepted + ", EndpointSliceDispatched=False EndpointSliceDispatchedFailed, ServiceApplied=True ServiceAppliedSucceed"
)

// TestMultiClusterService: as in Karmada, the provider gets the Service and an export to the
// consumer, which reaches it by the plain name; clusters come and go, and with the
// MultiClusterService everything goes but the provider's Service.
func TestMultiClusterService(t *testing.T) {
	h := newServiceHub(t, "exposed", "p1", "p2", "p3")
	h.start()
	web := h.service(nil)
	m := h.exposure(networkingv1alpha1.MultiClusterServiceSpec{ProviderClusters: of("p1"), ConsumerClusters: of("p2", "p9")})
	h.Make(web, m)
	const alias = " Service>web.exposed.svc.clusterset.local"
	await.Equal(t, []string{"p1 Service", "p1 ServiceExport to p2,p9", "p2" + alias}, h.holds)
	await.Equal(t, dispatches, func() string { return h.says(m) })
	if text := h.message(m, "ServiceApplied"); !strings.Contains(text, "no such cluster: p9") {
		t.Errorf("ServiceApplied: %q", text)
	}
	h.applied(metav1.ConditionFalse, `no matches for kind "ServiceExport"`)
	await.True(t, "the failure in the member is reported", func() bool {
		h.says(m)
		return strings.Contains(h.message(m, "EndpointSliceDispatched"), `ServiceExport of p1: no matches for kind "ServiceExport"`)
	})
	h.applied(metav1.ConditionTrue, "")
	await.Equal(t, succeeded, func() string { return h.says(m) })
	await.True(t, "policies ignore the Service", func() bool {
		return h.Get(t.Context(), client.ObjectKeyFromObject(web), web) == nil && web.Labels[workv1alpha2.LabelClaimedBy] == "MultiClusterService"
	})

	h.join("p9")
	await.Equal(t, []string{"p1 Service", "p1 ServiceExport to p2,p9", "p2" + alias, "p9" + alias}, h.holds)
	edit := func(change func(*networkingv1alpha1.MultiClusterServiceSpec)) {
		await.True(t, "the MultiClusterService is changed", func() bool {
			h.says(m)
			change(&m.Spec)
			return h.Update(t.Context(), m) == nil
		})
	}
	edit(func(s *networkingv1alpha1.MultiClusterServiceSpec) {
		s.ProviderClusters, s.ConsumerClusters = of("p1", "p3"), nil
	})
	await.Equal(t, []string{"p1 Service", "p1 ServiceExport", "p2" + alias, "p3 Service", "p3 ServiceExport", "p9" + alias}, h.holds)
	edit(func(s *networkingv1alpha1.MultiClusterServiceSpec) { // the former names of the fields
		*s = networkingv1alpha1.MultiClusterServiceSpec{Types: s.Types, ServiceProvisionClusters: []string{"p3"}, ServiceConsumptionClusters: []string{"p3"}}
	})
	await.Equal(t, []string{"p3 Service", "p3 ServiceExport to p3"}, h.holds)

	h.Remove(m)
	await.Equal(t, []string{"p3 Service"}, h.holds)
	await.True(t, "policies may have the Service", func() bool {
		return h.Get(t.Context(), client.ObjectKeyFromObject(web), web) == nil && web.Labels[workv1alpha2.LabelClaimedBy] == ""
	})
	h.Remove(web)
	await.Equal(t, nil, h.holds)
}

// TestMultiClusterServiceGoesWhileTheHubIsAway: what was removed meanwhile is found by the Works.
func TestMultiClusterServiceGoesWhileTheHubIsAway(t *testing.T) {
	h := newServiceHub(t, "away", "r1", "r2")
	web, m := h.service(nil), h.exposure(networkingv1alpha1.MultiClusterServiceSpec{ProviderClusters: of("r1")})
	stop := h.start()
	h.Make(web, m)
	await.True(t, "there are Works", func() bool { return len(h.holds()) == 3 })
	stop()
	h.Remove(m, web)
	h.start()
	await.Equal(t, nil, h.holds)
}
