package manifests

import (
	"context"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Held returns the Leases whose holders are alive, that is, renew them. renewTime comes from the
// holder's clock, so it is only compared with its own earlier value: if no holder is alive, it
// takes a Lease's duration, 15 s by default, to find out.
func Held(ctx context.Context, c client.Reader, leases ...coordinationv1.Lease) (held []coordinationv1.Lease, err error) {
	duration := func(l coordinationv1.Lease) time.Duration {
		return time.Duration(max(ptr.Deref(l.Spec.LeaseDurationSeconds, 15), 1)) * time.Second
	}
	start := time.Now()
	for {
		leases = slices.DeleteFunc(leases, func(l coordinationv1.Lease) bool {
			return ptr.Deref(l.Spec.HolderIdentity, "") == "" || time.Since(start) > duration(l)
		})
		if len(leases) == 0 {
			return held, nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(duration(leases[0]) / 15):
		}
		var waiting []coordinationv1.Lease
		for _, l := range leases {
			now := coordinationv1.Lease{}
			err := c.Get(ctx, client.ObjectKeyFromObject(&l), &now)
			if client.IgnoreNotFound(err) != nil {
				return nil, fmt.Errorf("get Lease %s/%s: %w", l.Namespace, l.Name, err)
			}
			switch {
			case err != nil || ptr.Deref(now.Spec.HolderIdentity, "") == "": // released
			case now.Spec.RenewTime.Equal(l.Spec.RenewTime):
				waiting = append(waiting, l)
			default:
				held = append(held, now)
			}
		}
		leases = waiting
	}
}
