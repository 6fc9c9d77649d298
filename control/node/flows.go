package node

import (
	"net/netip"
	"slices"
	"time"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/node/status"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
)

// shortestTimer is the shortest timer of flows in bpf/config.h: ICMP, 60 s.
const shortestTimer = 60 * time.Second

// sweepLimit is the shortest time between two sweeps.
const sweepLimit = time.Second

// flows is what sweeps have found.
type flows struct {
	demand status.Demand
	sweeps int
	inUse  map[dataplane.BlockKey]bool
	// exhausted is the number of flows that had found no port at the last sweep, swept its time.
	exhausted uint64
	swept     time.Time
	// idle is, by releasing block, the number of sweeps when it was first absent from the tables.
	idle map[string]int
}

// sweep removes expired flows and records which port blocks are in use.
func (d *Daemon) sweep() {
	if !d.ready.Load() {
		return
	}
	stats, err := d.loader.Sweep(shortestTimer)
	if err != nil {
		d.log.Error("sweep flows", "error", err)
		return
	}
	d.flows.sweeps++
	d.flows.inUse = stats.InUse
	d.mu.Lock()
	s := d.latest.State
	d.kinds = stats.Kinds
	d.mu.Unlock()
	exhausted, err := d.loader.Counter("edge-out", "drop-ports-exhausted")
	if err != nil {
		d.log.Error("count flows without a port", "error", err)
	}
	d.flows.demand.Update(stats.Crowding, s.Egresses, exhausted.Packets)
	d.flows.exhausted, d.flows.swept = exhausted.Packets, time.Now()
}

// watchPorts sweeps at once when a flow has found no port, so that more blocks are requested within sweepLimit.
func (d *Daemon) watchPorts() {
	if time.Since(d.flows.swept) < sweepLimit {
		return
	}
	exhausted, err := d.loader.Counter("edge-out", "drop-ports-exhausted")
	if err != nil {
		d.log.Error("count flows without a port", "error", err)
		return
	}
	if exhausted.Packets > d.flows.exhausted {
		d.sweep()
		d.wake() // the demand is reported with the next reconcile
	}
}

// released returns the port blocks that the node does not use any more, as they were when it gave them up.
func (f *flows) released(objs tables.Objects, s dataplane.State) []*pelagov1alpha1.PortBlock {
	var out []*pelagov1alpha1.PortBlock
	for i := range objs.PortBlocks {
		if p := &objs.PortBlocks[i]; f.releasable(p, objs.Name, s) {
			out = append(out, p.DeepCopy())
		}
	}
	return out
}

// releasable reports whether a block that the agent wants back is unused: no flow can begin in it, since it is not in the tables, and
// a sweep that began later has found no flow in it.
func (f *flows) releasable(p *pelagov1alpha1.PortBlock, node string, s dataplane.State) bool {
	if p.Spec.Node != node || p.Spec.State != pelagov1alpha1.BlockReleasing || p.Status.Released {
		delete(f.idle, p.Name)
		return false
	}
	ip, err := netip.ParseAddr(p.Spec.EgressIP)
	if err != nil {
		return true
	}
	first := uint16(p.Spec.FirstPort)
	since, seen := f.idle[p.Name]
	if slices.Contains(s.Egresses[ip], first) || !seen {
		if f.idle == nil {
			f.idle = map[string]int{}
		}
		f.idle[p.Name] = f.sweeps
		return false
	}
	return f.sweeps > since && !f.inUse[dataplane.BlockKey{Address: ip, First: first}]
}
