package bpf

import (
	"errors"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/pelago-net/pelago/test/need"
)

// TestLoad loads every program, so that the verifier of the kernel at hand accepts it.
func TestLoad(t *testing.T) {
	need.Root(t)
	spec, err := LoadPelago()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogSizeStart: 1 << 22}})
	if err != nil {
		var v *ebpf.VerifierError
		if errors.As(err, &v) {
			t.Fatalf("load the programs: %+v", v)
		}
		t.Fatalf("load the programs: %v", err)
	}
	coll.Close()
}

// TestAtomics: the probe has each kind of atomic instruction that the programs have, and this
// kernel accepts it.
func TestAtomics(t *testing.T) {
	need.Root(t)
	if err := HaveAtomics(); err != nil {
		t.Errorf("this kernel, on which the tests run: %+v", err)
	}
	spec, err := LoadPelago()
	if err != nil {
		t.Fatal(err)
	}
	probed := []asm.AtomicOp{asm.AddAtomic, asm.OrAtomic, asm.AndAtomic, asm.FetchAdd, asm.CmpXchg}
	found := map[asm.AtomicOp]bool{}
	for name, p := range spec.Programs {
		for _, i := range p.Instructions {
			if i.OpCode.Mode() == asm.AtomicMode && i.OpCode.Class() == asm.StXClass {
				found[i.OpCode.AtomicOp()] = true
				if !slices.Contains(probed, i.OpCode.AtomicOp()) {
					t.Errorf("%s has %v, which HaveAtomics does not probe: add it, and since when arm64 has it", name, i)
				}
			}
		}
	}
	if len(found) != len(probed) {
		t.Errorf("the programs have %d kinds of atomic instructions, HaveAtomics covers %d", len(found), len(probed))
	}
}
