package placement

import (
	"maps"
	"sync"
	"time"
)

// EvictionRates limits how many templates leave each cluster, or return to it, by the generic cell
// rate algorithm.
type EvictionRates struct {
	mu  sync.Mutex
	QPS float64
	of  map[string]*evictionRate
}

// evictionRate is the rate of a cluster: its places are used up until used; given are the times of
// bindings that wait for their place.
type evictionRate struct {
	used  time.Time
	given map[string]time.Time
}

// placeKept is how long a place is kept for a binding that does not use it, and how far ahead
// places are given.
const placeKept = time.Minute

// Take gives a binding a place in the rate of a cluster, and returns how long it has to wait for
// it, or before it asks again; 0: the place is due, and used.
func (r *EvictionRates) Take(cluster, key string, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	rate := r.rate(cluster)
	maps.DeleteFunc(rate.given, func(_ string, at time.Time) bool { return now.Sub(at) > placeKept })
	at, ok := rate.given[key]
	if !ok {
		if rate.used.Before(now) {
			rate.used = now
		}
		each := time.Duration(float64(time.Second) / r.QPS)
		at = rate.used.Add(each - each*time.Duration(max(1, int(r.QPS))))
		if at.Sub(now) > placeKept {
			return placeKept
		}
		rate.used = rate.used.Add(each)
	}
	if at.After(now) {
		rate.given[key] = at
		return at.Sub(now)
	}
	delete(rate.given, key)
	return 0
}

// Keep gives a binding its place back, due now, which it took for a step that is not carried out.
func (r *EvictionRates) Keep(cluster, key string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rate(cluster).given[key] = now
}

// rate is that of a cluster. r.mu is held.
func (r *EvictionRates) rate(cluster string) *evictionRate {
	rate := r.of[cluster]
	if rate == nil {
		if r.of == nil {
			r.of = map[string]*evictionRate{}
		}
		rate = &evictionRate{given: map[string]time.Time{}}
		r.of[cluster] = rate
	}
	return rate
}
