package broker

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

// A hub in a new cluster has another id, until a user names the hub that it replaces; which
// cluster it is does not change.
func TestHubID(t *testing.T) {
	for former, want := range map[string]string{"": "new", "old": "old"} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "new"}}
		if former != "" {
			ns.Annotations = map[string]string{pelagov1alpha1.AnnotationHubID: former}
		}
		c := fake.NewClientBuilder().WithObjects(ns).Build()
		id, err := HubID(t.Context(), c)
		uid, uidErr := ClusterUID(t.Context(), c)
		if err != nil || uidErr != nil || id != want || uid != "new" {
			t.Errorf("annotation %q: id %q, UID %q, %v, %v", former, id, uid, err, uidErr)
		}
	}
	if id, err := HubID(t.Context(), fake.NewClientBuilder().Build()); err == nil {
		t.Errorf("without the namespace: %q", id)
	}
}
