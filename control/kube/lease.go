package kube

import (
	"fmt"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Lease is the lock on a lease, as controller-runtime makes it, and the fence that it opens. identity is who holds it; "": the host's
// name, made unique. renewDeadline is the manager's of that name. cfg must not go through the fence.
func FencedLease(cfg *rest.Config, namespace, name, identity string, renewDeadline time.Duration) (resourcelock.Interface, *Fence, error) {
	if identity == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, nil, fmt.Errorf("name the holder of the lease %s/%s: %w", namespace, name, err)
		}
		identity = host + "_" + string(uuid.NewUUID())
	}
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, namespace, name,
		resourcelock.ResourceLockConfig{Identity: identity}, cfg, renewDeadline)
	if err != nil {
		return nil, nil, fmt.Errorf("prepare the lease %s/%s: %w", namespace, name, err)
	}
	f := NewFence(renewDeadline)
	return f.Lock(lock), f, nil
}
