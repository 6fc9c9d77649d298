package services

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

func export(service string, kind ServiceKind, age int) Export {
	return Export{
		Service: service, Kind: kind, Created: time.Unix(int64(1000+age), 0),
		Owner: metav1.OwnerReference{APIVersion: "multicluster.x-k8s.io/v1beta1", Kind: "ServiceExport", Name: service, UID: types.UID("export-of-" + service)},
	}
}

func podEndpoint(name string) Endpoint {
	return Endpoint{IP: netip.MustParseAddr("10.7.0.5"), Pod: name, PodUID: "u1"}
}

// short is an object in one line: target, service, pod, and the kind that owns it.
func short(g *submarinerv1.GlobalIngressIP) string {
	if g == nil {
		return ""
	}
	text := g.Namespace + "/" + g.Name + " " + string(g.Spec.Target) + " " + serviceRef(g)
	if g.Spec.PodRef != nil {
		text += " " + g.Spec.PodRef.Name
	}
	for _, key := range []string{submarinerv1.AnnotationPodIP, submarinerv1.AnnotationEndpointIP} {
		if ip := g.Annotations[key]; ip != "" {
			text += " " + ip
		}
	}
	return text + " owned by " + g.OwnerReferences[0].Kind
}

func TestIngressDesired(t *testing.T) {
	clusterIP, headless, external := export("web", ClusterIP, 5), export("web", Headless, 5), export("web", NotReachable, 5)
	db, old := export("db", Headless, 5), export("old", Headless, 1)
	bare := Endpoint{IP: netip.MustParseAddr("192.0.2.7")}
	taken := export("pod-db-0", ClusterIP, 9)
	for _, tc := range []struct {
		name     string
		object   string
		service  *Export
		backends []Backend
		want     string
		conflict string
	}{
		{name: "a ClusterIP service", object: "web", service: &clusterIP, want: "ns1/web ClusterIPService web owned by ServiceExport"},
		{name: "a headless service has none itself", object: "web", service: &headless},
		{name: "an ExternalName service", object: "web", service: &external},
		{name: "not exported", object: "web"},
		{name: "a headless pod", object: "pod-db-0", backends: []Backend{{db, podEndpoint("db-0")}},
			want: "ns1/pod-db-0 HeadlessServicePod db db-0 10.7.0.5 owned by Pod"},
		{name: "a pod of two services belongs to the older export", object: "pod-db-0",
			backends: []Backend{{db, podEndpoint("db-0")}, {old, podEndpoint("db-0")}},
			want:     "ns1/pod-db-0 HeadlessServicePod old db-0 10.7.0.5 owned by Pod"},
		{name: "other pods of the slice do not matter", object: "pod-db-0", backends: []Backend{{db, podEndpoint("db-1")}}},
		{name: "a pod of a ClusterIP service", object: "pod-db-0", backends: []Backend{{export("db", ClusterIP, 1), podEndpoint("db-0")}}},
		{name: "an endpoint without a pod", object: "ep-db-192.0.2.7", backends: []Backend{{db, bare}},
			want: "ns1/ep-db-192.0.2.7 HeadlessServiceEndpoints db 192.0.2.7 owned by ServiceExport"},
		{name: "the same endpoint of another service has another name", object: "ep-db-192.0.2.7", backends: []Backend{{old, bare}}},
		{name: "a service that is called like a pod's object", object: "pod-db-0", service: &taken, backends: []Backend{{db, podEndpoint("db-0")}},
			want:     "ns1/pod-db-0 ClusterIPService pod-db-0 owned by ServiceExport",
			conflict: "the Service pod-db-0 has the GlobalIngressIP pod-db-0 that an endpoint of the Service db needs: rename the Service pod-db-0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, conflict := DesiredIngress("ns1", tc.object, tc.service, tc.backends)
			if diff := cmp.Diff(tc.want, short(got)); diff != "" {
				t.Error(diff)
			}
			message := ""
			if conflict != nil {
				message = conflict.Message
			}
			if diff := cmp.Diff(tc.conflict, message); diff != "" {
				t.Error(diff)
			}
			if got != nil && got.Labels[pelagov1alpha1.LabelManagedBy] != pelagov1alpha1.ManagedBy {
				t.Error("not marked as ours")
			}
			if got != nil && (got.Labels[submarinerv1.LabelServiceRef] != "") != (got.Spec.Target != submarinerv1.ClusterIPService) {
				t.Errorf("labels %v on a %s", got.Labels, got.Spec.Target)
			}
		})
	}
}

