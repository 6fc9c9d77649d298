package cable

import "time"

// linger is how long what is wanted no longer still takes packets, unless the options say otherwise. It must be longer than others
// take to hear of it, and than the caller of Ensure takes to send elsewhere.
const linger = 30 * time.Second

// parting is what is wanted no longer and still takes packets, and until when.
type parting[K comparable] map[K]time.Time

// keeps says whether k is to stay for now: for as long as linger from the first time it is asked. Then k is forgotten.
func (p parting[K]) keeps(k K, now time.Time, linger time.Duration) bool {
	until, known := p[k]
	if !known {
		until = now.Add(linger)
	}
	if !now.Before(until) {
		delete(p, k)
		return false
	}
	p[k] = until
	return true
}
