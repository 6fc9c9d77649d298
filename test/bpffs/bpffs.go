// Package bpffs mounts BPF file systems for tests, so that no test pins anything where a running
// node does.
package bpffs

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/test/need"
)

// Mount mounts a bpffs on a new directory and returns that. It ends with the test, which must have
// closed by then what it opened there.
func Mount(t testing.TB) string {
	t.Helper()
	need.Root(t)
	dir := t.TempDir()
	unmount, err := At(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmount(); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// At mounts a bpffs on dir. Links and maps live as long as their pins, so a mount that stays busy
// is an error.
func At(dir string) (unmount func() error, err error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("mount a bpffs as user %d: this test loads eBPF programs, run it as root", os.Geteuid())
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		return nil, fmt.Errorf("mount a bpffs on %s: %w", dir, err)
	}
	return func() error {
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			err := unix.Unmount(dir, 0)
			if err == nil {
				return nil
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("unmount the bpffs %s: %w", dir, err)
			}
		}
	}, nil
}
