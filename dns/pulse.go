package dns

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// beatInterval is the read deadline of every socket.
	beatInterval = 5 * time.Second
	// beatTimeout is the age of the last beat above which a socket is reported
	// as not served.
	beatTimeout = 30 * time.Second
	// maxBackoff bounds the pause between failing reads of one socket.
	maxBackoff = time.Second
)

// pulse is the heartbeat of one loop that reads or accepts. The loop sets a
// deadline on its socket and passes every error to failed. The deadline expires
// once per interval on a busy and on an idle socket alike, so the query path
// pays nothing for the heartbeat.
type pulse struct {
	socket string // "udp" or "tcp"
	errors prometheus.Counter
	stop   <-chan struct{} // closed by Server.Close

	// Owned by the loop.
	succeeded bool // since the last deadline
	failures  int  // in a row, since the last deadline

	mu    sync.Mutex
	beat  time.Time
	cause error // of the last failure since that beat
}

func newPulse(socket string, errors prometheus.Counter, stop <-chan struct{}) *pulse {
	return &pulse{socket: socket, errors: errors, stop: stop, beat: time.Now()}
}

// failed handles the error of a read or an accept: it renews an expired
// deadline and backs off after anything else. It reports whether the loop
// continues; only a closed socket ends it.
func (p *pulse) failed(err error, setDeadline func(time.Time) error) bool {
	if errors.Is(err, net.ErrClosed) {
		return false
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		p.mu.Lock()
		// A socket that only fails does not beat: the deadline expires there too.
		if p.succeeded || p.failures == 0 {
			p.beat, p.cause = time.Now(), nil
		}
		p.mu.Unlock()
		p.succeeded, p.failures = false, 0
		// It fails on a closed socket only, and so does the next read.
		_ = setDeadline(time.Now().Add(beatInterval))
		return true
	}
	p.errors.Inc()
	p.mu.Lock()
	p.cause = err
	p.mu.Unlock()
	backoff := time.NewTimer(min(time.Millisecond<<min(p.failures, 10), maxBackoff))
	defer backoff.Stop()
	p.failures++
	select {
	case <-p.stop:
	case <-backoff.C:
	}
	return true
}

// alive returns an error if the loop has not beaten within beatTimeout.
func (p *pulse) alive() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	age := time.Since(p.beat)
	switch {
	case age <= beatTimeout:
		return nil
	case p.cause != nil:
		return fmt.Errorf("a %s socket has failed for %s: %w", p.socket, age.Round(time.Second), p.cause)
	default:
		return fmt.Errorf("a %s socket has not been served for %s", p.socket, age.Round(time.Second))
	}
}
