package services

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// gateway measures a round-trip time to g2.
func gateway(name, rtt string, note ...string) *submarinerv1.Gateway {
	g := &submarinerv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: g1.systemNamespace, Name: name}}
	c := submarinerv1.Connection{Status: submarinerv1.Connected, Endpoint: submarinerv1.EndpointSpec{ClusterID: "g2"}}
	if rtt != "" {
		c.LatencyRTT = &submarinerv1.LatencyRTTSpec{Average: rtt}
	}
	for _, text := range note {
		c.StatusMessage = text
	}
	g.Status.Connections = []submarinerv1.Connection{c}
	return g
}

// What gateways measure is read for imports that prefer the nearest cluster, and requests those.
func TestReadNearest(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{mcs.Install, submarinerv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	imported := func(name, prefer string) *mcs.ServiceImport {
		i := &mcs.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: name, Annotations: map[string]string{
			"pelago.io/prefer": prefer, "pelago.io/nearest-clusters": "g3,g2",
		}}}
		g1.owner.Mark(i)
		return i
	}
	near := imported("near", "nearest")
	r := &importReconciler{cluster: g1, local: fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		gateway("n1", "20ms"), gateway("n2", "12ms"), near, imported("web", "weighted")).Build()}
	var s importState
	s.contributions = []v1alpha1.ServiceContribution{contribution("g2", "120.2.0.9", 0)}
	if err := r.readNearest(t.Context(), &s, near); err != nil || s.roundTrips != nil {
		t.Errorf("no exporter prefers the nearest cluster: %v, %v", s.roundTrips, err)
	}
	s.contributions[0].Spec.ExportedAnnotations = map[string]string{"pelago.io/prefer": "nearest"}
	if err := r.readNearest(t.Context(), &s, near); err != nil || s.roundTrips["g2"] != 12*time.Millisecond || !slices.Equal(s.nearest, []string{"g3", "g2"}) {
		t.Errorf("round trips %v, formerly %v, %v", s.roundTrips, s.nearest, err)
	}
	if got := r.ofGateway(t.Context(), gateway("n1", "20ms")); len(got) != 1 || got[0].Name != "near" {
		t.Errorf("a Gateway requests %v; want the import that prefers the nearest cluster", got)
	}
	for _, tt := range []struct {
		name          string
		before, after *submarinerv1.Gateway
		want          bool
	}{
		{"another time", gateway("n1", "20ms"), gateway("n1", "12ms"), true},
		{"first time", gateway("n1", ""), gateway("n1", "12ms"), true},
		{"another message", gateway("n1", "12ms"), gateway("n1", "12ms", "a note"), false},
	} {
		if got := measured.Update(event.UpdateEvent{ObjectOld: tt.before, ObjectNew: tt.after}); got != tt.want {
			t.Errorf("%s: passes %t", tt.name, got)
		}
	}
}
