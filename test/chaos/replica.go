package main

import (
	"sync"
	"time"

	"github.com/pelago-net/pelago/test/hubset"
)

// restartPause is how long a hub that has ended stays away. A kubelet starts a container again at
// once, the first time.
const restartPause = 100 * time.Millisecond

// replica is a pelago-hub that is started again under its name whenever it ends, as a kubelet or an
// init system does: when it is killed, and also when it ends by itself, as it does when it loses
// its lease.
type replica struct {
	set  *hubset.Set
	name string

	mu      sync.Mutex
	process *hubset.Process
	killed  bool // the end of the process is ours
	ends    int  // by itself
	err     error
	over    chan struct{} // closed: it is not started any more
	done    chan struct{} // closed: nobody waits for its end any more
}

// startReplica starts a pelago-hub for good.
func startReplica(set *hubset.Set, name string) (*replica, error) {
	p, err := set.StartHub(name)
	if err != nil {
		return nil, err
	}
	r := &replica{set: set, name: name, process: p, over: make(chan struct{}), done: make(chan struct{})}
	go r.keep()
	return r, nil
}

// keep starts the process again when it ends, until retire.
func (r *replica) keep() {
	defer close(r.done)
	for {
		p, _ := r.current() // an error ends the loop below
		<-p.Done
		select {
		case <-r.over:
			return
		case <-time.After(restartPause):
		}
		next, err := r.set.StartHub(r.name)
		r.mu.Lock()
		if !r.killed {
			r.ends++
		}
		r.killed = false
		if r.err = err; err == nil {
			r.process = next
		}
		r.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// current is the process of now, or why none exists.
func (r *replica) current() (*hubset.Process, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.process, r.err
}

// kill ends the process by SIGKILL; the next one comes by itself.
func (r *replica) kill() {
	r.mu.Lock()
	p := r.process
	r.killed = r.killed || p.Alive()
	r.mu.Unlock()
	p.Kill()
}

// retire ends the process by SIGKILL, for good. Twice does no harm.
func (r *replica) retire() {
	r.mu.Lock()
	select {
	case <-r.over:
	default:
		close(r.over)
	}
	r.mu.Unlock()
	for {
		r.kill()
		select {
		case <-r.done:
			return
		case <-time.After(restartPause): // a start was under way
		}
	}
}

// ended is how often the process has ended by itself.
func (r *replica) ended() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ends
}
