package migrate

import (
	"context"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestRefuseSubmariner(t *testing.T) {
	lease := func(age time.Duration) *coordinationv1.Lease {
		renewed := metav1.NewMicroTime(time.Now().Add(-age))
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "submariner-operator", Name: "submariner-gateway-lock"},
			Spec: coordinationv1.LeaseSpec{RenewTime: &renewed}}
	}
	ctx := context.Background()
	if err := RefuseSubmariner(ctx, fake.NewClientset()); err != nil {
		t.Errorf("without a lease: %v", err)
	}
	if err := RefuseSubmariner(ctx, fake.NewClientset(lease(time.Hour))); err != nil {
		t.Errorf("with a lease of an hour ago: %v", err)
	}
	if err := RefuseSubmariner(ctx, fake.NewClientset(lease(time.Second))); err == nil || !strings.Contains(err.Error(), "subctl uninstall") {
		t.Errorf("with a live lease: %v", err)
	}
}
