package loader

import (
	"fmt"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane/dump"
)

// Counters sums the per-CPU counters and omits rows that are zero.
func (l *Loader) Counters() ([]dump.Counter, error) {
	var out []dump.Counter
	for _, h := range bpf.Hooks() {
		for _, v := range bpf.Verdicts() {
			c, err := l.Counter(h, v)
			if err != nil {
				return nil, err
			}
			if c.Packets > 0 {
				out = append(out, c)
			}
		}
	}
	return out, nil
}

// PortsExhausted counts the packets that found no free port on their way out.
func (l *Loader) PortsExhausted() (uint64, error) {
	c, err := l.Counter(bpf.PelagoHookHOOK_EDGE_OUT, bpf.PelagoVerdictVERDICT_DROP_PORTS_EXHAUSTED)
	return c.Packets, err
}

// Counter returns one counter.
func (l *Loader) Counter(hook bpf.PelagoHook, verdict bpf.PelagoVerdict) (dump.Counter, error) {
	var perCPU []bpf.PelagoCounter
	key := uint32(hook)*uint32(bpf.PelagoCounterLimitCOUNTER_VERDICTS) + uint32(verdict)
	if err := l.objs.Counters2.Lookup(key, &perCPU); err != nil {
		return dump.Counter{}, fmt.Errorf("read map counters: %w", err)
	}
	c := dump.Counter{Hook: hook.String(), Verdict: verdict.String()}
	for _, p := range perCPU {
		c.Packets += p.Packets
		c.Bytes += p.Bytes
	}
	return c, nil
}
