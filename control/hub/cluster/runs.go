package cluster

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
)

// do is what runs for a member until ctx ends. config is its own.
type do func(ctx context.Context, cluster string, config *rest.Config)

// runs are the members that the hub works with at the moment. Nothing here waits for a member: a run that is to give way to
// another is waited for by that one.
type runs struct {
	do    do
	every time.Duration   // between two looks which cluster it is
	ctx   context.Context // the hub's; runs end with it
	end   context.CancelFunc

	mu     sync.Mutex
	closed bool
	by     map[string]*run
	all    sync.WaitGroup
}

type run struct {
	reach  reach
	cancel context.CancelFunc // twice does no harm
	ended  chan struct{}
	over   bool // it is to end
}

func newRuns(do do, every time.Duration) *runs {
	ctx, cancel := context.WithCancel(context.Background())
	return &runs{do: do, every: every, ctx: ctx, end: cancel, by: map[string]*run{}}
}

// start runs a member that is reached so; it goes on if it is running like that already. A former run ends first.
func (r *runs) start(cluster string, how reach) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	former := r.by[cluster]
	if r.closed || former != nil && !former.over && reflect.DeepEqual(former.reach, how) {
		return nil
	}
	way, err := how.open()
	if err != nil {
		return err
	}
	r.stopLocked(cluster)
	ctx, cancel := context.WithCancel(r.ctx)
	next := &run{reach: how, cancel: cancel, ended: make(chan struct{})}
	r.by[cluster] = next
	r.all.Go(func() {
		defer close(next.ended)
		defer way.closeAll()
		defer r.forget(cluster, next)
		if former != nil {
			<-former.ended
		}
		var beside sync.WaitGroup
		defer beside.Wait()
		beside.Go(func() { way.watch(ctx, r.every) })
		r.do(ctx, cluster, way.config)
	})
	return nil
}

// stop ends a member's run, soon.
func (r *runs) stop(cluster string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopLocked(cluster)
}

func (r *runs) stopLocked(cluster string) {
	if former := r.by[cluster]; former != nil {
		former.over = true
		former.cancel()
	}
}

// forget takes a run that has ended off the list.
func (r *runs) forget(cluster string, ended *run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ended.cancel()
	if r.by[cluster] == ended {
		delete(r.by, cluster)
	}
}

// NeedLeaderElection: one hub works with the members.
func (r *runs) NeedLeaderElection() bool { return true }

// Start ends all runs when ctx ends, and waits for them.
func (r *runs) Start(ctx context.Context) error {
	<-ctx.Done()
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.end()
	r.all.Wait()
	return nil
}

// keep repeats what failed until ctx ends, after pauses that grow to a minute.
func keep(ctx context.Context, log *slog.Logger, what string, work func(context.Context) error) {
	const longest = time.Minute
	pauses := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 10, Cap: longest}
	next := pauses
	for ctx.Err() == nil {
		began := time.Now()
		err := work(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > longest {
			next = pauses
		}
		pause := next.Step()
		log.Warn("work with a member failed", "what", what, "error", err, "again", pause)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}
