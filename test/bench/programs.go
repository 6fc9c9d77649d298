package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/test/bench/load"
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

// profile measures the time in BPF programs over a slice of datagrams: by program and run, and of
// all programs by packet.
func (p *path) profile(d time.Duration) (Values, error) {
	var packets float64
	took, err := p.counted(func() error {
		sent, _, err := p.send(d)
		packets = float64(sent.Count + sent.Warmup)
		return err
	})
	out := Values{}
	for label, s := range took {
		// not a program of this path: probes, the other direction
		if float64(s.RunCount) < packets/4 {
			continue
		}
		out[label] = float64(s.Runtime.Nanoseconds()) / float64(s.RunCount)
		out[allPrograms] += float64(s.Runtime.Nanoseconds()) / packets
	}
	return out, err
}

// profileConnections does the same over a slice of connections, by connection.
func (p *path) profileConnections(d time.Duration) (Values, error) {
	var connections float64
	took, err := p.counted(func() error {
		r, err := p.client.do(load.Spec{Role: load.CRR, Addr: p.addr(portEcho), Duration: d})
		connections = float64(r.Count)
		return err
	})
	out := Values{}
	for label, s := range took {
		if float64(s.RunCount) < connections {
			continue
		}
		ns := float64(s.Runtime.Nanoseconds()) / connections
		out[label], out[allPrograms] = ns, out[allPrograms]+ns
	}
	return out, err
}

// counted returns what the kernel counts of each program while do runs. The statistics (bpf(2),
// BPF_ENABLE_STATS) cost some 20 ns a run, part of which they count, so no other figure is measured
// with them on.
func (p *path) counted(do func() error) (took map[string]ebpf.ProgramStats, err error) {
	closer, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return nil, fmt.Errorf("enable BPF statistics: %w", err)
	}
	defer func() { err = errors.Join(err, closer.Close()) }()
	before, err := p.programs.stats()
	if err != nil {
		return nil, err
	}
	if err := do(); err != nil {
		return nil, err
	}
	took, err = p.programs.stats()
	for label, b := range before {
		a := took[label]
		a.RunCount, a.Runtime = a.RunCount-b.RunCount, a.Runtime-b.Runtime
		took[label] = a
	}
	return took, err
}
