package broker

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// NewClient makes a client for the kinds that lie at the hub.
func NewClient(cfg *rest.Config) (client.Client, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, submarinerv1.AddToScheme, pelagov1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("make a client for the hub: %w", err)
		}
	}
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("reach the hub at %s: %w", cfg.Host, err)
	}
	return c, nil
}

// ClusterUID is the UID of the namespace kube-system, by which a cluster is known whatever it is called.
func ClusterUID(ctx context.Context, c client.Client) (string, error) {
	ns := &corev1.Namespace{}
	if err := c.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, ns); err != nil {
		return "", fmt.Errorf("get namespace %s: %w", metav1.NamespaceSystem, err)
	}
	return string(ns.UID), nil
}

// HubID is the id by which a hub knows what in members is its own: the UID of its namespace kube-system or, in a hub that has taken
// the place of another one (restored into a new cluster), that one's id, which a user has put into the annotation pelago.io/hub-id
// of the namespace.
func HubID(ctx context.Context, hub client.Client) (string, error) {
	ns := &corev1.Namespace{}
	if err := hub.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, ns); err != nil {
		return "", fmt.Errorf("get namespace %s of the hub: %w", metav1.NamespaceSystem, err)
	}
	if former := ns.Annotations[pelagov1alpha1.AnnotationHubID]; former != "" {
		return former, nil
	}
	return string(ns.UID), nil
}
