package node

import (
	"net/netip"
	"slices"
	"time"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/node/status"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
)

// shortestTimer is the shortest timer of flows in bpf/config.h: ICMP, 60 s.
const shortestTimer = 60 * time.Second

// flows is what sweeps have found.
type flows struct {
	demand status.Demand
	sweeps int
	inUse  map[dataplane.BlockKey]bool
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
	counters, err := d.loader.Counters()
	if err != nil {
		d.log.Error("read counters", "error", err)
	}
	d.flows.demand.Update(stats.Crowding, s.Egresses, exhausted(counters))
}

// exhausted returns the number of flows that found no port.
func exhausted(counters []loader.Counter) uint64 {
	for _, c := range counters {
		if c.Hook == "edge-out" && c.Verdict == "drop-ports-exhausted" {
			return c.Packets
		}
	}
	return 0
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
