package deploy

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// RemoveHub removes what HubBase and Hub have installed, except definitions, and everything else in the broker's namespace.
func RemoveHub(ctx context.Context, c client.Client, progress Progress) error {
	objs, err := HubManifests()
	if err != nil {
		return err
	}
	progress("Removing the broker")
	if err := deleteAll(ctx, c, objs, metav1.DeletePropagationBackground); err != nil {
		return err
	}
	return awaitNoNamespace(ctx, c, BrokerNamespace, progress)
}

// RemoveWorkloadsHub removes what Propagation has installed, and what pelago-hub has written for itself; definitions stay. pelago-hub
// must not run outside of the cluster: it would register its APIServices again. In a cluster that is a member as well the system namespace stays.
// The ClusterRole, by which deinit finds a hub, goes last: an interrupted removal can be continued.
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
	if err := deleteAll(ctx, c, objs, metav1.DeletePropagationBackground); err != nil {
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
	if objs, err = (PropagationOptions{}).manifests(); err != nil {
		return err
	}
	for _, u := range split(objs).base {
		if u.GetKind() != "Namespace" || member && u.GetName() == SystemNamespace {
			continue
		}
		if err := deleteAll(ctx, c, []*unstructured.Unstructured{u}, metav1.DeletePropagationBackground); err != nil {
			return err
		}
		if err := awaitNoNamespace(ctx, c, u.GetName(), progress); err != nil {
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
