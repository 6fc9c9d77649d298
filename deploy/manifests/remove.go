package manifests

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// removeTimeout bounds the wait until the system namespace is gone.
const removeTimeout = 2 * time.Minute

// RemoveHub removes what HubBase and Hub have installed, except definitions, and everything else in
// the broker's namespace.
func RemoveHub(ctx context.Context, c client.Client, progress Progress) error {
	objs, err := HubObjects()
	if err != nil {
		return err
	}
	progress("Removing the broker")
	if err := DeleteAll(ctx, c, objs, metav1.DeletePropagationBackground); err != nil {
		return err
	}
	return AwaitNoNamespace(ctx, c, BrokerNamespace, progress)
}

// RemoveWorkloadsHub removes what Propagation has installed, and what pelago-hub has written for
// itself; definitions stay. pelago-hub must not run outside of the cluster: it would register its
// APIServices again. In a cluster that is a member as well the system namespace stays. The
// ClusterRole, by which deinit finds a hub, goes last: an interrupted removal can be continued.
func RemoveWorkloadsHub(ctx context.Context, c client.Client, member bool, progress Progress) error {
	progress("Removing pelago-hub, its admission policies and rights")
	own := metav1.ObjectMeta{Namespace: SystemNamespace, Name: HubName}
	hub := &appsv1.Deployment{ObjectMeta: own}
	err := client.IgnoreNotFound(c.Delete(ctx, hub, client.PropagationPolicy(metav1.DeletePropagationForeground)))
	if err == nil {
		err = awaitGone(ctx, c, hub)
	}
	if err != nil {
		return fmt.Errorf("delete Deployment %s/%s: %w", own.Namespace, own.Name, err)
	}
	objs, err := propagation(ctx, c)
	if err != nil {
		return err
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: HubName}}
	objs = slices.DeleteFunc(objs, func(u *unstructured.Unstructured) bool {
		return u.GetKind() == "ClusterRole" && u.GetName() == role.Name
	})
	if err := DeleteAll(ctx, c, objs, metav1.DeletePropagationBackground); err != nil {
		return err
	}
	for _, obj := range []client.Object{
		&corev1.Service{ObjectMeta: own}, &coordinationv1.Lease{ObjectMeta: own}, &corev1.Secret{ObjectMeta: own},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: SystemNamespace, Name: HubName + "-proxy"}}, &corev1.ServiceAccount{ObjectMeta: own},
	} {
		if err := c.Delete(ctx, obj); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete %s %s/%s: %w", Kind(c, obj), obj.GetNamespace(), obj.GetName(), err)
		}
	}
	if objs, err = (PropagationOptions{}).objects(); err != nil {
		return err
	}
	namespaces := slices.DeleteFunc(split(objs).base, func(u *unstructured.Unstructured) bool {
		return u.GetKind() != "Namespace" || member && u.GetName() == SystemNamespace
	})
	if err := DeleteAll(ctx, c, namespaces, metav1.DeletePropagationBackground); err != nil {
		return err
	}
	for _, u := range namespaces {
		if err := AwaitNoNamespace(ctx, c, u.GetName(), progress); err != nil {
			return err
		}
	}
	if err := c.Delete(ctx, role); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete ClusterRole %s: %w", role.Name, err)
	}
	return nil
}

// Wrote reports whether our field manager has written fields of an object.
func Wrote(obj client.Object) bool {
	return slices.ContainsFunc(obj.GetManagedFields(), func(m metav1.ManagedFieldsEntry) bool { return m.Manager == Manager })
}

// AwaitNoNamespace waits until a namespace is gone.
func AwaitNoNamespace(ctx context.Context, c client.Client, name string, progress Progress) error {
	progress("Waiting until namespace %s is gone", name)
	if err := awaitGone(ctx, c, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		return fmt.Errorf("wait until namespace %s is gone: %w: see what is left in it with `kubectl -n %s get all`", name, err, name)
	}
	return nil
}

// awaitGone waits until an object does not exist any more.
func awaitGone(ctx context.Context, c client.Client, obj client.Object) error {
	return wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, removeTimeout, true, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(obj), obj)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
}
