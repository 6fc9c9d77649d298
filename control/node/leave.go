package node

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/loader"
)

const (
	// still is how long nothing must have come for a gateway to be left: longer than the pause between two probes of an idle
	// path with its round-trip time, since it is in the answers that all hear of it.
	still = 250 * time.Millisecond
	// countEvery is the pause between two looks at the counters.
	countEvery = 25 * time.Millisecond
	// longest is when it ends all the same; kubelet grants the pod 5 s, and an IKE daemon that does ESP itself 2.5 s.
	longest = 2200 * time.Millisecond
)

// end leaves the wire in order.
func (d *Daemon) end() error {
	err := d.leave()
	if w, ok := d.wire.(cable.Outlived); ok {
		err = errors.Join(err, w.Left())
	}
	return err
}

// leave moves the flows of a gateway to others before its wire, or the keys of it, end with this pod. Where they stay, or there is
// no other gateway, it does nothing. The next process of the node's daemon comes back.
func (d *Daemon) leave() error {
	d.mu.Lock()
	snap := d.latest
	d.mu.Unlock()
	if !snap.gateway || !snap.fleeting || len(snap.state.Gateways) < 2 {
		return nil
	}
	if err := d.loader.Leave(); err != nil {
		return fmt.Errorf("leave the flows to other gateways: %w", err)
	}
	wire, _ := d.wire.(cable.Queued) // nil: nothing waits in this process
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
		return fmt.Errorf("leave the flows to other gateways: %w", err)
	case took >= longest:
		d.log.Warn("the wire ends while packets still come", "waited", longest)
	default:
		d.log.Info("the flows have moved to other gateways", "took", took)
	}
	return nil
}

// quiet waits until nothing has passed and nothing has waited for still, and says how long that took: longest if there was always
// something. look counts what has passed. It is the looks that count, not the time: where this process did not get its turn, the
// packets in it did not get theirs.
func quiet(look func() (passed uint64, waiting bool, err error)) (time.Duration, error) {
	begin := time.Now()
	looks, before := 0, uint64(0)
	for ; time.Since(begin) < longest; time.Sleep(countEvery) {
		now, waiting, err := look()
		if err != nil {
			return time.Since(begin), err
		}
		if looks++; waiting || now != before {
			looks, before = 0, now
		}
		if looks >= int(still/countEvery) {
			return time.Since(begin), nil
		}
	}
	return longest, nil
}

// settled says whether a node that has just started does its part: a gateway, once tunnels lead to all remote gateways and one of
// each cluster answers. Whether that one is ready itself does not matter: of two that start at once none would be the first.
func settled(snap snapshot, paths map[netip.Addr]loader.Path) bool {
	if !snap.gateway {
		return true
	}
	if waiting(snap) {
		return false
	}
	for _, gateways := range snap.state.Clusters {
		answers := func(g dataplane.RemoteGateway) bool {
			p := paths[g.Hop.Address]
			return p.Replies > 0 && !p.Suspect()
		}
		if !slices.ContainsFunc(gateways, answers) {
			return false
		}
	}
	return true
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
