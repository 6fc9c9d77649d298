package services

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"

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
	refused, err := r.refused(context.Background(), all)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for id, refusal := range refused {
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
	r.tell(service, refused)
	r.tell(service, refused) // says nothing twice
	said := []string{<-events.Events, <-events.Events}
	for _, words := range []string{"service sample/web of cluster over is not imported: OverlappingCIDR: 10.7.0.0/17", "service sample/web of cluster wire is not imported"} {
		if !strings.Contains(strings.Join(said, "\n"), words) {
			t.Errorf("Events %q, want one with %q", said, words)
		}
	}
	r.tell(service, nil) // accepted
	delete(refused, "wire")
	r.tell(service, refused) // refused once more
	if again := <-events.Events; !strings.Contains(again, "over") || len(events.Events) > 0 {
		t.Errorf("after it was accepted for a while: %q and %d more, want one Event", again, len(events.Events))
	}
}

func TestOnlyVerdictsOnPeersMatter(t *testing.T) {
	accepted, refused := peer("g2", metav1.ConditionTrue, v1alpha1.ReasonAccepted, "1 gateways"), peer("g2", metav1.ConditionFalse, v1alpha1.ReasonWireMismatch, "vxlan")
	other, moved := peer("g2", metav1.ConditionFalse, v1alpha1.ReasonWireMismatch, "libreswan"), peer("g2", metav1.ConditionTrue, v1alpha1.ReasonAccepted, "2 gateways")
	for _, tt := range []struct {
		name          string
		before, after *v1alpha1.Peer
		want          bool
	}{
		{"refused", accepted, refused, true}, {"accepted", refused, accepted, true}, {"for another reason", refused, other, true},
		{"another gateway", accepted, moved, false}, {"no gateway for a while", accepted, peer("g2", metav1.ConditionFalse, v1alpha1.ReasonNoGateway, ""), false},
	} {
		if got := judged.Update(event.UpdateEvent{ObjectOld: tt.before, ObjectNew: tt.after}); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.name, got, tt.want)
		}
	}
}

// A verdict starts a cluster's lease once; it ends with the verdict.
func TestStaleClusters(t *testing.T) {
	at := func(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }
	d := deadClusters(nil).next([]string{"g3", "g2"}, at(0)).next([]string{"g2", "g4"}, at(30)).next([]string{"g4", "g3", "g2"}, at(59))
	for _, tt := range []struct {
		minutes     int
		dead, stale string
	}{{59, "g2 g3 g4", ""}, {60, "g2 g3 g4", "g2"}, {90, "g2 g3 g4", "g2 g4"}, {119, "g2 g3 g4", "g2 g3 g4"}} {
		dead, stale := d.at(at(tt.minutes))
		if strings.Join(dead, " ") != tt.dead || strings.Join(stale, " ") != tt.stale {
			t.Errorf("after %d minutes %v are dead and %v stale, want %s and %s", tt.minutes, dead, stale, tt.dead, tt.stale)
		}
	}
	if dead, _ := d.next(nil, at(200)).at(at(200)); dead != nil {
		t.Errorf("%v are dead", dead)
	}
}
