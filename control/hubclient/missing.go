package hubclient

import (
	"reflect"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// missingGrace is how long an object that a new list of the hub lacks still counts as present, if
// no event reported its deletion. A hub that was restored from a backup lacks what members have
// written since; they write it again within seconds. Without the grace, peers and imported services
// of that time would be withdrawn until then.
const missingGrace = time.Minute

// missing holds objects that a new list lacked.
type missing struct {
	mu    sync.Mutex
	grace time.Duration
	of    map[reflect.Type]map[client.ObjectKey]missed
}

type missed struct {
	object client.Object
	since  time.Time
}

// add remembers an object that a list lacked without a deletion event, and returns for how long it
// is kept.
func (m *missing) add(obj client.Object, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	kind, key := reflect.TypeOf(obj), client.ObjectKeyFromObject(obj)
	if m.of == nil {
		m.of = map[reflect.Type]map[client.ObjectKey]missed{}
	}
	if m.of[kind] == nil {
		m.of[kind] = map[client.ObjectKey]missed{}
	}
	if _, known := m.of[kind][key]; !known { // several controllers tell
		m.of[kind][key] = missed{obj, now}
	}
	return m.grace
}

// remove forgets an object that an event was about.
func (m *missing) remove(obj client.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.of[reflect.TypeOf(obj)], client.ObjectKeyFromObject(obj))
}

// has reports whether an object is missing.
func (m *missing) has(obj client.Object, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	x, ok := m.of[reflect.TypeOf(obj)][client.ObjectKeyFromObject(obj)]
	return ok && now.Sub(x.since) < m.grace
}

// Present returns pointers to those of the objects that are at the hub, without missing ones: their
// owner creates those again.
func Present[T any, P pointerTo[T]](h *Hub, objects []T) []P {
	now := time.Now()
	var out []P
	for i := range objects {
		if o := P(&objects[i]); !h.missing.has(o, now) {
			out = append(out, o)
		}
	}
	return out
}

// pointerTo is a pointer to a type of objects.
type pointerTo[T any] interface {
	*T
	client.Object
	DeepCopy() *T
}

// withMissing adds the missing objects that match to those of the cache. Those that have been
// missing for too long are forgotten.
func withMissing[T any, P pointerTo[T]](m *missing, items []T, now time.Time, match func(P) bool) []T {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.of[reflect.TypeFor[P]()]
	if len(of) == 0 {
		return items
	}
	present := map[client.ObjectKey]bool{}
	for i := range items {
		present[client.ObjectKeyFromObject(P(&items[i]))] = true
	}
	for key, x := range of {
		if now.Sub(x.since) >= m.grace {
			delete(of, key)
			continue
		}
		if obj := x.object.(P); !present[key] && match(obj) {
			items = append(items, *obj.DeepCopy())
		}
	}
	return items
}
