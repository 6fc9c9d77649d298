package main

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// programs are loaded BPF programs, by a label that is unique within a path: name@node.
type programs map[string]*ebpf.Program

// programIDs lists the programs that are loaded on this machine.
func programIDs() (map[ebpf.ProgramID]bool, error) {
	ids := map[ebpf.ProgramID]bool{}
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if errors.Is(err, fs.ErrNotExist) {
			return ids, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list BPF programs: %w", err)
		}
		ids[next], id = true, next
	}
}

// add adds the programs of a node that were loaded since before was taken.
func (p programs) add(node string, before map[ebpf.ProgramID]bool) error {
	ids, err := programIDs()
	if err != nil {
		return err
	}
	for id := range ids {
		if before[id] {
			continue
		}
		prog, err := ebpf.NewProgramFromID(id)
		if errors.Is(err, fs.ErrNotExist) { // unloaded since, as feature probes are
			continue
		}
		if err != nil {
			return fmt.Errorf("open BPF program %d: %w", id, err)
		}
		info, err := prog.Info()
		if err != nil {
			return errors.Join(fmt.Errorf("read BPF program %d: %w", id, err), prog.Close())
		}
		p[info.Name+"@"+node] = prog
	}
	return nil
}

// Close releases the programs.
func (p programs) Close() error {
	var errs []error
	for _, prog := range p {
		errs = append(errs, prog.Close())
	}
	return errors.Join(errs...)
}

// stats reads what the kernel has counted of each program.
func (p programs) stats() (map[string]ebpf.ProgramStats, error) {
	out := map[string]ebpf.ProgramStats{}
	for label, prog := range p {
		s, err := prog.Stats()
		if err != nil {
			return nil, fmt.Errorf("read the statistics of BPF program %s: %w", label, err)
		}
		out[label] = *s
	}
	return out, nil
}

// profile measures the time in BPF programs over a slice of datagrams: by program and run, and of all programs by packet.
// The kernel's statistics (bpf(2), BPF_ENABLE_STATS) cost some 20 ns a run, part of which they count, so no other figure
// is measured with them on.
func (p *path) profile(d time.Duration) (perRun Values, perPacket float64, err error) {
	closer, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return nil, 0, fmt.Errorf("enable BPF statistics: %w", err)
	}
	defer func() { err = errors.Join(err, closer.Close()) }()
	before, err := p.programs.stats()
	if err != nil {
		return nil, 0, err
	}
	sent, _, err := p.send(d)
	if err != nil {
		return nil, 0, err
	}
	after, err := p.programs.stats()
	if err != nil {
		return nil, 0, err
	}
	perRun = Values{}
	packets := float64(sent.Count + sent.Warmup)
	for label, a := range after {
		runs, took := a.RunCount-before[label].RunCount, a.Runtime-before[label].Runtime
		if float64(runs) < packets/4 { // not a program of this path: probes, the other direction
			continue
		}
		perRun[label] = float64(took.Nanoseconds()) / float64(runs)
		perPacket += float64(took.Nanoseconds()) / packets
	}
	return perRun, perPacket, nil
}
