package loader

import (
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/test/need"
)

// maxStack is MAX_BPF_STACK of the kernel. Kernels before 6.8 round the frame of every function up
// to frameUnit, later ones to less.
const (
	maxStack  = 512
	frameUnit = 32
)

// The frames of every chain of calls fit into the stack on the oldest kernel, which this one need
// not be. The kernel tells the frames in the order of the functions.
func TestStackFitsOldKernels(t *testing.T) {
	need.Root(t)
	if err := CheckKernel(); err != nil {
		t.Fatal(err)
	}
	spec, err := bpf.LoadPelago()
	if err != nil {
		t.Fatal(err)
	}
	functions := map[string][]string{}        // in order, by program
	calls := map[string]map[string][]string{} // by program and function
	for name, p := range spec.Programs {
		calls[name] = map[string][]string{}
		current := ""
		for _, ins := range p.Instructions {
			if s := ins.Symbol(); s != "" && (current == "" || isFunction(p.Instructions, s)) {
				current = s
				functions[name] = append(functions[name], s)
			}
			if ins.IsFunctionCall() {
				calls[name][current] = append(calls[name][current], ins.Reference())
			}
		}
	}
	for name, log := range verifierLogs(t, spec) {
		var frames []int
		for line := range strings.Lines(log) {
			text, ok := strings.CutPrefix(strings.TrimSpace(line), "stack depth ")
			if !ok {
				continue
			}
			for _, f := range strings.Split(text, "+") {
				n, err := strconv.Atoi(f)
				if err != nil {
					t.Fatalf("program %s: %q", name, line)
				}
				frames = append(frames, n)
			}
		}
		if len(frames) != len(functions[name]) {
			t.Fatalf("program %s has %d functions %v and %d frames %v", name, len(functions[name]), functions[name], len(frames), frames)
		}
		size := map[string]int{}
		for i, f := range functions[name] {
			size[f] = (max(frames[i], 1) + frameUnit - 1) / frameUnit * frameUnit
		}
		var deepest func(f string) (int, []string)
		deepest = func(f string) (int, []string) {
			most, chain := 0, []string(nil)
			for _, callee := range calls[name][f] {
				if n, c := deepest(callee); n > most {
					most, chain = n, c
				}
			}
			return size[f] + most, append([]string{f}, chain...)
		}
		n, chain := deepest(functions[name][0])
		t.Logf("program %s needs %d bytes of stack: %s", name, n, strings.Join(chain, " > "))
		if n > maxStack {
			t.Errorf("program %s needs %d bytes of stack, kernels before 6.8 have %d: %s", name, n, maxStack, strings.Join(chain, " > "))
		}
	}
}

// isFunction reports whether a symbol is called, so that it is a function and no jump target.
func isFunction(all asm.Instructions, symbol string) bool {
	for _, ins := range all {
		if ins.IsFunctionCall() && ins.Reference() == symbol {
			return true
		}
	}
	return false
}

// verifierLogs loads the programs with small maps and returns what the verifier tells of each.
func verifierLogs(t *testing.T, spec *ebpf.CollectionSpec) map[string]string {
	t.Helper()
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
	}
	// Without it the verifier removes what the programs of sockets call.
	if err := spec.Variables[bpf.PelagoVarHostNetns].Set(uint64(1)); err != nil {
		t.Fatal(err)
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats, LogSizeStart: 1 << 20}})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	defer c.Close()
	logs := map[string]string{}
	for name, p := range c.Programs {
		logs[name] = p.VerifierLog
	}
	return logs
}
