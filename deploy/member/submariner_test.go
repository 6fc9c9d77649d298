package member

import (
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/apiserver"
)

func TestRefuseSubmariner(t *testing.T) {
	c, err := manifests.NewClient(apiserver.Start(t))
	if err != nil {
		t.Fatal(err)
	}
	refuse := func() error { return RefuseSubmariner(t.Context(), c, func(string, ...any) {}) }
	if err := refuse(); err != nil {
		t.Errorf("without a Lease: %v", err)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "submariner-operator", Name: "submariner-gateway-lock"},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("gw-1"), LeaseDurationSeconds: ptr.To[int32](2), RenewTime: ptr.To(metav1.NowMicro())}}
	for _, o := range []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: lease.Namespace}}, lease} {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	if err := refuse(); err != nil {
		t.Errorf("with a Lease that nobody renews: %v", err)
	}
	stop := apiserver.Renew(t, c, lease)
	defer stop()
	if err := refuse(); err == nil || !strings.Contains(err.Error(), "gw-1 renews Lease") || !strings.Contains(err.Error(), "subctl uninstall") {
		t.Errorf("with one that is renewed: %v", err)
	}
}
