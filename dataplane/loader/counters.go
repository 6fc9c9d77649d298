package loader

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane/dump"
)

// Counters sums the per-CPU counters and omits rows that are zero.
func (l *Loader) Counters() ([]dump.Counter, error) {
	var out []dump.Counter
	for h := range l.hooks {
		for v := range l.verdicts {
			c, err := l.counter(h, v)
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

// Counter returns one counter, by the names of its hook and verdict.
func (l *Loader) Counter(hook, verdict string) (dump.Counter, error) {
	h, v := slices.Index(l.hooks, hook), slices.Index(l.verdicts, verdict)
	if h < 0 || v < 0 {
		return dump.Counter{}, fmt.Errorf("read map counters: hook %q or verdict %q is unknown", hook, verdict)
	}
	return l.counter(h, v)
}

func (l *Loader) counter(hook, verdict int) (dump.Counter, error) {
	var perCPU []bpf.PelagoCounter
	key := uint32(hook)*uint32(bpf.PelagoCounterLimitCOUNTER_VERDICTS) + uint32(verdict)
	if err := l.objs.Counters2.Lookup(key, &perCPU); err != nil {
		return dump.Counter{}, fmt.Errorf("read map counters: %w", err)
	}
	c := dump.Counter{Hook: l.hooks[hook], Verdict: l.verdicts[verdict]}
	for _, p := range perCPU {
		c.Packets += p.Packets
		c.Bytes += p.Bytes
	}
	return c, nil
}

// Words returns the names of hooks and verdicts from the BTF of the embedded object, so that C, Go and the metrics use the
// same word: VERDICT_DROP_BAD_TOKEN is "drop-bad-token".
func Words() (hooks, verdicts []string, err error) {
	spec, err := bpf.LoadPelago()
	if err != nil {
		return nil, nil, fmt.Errorf("read the embedded programs: %w", err)
	}
	return words(spec.Types)
}

func words(types *btf.Spec) (hooks, verdicts []string, err error) {
	hooks, err1 := enumWords(types, "hook", "HOOK_")
	verdicts, err2 := enumWords(types, "verdict", "VERDICT_")
	return hooks, verdicts, errors.Join(err1, err2)
}

func enumWords(types *btf.Spec, name, prefix string) ([]string, error) {
	var enum *btf.Enum
	if err := types.TypeByName(name, &enum); err != nil {
		return nil, fmt.Errorf("find enum %s in the embedded types: %w", name, err)
	}
	i := slices.IndexFunc(enum.Values, func(v btf.EnumValue) bool { return v.Name == prefix+"MAX" })
	if i < 0 {
		return nil, fmt.Errorf("enum %s in the embedded types has no %sMAX", name, prefix)
	}
	words := make([]string, enum.Values[i].Value)
	for _, v := range enum.Values {
		if v.Value < uint64(len(words)) {
			words[v.Value] = strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(v.Name, prefix)), "_", "-")
		}
	}
	return words, nil
}
