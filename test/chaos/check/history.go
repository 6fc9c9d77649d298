package check

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// History follows the objects in members by their UIDs, and knows since when each of them has been
// wanted. An object may go only because it was not wanted at some instant: Require and Allow define
// what the users request, Seen and Gone what happens.
//
// Controllers may lag behind the users. So a deletion is wrong only if the object was wanted during
// the whole time Lag before it; Lag has to exceed the delay that a pause and a restart cause.
type History struct {
	// Lag is how long ago an instant may be at which the object was not wanted.
	Lag time.Duration

	mu         sync.Mutex
	required   map[Place]time.Time // since when it has been wanted without a break
	alive      map[Place]string    // UID
	wrong      map[Place]bool      // its last end was a violation
	violations []Violation
}

// NewHistory is one in which nothing is wanted and nothing is there.
func NewHistory(lag time.Duration) *History {
	return &History{Lag: lag, required: map[Place]time.Time{}, alive: map[Place]string{}, wrong: map[Place]bool{}}
}

// Allow reports that from now on only what is in wanted must stay. To be called before the request
// that takes the rest away.
func (h *History) Allow(wanted map[Place]Content) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for place := range h.required {
		if _, ok := wanted[place]; !ok {
			delete(h.required, place)
		}
	}
}

// Require reports that all of wanted must stay from now on, once it is there. To be called after
// the request that requests it.
func (h *History) Require(wanted map[Place]Content, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for place := range wanted {
		if _, ok := h.required[place]; !ok {
			h.required[place] = now
		}
	}
}

// RequireAll reports that whatever is there must stay, wanted or not, and has been wanted for ever:
// nothing may be deleted any more.
func (h *History) RequireAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for place := range h.alive {
		h.required[place] = time.Time{}
	}
}

// Settled are those of the places that have been required for longer than those who act may lag.
func (h *History) Settled(wanted map[Place]Content, now time.Time) map[Place]Content {
	h.mu.Lock()
	defer h.mu.Unlock()
	settled := map[Place]Content{}
	for place, content := range wanted {
		if since, ok := h.required[place]; ok && now.Sub(since) > h.Lag {
			settled[place] = content
		}
	}
	return settled
}

// Seen is notified of an object in a member, again and again. Another UID than before means that
// the end of the first was not seen.
func (h *History) Seen(place Place, uid string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if before, ok := h.alive[place]; ok && before != uid {
		h.end(place, before, now)
	}
	if h.wrong[place] {
		delete(h.wrong, place)
		h.violations = append(h.violations, Violation{Recreated, fmt.Sprintf("%s, now with UID %s", place, uid)})
	}
	h.alive[place] = uid
}

// Gone is notified that an object has been deleted.
func (h *History) Gone(place Place, uid string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.alive[place] == uid {
		h.end(place, uid, now)
		delete(h.alive, place)
	}
}

func (h *History) end(place Place, uid string, now time.Time) {
	since, ok := h.required[place]
	if !ok || now.Sub(since) <= h.Lag {
		return
	}
	h.wrong[place] = true
	h.violations = append(h.violations, Violation{Deleted, fmt.Sprintf("%s with UID %s, wanted for %s", place, uid, lasting(since,
		now))})
}

func lasting(since, now time.Time) string {
	if since.IsZero() {
		return "ever"
	}
	return now.Sub(since).Round(time.Second).String()
}

// Violations are those found so far.
func (h *History) Violations() []Violation {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.violations)
}

// Alive is the number of objects that are there.
func (h *History) Alive() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.alive)
}
