package node

import (
	"fmt"
	"sync/atomic"
	"time"
)

// stepTimeout is above the longest step of Run: a first reconcile of a large cluster takes seconds.
const stepTimeout = 5 * time.Minute

// heartbeat is when the loop of Run last began a step. Its tickers begin one every few seconds.
type heartbeat struct{ last atomic.Pointer[time.Time] }

func (h *heartbeat) beat() {
	now := time.Now()
	h.last.Store(&now)
}

// Alive returns an error if the loop of Run hangs. While Run waits for its first objects it returns nil, and no step of the
// loop waits for the API server: a restart would not bring that back, and would break a wire that ends in this process.
func (d *Daemon) Alive() error {
	last := d.heart.last.Load()
	if last == nil {
		return nil
	}
	if age := time.Since(*last); age > stepTimeout {
		return fmt.Errorf("the reconcile loop has been in one step for %s", age.Round(time.Second))
	}
	return nil
}
