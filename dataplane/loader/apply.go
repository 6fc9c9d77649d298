package loader

import (
	"errors"
	"fmt"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
)

// Apply makes the maps hold want. It continues after an error, such as a full map, and returns all
// errors joined. It is idempotent.
//
// Settings.Generation is set by Apply, which increments it with every change.
//
// Apply compares with the State of the last call, so want must not be changed afterwards. Before
// the first call, and after an error, it reads the maps.
func (l *Loader) Apply(want dataplane.State) error {
	if err := check(want); err != nil {
		return err
	}
	read := l.have == nil
	if read {
		have, err := l.Read()
		if err != nil {
			return err
		}
		if err := l.removeOrphans(have.Services); err != nil {
			return err
		}
		l.have = &have
	}
	want.Settings.Generation = l.have.Settings.Generation
	unchanged := want.Settings == l.have.Settings
	want.Settings.Generation++
	steps := dataplane.Diff(*l.have, want, l.steps())
	if unchanged && len(steps) == 1 { // that of the generation
		want.Settings.Generation, steps = l.have.Settings.Generation, nil
	}
	var failed failures
	for i := 0; i < len(steps); {
		if services := leadingServices(steps[i:]); len(services) > 0 {
			failed.add(l.writeServices(services))
			i += len(services)
			continue
		}
		failed.add(steps[i].write())
		i++
	}
	failed.add(l.applyPaths(want.Paths()))
	failed.add(l.confirm())
	if err := failed.err(); err != nil {
		l.Refresh()
		return err
	}
	l.have = &want
	if read {
		l.shareTables(want.Services)
	}
	return nil
}

// Refresh makes the next Apply read the maps first, which repairs changes by others.
func (l *Loader) Refresh() { l.have, l.paths = nil, nil }

func check(s dataplane.State) error {
	if n := len(s.Gateways); n > dataplane.MaxGateways {
		return fmt.Errorf("apply state: %d gateways in this cluster, at most %d are supported", n, dataplane.MaxGateways)
	}
	if s.Settings.Gateway && s.Settings.Ready && !s.Settings.CableAddress.IsValid() {
		return errors.New("apply state: a gateway needs an address on the cable")
	}
	for index, gs := range s.Clusters {
		if index >= dataplane.MaxClusters {
			return fmt.Errorf("apply state: cluster index %d, only indexes below %d are supported", index, dataplane.MaxClusters)
		}
		if len(gs) > dataplane.MaxGateways {
			return fmt.Errorf("apply state: %d gateways in cluster %d, at most %d are supported", len(gs), index, dataplane.MaxGateways)
		}
	}
	for key, v := range s.VIPs {
		if len(v.Targets) > dataplane.MaxTargets {
			return fmt.Errorf("apply state: %d clusters serve %s, at most %d are supported", len(v.Targets), key.Address, dataplane.MaxTargets)
		}
		if n := len(v.Slots); n != 0 && n != dataplane.VIPSlots {
			return fmt.Errorf("apply state: ClusterSetIP %s has %d slots, not %d", key.Address, n, dataplane.VIPSlots)
		}
	}
	for ip, first := range s.Egresses {
		if len(first) > dataplane.MaxBlocks {
			return fmt.Errorf("apply state: %d port blocks of egress IP %s, at most %d are supported", len(first), ip, dataplane.MaxBlocks)
		}
		for _, p := range first {
			if err := checkBlock(dataplane.BlockKey{Address: ip, First: p}); err != nil {
				return err
			}
		}
	}
	for key := range s.Blocks {
		if err := checkBlock(key); err != nil {
			return err
		}
	}
	return nil
}

// checkBlock checks that gateways can find the owner of a port by its high byte, and that no port
// below 1024 is in the block, which are reserved (RFC 6335).
func checkBlock(b dataplane.BlockKey) error {
	if b.First < 1024 || b.First%dataplane.BlockPorts != 0 {
		return fmt.Errorf("apply state: the port block %d of egress IP %s does not begin at a multiple of %d from 1024 on", b.First, b.Address, dataplane.BlockPorts)
	}
	return nil
}

func (l *Loader) writeSettings(s dataplane.Settings) error {
	var old bpf.PelagoNodeSettings
	if err := l.objs.Settings.Lookup(uint32(0), &old); err != nil {
		return fmt.Errorf("read map settings: %w", err)
	}
	own := secrets{old.Cookie, old.ProbeMark}
	for own.cookie == 0 || own.probeMark == 0 || own.cookie == own.probeMark || own.cookie == own.probeMark^1 {
		var err error
		if own, err = newSecrets(); err != nil {
			return err
		}
	}
	v := encodeSettings(s, own)
	// An array's value is not replaced in one step: the programs must see Ready after the tokens
	// and secrets it stands for.
	if v.Ready != 0 && old.Ready == 0 {
		v.Ready = 0
		if err := put(l.objs.Settings, uint32(0), v); err != nil {
			return err
		}
		v.Ready = 1
	}
	return put(l.objs.Settings, uint32(0), v)
}
