package operator

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/api/submariner/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
)

// With a Submariner goes the membership that it has made, under whatever id its spec has by then,
// and no other one.
func TestRemoveSubmariner(t *testing.T) {
	s := runtime.NewScheme()
	must(t, errors.Join(scheme.AddToScheme(s), submarinerv1.AddToScheme(s), v1alpha1.AddToScheme(s)))
	for name, tt := range map[string]struct {
		spec, joined, status, registration string
		edited                             bool // and reconciled before it is deleted
		want                               []string
	}{
		"as specified":                {spec: "c1", joined: "c1", status: "c1", registration: "x", want: []string{"unjoin"}},
		"another id":                  {spec: "c2", joined: "c1", status: "c1", registration: "x", want: []string{"unjoin"}},
		"another id, refused":         {spec: "c2", joined: "c1", status: "c1", registration: "x", edited: true, want: []string{"join", "unjoin"}},
		"failed join":                 {spec: "c1", joined: "c1", status: "c1", registration: "joining", want: []string{"unjoin"}},
		"joined, and not reported":    {spec: "c1", joined: "c1", registration: "joining", want: []string{"unjoin"}},
		"nothing joined":              {spec: "c1", registration: "joining"},
		"joined by a person":          {spec: "c1", joined: "c9", status: "c9"},
		"joined anew by a person":     {spec: "c1", joined: "c9", status: "c1", registration: "x"},
		"joined anew, and reconciled": {spec: "c1", joined: "c9", status: "c1", registration: "x", edited: true, want: []string{"join"}},
	} {
		t.Run(name, func(t *testing.T) {
			sub := &v1alpha1.Submariner{ObjectMeta: metav1.ObjectMeta{Namespace: operatorNamespace, Name: "submariner", Finalizers: []string{v1alpha1.Finalizer}},
				Spec:   v1alpha1.SubmarinerSpec{ClusterID: tt.spec, BrokerK8sApiServer: "hub", BrokerK8sApiServerToken: "t", BrokerK8sCA: "Y2E=", CeIPSecPSK: "cHNr"},
				Status: v1alpha1.SubmarinerStatus{ClusterID: tt.status, Registration: tt.registration}}
			objects := []client.Object{sub}
			if tt.joined != "" {
				data := config.Config{ClusterID: tt.joined, ClusterIndex: 1, Mode: config.ModeSubmariner, CableDriver: config.CableWireGuard, CablePort: 4500, HubID: "h",
					HubServer: "https://h", BrokerNamespace: "b"}.Data()
				for key, value := range map[string]string{config.KeyPodCIDR: "10.7.0.0/16", config.KeyServiceCIDR: "10.8.0.0/16", config.KeyFabricCIDR: "241.0.0.0/8",
					config.KeyGlobalCIDR: "242.0.0.0/16"} {
					data[key] = value
				}
				objects = append(objects, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: config.SystemNamespace, Name: config.ConfigMapName}, Data: data})
			}
			c := fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).WithStatusSubresource(sub).Build()
			var ran []string
			o := &operator{client: c, live: c, namespace: operatorNamespace, failures: newFailures(), applied: map[client.ObjectKey]applied{},
				install: installer{joins: func(membership, bool) error {
					ran = append(ran, "join")
					return errors.New("it has joined under another id")
				}, removes: func() error {
					ran = append(ran, "unjoin")
					return nil
				}}}
			reconciled := func() {
				t.Helper()
				_, err := o.submariner(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(sub)})
				must(t, err)
			}
			if tt.edited {
				reconciled()
			}
			must(t, c.Delete(t.Context(), sub))
			reconciled()
			if diff := cmp.Diff(tt.want, ran); diff != "" {
				t.Errorf("ran -want +got\n%s", diff)
			}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(sub), sub); client.IgnoreNotFound(err) != nil || err == nil {
				t.Errorf("the Submariner stays: %v", err)
			}
		})
	}
}
