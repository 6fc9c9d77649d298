package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// removeTimeout bounds the wait until the system namespace is gone.
const removeTimeout = 2 * time.Minute

// RemoveMember deletes what Member and MemberBase made, but for the CRDs: deleting one deletes all objects of its kind,
// and other software may use them.
func RemoveMember(ctx context.Context, cfg *rest.Config, progress Progress) error {
	c, err := newClient(cfg)
	if err != nil {
		return err
	}
	objs, err := MemberManifests(MemberOptions{})
	if err != nil {
		return err
	}
	progress("Removing workloads and rights")
	slices.Reverse(objs)
	var errs []error
	for _, u := range objs {
		if err := c.Delete(ctx, u, client.PropagationPolicy(metav1.DeletePropagationForeground)); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("delete %s %s: %w", u.GetKind(), name(u), err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	progress("Waiting until namespace %s is gone", SystemNamespace)
	err = wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, removeTimeout, true, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKey{Name: SystemNamespace}, new(corev1.Namespace))
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
	if err != nil {
		return fmt.Errorf("wait until namespace %s is gone: %w: see what is left in it with `kubectl -n %s get all`", SystemNamespace, err, SystemNamespace)
	}
	return nil
}
