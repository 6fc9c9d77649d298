package member

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/pelago-net/pelago/deploy/manifests"
)

// TestCleanerHasNoProbes: an init container with a probe is refused, which would keep `pelago
// unjoin` from cleaning nodes.
func TestCleanerHasNoProbes(t *testing.T) {
	u, err := cleaner(manifests.MemberOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var d appsv1.DaemonSet
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &d); err != nil {
		t.Fatal(err)
	}
	for _, c := range slices.Concat(d.Spec.Template.Spec.InitContainers, d.Spec.Template.Spec.Containers) {
		if c.LivenessProbe != nil || c.ReadinessProbe != nil {
			t.Errorf("container %s has a probe", c.Name)
		}
	}
}
