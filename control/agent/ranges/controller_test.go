package ranges

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

func custom(apiVersion, kind, name string, spec map[string]any) client.Object {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec}}
}

// TestCompare: what gives addresses outside of the registered ranges is named on the cluster's own
// object, with an Event and the metric, and no more once the ranges have grown.
func TestCompare(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{submarinerv1.AddToScheme, networkingv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range []schema.GroupVersionKind{
		{Group: "crd.projectcalico.org", Version: "v1", Kind: "IPPool"}, {Group: "cilium.io", Version: "v2", Kind: "CiliumNode"},
	} {
		scheme.AddKnownTypeWithName(kind, &unstructured.Unstructured{})
		scheme.AddKnownTypeWithName(kind.GroupVersion().WithKind(kind.Kind+"List"), &unstructured.UnstructuredList{})
	}
	p := netip.MustParsePrefix
	for name, tt := range map[string]struct {
		object client.Object
		want   string // named in the condition; empty: True
	}{
		"the ServiceCIDR of the installation": {&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
			Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.77.0.0/16"}}}, ""},
		"a second ServiceCIDR": {&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"},
			Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.78.0.0/16"}}}, "ServiceCIDR more has 10.78.0.0/16"},
		"another pool":      {custom("crd.projectcalico.org/v1", "IPPool", "more", map[string]any{"cidr": "10.8.0.0/16"}), "IPPool more has 10.8.0.0/16"},
		"a disabled pool":   {custom("crd.projectcalico.org/v1", "IPPool", "more", map[string]any{"cidr": "10.8.0.0/16", "disabled": true}), ""},
		"a pool of tunnels": {custom("crd.projectcalico.org/v1", "IPPool", "more", map[string]any{"cidr": "10.8.0.0/16", "allowedUses": []any{"Tunnel"}}), ""},
		"a CiliumNode": {custom("cilium.io/v2", "CiliumNode", "n9", map[string]any{"ipam": map[string]any{"podCIDRs": []any{"10.9.9.0/24"}}}),
			"CiliumNode n9 has 10.9.9.0/24"},
		"pools of a CiliumNode": {custom("cilium.io/v2", "CiliumNode", "n9", map[string]any{"ipam": map[string]any{"pools": map[string]any{"allocated": []any{
			map[string]any{"pool": "default", "cidrs": []any{"10.9.8.0/24"}}}}}}), "CiliumNode n9 has 10.9.8.0/24"},
	} {
		t.Run(name, func(t *testing.T) {
			own := &submarinerv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "pelago-system", Name: "g1"}, Spec: submarinerv1.ClusterSpec{ClusterID: "g1"}}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(own, tt.object).WithStatusSubresource(own).Build()
			events := record.NewFakeRecorder(5)
			r := newComparer(Options{Registered: Registered{"g1", []netip.Prefix{p("10.7.0.0/16")}, []netip.Prefix{p("10.77.0.0/16")}}, Namespace: "pelago-system"}, c, c, events)
			condition := func() *metav1.Condition {
				t.Helper()
				for range 2 { // the second time nothing changes
					if err := r.compare(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if err := c.Get(t.Context(), client.ObjectKeyFromObject(own), own); err != nil {
					t.Fatal(err)
				}
				return meta.FindStatusCondition(own.Status.Conditions, submarinerv1.ClusterRangesRegistered)
			}
			got := condition()
			if tt.want == "" {
				if got == nil || got.Status != metav1.ConditionTrue || testutil.ToFloat64(r.outgrown) != 0 || len(events.Events) > 0 {
					t.Errorf("condition %+v, %d Events; want it True", got, len(events.Events))
				}
				return
			}
			if got == nil || got.Status != metav1.ConditionFalse || !strings.HasPrefix(got.Message, tt.want) || testutil.ToFloat64(r.outgrown) != 1 {
				t.Fatalf("condition %+v, want it False with %q", got, tt.want)
			}
			if n := len(events.Events); n != 1 {
				t.Errorf("%d Events, want 1", n)
			}
			r.Pods, r.Services = append(r.Pods, p("10.8.0.0/15")), append(r.Services, p("10.78.0.0/16"))
			if got := condition(); got.Status != metav1.ConditionTrue || testutil.ToFloat64(r.outgrown) != 0 {
				t.Errorf("condition %+v after the ranges have grown, want it True", got)
			}
		})
	}
}
