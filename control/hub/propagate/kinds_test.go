package propagate

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/pelago-net/pelago/control/kinds"
)

// servesNothing is an API server without the kinds of a test.
type servesNothing struct {
	discovery.ServerResourcesInterface
}

func (servesNothing) ServerResourcesForGroupVersion(string) (*metav1.APIResourceList, error) {
	return nil, apierrors.NewNotFound(schema.GroupResource{}, "")
}

// A dependency of a kind that is not served wakes the search for kinds once, not on each event.
func TestKindThatIsNotServed(t *testing.T) {
	r := &reconciler{kinds: newKinds(nil, nil, servesNothing{}, nil), order: newOrder(), wake: make(chan struct{}, 1)}
	r.queue = r.order.queue("", nil)
	defer r.queue.ShutDown()
	woken := func(kind string) bool {
		r.addDependent(t.Context(), kinds.DependentReference{APIVersion: "example.com/v1", Kind: kind, Namespace: "shop", Name: "g"})
		select {
		case <-r.wake:
			return true
		default:
			return false
		}
	}
	if !woken("Gadget") {
		t.Error("a new kind is not looked for")
	}
	want := wanted{}
	want.add(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Gadget"})
	if err := r.kinds.set(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if woken("Gadget") {
		t.Error("a kind that is looked for anyway wakes the search")
	}
	if !woken("Gizmo") {
		t.Error("another kind is not looked for")
	}
}
