package services

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

// peer is a Peer with condition Accepted; without a reason it has none yet.
func peer(name string, status metav1.ConditionStatus, reason, message string) *v1alpha1.Peer {
	p := &v1alpha1.Peer{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if reason != "" {
		p.Status.Conditions = []metav1.Condition{{Type: v1alpha1.PeerAccepted, Status: status, Reason: reason, Message: message}}
	}
	return p
}

func TestWhoIsRefused(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	events := record.NewFakeRecorder(10)
	r := &importReconciler{cluster: g1, events: events, told: map[types.NamespacedName]map[string]string{},
		local: fake.NewClientBuilder().WithScheme(scheme).WithObjects(
			peer("good", metav1.ConditionTrue, v1alpha1.ReasonAccepted, ""),
			peer("gone", metav1.ConditionFalse, v1alpha1.ReasonNoGateway, "no gateway"),
			peer("over", metav1.ConditionFalse, v1alpha1.ReasonOverlappingCIDR, "10.7.0.0/17 of cluster over overlaps 10.7.0.0/16"),
			peer("wire", metav1.ConditionFalse, v1alpha1.ReasonWireMismatch, "uses cable driver vxlan, this cluster wireguard"),
			peer("new", "", "", ""),
		).Build()}
	var all []v1alpha1.ServiceContribution
	for _, id := range []string{"g1", "good", "gone", "over", "wire", "new", "unknown"} {
		all = append(all, contribution(id, "10.8.0.9", 0))
	}
	s := importState{namespace: "sample", name: "web", contributions: all}
	if err := r.readPeers(context.Background(), &s); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for id, refusal := range s.refused {
		got[id] = refusal.why
	}
	want := map[string]string{
		"over": "OverlappingCIDR: 10.7.0.0/17 of cluster over overlaps 10.7.0.0/16",
		"wire": "WireMismatch: uses cable driver vxlan, this cluster wireguard",
		"new":  "", "unknown": "", // not judged yet
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}

	service := types.NamespacedName{Namespace: "sample", Name: "web"}
	r.tell(service, s.notices(nil))
	r.tell(service, s.notices(nil)) // says nothing twice
	said := []string{<-events.Events, <-events.Events}
	for _, words := range []string{"no endpoint of service sample/web of cluster over is ready: OverlappingCIDR: 10.7.0.0/17", "no endpoint of service sample/web of cluster wire is ready"} {
		if !strings.Contains(strings.Join(said, "\n"), words) {
			t.Errorf("Events %q, want one with %q", said, words)
		}
	}
	r.tell(service, nil) // accepted
	delete(s.refused, "wire")
	r.tell(service, s.notices(nil)) // refused once more
	if again := <-events.Events; !strings.Contains(again, "over") || len(events.Events) > 0 {
		t.Errorf("after it was accepted for a while: %q and %d more, want one Event", again, len(events.Events))
	}
}

func TestOnlyVerdictsOnPeersMatter(t *testing.T) {
	accepted, refused := peer("g2", metav1.ConditionTrue, v1alpha1.ReasonAccepted, "1 gateways"), peer("g2", metav1.ConditionFalse, v1alpha1.ReasonWireMismatch, "vxlan")
	other, moved := peer("g2", metav1.ConditionFalse, v1alpha1.ReasonWireMismatch, "libreswan"), peer("g2", metav1.ConditionTrue, v1alpha1.ReasonAccepted, "2 gateways")
	ranged := accepted.DeepCopy()
	ranged.Spec.Subnets = []string{"120.2.0.0/24"}
	for _, tt := range []struct {
		name          string
		before, after *v1alpha1.Peer
		want          bool
	}{
		{"refused", accepted, refused, true}, {"accepted", refused, accepted, true}, {"for another reason", refused, other, true},
		{"other ranges", accepted, ranged, true}, {"another gateway", accepted, moved, false}, {"no gateway for a while", accepted, peer("g2", metav1.ConditionFalse, v1alpha1.ReasonNoGateway, ""), false},
	} {
		if got := judged.Update(event.UpdateEvent{ObjectOld: tt.before, ObjectNew: tt.after}); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.name, got, tt.want)
		}
	}
}

// Addresses of others, published by a hostile member, are left out and reported; so are weights
// that are no numbers.
func TestNotices(t *testing.T) {
	s := sample(contribution("g2", "120.2.0.9", 0), contribution("g3", "120.3.0.9", 1))
	s.hubSlices[0].Endpoints = append(s.hubSlices[0].Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.0.0.1"}}, discoveryv1.Endpoint{Addresses: []string{"fd00::1"}})
	s.ranges = map[string]peerRanges{
		"g2": {peer: peer("g2", metav1.ConditionTrue, v1alpha1.ReasonAccepted, ""), prefixes: []netip.Prefix{netip.MustParsePrefix("120.2.0.0/24")}},
		"g3": {peer: peer("g3", metav1.ConditionTrue, v1alpha1.ReasonAccepted, ""), prefixes: []netip.Prefix{netip.MustParsePrefix("120.3.0.0/24")}},
	}
	if diff := cmp.Diff([]string{
		"copy web-sample-g2 120.2.0.9", "copy web-sample-g3 120.3.0.9", "import ClusterSetIP g2 g3",
		"slice g2 headless=false 120.2.0.9", "slice g3 headless=false 120.3.0.9",
	}, importLines(g1.desired(s))); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	imported := &mcs.ServiceImport{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		"lighthouse-lb-weight.submariner.io/g2": "many", "lighthouse-lb-weight.submariner.io/g3": "3"}}}
	var got []string
	for _, n := range s.notices(imported) {
		got = append(got, n.reason+": "+n.text)
	}
	if diff := cmp.Diff([]string{
		"ForeignAddress: service sample/web of cluster g2: its addresses 10.0.0.1, fd00::1 are in none of the ranges of the cluster and are left out",
		`InvalidWeight: annotation lighthouse-lb-weight.submariner.io/g2 is "many", not a number from 0 to 65536: the cluster has weight 1`,
	}, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
