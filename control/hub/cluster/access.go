package cluster

import (
	"context"
	"errors"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kube"
)

// brokerNamespace holds the ServiceAccounts of members.
const brokerNamespace = "submariner-k8s-broker"

// access are the rights of a pull member at the hub in addition to those of every member: its
// Works, the status of its Cluster, its Lease. A binding follows its role. The Lease is first: RBAC
// cannot restrict the verb create to one name, so the hub creates it.
func access(c *clusterv1alpha1.Cluster) []client.Object {
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			Labels:          map[string]string{submarinerv1.LabelClusterID: c.Name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(c, clusterv1alpha1.GroupVersion.WithKind("Cluster"))},
		}
	}
	account := "cluster-" + c.Name
	name, execution := account+".execution", workv1alpha2.ExecutionNamespace(c.Name)
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: brokerNamespace, Name: account}}
	ref := func(kind string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	may := func(group string, verbs []string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Verbs: verbs, Resources: resources}
	}
	its := func(rule rbacv1.PolicyRule) rbacv1.PolicyRule {
		rule.ResourceNames = []string{c.Name}
		return rule
	}
	type verbs = []string
	works, clusters := workv1alpha1.GroupVersion.Group, clusterv1alpha1.GroupVersion.Group
	return []client.Object{
		&coordinationv1.Lease{ObjectMeta: meta(clusterv1alpha1.SecretNamespace, c.Name)},
		&rbacv1.Role{ObjectMeta: meta(clusterv1alpha1.SecretNamespace, name), Rules: []rbacv1.PolicyRule{
			its(may(coordinationv1.GroupName, verbs{"get", "update"}, "leases")),
		}},
		&rbacv1.RoleBinding{ObjectMeta: meta(clusterv1alpha1.SecretNamespace, name), RoleRef: ref("Role"), Subjects: subjects},
		&rbacv1.Role{ObjectMeta: meta(execution, name), Rules: []rbacv1.PolicyRule{
			may(works, verbs{"get", "list", "watch", "update", "patch"}, "works"),
			may(works, verbs{"get", "update", "patch"}, "works/status", "works/finalizers"),
			may("", verbs{"create", "patch"}, "events"),
		}},
		&rbacv1.RoleBinding{ObjectMeta: meta(execution, name), RoleRef: ref("Role"), Subjects: subjects},
		&rbacv1.ClusterRole{ObjectMeta: meta("", name), Rules: []rbacv1.PolicyRule{
			its(may(clusters, verbs{"get"}, "clusters")),
			its(may(clusters, verbs{"get", "patch"}, "clusters/status")),
			its(may(pelagov1alpha1.ProxyGroup, verbs{"get"}, "clusters/attach")),
			may(pelagov1alpha1.GroupVersion.Group, verbs{"get", "list", "watch"}, "kindrules"),
			may(configv1alpha1.GroupVersion.Group, verbs{"get", "list", "watch"}, "resourceinterpretercustomizations", "resourceinterpreterwebhookconfigurations"),
		}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: meta("", name), RoleRef: ref("ClusterRole"), Subjects: subjects},
	}
}

// syncAccess grants or withdraws the rights of a pull member, in the order of access: it stops at
// the first object of another owner, so that no binding grants what that object holds.
func (r *reconciler) syncAccess(ctx context.Context, c *clusterv1alpha1.Cluster, granted bool) error {
	set := kube.ObjectSet[client.Object]{
		Client: r.client,
		Owns:   func(o client.Object) bool { return metav1.IsControlledBy(o, c) },
		Copy:   copyGrant,
	}
	for _, want := range access(c) {
		var have []client.Object
		o := want.DeepCopyObject().(client.Object)
		err := r.live.Get(ctx, client.ObjectKeyFromObject(want), o)
		if err == nil {
			have = append(have, o)
		}
		switch {
		case client.IgnoreNotFound(err) != nil:
		case granted:
			err = set.Ensure(ctx, have, []client.Object{want})
		default:
			err = set.Prune(ctx, have, nil)
		}
		if errors.Is(err, kube.ErrForeign) {
			err = fmt.Errorf("%w: delete it if it does not go soon", err)
		}
		if err != nil {
			return fmt.Errorf("set the rights of cluster %s: %T %s: %w", c.Name, want, client.ObjectKeyFromObject(want), err)
		}
	}
	return nil
}

// copyGrant copies what an object of access grants. A Lease grants nothing, and its content is the
// agent's.
func copyGrant(dst, src client.Object) {
	switch src := src.(type) {
	case *rbacv1.Role:
		dst.(*rbacv1.Role).Rules = src.Rules
	case *rbacv1.ClusterRole:
		dst.(*rbacv1.ClusterRole).Rules = src.Rules
	case *rbacv1.RoleBinding:
		dst.(*rbacv1.RoleBinding).Subjects = src.Subjects
	case *rbacv1.ClusterRoleBinding:
		dst.(*rbacv1.ClusterRoleBinding).Subjects = src.Subjects
	}
}
