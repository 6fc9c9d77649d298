package lab

import (
	"context"
	"fmt"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
)

// ensureCoreDNS creates the objects of the cluster's DNS. Those that exist stay
// as they are: the Corefile is there to be edited.
func (l *Lab) ensureCoreDNS(ctx context.Context, c Cluster, client kubernetes.Interface) error {
	text, err := render("coredns.yaml", l.values(c, Node{}))
	if err != nil {
		return err
	}
	for document := range strings.SplitSeq(text, "\n---\n") {
		if err := create(ctx, client, document); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("install CoreDNS in %s: %w", c.Name, err)
		}
	}
	return nil
}

// create makes the one object in a YAML document, of the kinds that CoreDNS needs.
func create(ctx context.Context, client kubernetes.Interface, document string) error {
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
	if err != nil {
		return err
	}
	options := metav1.CreateOptions{}
	switch o := object.(type) {
	case *corev1.ServiceAccount:
		_, err = client.CoreV1().ServiceAccounts(o.Namespace).Create(ctx, o, options)
	case *corev1.ConfigMap:
		_, err = client.CoreV1().ConfigMaps(o.Namespace).Create(ctx, o, options)
	case *corev1.Service:
		// Its fixed address is found taken before its name is.
		if _, err := client.CoreV1().Services(o.Namespace).Get(ctx, o.Name, metav1.GetOptions{}); err == nil {
			return nil
		}
		_, err = client.CoreV1().Services(o.Namespace).Create(ctx, o, options)
	case *appsv1.Deployment:
		_, err = client.AppsV1().Deployments(o.Namespace).Create(ctx, o, options)
	case *rbacv1.ClusterRole:
		_, err = client.RbacV1().ClusterRoles().Create(ctx, o, options)
	case *rbacv1.ClusterRoleBinding:
		_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, o, options)
	default:
		err = fmt.Errorf("object of unexpected type %T", object)
	}
	return err
}
