package services

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// Among 10,000 exports of one namespace an event concerns the services that it is about, and not
// all: a rollout of a headless service would else reconcile all of them for each pod.
func TestEventsOfManyExports(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{mcs.Install, discoveryv1.AddToScheme, submarinerv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	slice := func(service string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "sample", Name: service + "-abcde", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
		}
	}
	objs := []client.Object{slice("web", pod("10.7.0.2", "web-0", "u0")), slice("all", pod("10.7.0.2", "web-0", "u0"), pod("10.7.0.3", "db-0", "u1"))}
	for i := range 10_000 {
		objs = append(objs, &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: fmt.Sprintf("s%d", i)}})
	}
	r := &reconciler{local: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objs...).
		WithIndex(&discoveryv1.EndpointSlice{}, indexPod, func(o client.Object) []string { return podsOf(o.(*discoveryv1.EndpointSlice)) }).Build()}
	address := func(target submarinerv1.TargetType, name, service, pod string) *submarinerv1.GlobalIngressIP {
		g := &submarinerv1.GlobalIngressIP{ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: name},
			Spec: submarinerv1.GlobalIngressIPSpec{Target: target, ServiceRef: &corev1.LocalObjectReference{Name: service}}}
		if pod != "" {
			g.Spec.PodRef = &corev1.LocalObjectReference{Name: pod}
		}
		return g
	}
	for name, tt := range map[string]struct {
		of   client.Object
		want []string
	}{
		"a service":                {address(submarinerv1.ClusterIPService, "s1", "s1", ""), []string{"s1"}},
		"a pod of two services":    {address(submarinerv1.HeadlessServicePod, "pod-web-0", "web", "web-0"), []string{"all", "web"}},
		"a pod whose slice is new": {address(submarinerv1.HeadlessServicePod, "pod-web-9", "web", "web-9"), []string{"web"}},
		"an endpoint":              {address(submarinerv1.HeadlessServiceEndpoints, "ep-web-192.0.2.7", "web", ""), []string{"web"}},
	} {
		got := map[string]bool{}
		for _, request := range r.ofIngressIP(t.Context(), tt.of) {
			got[request.Name] = true
		}
		for _, service := range tt.want {
			if !got[service] {
				t.Errorf("%s: service %s is not reconciled", name, service)
			}
		}
		if len(got) != len(tt.want) {
			t.Errorf("%s: %d services are reconciled, want %v", name, len(got), tt.want)
		}
	}
}
