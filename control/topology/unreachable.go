package topology

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// UnreachableClustersSocket is where it is served, on the node's file system.
const UnreachableClustersSocket = "/run/pelago/verdict.sock"

const (
	// keep is how long a watcher holds on to the last verdict of a server that has gone: a restart
	// of the daemon must not bring an unreachable cluster back.
	keep = 30 * time.Second
	// again is the pause between two attempts to reach the server.
	again = 500 * time.Millisecond
	// patience with a reader that does not read.
	patience = 2 * time.Second
)

// message is one line.
type message struct {
	Dead []string `json:"dead"`
}

// UnreachableClustersServer sends the unreachable clusters to each client.
type UnreachableClustersServer struct {
	mu      sync.Mutex
	dead    []string
	known   bool // Publish was called
	changed chan struct{}
}

// NewUnreachableClustersServer makes a server that sends nothing until the first Publish.
func NewUnreachableClustersServer() *UnreachableClustersServer {
	return &UnreachableClustersServer{changed: make(chan struct{})}
}

// Publish sets which clusters are dead.
func (s *UnreachableClustersServer) Publish(dead []string) {
	dead = slices.Clone(dead)
	slices.Sort(dead)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known && slices.Equal(dead, s.dead) {
		return
	}
	s.dead, s.known = dead, true
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *UnreachableClustersServer) now() (m message, known bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return message{Dead: append([]string{}, s.dead...)}, s.known, s.changed
}

// Run serves on the socket until ctx ends. A socket that an earlier process left is replaced.
func (s *UnreachableClustersServer) Run(ctx context.Context, socket string) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return fmt.Errorf("make the directory of %s: %w", socket, err)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket of an earlier process: %w", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", socket, err)
	}
	if err := os.Chmod(socket, 0o666); err != nil {
		return errors.Join(fmt.Errorf("let others read %s: %w", socket, err), l.Close())
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // closed twice at worst
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept on %s: %w", socket, err)
		}
		wg.Go(func() { s.tell(ctx, c) })
	}
}

// tell writes to one watcher until it goes.
func (s *UnreachableClustersServer) tell(ctx context.Context, c net.Conn) {
	defer c.Close()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		// A watcher sends nothing: however the read ends, it has gone.
		_, _ = c.Read(make([]byte, 1))
	}()
	for {
		m, known, changed := s.now()
		if known {
			line, err := json.Marshal(m)
			if err != nil || c.SetWriteDeadline(time.Now().Add(patience)) != nil {
				return
			}
			if _, err := c.Write(append(line, '\n')); err != nil {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-gone:
			return
		case <-changed:
		}
	}
}

// WatchUnreachableClusters calls set with the first verdict, and whenever the unreachable clusters
// change, until ctx ends. While there is no server the last verdict, also that of a watcher before
// this one, holds for half a minute; then none is dead.
func WatchUnreachableClusters(ctx context.Context, socket string, set func(dead []string), log *slog.Logger) {
	var lost time.Time
	last, heard := []string{}, false
	for logged := false; ctx.Err() == nil; {
		err := watchOnce(ctx, socket, func(dead []string) {
			logged, lost = false, time.Time{}
			if changed := !slices.Equal(dead, last); changed || !heard {
				if changed {
					log.Info("clusters that do not answer", "dead", dead)
				}
				set(dead)
			}
			last, heard = dead, true
		})
		if ctx.Err() != nil {
			return
		}
		if !logged {
			log.Warn("no verdicts on other clusters from this node", "error", err)
			logged = true
		}
		if lost.IsZero() {
			lost = time.Now()
		}
		if (len(last) > 0 || !heard) && time.Since(lost) > keep {
			last, heard = []string{}, true
			set(last)
		}
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
}

func watchOnce(ctx context.Context, socket string, got func([]string)) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() }) // closed twice at worst
	defer stop()
	lines := bufio.NewScanner(c)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return fmt.Errorf("read a verdict: %w", err)
		}
		if m.Dead == nil {
			m.Dead = []string{}
		}
		got(m.Dead)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read verdicts: %w", err)
	}
	return errors.New("the server has gone")
}
