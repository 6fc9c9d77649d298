package node

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestQuiet(t *testing.T) {
	cases := map[string]struct {
		until, wait time.Duration // packets pass, and wait, so long
		stall       time.Duration // each look takes so long
		silent      time.Duration // so long no probe comes, then they come all the time
		again       bool          // a packet passes with the first probe
		took        time.Duration
	}{
		"nothing passes":        {took: still},
		"the flows move":        {until: 300 * time.Millisecond, took: 300*time.Millisecond + still},
		"packets wait":          {until: 100 * time.Millisecond, wait: 900 * time.Millisecond, took: 900*time.Millisecond + still},
		"it goes on":            {until: time.Hour, took: longest},
		"until the last moment": {until: longest - still/2, took: longest},
		"a busy peer":           {silent: time.Second, took: time.Second},
		"what it had queued":    {until: 100 * time.Millisecond, silent: 3 * time.Second, again: true, took: 3*time.Second + still},
		"a process that stands": {stall: 100 * time.Millisecond, took: still + 10*100*time.Millisecond},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				took, err := quiet(func() (o observation, err error) {
					time.Sleep(c.stall) // in synctest: no time passes
					at := time.Since(begin)
					o.passed, o.waiting = uint64(min(at, c.until)), at < c.wait
					if at < c.silent {
						o.heard = time.Hour
					} else if c.again {
						o.passed++
					}
					return o, nil
				})
				if err != nil || took < c.took-2*countInterval || took > c.took+2*countInterval {
					t.Errorf("took %s, %v; want %s", took, err, c.took)
				}
			})
		})
	}
	broken := errors.New("the map is gone")
	if _, err := quiet(func() (observation, error) { return observation{}, broken }); !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
}
