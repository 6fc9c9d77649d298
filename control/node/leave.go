package node

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/dump"
)

const (
	// still is how long no packet may have passed before a gateway leaves: longer than the probe
	// interval of an idle path plus its round-trip time, because the others learn from probe
	// replies that it is leaving.
	still = 250 * time.Millisecond
	// countInterval is the interval at which the counters are read.
	countInterval = 25 * time.Millisecond
	// longest bounds the wait. On a busy node packets have waited for 5 s in the queues of other
	// processes. kubelet grants the pod 15 s, and an IKE daemon that does ESP itself 10.5 s.
	longest = 10 * time.Second
)

// left tells the wire's own process, if it has one, that this one has ended its use of it.
func (g *gateway) left() error {
	if g.wire == nil {
		return nil
	}
	if leave := g.wire.Capabilities().Leave; leave != nil {
		return leave()
	}
	return nil
}

// leave moves the flows of a gateway to others before its wire, or the wire's keys, end with this
// pod. If wire and keys outlive the pod, or there is no other gateway, it does nothing. The next
// process of the daemon reverts it.
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
	var queues cable.Queues
	if w := d.gateway.wire; w != nil {
		queues = w.Capabilities().Queues
	}
	took, err := quiet(func() (o observation, err error) {
		if o.heard, err = d.heard(snap.State.Peers); err != nil {
			return o, err
		}
		counters, err := d.loader.Counters()
		o.passed = passed(counters)
		if err == nil && queues != nil {
			o.waiting, err = queues.Waiting()
		}
		return o, err
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

// observation is what a gateway that leaves sees of the wire.
type observation struct {
	passed  uint64 // packets until now
	waiting bool   // some wait in the queues of this process
	// since the last probe of the remote gateway that has been silent the longest
	heard time.Duration
}

// heard returns observation.heard. A gateway that has been silent for longest counts as down and is
// ignored.
func (d *Daemon) heard(peers map[netip.Addr]dataplane.Peer) (out time.Duration, err error) {
	paths, err := d.loader.Paths()
	for address, path := range paths {
		if peers[address].Kind == dataplane.PeerGateway && path.Heard < longest {
			out = max(out, path.Heard)
		}
	}
	return out, err
}

// quiet waits until, for the time still, nothing has passed or been queued, and every remote
// gateway has been heard meanwhile: packets that a busy gateway had queued for a tunnel arrive
// before its probe through that tunnel. With several tunnels, one may lag behind. It returns how
// long that took, or longest if it never became quiet. It counts samples rather than time: while
// this process was not scheduled, neither were the packets in it.
func quiet(look func() (observation, error)) (time.Duration, error) {
	begin := time.Now()
	since, looks, before := begin, 0, uint64(0)
	for ; time.Since(begin) < longest; time.Sleep(countInterval) {
		now, err := look()
		if err != nil {
			return time.Since(begin), err
		}
		if looks++; now.waiting || now.passed != before {
			since, looks, before = time.Now(), 0, now.passed
		}
		if looks >= int(still/countInterval) && now.heard < time.Since(since) {
			return time.Since(begin), nil
		}
	}
	return longest, nil
}

// passed counts the packets that the node has switched between overlay and cable.
func passed(counters []dump.Counter) (packets uint64) {
	for _, c := range counters {
		if c.Verdict == "switched" {
			packets += c.Packets
		}
	}
	return packets
}
