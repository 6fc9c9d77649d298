package kube

import (
	"strconv"
	"sync"
	"time"
)

// believed is how long a version is waited for. A watch of a server that has too much to do may be ten seconds late. Where the
// version does not come at all the server is not the one that was written to: it has been restored from a backup, and counts from there.
const expectationTTL = 30 * time.Second

// Versions are those of the objects of one kind. The zero value is ready.
type Expectations[K comparable] struct {
	mu sync.Mutex
	of map[K]expectation
}

type expectation struct {
	version string
	at      time.Time
}

// Note remembers the resourceVersion with which the server answered a write.
func (v *Expectations[K]) Expect(key K, version string, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.of == nil {
		v.of = map[K]expectation{}
	}
	v.of[key] = expectation{version, now}
}

// Behind says whether a cache that shows this version has yet to show a later one of ours.
func (v *Expectations[K]) Stale(key K, cached string, now time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	n, ok := v.of[key]
	return ok && OlderVersion(cached, n.version) && now.Sub(n.at) < expectationTTL
}

// Wrote says whether a version that a watch shows is that of our own write: an echo, which tells nothing new.
func (v *Expectations[K]) OwnWrite(key K, version string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	n, ok := v.of[key]
	return ok && version == n.version
}

// Last is when the object was last written; zero if that is not known.
func (v *Expectations[K]) LastWrite(key K) time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.of[key].at
}

// Forget drops what is known of an object that is gone.
func (v *Expectations[K]) Forget(key K) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.of, key)
}

// Older compares two resourceVersions of one object: numbers that count up (KEP-5504). What is no number is not older.
func OlderVersion(a, b string) bool {
	x, errA := strconv.ParseUint(a, 10, 64)
	y, errB := strconv.ParseUint(b, 10, 64)
	return errA == nil && errB == nil && x < y
}
