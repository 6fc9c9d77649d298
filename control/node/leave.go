package node

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/pelago-net/pelago/dataplane/loader"
)

const (
	// heard is how long all take to hear that a gateway leaves: one of its answers to the probes of an idle path, with the
	// round-trip time.
	heard = 250 * time.Millisecond
	// still is how long nothing must have come for a gateway to be left.
	still = 100 * time.Millisecond
	// longest is when it ends all the same; kubelet grants the pod 5 s.
	longest = 2 * time.Second
)

// leave moves the flows of a gateway to others before its wire ends with this process. Where the wire stays, or there is no
// other gateway, it does nothing. The next process of the node's daemon comes back.
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
	time.Sleep(heard)
	before := uint64(0)
	for end := time.Now().Add(longest); time.Now().Before(end); time.Sleep(still) {
		counters, err := d.loader.Counters()
		if err != nil {
			return fmt.Errorf("leave the flows to other gateways: %w", err)
		}
		now := passed(counters)
		if now == before {
			return nil
		}
		before = now
	}
	d.log.Warn("the wire ends while packets still come", "waited", longest)
	return nil
}

// settled says whether a node that has just started does its part: a gateway, once tunnels lead to all remote gateways and one of
// each cluster has answered.
func settled(snap snapshot, paths map[netip.Addr]loader.Path) bool {
	if !snap.gateway {
		return true
	}
	return !waiting(snap) && len(unreachable(snap.state.Clusters, paths)) == 0
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
