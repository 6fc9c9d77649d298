package propagate

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// After a deletion that the watch missed, the last known resourceVersion may be older than that of
// our last write: it must not count as that of the deletion, or what the binding used stays
// reserved (placement.Cache, Forget).
func TestMissedDeletion(t *testing.T) {
	var seen []string
	h := handler(func(before, after client.Object) {
		if after != nil {
			t.Errorf("%v is there", after)
		}
		seen = append(seen, before.GetResourceVersion())
	})
	b := &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b", ResourceVersion: "7"}}
	h.OnDelete(b)
	h.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "ns/b", Obj: b})
	if len(seen) != 2 || seen[0] != "7" || seen[1] != "" || b.ResourceVersion != "7" {
		t.Errorf("resourceVersions %q, the cached object has %s", seen, b.ResourceVersion)
	}
}
