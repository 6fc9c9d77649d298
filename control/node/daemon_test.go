package node

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
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
