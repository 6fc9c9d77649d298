package node

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestABurstOfEventsIsOneReconcile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Daemon{trigger: make(chan struct{}, 1)}
		begin := time.Now()
		for i := range 3 {
			time.AfterFunc(time.Duration(i)*settleTime/4, d.wake)
		}
		<-d.trigger
		if !d.settle(t.Context()) || time.Since(begin) != settleTime || len(d.trigger) != 0 {
			t.Errorf("settled after %v with %d events left; want %v and none", time.Since(begin), len(d.trigger), settleTime)
		}
		d.wake() // what comes later is the next reconcile
		if len(d.trigger) != 1 {
			t.Error("an event after the burst is lost")
		}
	})
}

func TestSettlingEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Daemon{trigger: make(chan struct{}, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(settleTime/2, cancel)
		begin := time.Now()
		if d.settle(ctx) || time.Since(begin) != settleTime/2 {
			t.Errorf("waited %v for a context that ended after %v", time.Since(begin), settleTime/2)
		}
	})
}

func TestAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Daemon{}
		for range 100 {
			d.beat()
			time.Sleep(sweepInterval)
			if err := d.Alive(); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(stepTimeout)
		if d.Alive() == nil {
			t.Error("alive in one step for more than the timeout")
		}
		d.beat()
		if err := d.Alive(); err != nil {
			t.Error(err)
		}
	})
}

// awayMapper is one whose API server does not answer.
type awayMapper struct {
	meta.RESTMapper
	end <-chan struct{}
}

func (m awayMapper) RESTMapping(schema.GroupKind, ...string) (*meta.RESTMapping, error) {
	<-m.end
	return nil, errors.New("connection refused")
}

// TestAliveWithoutAPIServer: a daemon that has waited for its first objects for a day is not
// restarted.
func TestAliveWithoutAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		d := &Daemon{
			log: slog.New(slog.DiscardHandler), objects: objectSource{
				node: "n1", mapper: awayMapper{end: ctx.Done()}, file: cacheFile{path: filepath.Join(t.TempDir(), "none")},
				synced: syncer{done: make(chan struct{})},
			},
		}
		ended := make(chan error, 1)
		go func() { ended <- d.Run(ctx) }()
		for range 24 {
			time.Sleep(time.Hour)
			if err := d.Alive(); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		<-ended
	})
}

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }
