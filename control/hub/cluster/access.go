package cluster

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// brokerNamespace holds the ServiceAccounts of members.
const brokerNamespace = "submariner-k8s-broker"

// account is the ServiceAccount of a member, in brokerNamespace.
func account(cluster string) string { return "cluster-" + cluster }

// accessName is how the rights of a pull member are called, wherever they are.
func accessName(cluster string) string { return account(cluster) + ".execution" }

// access is what a pull member has at the hub besides what each member has: its Works, the status of its Cluster, its Lease.
// Bindings come after what they bind, the Lease first: it is made here, because a right to create cannot be held to one name.
func access(c *clusterv1alpha1.Cluster) []client.Object {
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			Labels:          map[string]string{submarinerv1.LabelClusterID: c.Name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(c, clusterv1alpha1.GroupVersion.WithKind("Cluster"))},
		}
	}
	name, execution := accessName(c.Name), workv1alpha2.ExecutionNamespace(c.Name)
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: brokerNamespace, Name: account(c.Name)}}
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
			may(pelagov1alpha1.GroupVersion.Group, verbs{"get", "list", "watch"}, "kindrules"),
		}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: meta("", name), RoleRef: ref("ClusterRole"), Subjects: subjects},
	}
}

// give makes the rights of a pull member as they should be.
func (r *reconciler) give(ctx context.Context, c *clusterv1alpha1.Cluster) error {
	for _, want := range access(c) {
		have := want.DeepCopyObject().(client.Object)
		key := client.ObjectKeyFromObject(want)
		switch err := r.live.Get(ctx, key, have); {
		case apierrors.IsNotFound(err):
			if err := r.client.Create(ctx, want); err != nil {
				return fmt.Errorf("give cluster %s its rights: create %T %s: %w", c.Name, want, key, err)
			}
		case err != nil:
			return fmt.Errorf("give cluster %s its rights: read %T %s: %w", c.Name, want, key, err)
		case !metav1.IsControlledBy(have, c):
			return fmt.Errorf("give cluster %s its rights: %T %s is another's: delete it if it does not go soon", c.Name, have, key)
		case !same(have, want):
			want.SetResourceVersion(have.GetResourceVersion())
			if err := r.client.Update(ctx, want); err != nil {
				return fmt.Errorf("give cluster %s its rights: update %T %s: %w", c.Name, want, key, err)
			}
		}
	}
	return nil
}

// withdraw removes the rights of a cluster that is no pull member, or no more, and its Lease.
func (r *reconciler) withdraw(ctx context.Context, c *clusterv1alpha1.Cluster) error {
	for _, o := range access(c) {
		key := client.ObjectKeyFromObject(o)
		if err := r.live.Get(ctx, key, o); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return fmt.Errorf("withdraw the rights of cluster %s: read %T %s: %w", c.Name, o, key, err)
		}
		if !metav1.IsControlledBy(o, c) {
			continue
		}
		if err := r.client.Delete(ctx, o, exactly(o)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("withdraw the rights of cluster %s: delete %T %s: %w", c.Name, o, key, err)
		}
	}
	return nil
}

// same says whether an object grants what it should. A Lease grants nothing, and its content is the agent's.
func same(have, want client.Object) bool {
	switch want := want.(type) {
	case *rbacv1.Role:
		return apiequality.Semantic.DeepEqual(have.(*rbacv1.Role).Rules, want.Rules)
	case *rbacv1.ClusterRole:
		return apiequality.Semantic.DeepEqual(have.(*rbacv1.ClusterRole).Rules, want.Rules)
	case *rbacv1.RoleBinding:
		return apiequality.Semantic.DeepEqual(have.(*rbacv1.RoleBinding).Subjects, want.Subjects)
	case *rbacv1.ClusterRoleBinding:
		return apiequality.Semantic.DeepEqual(have.(*rbacv1.ClusterRoleBinding).Subjects, want.Subjects)
	}
	return true
}
