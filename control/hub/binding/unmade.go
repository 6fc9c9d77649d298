package binding

import (
	"maps"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Unmade knows why clusters have no current Work of a binding. The controller that renders Works
// reports it; the one of statuses writes it into the condition FullyApplied. The zero value is
// ready.
type Unmade struct {
	mu      sync.Mutex
	of      map[client.ObjectKey]map[string]string // by cluster; "": all
	changed []func(client.ObjectKey)
}

// Report replaces the reasons of a binding, by cluster ("": all clusters); none: all Works are
// made.
func (u *Unmade) Report(key client.ObjectKey, reasons map[string]string) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if maps.Equal(u.of[key], reasons) {
		return
	}
	if u.of == nil {
		u.of = map[client.ObjectKey]map[string]string{}
	}
	if u.of[key] = reasons; len(reasons) == 0 {
		delete(u.of, key)
	}
	for _, f := range u.changed {
		f(key)
	}
}

// Of returns the reasons of a binding; the map is not to be changed.
func (u *Unmade) Of(key client.ObjectKey) map[string]string {
	if u == nil {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.of[key]
}

// Follow calls f with each binding whose reasons change. f must not block.
func (u *Unmade) Follow(f func(client.ObjectKey)) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.changed = append(u.changed, f)
}
