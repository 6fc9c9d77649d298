package bpf

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
)

// TestLoad loads every program, so that the verifier of the kernel at hand accepts it.
func TestLoad(t *testing.T) {
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