func TestKindOf(t *testing.T) {
	for _, tc := range []struct {
		name string
		spec corev1.ServiceSpec
		want ServiceKind
	}{
		{"ClusterIP", corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.77.0.9"}, ClusterIP},
		{"NodePort", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: "10.77.0.9"}, ClusterIP},
		{"LoadBalancer", corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.77.0.9"}, ClusterIP},
		{"IPv6 first", corev1.ServiceSpec{ClusterIP: "fd00::9", ClusterIPs: []string{"fd00::9", "10.77.0.9"}}, ClusterIP},
		{"IPv6 only", corev1.ServiceSpec{ClusterIP: "fd00::9", ClusterIPs: []string{"fd00::9"}}, NotReachable},
		{"headless", corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}, Headless},
		{"ExternalName", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.org"}, NotReachable},
		{"not given an address yet", corev1.ServiceSpec{}, NotReachable},
	} {
		if got := KindOf(&corev1.Service{Spec: tc.spec}); got != tc.want {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestEndpointsOf(t *testing.T) {
	pod := &corev1.ObjectReference{Kind: "Pod", Name: "db-0", UID: "u1"}
	notReady := false
	slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{
		{Addresses: []string{"10.7.0.5"}, TargetRef: pod, Conditions: discoveryv1.EndpointConditions{Ready: &notReady}},
		{Addresses: []string{"192.0.2.7"}},
		// no owner without its UID
		{Addresses: []string{"192.0.2.8"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "db-1"}},
		{Addresses: nil, TargetRef: pod},
		{Addresses: []string{"no address"}},
	}}
	want := []Endpoint{podEndpoint("db-0"), {IP: netip.MustParseAddr("192.0.2.7")}, {IP: netip.MustParseAddr("192.0.2.8")}}
	if diff := cmp.Diff(want, endpointsOf(slice), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	slice.AddressType = discoveryv1.AddressTypeIPv6
	if got := endpointsOf(slice); got != nil {
		t.Errorf("IPv6 endpoints: %v", got)
	}
}

// From the name of an object one gets back to what it is for, whatever services and pods are
// called.
func TestNamesAreReversible(t *testing.T) {
	name := rapid.StringMatching(`[a-z]([-a-z0-9]{0,20}[a-z0-9])?`)
	rapid.Check(t, func(t *rapid.T) {
		service := name.Draw(t, "service")
		e := Endpoint{IP: netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "address")))}
		if got, ok := endpointOf(e.name(service)); !ok || got != service {
			t.Fatalf("%s is for service %q, %v", e.name(service), got, ok)
		}
		e.Pod = name.Draw(t, "pod")
		if got, ok := podOf(e.name(service)); !ok || got != e.Pod {
			t.Fatalf("%s is for pod %q, %v", e.name(service), got, ok)
		}
	})
	for _, other := range []string{"ep-", "ep-db", "ep-db-x", "ep--192.0.2.7", "db-192.0.2.7"} {
		if service, ok := endpointOf(other); ok {
			t.Errorf("%s is for an endpoint of %q", other, service)
		}
	}
}

func TestSameTarget(t *testing.T) {
	of := func(b Backend) *submarinerv1.GlobalIngressIP {
		g := &submarinerv1.GlobalIngressIP{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{}}}
		fillBackend(g, b)
		return g
	}
	replaced := podEndpoint("db-0")
	replaced.PodUID = "u2"
	a, b := of(Backend{export("db", Headless, 1), podEndpoint("db-0")}), of(Backend{export("other", Headless, 1), podEndpoint("db-0")})
	if !sameTarget(a, b) {
		t.Error("a pod that moves to another service loses its address")
	}
	if sameTarget(a, of(Backend{export("db", Headless, 1), replaced})) {
		t.Error("another pod of the name gets the address")
	}
	if update(a, b); serviceRef(a) != "other" || a.Labels[submarinerv1.LabelServiceRef] != "other" {
		t.Errorf("after the move: %+v", a)
	}
	if update(a, b) {
		t.Error("a second update changes something")
	}
}
