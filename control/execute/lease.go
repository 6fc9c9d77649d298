package execute

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// LeaseDuration is how long an agent that does not renew its Lease still counts as alive; it renews each quarter of it.
const LeaseDuration = 40 * time.Second

const renewTimeout = 5 * time.Second

// renew renews the Lease until ctx ends. It runs beside the probes: a member that hangs does not make its agent look dead.
func (c *Collector) renew(ctx context.Context) {
	lease := &coordinationv1.Lease{}
	said := ""
	for {
		err := c.renewOnce(ctx, lease)
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			c.Log.Warn("lease not renewed: the hub will take the agent for dead", "cluster", c.Cluster, "error", said)
		}
		if err == nil {
			said = ""
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(LeaseDuration / 4):
		}
	}
}

// renewOnce writes the time into the Lease that the hub has made. lease is what stood there after the last renewal, empty if
// that is not known.
func (c *Collector) renewOnce(ctx context.Context, lease *coordinationv1.Lease) error {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	key := client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: c.Cluster}
	for {
		known := lease.ResourceVersion != ""
		if !known {
			if err := c.Hub.Get(ctx, key, lease); apierrors.IsNotFound(err) {
				return fmt.Errorf("read Lease %s: the hub makes it for pull members: has Cluster %s syncMode Pull? %w", key, c.Cluster, err)
			} else if err != nil {
				return fmt.Errorf("read Lease %s: %w", key, err)
			}
		}
		lease.Spec.HolderIdentity = ptr.To(c.Cluster)
		lease.Spec.LeaseDurationSeconds = ptr.To(int32(LeaseDuration / time.Second))
		lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
		err := c.Hub.Update(ctx, lease)
		if err == nil {
			return nil
		}
		*lease = coordinationv1.Lease{}
		if known && (apierrors.IsConflict(err) || apierrors.IsNotFound(err)) {
			continue // somebody else wrote or replaced it: once more, from what is there
		}
		return fmt.Errorf("renew Lease %s: %w", key, err)
	}
}
