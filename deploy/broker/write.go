package broker

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// put creates the object or changes what is there, retrying when somebody else was faster.
func put(ctx context.Context, c client.Client, obj client.Object, set func()) error {
	err := retry.OnError(retry.DefaultBackoff, retryable, func() error {
		_, err := controllerutil.CreateOrUpdate(ctx, c, obj, func() error { set(); return nil })
		return err
	})
	return wrap(err, "write %s %s/%s", kind(c, obj), obj.GetNamespace(), obj.GetName())
}

func retryable(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

// wrap adds what was done to an error and leaves nil as it is.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

func kind(c client.Client, obj client.Object) string {
	gvk, err := c.GroupVersionKindFor(obj)
	if err != nil {
		return fmt.Sprintf("%T", obj)
	}
	return gvk.Kind
}
