package services_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelago-net/pelago/control/agent/services"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func endpoint(address, pod string, ready *bool) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: ready}}
	if pod != "" {
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: pod}
	}
	return e
}

func draining(address, pod string, serving *bool) discoveryv1.Endpoint {
	e := endpoint(address, pod, ptr.To(false))
	e.Conditions.Serving, e.Conditions.Terminating = serving, ptr.To(true)
	return e
}

func slice(name string, endpoints ...discoveryv1.Endpoint) discoveryv1.EndpointSlice {
	return discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints}
}

func TestVirtualIsReadyIfAnyBackendIs(t *testing.T) {
	yes, no := ptr.To(true), ptr.To(false)
	tests := map[string]struct {
		slices []discoveryv1.EndpointSlice
		want   bool
		count  string
	}{
		"no slice":                  {nil, false, "0"},
		"no endpoint":               {[]discoveryv1.EndpointSlice{slice("a")}, false, "0"},
		"none ready":                {[]discoveryv1.EndpointSlice{slice("a", endpoint("10.7.0.2", "p", no))}, false, "0"},
		"one of two slices":         {[]discoveryv1.EndpointSlice{slice("a", endpoint("10.7.0.2", "p", no)), slice("b", endpoint("10.7.0.3", "q", yes))}, true, "1"},
		"unknown counts ready":      {[]discoveryv1.EndpointSlice{slice("a", endpoint("10.7.0.2", "p", nil))}, true, "1"},
		"one terminates but serves": {[]discoveryv1.EndpointSlice{slice("a", endpoint("10.7.0.2", "p", no), draining("10.7.0.3", "q", yes))}, true, "1"},
		"one is ready, one terminates but serves": {[]discoveryv1.EndpointSlice{slice("a", endpoint("10.7.0.2", "p", yes), draining("10.7.0.3", "q", yes),
			draining("10.7.0.4", "r", yes))}, true, "1"},
		"one terminates and does not serve": {[]discoveryv1.EndpointSlice{slice("a", draining("10.7.0.3", "q", no))}, false, "0"},
		"a pod in two slices":               {[]discoveryv1.EndpointSlice{slice("a", endpoint("10.7.0.2", "p", yes)), slice("b", endpoint("10.7.0.2", "p", yes))}, true, "1"},
	}
	service := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "dns", Port: 53, Protocol: "UDP"}}}}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := services.VirtualSlices([]string{"120.1.0.9"}, service, tt.slices)
			want := []services.BackendSlice{{
				Source: "virtual", Type: "IPv4",
				Ports: []discoveryv1.EndpointPort{
					{Name: ptr.To("http"), Port: ptr.To[int32](80), Protocol: ptr.To(corev1.ProtocolTCP)},
					{Name: ptr.To("dns"), Port: ptr.To[int32](53), Protocol: ptr.To(corev1.ProtocolUDP)},
				},
				Endpoints:     []discoveryv1.Endpoint{{Addresses: []string{"120.1.0.9"}, Conditions: discoveryv1.EndpointConditions{Ready: &tt.want}}},
				ReadyBackends: tt.count,
			}}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestVirtualHasASliceForEachFamily(t *testing.T) {
	got := services.VirtualSlices([]string{"10.77.0.1", "fd00::1", "None"}, &corev1.Service{}, nil)
	var types []discoveryv1.AddressType
	for _, s := range got {
		types = append(types, s.Type)
	}
	if diff := cmp.Diff([]discoveryv1.AddressType{"IPv4", "IPv6"}, types); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestPods(t *testing.T) {
	yes, no := ptr.To(true), ptr.To(false)
	named := endpoint("10.7.0.2", "whereami-0", yes)
	named.Hostname = ptr.To("zero")
	global := map[string]string{"whereami-0": "120.1.0.9", "whereami-1": "120.1.0.10"}
	slices := []discoveryv1.EndpointSlice{
		slice("s1", named, endpoint("10.7.0.3", "whereami-1", no), endpoint("10.7.0.4", "whereami-2", yes)),
		slice("s2", endpoint("10.7.0.5", "", yes)),
	}
	slices[0].Ports = []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}}
	got := services.PodSlices(slices, false, func(_ discoveryv1.AddressType, e discoveryv1.Endpoint) (string, bool) {
		ip, ok := global[services.EndpointPod(e)]
		return ip, ok
	})
	want := []services.BackendSlice{{
		Source: "s1", Type: "IPv4", Ports: slices[0].Ports,
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"120.1.0.9"}, Conditions: discoveryv1.EndpointConditions{Ready: yes}, Hostname: ptr.To("zero")},
			{Addresses: []string{"120.1.0.10"}, Conditions: discoveryv1.EndpointConditions{Ready: no}, Hostname: ptr.To("whereami-1")},
		},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	sixth := slice("s3", endpoint("fd00::5", "whereami-0", yes))
	sixth.AddressType = discoveryv1.AddressTypeIPv6
	if own := services.PodSlices(append(slices, sixth), false, services.OwnAddress); len(own) != 2 || len(own[0].Endpoints) != 3 {
		t.Errorf("own addresses leave an IPv4 endpoint out, or have one of IPv6: %+v", own)
	}
}

func named(address, pod, hostname string) discoveryv1.Endpoint {
	e := endpoint(address, pod, nil)
	e.Hostname = &hostname
	return e
}

func TestHostname(t *testing.T) {
	tests := map[string]struct {
		endpoint     discoveryv1.Endpoint
		want, dashed string
	}{
		"pod":           {endpoint("10.7.0.2", "web-abc", nil), "web-abc", "10-7-0-2"},
		"pod with dots": {endpoint("10.7.0.2", "web.abc", nil), "10-7-0-2", "10-7-0-2"},
		"pod too long":  {endpoint("10.7.0.2", strings.Repeat("a", 64), nil), "10-7-0-2", "10-7-0-2"},
		"no pod":        {endpoint("10.7.0.2", "", nil), "10-7-0-2", "10-7-0-2"},
		"IPv6":          {endpoint("fd00::", "", nil), "fd00-0000-0000-0000-0000-0000-0000-0000", "fd00-0000-0000-0000-0000-0000-0000-0000"},
		"hostname":      {named("10.7.0.2", "web-abc", "db-0"), "db-0", "db-0"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := services.Hostname(tt.endpoint, false); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if got := services.Hostname(tt.endpoint, true); got != tt.dashed {
				t.Errorf("mode mcs: got %q, want %q", got, tt.dashed)
			}
		})
	}
}
