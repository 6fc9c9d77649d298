package member

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/deploy/manifests"
)

// RefuseSubmariner refuses a cluster in which Submariner's gateway is alive: both would program the
// same routes.
func RefuseSubmariner(ctx context.Context, c client.Reader, progress manifests.Progress) error {
	key := client.ObjectKey{Namespace: "submariner-operator", Name: "submariner-gateway-lock"}
	lease := coordinationv1.Lease{}
	err := c.Get(ctx, key, &lease)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get Lease %s: %w", key, err)
	}
	progress("Waiting to see whether a gateway of Submariner renews Lease %s", key)
	held, err := manifests.Held(ctx, c, lease)
	if err != nil {
		return err
	}
	if len(held) > 0 {
		return fmt.Errorf("another network of clusters, Submariner, runs here (%s renews Lease %s): replace it with `pelago migrate submariner`, or remove it first with `subctl uninstall`",
			ptr.Deref(held[0].Spec.HolderIdentity, ""), key)
	}
	return nil
}
