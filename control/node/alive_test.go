package node

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Daemon{}
		for range 100 {
			d.heart.beat()
			time.Sleep(sweepEvery)
			if err := d.Alive(); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(stepTimeout)
		if d.Alive() == nil {
			t.Error("alive in one step for more than the timeout")
		}
		d.heart.beat()
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

// TestAliveWithoutAPIServer: a daemon that has waited for its first objects for a day is not restarted.
func TestAliveWithoutAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		d := &Daemon{
			opts: Options{NodeName: "n1"}, mapper: awayMapper{end: ctx.Done()}, cached: cacheFile{path: filepath.Join(t.TempDir(), "none")},
			arrived: arrival{done: make(chan struct{})}, log: slog.New(slog.DiscardHandler),
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
