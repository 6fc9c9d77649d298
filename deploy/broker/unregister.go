package broker

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// Unregister removes everything that the hub holds of a cluster. It needs an administrator's access. Rights go first,
// so that the member cannot write again what is being removed; the entry in the book goes last, so that nobody is
// given the ranges while objects that name them exist.
func Unregister(ctx context.Context, hub client.Client, namespace, clusterID string) error {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Namespace: namespace} }
	for _, obj := range []client.Object{
		&rbacv1.RoleBinding{ObjectMeta: meta(AccountName(clusterID))},
		&rbacv1.RoleBinding{ObjectMeta: meta(tokenRoleName(clusterID))},
		&rbacv1.Role{ObjectMeta: meta(tokenRoleName(clusterID))},
		&corev1.Secret{ObjectMeta: meta(RegistrationName(clusterID))},
		&corev1.ServiceAccount{ObjectMeta: meta(AccountName(clusterID))},
	} {
		if err := client.IgnoreNotFound(hub.Delete(ctx, obj)); err != nil {
			return wrap(err, "delete %s %s at the hub", kind(hub, obj), obj.GetName())
		}
	}
	var errs []error
	for _, obj := range []client.Object{
		&submarinerv1.Endpoint{}, &pelagov1alpha1.ServiceContribution{}, &discoveryv1.EndpointSlice{}, &submarinerv1.Cluster{},
	} {
		err := hub.DeleteAllOf(ctx, obj, client.InNamespace(namespace), client.MatchingLabels{submarinerv1.LabelClusterID: clusterID})
		errs = append(errs, wrap(err, "delete the %s objects of cluster %q at the hub", kind(hub, obj), clusterID))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return Release(ctx, hub, namespace, clusterID)
}
