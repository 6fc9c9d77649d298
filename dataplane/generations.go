package dataplane

// Generations caches values from one reconcile for the next; values that a reconcile does not use
// are dropped by the one after it. The zero value is empty. It is not safe for concurrent use.
type Generations[K comparable, V any] struct{ former, current map[K]V }

// Begin starts a reconcile.
func (g *Generations[K, V]) Begin() { g.former, g.current = g.current, make(map[K]V, len(g.current)) }

// Former returns a value that the last reconcile used.
func (g *Generations[K, V]) Former(key K) (v V, ok bool) {
	v, ok = g.former[key]
	return v, ok
}

// Put caches a value in this reconcile.
func (g *Generations[K, V]) Put(key K, v V) {
	if g.current == nil {
		g.current = map[K]V{}
	}
	g.current[key] = v
}

// Get returns the cached value, or builds it.
func (g *Generations[K, V]) Get(key K, build func() V) V {
	v, ok := g.current[key]
	if !ok {
		if v, ok = g.former[key]; !ok {
			v = build()
		}
		g.Put(key, v)
	}
	return v
}
