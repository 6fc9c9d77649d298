package node

import (
	"errors"
	"log/slog"
	"net/netip"
	"testing"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
)

// A port block is given up when a sweep that began after the block had left the tables has found no
// flow in it. One that was under way may have read the table before the last flow was opened, and
// one that failed has read nothing.
func TestBlockIsReleasedBySweepBegunLater(t *testing.T) {
	_, objs, _ := leavingBlock()
	block := &objs.PortBlocks[len(objs.PortBlocks)-1]
	d := &Daemon{log: slog.New(slog.DiscardHandler), trigger: make(chan struct{}, 1)}
	released := func() bool { return d.flows.releasable(block, "n1", dataplane.State{}) }
	begin := func() { d.flows.begun, d.flows.sweeping = d.flows.begun+1, true }
	end := func(err error, inUse ...uint16) {
		s := sweep{err: err, stats: loader.SweepStats{InUse: map[dataplane.BlockKey]bool{}}}
		for _, first := range inUse {
			s.stats.InUse[dataplane.BlockKey{Address: netip.MustParseAddr(block.Spec.EgressIP), First: first}] = true
		}
		d.noteSweep(s)
	}
	never := func(when string) {
		t.Helper()
		if released() {
			t.Fatalf("released %s", when)
		}
	}
	begin()
	never("when it has just left the tables")
	end(nil)
	never("by the sweep that was under way")
	begin()
	end(errors.New("no memory"))
	never("by a sweep that failed")
	begin()
	end(nil, uint16(block.Spec.FirstPort))
	never("with a flow")
	begin()
	never("during a sweep")
	end(nil)
	if !released() {
		t.Fatal("not released, although a later sweep has found no flow")
	}
	block.Spec.State = pelagov1alpha1.BlockActive
	never("when the agent does not want it back any more")
	block.Spec.State = pelagov1alpha1.BlockReleasing
	never("by an earlier sweep")
}

// A block that has left the desired tables may still be in the kernel's.
func TestNoBlockIsReleasedBeforeTablesAreWritten(t *testing.T) {
	d, objs, result := leavingBlock()
	for _, written := range []bool{false, true} { // by the sweep before neither
		if got := d.flows.released(objs, result.State, written); len(got) > 0 {
			t.Errorf("tables written: %t; released %s", written, got[0].Name)
		}
	}
	d.flows.begun, d.flows.done = d.flows.begun+1, d.flows.begun+1
	if len(d.flows.released(objs, result.State, true)) != 1 {
		t.Error("not released, although a later sweep has found no flow")
	}
}
