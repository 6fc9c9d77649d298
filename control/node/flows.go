package node

import (
	"errors"
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

// sweepLimit is the shortest time between two sweeps.
const sweepLimit = time.Second

// flows is what sweeps have found.
type flows struct {
	demand status.Demand
	// begun is the number of sweeps begun, done the number of the last that succeeded, which found
	// inUse.
	begun, done int
	sweeping    bool
	inUse       map[dataplane.BlockKey]bool
	// exhausted is the number of flows that had found no port at the last sweep, swept its time.
	exhausted uint64
	swept     time.Time
	// idle is, by releasing block, the number of sweeps begun when it was first absent from the
	// tables.
	idle map[string]int
}

// sweep is the result of one sweep.
type sweep struct {
	stats     loader.SweepStats
	exhausted uint64 // flows that had found no port when it ended
	err       error
}

// beginSweep starts to remove expired flows, unless a sweep is under way. A sweep of a million
// flows takes two seconds, for which the loop must not wait: it also watches the paths.
func (d *Daemon) beginSweep() {
	if !d.ready.Load() || d.flows.sweeping {
		return
	}
	d.flows.begun++
	d.flows.sweeping = true
	go func() {
		var s sweep
		var err error
		s.stats, s.err = d.loader.Sweep(shortestTimer)
		s.exhausted, err = d.exhausted()
		s.err = errors.Join(s.err, err)
		d.swept <- s
	}()
}

// endSweep waits for the sweep that is under way.
func (d *Daemon) endSweep() {
	if d.flows.sweeping {
		d.noteSweep(<-d.swept)
	}
}

// noteSweep records which port blocks are in use. Released blocks and demand are reported with the
// next reconcile.
func (d *Daemon) noteSweep(s sweep) {
	d.flows.sweeping, d.flows.swept = false, time.Now()
	if s.err != nil {
		d.log.Error("sweep flows", "error", s.err)
		return
	}
	d.flows.done, d.flows.inUse, d.flows.exhausted = d.flows.begun, s.stats.InUse, s.exhausted
	d.mu.Lock()
	state := d.latest.State
	d.kinds = s.stats.Kinds
	d.mu.Unlock()
	d.flows.demand.Update(s.stats.Crowding, state.Egresses, s.exhausted)
	d.wake()
}

// exhausted is the number of flows that have found no port.
func (d *Daemon) exhausted() (uint64, error) {
	return d.loader.PortsExhausted()
}

// watchPorts sweeps at once when a flow has found no port, so that more blocks are requested within
// sweepLimit.
func (d *Daemon) watchPorts() {
	if time.Since(d.flows.swept) < sweepLimit {
		return
	}
	exhausted, err := d.exhausted()
	if err != nil {
		d.log.Error("count flows without a port", "error", err)
	}
	if exhausted > d.flows.exhausted {
		d.beginSweep()
	}
}

// released returns the port blocks that the node does not use any more, as they were when it gave
// them up; none unless the tables of s were written.
func (f *flows) released(objs tables.Objects, s dataplane.State, written bool) []*pelagov1alpha1.PortBlock {
	var out []*pelagov1alpha1.PortBlock
	if !written { // the kernel may have any of them, also again
		f.idle = nil
		return nil
	}
	for i := range objs.PortBlocks {
		if p := &objs.PortBlocks[i]; f.releasable(p, objs.Name, s) {
			out = append(out, p.DeepCopy())
		}
	}
	return out
}

// releasable reports whether a block that the agent wants back is unused: no flow can begin in it,
// since it is not in the tables, and a sweep that began later has found no flow in it.
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
		f.idle[p.Name] = f.begun
		return false
	}
	return f.done > since && !f.inUse[dataplane.BlockKey{Address: ip, First: first}]
}
