package node

import (
	"fmt"
	"time"

	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/loader"
)

const (
	// still is how long no packet must have passed until a gateway is left: longer than the interval of probes of an idle path plus
	// its round-trip time, since the others learn of it from replies.
	still = 250 * time.Millisecond
	// countInterval is that of reading the counters.
	countInterval = 25 * time.Millisecond
	// longest bounds the wait. On a busy node packets have waited for 5 s in the queues of other processes. kubelet grants the pod 15 s,
	// and an IKE daemon that does ESP itself 10.5 s.
	longest = 10 * time.Second
)

// left tells the wire's own process, if it has one, that this one has ended its use of it.
func (g *gateway) left() error {
	if w, ok := g.wire.(cable.Outlived); ok {
		return w.Left()
	}
	return nil
}

// leave moves the flows of a gateway to others before its wire, or the keys of it, end with this pod. Where they stay, or there is
// no other gateway, it does nothing. The next process of the daemon reverts it.
func (d *Daemon) leave() error {
	d.mu.Lock()
	snap := d.latest
	d.mu.Unlock()
	if !snap.Gateway || !snap.Fleeting || len(snap.State.Gateways) < 2 {
		return nil
	}
	if err := d.loader.Leave(); err != nil {
		return fmt.Errorf("move the flows to other gateways: %w", err)
	}
	wire, _ := d.gateway.wire.(cable.Queued) // nil: no queue in this process
	took, err := quiet(func() (uint64, bool, error) {
		counters, err := d.loader.Counters()
		if err != nil || wire == nil {
			return passed(counters), false, err
		}
		waiting, err := wire.Waiting()
		return passed(counters), waiting, err
	})
	switch {
	case err != nil:
		return fmt.Errorf("move the flows to other gateways: %w", err)
	case took >= longest:
		d.log.Warn("the wire ends while packets still arrive", "waited", longest)
	default:
		d.log.Info("the flows have moved to other gateways", "took", took)
	}
	return nil
}

// quiet waits until nothing has passed and nothing has been queued for still, and returns how long that took: longest if there was
// always something. look counts what has passed. Samples are counted, not time: while this process was not scheduled, neither were
// the packets in it.
func quiet(look func() (passed uint64, waiting bool, err error)) (time.Duration, error) {
	begin := time.Now()
	looks, before := 0, uint64(0)
	for ; time.Since(begin) < longest; time.Sleep(countInterval) {
		now, waiting, err := look()
		if err != nil {
			return time.Since(begin), err
		}
		if looks++; waiting || now != before {
			looks, before = 0, now
		}
		if looks >= int(still/countInterval) {
			return time.Since(begin), nil
		}
	}
	return longest, nil
}

// passed counts the packets that the node has switched between overlay and cable.
func passed(counters []loader.Counter) (packets uint64) {
	for _, c := range counters {
		if c.Verdict == "switched" {
			packets += c.Packets
		}
	}
	return packets
}
