package propagate

import (
	"sync"

	"github.com/pelago-net/pelago/control/kube"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// recent holds what was written and the cache does not show yet, by template. Without it the reconcile that the first of two writes
// causes would not know of the second one, and try it again.
type recent[T client.Object] struct {
	mu sync.Mutex
	of map[Key]T
}

// put notes what the API server answered to a write.
func (r *recent[T]) put(k Key, o T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[Key]T{}
	}
	r.of[k] = o
}

// seen says whether a version that the cache shows from now on is that of our own write, which need be remembered no longer.
func (r *recent[T]) seen(k Key, version string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	own, ok := r.of[k]
	if !ok || own.GetResourceVersion() != version {
		return false
	}
	delete(r.of, k)
	return true
}

// drop forgets: a write failed, so what is known is not what is there; or the object is gone.
func (r *recent[T]) drop(k Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.of, k)
}

// latest is the newer one of what was written and what the cache shows; found says whether it shows anything. The result is not to
// be changed if it is not the argument.
func (r *recent[T]) latest(k Key, cached T, found bool) (T, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	own, ok := r.of[k]
	switch {
	case !ok:
		return cached, found
	case found && !kube.OlderVersion(cached.GetResourceVersion(), own.GetResourceVersion()):
		delete(r.of, k)
		return cached, true
	}
	return own, true
}
