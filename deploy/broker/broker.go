// Package broker is the hub's side of a clusterset: the file broker-info.subm, the book of what was
// allocated to which cluster, and the registration of members.
//
// It is used by the command line tool, with the rights of whoever runs it: deploy-broker as the
// hub's administrator, join with the registration credential, unjoin as the administrator again.
// Members never call it. Decisions (Book) are pure; everything else is one or few requests to the
// hub's API server.
package broker

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
)

// Objects in the broker namespace.
const (
	// AllocationConfigMap holds the Book.
	AllocationConfigMap = "submariner-globalnet-info"
	// ClustersetConfigMap holds what all members share.
	ClustersetConfigMap = config.ClustersetConfigMap
	// PSKSecret holds the clusterset's key for IPsec, under the key "psk".
	PSKSecret = "submariner-ipsec-psk"
)

// ClusterUID is the UID of the namespace kube-system, by which a cluster is known whatever it is
// called.
func ClusterUID(ctx context.Context, c client.Client) (string, error) {
	ns, err := kubeSystem(ctx, c)
	return string(ns.UID), err
}

// HubID is the id by which a hub knows what in members is its own: the UID of its namespace
// kube-system or, in a hub that has taken the place of another one (restored into a new cluster),
// that one's id, which a user has put into the annotation pelago.io/hub-id of the namespace.
func HubID(ctx context.Context, hub client.Client) (string, error) {
	ns, err := kubeSystem(ctx, hub)
	if err != nil {
		return "", err
	}
	if former := ns.Annotations[pelagov1alpha1.AnnotationHubID]; former != "" {
		return former, nil
	}
	return string(ns.UID), nil
}

func kubeSystem(ctx context.Context, c client.Client) (*corev1.Namespace, error) {
	ns := &corev1.Namespace{}
	if err := c.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, ns); err != nil {
		return ns, fmt.Errorf("get namespace %s: %w", metav1.NamespaceSystem, err)
	}
	return ns, nil
}

// wrap adds the failed action to an error and returns nil for nil.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}
