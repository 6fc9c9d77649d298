// Package bpf holds the kernel side: the C sources, the compiled object and the Go bindings that
// bpf2go makes of them.
//
// The object is checked in; only `go generate ./bpf` needs clang-16 and llvm-strip-16. The package
// imports cilium/ebpf alone. dataplane/loader loads the object; others use constants only.
package bpf

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

//go:generate go run generate.go

// HaveAtomics is nil if the kernel runs the atomic instructions that the programs use. The verifier
// accepts them from Linux 5.12 on; the compiler (JIT) of arm64 has them from 5.18 on (commit
// 1902472b4fa9), and kernels with BPF_JIT_ALWAYS_ON reject programs that it cannot compile.
func HaveAtomics() error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R0, 0),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord),
		asm.OrAtomic.Mem(asm.RFP, asm.R1, asm.DWord, -8),
		asm.AndAtomic.Mem(asm.RFP, asm.R1, asm.DWord, -8),
		asm.FetchAdd.Mem(asm.RFP, asm.R1, asm.DWord, -8),
		asm.CmpXchg.Mem(asm.RFP, asm.R1, asm.DWord, -8),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	}})
	if err != nil {
		return err
	}
	return p.Close()
}

// HaveConntrack reports whether the kernel, or its module nf_conntrack, has the kfuncs by which
// programs read conntrack (Linux 5.18).
func HaveConntrack() bool {
	has := func(kernel *btf.Spec, err error) bool {
		var f *btf.Func
		return err == nil && kernel.TypeByName("bpf_skb_ct_lookup", &f) == nil && kernel.TypeByName("bpf_ct_release", &f) == nil
	}
	return has(btf.LoadKernelSpec()) || has(btf.LoadKernelModuleSpec("nf_conntrack"))
}
