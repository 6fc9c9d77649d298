package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// programs are the loaded BPF programs of a path by label: name@node.
type programs map[string]*ebpf.Program

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
