package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/pelago-net/pelago/control/node/tables"
)

// A node whose daemon starts while the API server is away works from what an earlier process has
// saved on the node, until the API server's own objects have been read. The wire of a gateway may
// have ended with that process, and nothing else can restore it.

const (
	// startTimeout is how long a start waits for the API server's objects before it uses the saved
	// ones. TCP doubles its retransmission timeout while tunnels are down: time lost here is lost
	// twice.
	startTimeout = 2 * time.Second
	// savedLife is how long saved peers are routed without the API server: a cluster that has left
	// meanwhile, or a range that was accepted by mistake, may be what keeps the node from it.
	savedLife = 30 * time.Minute
	// saveInterval is the minimum time between two writes of the file. It grows to saveFactor times
	// the duration of a write, at most maxSaveInterval, so that writes use 1 % of a core.
	saveInterval    = 2 * time.Second
	saveFactor      = 100
	maxSaveInterval = time.Minute
)

// objectSource reads the objects that the tables are derived from: from the API server's cache, or
// before that has synced once, from a file.
type objectSource struct {
	node, namespace string
	cache           cache.Cache
	mapper          meta.RESTMapper
	pods            *podNodes
	changed         func()
	all             []kind // nil before the first request for the API server's versions
	indexed         bool   // EndpointSlices, by Service
	changes         changes
	policies        map[string]*policyInformer // by the name of their definition
	// objs are those that were read last; readAll: no part of them may be used.
	objs    tables.Objects
	readAll bool
	// exposed are the Services of the tables that were read last, by name.
	exposed atomic.Pointer[map[types.NamespacedName]bool]

	file  cacheFile
	saves outbox[tables.Objects] // to file
	// unsaved: the last save has failed.
	unsaved atomic.Bool
	synced  syncer
	// saved is used until the API server's objects have been read; nil then. Of the loop of
	// Daemon.Run.
	saved     *tables.Objects
	since     time.Time   // when it was read
	expired   string      // why some of it is not used
	fromCache atomic.Bool // saved != nil
}

func newObjectSource(opts Options, c cache.Cache, mapper meta.RESTMapper, changed func()) objectSource {
	return objectSource{
		node: opts.NodeName, namespace: opts.Namespace, cache: c, mapper: mapper, changed: changed, readAll: true, pods: newPodNodes(opts.Pods, changed),
		file: cacheFile{path: opts.CacheFile}, saves: newOutbox[tables.Objects](), synced: syncer{done: make(chan struct{})},
	}
}

// syncer retries to read the API server's objects.
type syncer struct {
	done chan struct{} // closed once all have been read
	mu   sync.Mutex
	err  error // of the last attempt
}

// run retries until all objects have been read or ctx ends.
func (s *syncer) run(ctx context.Context, try func(context.Context) error) {
	for {
		err := try(ctx)
		if err == nil {
			close(s.done)
			return
		}
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry/2 + jitter(retry)):
		}
	}
}

// problem returns why the last attempt failed; nil if none has.
func (s *syncer) problem() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// begin returns once there are objects. live is closed once those of the API server have been read;
// until then the saved ones are used. It fails if none exist and the API server returns an
// error; while it does not answer, begin waits.
func (s *objectSource) begin(ctx context.Context, log *slog.Logger) (live <-chan struct{}, err error) {
	go s.synced.run(ctx, s.sync)
	select {
	case <-s.synced.done:
		return s.synced.done, nil
	case <-ctx.Done():
		return nil, ended(ctx)
	case <-time.After(startTimeout):
	}
	objs, at, err := s.file.load(s.node, bootID())
	if err == nil {
		s.saved, s.since = &objs, time.Now()
		s.fromCache.Store(true)
		log.Warn("the API server does not answer: the node works from saved objects",
			"file", s.file.path, "saved", at, "problem", s.synced.problem())
		return s.synced.done, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		log.Error("the saved objects are not used: the node waits for the API server", "error", err)
	}
	if err := s.synced.problem(); err != nil {
		return nil, err
	}
	select {
	case <-s.synced.done:
		return s.synced.done, nil
	case <-ctx.Done():
		return nil, ended(ctx)
	}
}

func ended(ctx context.Context) error {
	return fmt.Errorf("wait for the API server's objects: %w", ctx.Err())
}

// sync begins to watch, and waits until the caches have synced. It may be repeated.
func (s *objectSource) sync(ctx context.Context) error {
	if err := s.watch(ctx); err != nil {
		return err
	}
	if !s.cache.WaitForCacheSync(ctx) {
		return ended(ctx)
	}
	return nil
}

// fromSaved returns the saved objects, without peers once savedLife has passed.
func (s *objectSource) fromSaved(g *gateway) tables.Objects {
	objs := *s.saved
	objs.Answering = g.answering
	if len(objs.Peers) > 0 && time.Since(s.since) > savedLife {
		objs.Peers = nil
		s.expired = fmt.Sprintf("the API server has not answered for %s since the start: the saved routes to other clusters are removed until it does", savedLife)
	}
	return objs
}

// goLive uses the API server's objects from now on and reports whether saved ones were used before.
func (s *objectSource) goLive() bool {
	saved := s.saved != nil
	s.saved, s.expired = nil, ""
	s.fromCache.Store(false)
	return saved
}

// keep writes the newest objects to the file until ctx ends, and then those that still wait.
func (s *objectSource) keep(ctx context.Context, log *slog.Logger) {
	for {
		var began time.Time
		select {
		case <-ctx.Done():
			select {
			case objs := <-s.saves.next:
				s.save(objs, log)
			default:
			}
			return
		case objs := <-s.saves.next:
			began = time.Now()
			s.save(objs, log)
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(max(saveInterval, saveFactor*time.Since(began)), maxSaveInterval)):
		}
	}
}

func (s *objectSource) save(objs tables.Objects, log *slog.Logger) {
	err := s.file.save(objs, bootID())
	s.unsaved.Store(err != nil)
	if err != nil {
		log.Error("save the objects on the node", "error", err)
	}
}
