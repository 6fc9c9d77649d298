package main

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/pelago-net/pelago/test/hubset"
)

// errDead is what nobody hears: who asked has been killed.
var errDead = errors.New("who wrote this has been killed")

// errAway is of a server that is cut off.
var errAway = errors.New("this server is cut off")

// trap is a proxy between the product and the API servers of hub and members, and kills pelago-hub
// at one of its writes.
type trap struct {
	mu      sync.Mutex
	ways    []*hubset.Way
	at      int // how many writes are left to that one; 0: none is waited for
	after   bool
	kill    func()
	sprung  string // the write at which it has killed
	when    time.Time
	written int // since set
	away    map[string]bool
}

// cut has a server answer no request of the product, or answer again. Watches that are open stay.
func (t *trap) cut(name string, on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.away == nil {
		t.away = map[string]bool{}
	}
	t.away[name] = on
}

func (t *trap) isAway(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.away[name]
}

// set has kill called at the nth write from now on: before it reaches its server, or after that but
// before its answer does.
func (t *trap) set(n int, after bool, kill func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at, t.after, t.kill, t.sprung, t.written = n, after, kill, "", 0
}

// disarm has nothing killed from now on.
func (t *trap) disarm() { t.set(0, false, nil) }

// state is the write at which it has killed and when, "" if it has not, and how many writes there
// were.
func (t *trap) state() (sprung string, when time.Time, written int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sprung, t.when, t.written
}

// step counts a write, and reports whether it is the one.
func (t *trap) step() (now, after bool, kill func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.written++
	if t.at == 0 {
		return false, false, nil
	}
	t.at--
	return t.at == 0, t.after, t.kill
}

// spring notes that it has killed.
func (t *trap) spring(at string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sprung, t.when = at, time.Now()
}

// counted reports whether a request is a write of propagation: not a read, nothing periodic
// (Leases, Clusters), and no Event.
func counted(r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead || !strings.HasPrefix(r.UserAgent(), "pelago-hub") {
		return false
	}
	for _, part := range []string{"/leases", "/events", "/clusters/"} {
		if strings.Contains(r.URL.Path, part) {
			return false
		}
	}
	return true
}

// through is access to a server past the trap, with the rights of to.
func (t *trap) through(name string, to *rest.Config) (*rest.Config, error) {
	way, err := hubset.NewWay(to, func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) { return t.pass(name, next, r) })
	})
	if err != nil {
		return nil, fmt.Errorf("lay a trap on the way to %s: %w", name, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ways = append(t.ways, way)
	return way.Config, nil
}

// pass lets a request to a server through, unless it is the write at which the trap springs.
func (t *trap) pass(name string, next http.RoundTripper, r *http.Request) (*http.Response, error) {
	if t.isAway(name) {
		return nil, errAway
	}
	if !counted(r) {
		return next.RoundTrip(r)
	}
	now, after, kill := t.step()
	if !now {
		return next.RoundTrip(r)
	}
	if after {
		if response, err := next.RoundTrip(r); err == nil {
			_ = response.Body.Close() // nobody reads the answer
		}
	}
	kill()
	t.spring(name + ": " + r.Method + " " + r.URL.Path)
	return nil, errDead
}

// close ends the ways.
func (t *trap) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, way := range t.ways {
		way.Close()
	}
	t.ways = nil
}

// roundTripper is one as a function.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
