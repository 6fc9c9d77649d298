package binding

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// Namespace is an empty one. Its metadata is all that is read.
func Namespace() *metav1.PartialObjectMetadata {
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return ns
}

// Within is the value of policyv1alpha1.AnnotationClusters of a namespace. A namespace that the
// cache does not show is read from the API server: its first template must not be decided without
// the annotation.
func Within(ctx context.Context, cache, live client.Reader, name string) (string, error) {
	if name == "" {
		return "", nil
	}
	ns := Namespace()
	err := cache.Get(ctx, client.ObjectKey{Name: name}, ns)
	if apierrors.IsNotFound(err) {
		err = live.Get(ctx, client.ObjectKey{Name: name}, ns)
	}
	if client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("read Namespace %s, which may restrict the clusters: %w", name, err)
	}
	return ns.GetAnnotations()[policyv1alpha1.AnnotationClusters], nil
}
