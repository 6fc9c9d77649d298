package status

import (
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// remembered is how long what discovery says of a kind is believed: somebody may change its CustomResourceDefinition.
const remembered = time.Minute

// kinds knows which kinds have a status subresource. Writing the status of another kind would make a new generation of the
// template, which would be propagated, and so on without end.
type templateKinds struct {
	discovery discovery.ServerResourcesInterface

	mu    sync.Mutex
	known map[schema.GroupVersionKind]known
}

type known struct {
	status bool
	until  time.Time
}

// haveStatus says whether objects of the kind have a status subresource; those of a kind that is not served have none.
func (k *templateKinds) haveStatus(gvk schema.GroupVersionKind, now time.Time) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if last, ok := k.known[gvk]; ok && now.Before(last.until) {
		return last.status, nil
	}
	list, err := k.discovery.ServerResourcesForGroupVersion(gvk.GroupVersion().String())
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("ask the hub for the resources of %s: %w", gvk.GroupVersion(), err)
	}
	status := false
	if err == nil {
		for _, r := range list.APIResources {
			status = status || r.Kind == gvk.Kind && strings.HasSuffix(r.Name, "/status")
		}
	}
	k.known[gvk] = known{status, now.Add(remembered)}
	return status, nil
}

// forget has the next one ask again.
func (k *templateKinds) forget(gvk schema.GroupVersionKind) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.known, gvk)
}
