package peering

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

// Nodes route the ranges of a Peer that is accepted, or that has no gateway just now: ranges that
// are refused are never written under such a condition.
func TestRefusedRangesAreNeverRoutable(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	peer := func(status metav1.ConditionStatus, reason, subnet string) *v1alpha1.Peer {
		p := &v1alpha1.Peer{ObjectMeta: metav1.ObjectMeta{Name: "g2"}, Spec: v1alpha1.PeerSpec{ClusterIndex: 2, Subnets: []string{subnet}, Gateways: []v1alpha1.PeerGateway{}},
			Status: v1alpha1.PeerStatus{Conditions: []metav1.Condition{{Type: v1alpha1.PeerAccepted, Status: status, Reason: reason, LastTransitionTime: metav1.Now()}}}}
		kube.Owner{HubID: "hub"}.Mark(p)
		return p
	}
	const good, bad = "10.8.0.0/16", "10.7.0.0/16"
	for name, before := range map[string]*v1alpha1.Peer{
		"accepted":   peer(metav1.ConditionTrue, v1alpha1.ReasonAccepted, good),
		"no gateway": peer(metav1.ConditionFalse, v1alpha1.ReasonNoGateway, good),
		"refused":    peer(metav1.ConditionFalse, v1alpha1.ReasonWireMismatch, good),
	} {
		t.Run(name, func(t *testing.T) {
			var r *reconciler
			check := func() {
				t.Helper()
				var p v1alpha1.Peer
				if err := r.local.Get(t.Context(), client.ObjectKey{Name: "g2"}, &p); err != nil {
					t.Fatal(err)
				}
				if p.Spec.Subnets[0] == bad && routable(p.Status) {
					t.Errorf("nodes route %s: %+v", bad, p.Status.Conditions)
				}
			}
			r = &reconciler{Options: Options{HubID: "hub"}, local: fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(before).WithObjects(before.DeepCopy()).
				WithInterceptorFuncs(interceptor.Funcs{Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
					err := c.Update(ctx, o, opts...)
					check()
					return err
				}}).Build()}
			for range 2 { // the event of the first write leads to the second
				var have v1alpha1.Peer
				if err := r.local.Get(t.Context(), client.ObjectKey{Name: "g2"}, &have); err != nil {
					t.Fatal(err)
				}
				if err := r.ensurePeer(t.Context(), &have, peer(metav1.ConditionFalse, v1alpha1.ReasonOverlappingCIDR, bad)); err != nil {
					t.Fatal(err)
				}
				check()
			}
			var after v1alpha1.Peer
			if err := r.local.Get(t.Context(), client.ObjectKey{Name: "g2"}, &after); err != nil || after.Spec.Subnets[0] != bad {
				t.Errorf("after both: %v, %v", after.Spec, err)
			}
		})
	}
}
