package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"
)

// A node whose daemon starts while the API server is away works from what an earlier process has saved on the node, until the
// API server's own objects are there. The wire of a gateway may have ended with that process, and nobody else can restore it.

const (
	// patience is how long a start waits for the API server's objects before it takes those that were saved. TCP doubles its pauses
	// while tunnels are away: what is saved here is saved twice.
	patience = 2 * time.Second
	// saveEvery is the shortest time from one write of the file to the next.
	saveEvery = 2 * time.Second
)

// arrival is the coming of the API server's objects.
type arrival struct {
	done chan struct{} // closed once all are there
	mu   sync.Mutex
	err  error // of the last try
}

// await tries until all objects are there or ctx ends.
func (a *arrival) await(ctx context.Context, try func(context.Context) error) {
	for {
		err := try(ctx)
		if err == nil {
			close(a.done)
			return
		}
		a.mu.Lock()
		a.err = err
		a.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry/2 + jitter(retry)):
		}
	}
}

// problem is why the last try failed; nil if none has.
func (a *arrival) problem() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// begin returns once there are objects to work from. live tells of the coming of the API server's; until it does the node works
// from those that were saved. It fails if there are none and the API server says no; while it says nothing, begin waits.
func (d *Daemon) begin(ctx context.Context) (live <-chan struct{}, err error) {
	go d.arrived.await(ctx, d.sync)
	select {
	case <-d.arrived.done:
		return d.arrived.done, nil
	case <-ctx.Done():
		return nil, ended(ctx)
	case <-time.After(patience):
	}
	objs, at, err := d.cached.load(d.opts.NodeName, bootID())
	if err == nil {
		d.saved = &objs
		d.fromCache.Store(true)
		d.log.Warn("the API server's objects do not come: the node works from those that were saved",
			"file", d.cached.path, "saved", at, "problem", d.arrived.problem())
		return d.arrived.done, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		d.log.Error("the saved objects are not used: the node waits for the API server", "error", err)
	}
	if err := d.arrived.problem(); err != nil {
		return nil, err
	}
	select {
	case <-d.arrived.done:
		return d.arrived.done, nil
	case <-ctx.Done():
		return nil, ended(ctx)
	}
}

func ended(ctx context.Context) error {
	return fmt.Errorf("wait for the API server's objects: %w", ctx.Err())
}

// sync begins to watch, and waits until the caches hold everything. It may be tried again.
func (d *Daemon) sync(ctx context.Context) error {
	if err := d.watch(ctx); err != nil {
		return err
	}
	if !d.cache.WaitForCacheSync(ctx) {
		return ended(ctx)
	}
	return nil
}

// goLive takes the API server's objects, now that they are there, and begins to write to it: asked before, the caches of the
// writers would make pauses of up to a minute. If the node works from saved objects, the next reconcile changes what has changed.
func (d *Daemon) goLive(ctx context.Context) {
	go d.nodes.run(ctx, 0, d.writers.node.write, d.log)
	go d.gateways.run(ctx, 0, d.writers.gateway.write, d.log)
	go d.agents.run(ctx, spread, d.writers.agent.write, d.log)
	if d.saved != nil {
		d.saved = nil
		d.fromCache.Store(false)
		d.log.Info("the API server's objects are there: the node works from them")
	}
	d.wake()
}

// FromCache says whether the node works from saved objects, because the API server is away since the start.
func (d *Daemon) FromCache() bool { return d.fromCache.Load() }

// objects are those that the node works from.
func (d *Daemon) objects(ctx context.Context) (Objects, error) {
	if d.saved != nil {
		objs := *d.saved
		objs.Answering = d.answering
		return objs, nil
	}
	return d.read(ctx)
}

// keep saves what is put into the outbox until ctx ends; what is in it then, too.
func (d *Daemon) keep(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			select {
			case objs := <-d.saves.next:
				d.save(objs)
			default:
			}
			return
		case objs := <-d.saves.next:
			d.save(objs)
		}
		select {
		case <-ctx.Done():
		case <-time.After(saveEvery):
		}
	}
}

func (d *Daemon) save(objs Objects) {
	if err := d.cached.save(objs, bootID()); err != nil {
		d.log.Error("keep a copy of the objects on the node", "error", err)
	}
}
