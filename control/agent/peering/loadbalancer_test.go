package peering

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

// Behind the load balancer is the node of each gateway whose data path is ready, at the Service's
// own ports.
func TestBalanced(t *testing.T) {
	endpoints, _ := g1.ownEndpoints(
		[]corev1.Node{node("gw", "192.0.2.1", nil), node("new", "192.0.2.2", nil)},
		[]v1alpha1.NodeIndex{index("gw", 1, true, true), index("new", 2, false, true)}, nil)
	service := corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "submariner-gateway", UID: "uid"}, Spec: corev1.ServiceSpec{
		Ports: []corev1.ServicePort{{Name: "udp-4490", Port: 4490}, {Name: "udp-4500", Port: 4500}},
	}}
	name, first, second, low, high, udp, ready := "gw", "udp-4490", "udp-4500", int32(4490), int32(4500), corev1.ProtocolUDP, true
	want := []*discoveryv1.EndpointSlice{{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "pelago-system", Name: "submariner-gateway-gw",
			Labels: map[string]string{
				"kubernetes.io/service-name": "submariner-gateway", "endpointslice.kubernetes.io/managed-by": "pelago", "app.kubernetes.io/managed-by": "pelago",
			},
			Annotations:     map[string]string{"pelago.io/hub-id": "hub"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "submariner-gateway", UID: "uid"}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}, NodeName: &name, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		Ports:       []discoveryv1.EndpointPort{{Name: &first, Port: &low, Protocol: &udp}, {Name: &second, Port: &high, Protocol: &udp}},
	}}
	if diff := cmp.Diff(want, g1.balanced(service, endpoints)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
