package migrate

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// RefuseSubmariner refuses a cluster in which Submariner's gateway is alive: both would program the same routes.
func RefuseSubmariner(ctx context.Context, c kubernetes.Interface) error {
	const namespace, name = "submariner-operator", "submariner-gateway-lock"
	lease, err := c.CoordinationV1().Leases(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get Lease %s/%s: %w", namespace, name, err)
	}
	if renewed := lease.Spec.RenewTime; renewed != nil && time.Since(renewed.Time) < 2*time.Minute {
		return fmt.Errorf("another network of clusters, Submariner, runs here (Lease %s/%s was renewed %s ago): replace it with `pelago migrate submariner`, or remove it first with `subctl uninstall`",
			namespace, name, time.Since(renewed.Time).Round(time.Second))
	}
	return nil
}
