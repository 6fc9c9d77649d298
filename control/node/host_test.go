package node

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// kernelNotifications are those of one kind: subscribe fails with the errors first, and then with
// none.
type kernelNotifications struct {
	errs       []error
	subscribed atomic.Int32
	updates    atomic.Value // the last subscription's chan int
}

func (k *kernelNotifications) channel() chan int { return k.updates.Load().(chan int) }

func (k *kernelNotifications) subscribe(updates chan<- int, done <-chan struct{}) error {
	k.subscribed.Add(1)
	if len(k.errs) > 0 {
		err := k.errs[0]
		k.errs = k.errs[1:]
		return err
	}
	inner := make(chan int)
	k.updates.Store(inner)
	go func() {
		defer close(updates)
		for {
			select {
			case <-done:
				for range 100 { // read before, more than the channel holds
					updates <- 0
				}
				return
			case u, ok := <-inner:
				if !ok {
					return // ENOBUFS
				}
				updates <- u
			}
		}
	}()
	return nil
}

// What ends notifications of one kind, or prevents them, ends none for good, and leaves no
// goroutine (synctest waits for all).
func TestNotificationsThatEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Daemon{log: slog.New(slog.DiscardHandler), trigger: make(chan struct{}, 1)}
		woken := func() bool {
			synctest.Wait()
			select {
			case <-d.trigger:
				return true
			default:
				return false
			}
		}
		var routes kernelNotifications
		devices := kernelNotifications{errs: []error{errors.New("too many open files"), errors.New("too many open files")}}
		odd := func(u int) bool { return u%2 == 1 }
		ctx, cancel := context.WithCancel(t.Context())
		go d.watchChanges(ctx, subscription(routes.subscribe, odd), subscription(devices.subscribe, odd))
		if synctest.Wait(); routes.subscribed.Load() != 1 || devices.subscribed.Load() != 1 {
			t.Fatalf("subscribed %d and %d times, want once", routes.subscribed.Load(), devices.subscribed.Load())
		}
		time.Sleep(retry + 2*retry)
		if !woken() || devices.subscribed.Load() != 3 {
			t.Fatalf("subscribed %d times; want a third attempt, which succeeds and wakes the daemon", devices.subscribed.Load())
		}
		devices.channel() <- 2
		if woken() {
			t.Error("woken by a change that does not matter")
		}
		devices.channel() <- 1
		if !woken() {
			t.Error("not woken by a change")
		}
		for range 3 {
			close(routes.channel())
			time.Sleep(retry)
			if !woken() {
				t.Fatal("not woken after notifications were lost")
			}
			routes.channel() <- 1
			if !woken() {
				t.Error("not woken by a change of the new subscription")
			}
		}
		if routes.subscribed.Load() != 6 || devices.subscribed.Load() != 6 {
			t.Errorf("subscribed %d and %d times, want 6", routes.subscribed.Load(), devices.subscribed.Load())
		}
		cancel()
	})
}
